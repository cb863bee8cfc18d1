"""What must hold of the results of one run of tests/gpu/run.py, for the parts that it was asked for.

Each check returns what is wrong, in words; no torch in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpu.machine import SENTINELS

Results = Mapping[str, Any]
Check = Callable[[Results], Iterator[str]]

ZEROER = "zero_pages_kernel"

HELD: Mapping[str, tuple[str, str]] = {
    "recycle, stock": ("stale", "stale"),
    "recycle, switched off": ("stale", "stale"),
    "recycle, patched": ("stale", "zero"),
    "recycle, poison": ("nan", "zero"),
    "recycle, poison without ids": ("nan", "nan"),
}
"""What the states in a recycled block hold before the blocks of a step are cleared, and after it."""

FIRES: Mapping[str, tuple[str, ...]] = {
    "recycle, patched": ("page-zeroer", "mamba-block-ids"),
    "recycle, poison": ("page-zeroer", "mamba-block-ids", "poison"),
    "recycle, poison without ids": ("page-zeroer", "poison"),
    "one token, patched": ("gdn-first-chunk",),
    "one token, whole series": SENTINELS,
}
"""The switches that have something to do in an arm, of those that are on."""

TRACED: Mapping[str, tuple[str, str]] = {
    "traced, switched off": ("tiny-eager", "tiny-switched-off"),
}
"""The profiles that a case takes traces of."""

CAMPAIGNS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "four arms, one artifact": (("none", "mamba-block-ids", "page-zeroer", "mamba-block-ids+page-zeroer"), 2),
    "five artifacts": (tuple(f"artifact-{number}" for number in range(1, 6)), 1),
    "three profiles, traced": (("tiny-eager", "tiny-switched-off", "tiny-eager-four", "tiny-eager-2"), 1),
    "equal legs": (("tiny-20-ms", "tiny-20-ms-2"), 8),
    "a step 5 percent slower": (("tiny-20-ms", "tiny-21-ms"), 8),
}
"""The arms of each comparison, and the runs of each arm. A sweep has its first profile twice."""

LARGEST = 16 << 20
"""Bytes of a trace that is kept."""


def answered(results: Results) -> Iterator[str]:
    """Every engine comes up on a GPU and answers."""
    for name in (*HELD, *(name for name in FIRES if name not in HELD), "one token, stock"):
        arm = results.get(name)
        if arm is None:
            yield f"{name}: did not run"
        elif arm["status"] != 0 or not arm["result"]:
            yield f"{name}: exit status {arm['status']}: {arm.get('log', '')[-300:]}"
        elif arm["result"]["device"] == "cpu":
            yield f"{name}: ran on the CPU"


def states(results: Results) -> Iterator[str]:
    """What a recycled block held is gone where the series clears it, and there where nothing does."""
    for name, (before, after) in HELD.items():
        seen = _result(results, name).get("seen", [])
        recycled = [block for block in seen if block["before"] != "zero"]
        if not recycled:
            yield f"{name}: no block came back, so nothing was shown"
        changes = {(block["cleared"], block["after"]) for block in recycled}
        if recycled and changes != {(before, after)}:
            yield f"{name}: states went {sorted(map(str, changes))}, not {before} to {after}"


def same_answers(results: Results) -> Iterator[str]:
    """Clearing changes no answer of a model that masks what a block held."""
    stock = _result(results, "recycle, stock").get("answers")
    for name in HELD:
        if _result(results, name).get("answers") != stock:
            yield f"{name}: other answers than the stock engine's"


def one_token(results: Results) -> Iterator[str]:
    """A prompt of one token gets its own answer, alone and joining a decode; on the stock tree it does not."""
    for name in ("one token, stock", "one token, patched", "one token, whole series"):
        result = _result(results, name)
        again = [*result.get("after others", []), *result.get("joining", [])]
        equal = sum(answer == result["fresh"] for answer in again)
        expected = 0 if name.endswith("stock") else len(again)
        if not again or equal != expected:
            yield f"{name}: {equal} of {len(again)} answers are those of a fresh block, not {expected}"


def switches(results: Results) -> Iterator[str]:
    """The log says of each switch whether it is on; those on fired, and none of the others."""
    for name, arm in results.items():
        if not isinstance(arm, Mapping) or arm.get("tree") != "patched":
            continue
        for switch, messages in arm["sentinels"].items():
            on = switch in arm["switches"]
            if messages[0] != f"enabled={'true' if on else 'false'}":
                yield f"{name}: {switch} says {messages[0]}"
            if not on and len(messages) > 1:
                yield f"{name}: {switch} is off and says {messages[1]}"
        for switch in FIRES.get(name, ()):
            if "first_fire" not in arm["sentinels"].get(switch, []):
                yield f"{name}: {switch} never fired"
        if unknown := set(SENTINELS) - {"gdn-first-chunk"} - set(arm["sentinels"]):
            yield f"{name}: the log says nothing of {', '.join(sorted(unknown))}"


def kernels(results: Results) -> Iterator[str]:
    """The series' own kernel comes from the kernels layer, without a compile."""
    for name, arm in results.items():
        missed = arm.get("missed", []) if isinstance(arm, Mapping) else []
        if any(ZEROER in kernel for kernel in missed):
            yield f"{name}: {ZEROER} was in no cache"


def blessed(results: Results) -> Iterator[str]:
    """A compile cache is written once; the next process loads it read-only and changes nothing in it."""
    for case, starts in results.get("serving", {"no case": {}}).items():
        cold = starts.get("cold", {})
        if not cold.get("seconds") or cold["saved"] < 1:
            yield f"{case}: the first server wrote no cache: {cold.get('log', '')[-300:]}"
        for name, start in _sealed(starts):
            if not start.get("seconds"):
                yield f"{case}, {name}: never answered: {start.get('log', '')[-300:]}"
            elif start["loaded"] < 1 or start["saved"] != 0:
                yield f"{case}, {name}: loaded {start['loaded']} and saved {start['saved']}"
            elif start["missed when ready"]:
                yield f"{case}, {name}: {start['missed when ready']} kernels were missing before anybody asked"
            if not start.get("unchanged"):
                yield f"{case}, {name}: the cache changed"


def survives(results: Results) -> Iterator[str]:
    """No request ends a service that reports missing kernels: each prompt is answered, and the server lives."""
    for case, starts in results.get("serving", {}).items():
        for name, start in _sealed(starts):
            if name == "refuse":
                continue
            for kind in ("alone", "together"):
                for length, answer in start.get(kind, {"?": {"failed": "not asked"}}).items():
                    if "tokens" not in answer:
                        yield f"{case}, {name}: a prompt of {length} tokens, {kind}: {answer['failed']}"
            if not start.get("alive"):
                yield f"{case}, {name}: the server died"


def covered(results: Results) -> Iterator[str]:
    """After the workload nothing is missing; after one prompt something is, so the prompts show what they must."""
    for case, starts in results.get("serving", {}).items():
        workload = [figures["new"] for figures in starts.get("cold", {}).get("rounds", [])]
        if workload and any(workload[-2:]):
            yield f"{case}: the last rounds brought new kernels: {workload}"
        missing = sum(starts.get("report", {}).get("missed", {}).values())
        if workload and missing:
            yield f"{case}: {missing} kernels were missing after the workload"
        if not workload and not missing:
            yield f"{case}: no kernel was missing, so nothing was shown"


def by_nvllm(results: Results) -> Iterator[str]:
    """`nvllm bless` tries what it compiled and writes a manifest, and `nvllm serve` serves that through the gate."""
    for case in ("blessed", "extended"):
        steps = results.get("blessing", {}).get(case, {})
        yield from _blessed_by(case, steps, "bless")
        yield from _served_by(case, steps, "serve")


def unseen(results: Results) -> Iterator[str]:
    """A blessing by the workload lacks no kernel for other prompts; one by one request lacks some, and answers all."""
    for case, lacks in (("blessed", False), ("extended", True)):
        missing = results.get("blessing", {}).get(case, {}).get("serve", {}).get("missing")
        if missing is not None and bool(missing) != lacks:
            yield f"{case}: lacked {missing or 'nothing'}"


def tampered(results: Results) -> Iterator[str]:
    """A bit of the stored cache that is changed is refused, and nothing is when it is changed back."""
    steps = results.get("blessing", {}).get("blessed", {})
    codes = [refusal["code"] for refusal in steps.get("tampered", {}).get("refusals", [])]
    if codes != ["NV907"]:
        yield f"refused with {codes}"
    if (status := steps.get("tampered: mended", {}).get("status")) != 0:
        yield f"mended: exit status {status}"


def shapes(results: Results) -> Iterator[str]:
    """No bless of a profile with other bounds is rejected; what it blessed lacks no kernel, whatever is asked."""
    for case, steps in results.get("shapes", {"no case": {}}).items():
        yield from _blessed_by(case, steps, "bless")
        yield from _kept_up(case, steps)


GOOD: Mapping[str, bool] = {"loaded": True, "saved": False, "compiles": False, "unchanged": True}
"""What holds of a good trial."""
OF_MANY = {what: right for what, right in GOOD.items() if what != "saved"}
"""The same of a trial of many: the run of 2026-11-26 did not keep whether one saved, for which nvllm rejects it."""


def repeats(results: Results) -> Iterator[str]:
    """No bless of a profile, each from nothing, is rejected; what the last one blessed lacks no kernel."""
    for case, steps in results.get("repeats", {"no case": {}}).items():
        blesses = [step for step in steps if step.startswith("bless ")]
        for step in blesses or ["bless 1"]:
            yield from _blessed_by(case, steps, step, OF_MANY)
        if "serve" in steps:
            yield from _kept_up(case, steps)


def sized(results: Results) -> Iterator[str]:
    """A model of 1.7 billion weights is blessed and served, and lacks no kernel, whatever is asked."""
    steps = results.get("sized", {}).get("blessed", {})
    yield from _blessed_by("blessed", steps, "bless")
    yield from _kept_up("blessed", {"serve": steps.get("serve", {}) | {"wrong": steps.get("drawn", {}).get("wrong")}})


def preempted(results: Results) -> Iterator[str]:
    """Requests that its KV cache has no room for are preempted, computed again, and answered in full."""
    steps = results.get("sized", {}).get("blessed", {})
    counts = [steps.get(step, {}).get("metrics", {}).get("preempted", 0) for step in ("pressed", "pressed again")]
    if not 0 < counts[0] < counts[1]:
        yield f"preempted after each pressure: {counts}"
    for step in ("pressed", "pressed again"):
        if [*steps.get(step, {}).get("answers", {})] != ["whole"]:
            yield f"{step}: answers {steps.get(step, {}).get('answers')}"


GROWN = 1.02
"""How much more memory a process may have after the second pressure than after the drawn requests before it.

The first drawn requests make the engine larger once, by 7 % on an H100: the grammars that they name are compiled.
"""


def flat(results: Results) -> Iterator[str]:
    """After each of these no request holds a block of the KV cache; the last one made no process 2 % larger."""
    steps = results.get("sized", {}).get("blessed", {})
    for step in ("ready", "pressed", "drawn", "pressed again"):
        metrics = steps.get(step, {}).get("metrics", {})
        if any(metrics.get(name) != 0 for name in ("kv in use", "running", "waiting")):
            yield f"{step}: {metrics}"
    memory = [steps.get(step, {}).get("memory", {"processes": {}, "gpu": 0}) for step in ("drawn", "pressed again")]
    first, last = memory
    sizes = [(name, first["processes"].get(name, 0), size) for name, size in last["processes"].items()]
    for name, before, after in (*sizes, ("GPU", first["gpu"], last["gpu"])):
        if not 0 < after <= GROWN * before:
            yield f"{name}: {before} MiB, then {after}"


def _kept_up(case: str, steps: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the serve of CASE in STEPS, whose server was asked requests that are drawn."""
    yield from _served_by(case, steps, "serve")
    served = steps.get("serve", {})
    if missing := served.get("missing"):
        yield f"{case}: lacked {missing}"
    yield from (f"{case}: {wrong}" for wrong in served.get("wrong") or ())


def extension(results: Results) -> Iterator[str]:
    """`nvllm bless --extend` adds the kernels that a blessing lacks."""
    steps = results.get("blessing", {}).get("extended", {})
    yield from _blessed_by("extended", steps, "extend")
    yield from _served_by("extended", steps, "serve extended")
    if missing := steps.get("serve extended", {}).get("missing"):
        yield f"still lacked {missing}"


def adapter(results: Results) -> Iterator[str]:
    """A report names the requests that waited for kernels; `--extend` asks the adapter, which lacks none then."""
    steps = results.get("adapted", {}).get("extended", {})
    for step in ("bless", "extend"):
        yield from _blessed_by("extended", steps, step)
    for step in ("serve", "serve extended"):
        yield from _served_by("extended", steps, step)
    reported, after = (steps.get(step, {}) for step in ("serve", "serve extended"))
    requests = {name for names in reported.get("waited", {}).values() for name in names}
    if not reported.get("missing"):
        yield "no kernel was missing, so nothing was shown"
    if not requests or not all(name.startswith("cmpl-") for name in requests):
        yield f"requests that waited: {sorted(requests)}"
    if missing := after.get("missing"):
        yield f"still lacked {missing}"
    yield from after.get("wrong") or ()


def gated_delta_net(results: Results) -> Iterator[str]:
    """The same for a gated delta net."""
    steps = results.get("blessing", {}).get("gated delta net", {})
    yield from _blessed_by("gated delta net", steps, "bless")
    yield from _served_by("gated delta net", steps, "serve")
    if missing := steps.get("serve", {}).get("missing"):
        yield f"lacked {missing}"


def traced(results: Results) -> Iterator[str]:
    """`nvllm bench --trace` lists kernels of the GPU for both profiles, and compares those that both have."""
    for case, arms in TRACED.items():
        bench = _bench(results, case)
        tables, traces = {each["arm"]: each for each in bench.get("kernels", [])}, bench.get("traces", {})
        if bench.get("status") != 0 or set(tables) != set(arms) or set(traces) != set(arms):
            yield f"{case}: exit status {bench.get('status')}, tables of {sorted(tables)}, traces of {sorted(traces)}"
            continue
        for arm, table in tables.items():
            taken = sum(each["microseconds"] for each in table["kernels"])
            if table["on"] != "gpu" or not 0 < taken <= table["microseconds"] * 1.000001:
                yield f"{case}, {arm}: {taken} of {table['microseconds']} us on the {table['on']}"
            if not 0 < traces[arm]["steps"] <= table["steps"] or traces[arm]["bytes"] > LARGEST:
                yield f"{case}, {arm}: a trace of {traces[arm]['steps']} steps and {traces[arm]['bytes']} bytes"
        names = [{each["name"] for each in table["kernels"]} for table in tables.values()]
        if not bench["common"] or {each["name"] for each in bench["common"]} != names[0] & names[1]:
            yield f"{case}: compared {len(bench['common'])} of the {len(names[0] & names[1])} kernels that both have"


def series_kernel(results: Results) -> Iterator[str]:
    """The kernel of a patch is in the trace with its switch on, and not with it off."""
    on, off = (_kernels(results, "traced, switched off", arm) for arm in TRACED["traced, switched off"])
    if not any(ZEROER in name for name in on):
        yield f"traced, switched off: no {ZEROER} with the switch on"
    if any(ZEROER in name for name in off):
        yield f"traced, switched off: {ZEROER} with the switch off"


def _bench(results: Results, case: str) -> Mapping[str, Any]:
    bench: Mapping[str, Any] = results.get("benching", {}).get(case, {}).get("bench", {})
    return bench


def _kernels(results: Results, case: str, arm: str) -> set[str]:
    """Return the names of the kernels in the trace of ARM in CASE."""
    tables = _bench(results, case).get("kernels", [])
    return {each["name"] for table in tables if table["arm"] == arm for each in table["kernels"]}


def _blessed_by(case: str, steps: Results, step: str, good: Mapping[str, bool] = GOOD) -> Iterator[str]:
    """Yield what is wrong with the bless that is the STEP of CASE, of whose trials all that GOOD says must hold."""
    bless = steps.get(step, {})
    if bless.get("status") != 0 or "manifest" not in bless:
        yield f"{case}, {step}: {_ended(bless)}"
        return
    if not (bless["manifest"]["coverage"] or {}).get("kernels"):
        yield f"{case}, {step}: the manifest names no kernel"
    for trial in bless["manifest"]["trials"]:
        if any(bool(trial[what]) != right for what, right in good.items()):
            yield f"{case}, {step}: trial {trial['number']} is no good one"


def _ended(step: Mapping[str, Any]) -> str:
    """Return how the command of STEP ended, with what it refused for."""
    reasons = dict.fromkeys(f", {each['code']} for: {each['expected']}" for each in step.get("refusals", []))
    return (f"exit status {step['status']}" if "status" in step else "did not end") + "".join(reasons)


def _served_by(case: str, steps: Results, step: str) -> Iterator[str]:
    """Yield what is wrong with the serve that is the STEP of CASE."""
    serve = steps.get(step, {})
    if serve.get("status") != 0 or "gate" not in serve:
        yield f"{case}, {step}: did not serve to its end"
        return
    if serve["gate"] != ["passed"] or serve["loaded"] < 1 or serve["saved"]:
        yield f"{case}, {step}: gate {serve['gate']}, loaded {serve['loaded']}, saved {serve['saved']}"
    failed = [
        length for kind in ("alone", "together") for length, answer in serve[kind].items() if "tokens" not in answer
    ]
    if failed or not serve["alive"]:
        lengths = ", ".join(failed) or "no"
        yield f"{case}, {step}: prompts of {lengths} tokens were not answered; alive: {serve['alive']}"


def torture(results: Results) -> Iterator[str]:
    """No request of the torture ends a server, gets an error of it, changes another answer, or lacks a kernel."""
    servers = results.get("torture", {})
    for name in ("eager", "blessed"):
        server = servers.get(name, {})
        if "requests" not in server:
            yield f"{name}: did not run to its end"
            continue
        if server["requests"] < 2000:
            yield f"{name}: {server['requests']} requests"
        if server["engine ended"] or not server["alive at the end"]:
            yield f"{name}: the server ended {server['engine ended']} times"
        yield from (f"{name}: {kind}: {request}" for kind, request in server["findings"].items())
    blessed = servers.get("blessed", {})
    if not blessed.get("cache unchanged"):
        yield "blessed: the cache has changed"
    if missing := blessed.get("kernels missing"):
        yield f"blessed: lacked {missing}"


def one_artifact(results: Results) -> Iterator[str]:
    """`nvllm ablate` tries two switches in four arms, and all of them load one artifact."""
    case = "four arms, one artifact"
    comparison = _comparison(results, case)
    yield from _tried(results, case)
    loaded = {each["arm"]: each["trees"] for each in comparison.get("artifacts", [])}
    trees = {tree for of_arm in loaded.values() for tree in of_arm}
    if comparison and (len(trees) != 1 or [*loaded] != [*CAMPAIGNS[case][0]] or not all(loaded.values())):
        yield f"{case}: {len(trees)} artifacts, of the arms {', '.join(loaded) or 'none'}"


def five_artifacts(results: Results) -> Iterator[str]:
    """`nvllm ablate --artifacts 5` compiles one key five times, keeps each tree, and starts each."""
    case = "five artifacts"
    comparison = _comparison(results, case)
    yield from _tried(results, case)
    kept = {each["kept"] for each in comparison.get("compiles", []) if each["tree"]}  # trees may be equal, places not
    starts = [len(each["right"]) for each in comparison.get("compiles", [])]
    if comparison and (len(kept) != 5 or starts != [CAMPAIGNS[case][1]] * 5):
        yield f"{case}: {len(kept)} compiles kept, started {starts} times"


def per_token(results: Results) -> Iterator[str]:
    """`nvllm sweep --trace` has for each of three profiles kernels of the GPU and milliseconds a token."""
    case = "three profiles, traced"
    comparison = _comparison(results, case)
    yield from _tried(results, case)
    tables = {each["arm"]: each for each in comparison.get("kernels", [])}
    for arm in CAMPAIGNS[case][0] if comparison else ():
        table = tables.get(arm)
        if table is None:
            yield f"{case}, {arm}: no trace"
            continue
        traces, tokens = table.get("run", 1), table.get("tokens", 0)  # a document leaves its defaults out
        if table["on"] != "gpu" or not table["kernels"]:
            yield f"{case}, {arm}: {traces} traces with {len(table['kernels'])} kernels of the {table['on']}"
        elif not tokens or table["microseconds"] <= 0:
            yield f"{case}, {arm}: no milliseconds a token: {table['microseconds']} us, {tokens} tokens"


def equal_legs(results: Results) -> Iterator[str]:
    """`nvllm bench` finds a profile neutral against itself."""
    yield from _decided(results, "equal legs", "neutral")


def slower_step(results: Results) -> Iterator[str]:
    """`nvllm bench` finds a loss where each step takes 5 % longer."""
    yield from _decided(results, "a step 5 percent slower", "loss")


def _decided(results: Results, case: str, finding: str) -> Iterator[str]:
    """Yield what is wrong with the bench of two arms that is CASE, which has to come to FINDING."""
    yield from _tried(results, case)
    comparison = _comparison(results, case)
    decided = [each["finding"] for each in comparison.get("findings", [])]
    if comparison and decided != [finding]:
        yield f"{case}: {', '.join(decided) or 'no finding'}, not {finding}"


def _comparison(results: Results, case: str) -> Mapping[str, Any]:
    """Return what was kept of the comparison of CASE; nothing, if it came to none."""
    step: Mapping[str, Any] = results.get("campaigns", {}).get(case, {}).get("campaign", {})
    return step if "arms" in step else {}


def _tried(results: Results, case: str) -> Iterator[str]:
    """Yield what is wrong with the legs of CASE: each run of each arm has to pass, and the command to end well."""
    steps = results.get("campaigns", {}).get(case)
    if steps is None:
        yield f"{case}: did not run"
        return
    step = steps.get("campaign", {})
    if step.get("status") != 0 or "arms" not in step:
        yield f"{case}: {_ended(step)}{'' if 'arms' in step else ', no comparison'}{broken_by(steps)}"
    names, runs = CAMPAIGNS[case]
    if "arms" in step and [arm["name"] for arm in step["arms"]] != [*names]:
        yield f"{case}: the arms {', '.join(arm['name'] for arm in step['arms'])}"
    for arm in step.get("arms", []):
        if arm["outcome"] != "passed" or (arm["runs"], arm["valid"]) != (runs, runs):
            yield f"{case}, {arm['name']}: {arm['outcome']}, {arm['valid']} of {arm['runs']} runs valid"


def broken_by(steps: Mapping[str, Any]) -> str:
    """Return by which exception the case of STEPS was broken off, after a comma; nothing if it was not, or is running.

    Its message names files of the machine.
    """
    lines = steps.get("ended", {}).get("said", "").strip().splitlines()
    return f", {lines[-1].partition(':')[0]}" if lines else ""


def _sealed(starts: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, start) for name, start in starts.items() if name != "cold"]


def _result(results: Results, name: str) -> Mapping[str, Any]:
    result: Mapping[str, Any] = results.get(name, {}).get("result", {})
    return result


def allowed(results: Results) -> Iterator[str]:
    """With the series a request beside one that may get two tokens gets its own answer, and without it that one's."""
    of_stock, of_series = (results.get("allowed", {}).get(side, {}).get("result", {}) for side in ("stock", "patched"))
    for side, result in (("stock", of_stock), ("patched", of_series)):
        if not result:
            yield f"{side}: did not answer"
    for row in ("swapped", "condensed"):
        if of_series and of_series["plain"][row]["tokens"] != of_series["plain"]["alone"]["tokens"]:
            yield f"patched, {row}: another answer than alone"
        if of_series and of_series["grammar"][row]["ended"] == "error":
            yield f"patched, {row}: a request with a grammar failed"
    if of_stock and all(of_stock["plain"][row] == of_stock["plain"]["alone"] for row in ("swapped", "condensed")):
        yield "stock: nothing is wrong without the series"


PARTS: Mapping[str, tuple[Check, ...]] = {
    "probes": (answered, states, same_answers, one_token, switches, kernels),
    "serving": (blessed, survives, covered),
    "blessing": (by_nvllm, unseen, tampered, extension, gated_delta_net),
    "adapted": (adapter,),
    "shapes": (shapes,),
    "repeats": (repeats,),
    "sized": (sized, preempted, flat),
    "benching": (traced, series_kernel),
    "campaigns": (one_artifact, five_artifacts, per_token, equal_legs, slower_step),
    "torture": (torture,),
    "throughput": (),
    "loads": (),
    "allowed": (allowed,),
}
"""The checks on each part of a run; throughput is measured, and nothing must hold of it."""


def of_run(results: Results) -> list[Check]:
    """Return the checks on the parts that the run of RESULTS was asked for."""
    return [check for part in results["run"]["parts"] for check in PARTS[part]]


def wrong(results: Results) -> list[str]:
    """Return all that is wrong with RESULTS, which are of one run, and with what they say of it."""
    unsaid = [name for name in ("commit", "machine") if not results["run"].get(name)]
    missing = [f"run: no {name}" for name in unsaid]
    return missing + [f"{check.__name__}: {line}" for check in of_run(results) for line in check(results)]
