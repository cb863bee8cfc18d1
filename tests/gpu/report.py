"""The results of tests/gpu/run.py as tables, and the figures in them. No torch in here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.gpu.table import markdown

from gpu import checks


def round_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of ANSWER, a round of an engine of throughput.py: of its calls that clear, only medians."""
    if not answer:
        return {}
    taken = [nanoseconds / 1e3 for _, nanoseconds in answer["clearing"]]
    ids = [count for count, _ in answer["clearing"]]
    calls = {"calls": len(taken)}
    if taken:
        calls |= {
            "ids": statistics.median(ids),
            "host us": round(statistics.median(taken), 1),
            "sum us": round(sum(taken)),
        }
    per_request = {name: round(seconds * 1e6 / answer["requests"], 2) for name, seconds in answer["phases"].items()}
    return {
        "seconds": answer["seconds"],
        "tokens": answer["tokens"],
        "clearing": calls,
        "host us a request": per_request,
    }


def ratios(rounds: Mapping[str, Sequence[Mapping[str, Any]]], side: str, against: str) -> list[float]:
    """Return of each round the tokens per second of SIDE divided by those of AGAINST."""
    pairs = zip(rounds[side], rounds[against], strict=True)
    return [(a["tokens"] / a["seconds"]) / (b["tokens"] / b["seconds"]) for a, b in pairs if a and b]


def spread(values: Sequence[float], digits: str) -> str:
    """Return VALUES as text: the median, and the tenth and ninetieth percentile in brackets."""
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return f"{statistics.median(values):{digits}} ({tenths[0]:{digits}}-{tenths[-1]:{digits}})"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval that holds the median with 95 % confidence: two of VALUES in order, by the binomial."""
    ordered, count = sorted(values), len(values)
    below, outside = 0.5**count, 0
    total = below
    while total <= 0.025 and outside < count // 2:
        outside += 1
        below = below * (count - outside + 1) / outside
        total += below
    first = max(outside - 1, 0)
    return ordered[first], ordered[count - 1 - first]


def throughput(results: Mapping[str, Any]) -> list[str]:
    """Return the table of throughput, of RESULTS."""
    rounds = results["rounds"]
    lines = [["tree", "tokens per second", "against stock", "a call that clears, host us", "ids in it"]]
    for side, every in rounds.items():
        whole = [figures for figures in every if figures]
        if len(whole) < 2:
            lines.append([side, "nothing measured", "", "", ""])
            continue
        clearing = [figures["clearing"] for figures in whole if "ids" in figures["clearing"]]
        lines.append(
            [
                side,
                spread([figures["tokens"] / figures["seconds"] for figures in whole], ",.0f"),
                spread(ratios(rounds, side, "stock"), ".3f"),
                spread([calls["host us"] for calls in clearing], ".1f") if len(clearing) > 1 else "none",
                f"{statistics.median(calls['ids'] for calls in clearing):g}" if clearing else "",
            ]
        )
    pairs = ratios(rounds, "patched", "stock")
    verdict = ""
    if len(pairs) > 1:
        low, high = interval(pairs)
        verdict = (
            f" Patched against stock: {statistics.median(pairs):.3f}, with 95 % confidence {low:.3f} to {high:.3f}."
        )
    count = min(len(every) for every in rounds.values())
    return [
        f"{count} rounds, the trees in turn; median (10th-90th percentile).{verdict}",
        markdown(lines),
    ]


def loads(results: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the lines of the table of tokens per second under each load of RESULTS."""
    head = ["load", "rounds", "stock, tokens/s", "patched, tokens/s", "patched against stock", "95 % confidence"]
    lines = [[*head, "a call that clears, host us: stock, patched", "ids in it"]]
    for load, seen in results.items():
        rounds = {side: [figures for figures in every if figures] for side, every in seen["rounds"].items()}
        pairs = ratios(seen["rounds"], "patched", "stock")
        if len(pairs) < 2:
            lines.append([load, str(len(pairs)), *["nothing measured"] * 2, "", "", "", ""])
            continue
        speeds = [
            f"{statistics.median(figures['tokens'] / figures['seconds'] for figures in rounds[side]):,.0f}"
            for side in SIDES
        ]
        clearing = {
            side: [figures["clearing"] for figures in rounds[side] if "ids" in figures["clearing"]] for side in SIDES
        }
        host = [f"{statistics.median(calls['host us'] for calls in clearing[side]):.0f}" for side in SIDES]
        ids = f"{statistics.median(calls['ids'] for side in SIDES for calls in clearing[side]):g}"
        low, high = interval(pairs)
        ratio = [f"{statistics.median(pairs):.3f}", f"{low:.3f} to {high:.3f}"]
        lines.append([load, str(len(pairs)), *speeds, *ratio, ", ".join(host), ids])
    return lines


SIDES = ("stock", "patched")


def host_phases(results: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the lines of the table of what the host did for a request under each load of RESULTS, in microseconds.

    Runs of before 2026-11-26 have no such figures.
    """
    lines = [["load", "phase", "stock, us a request", "patched, us a request", "patched less stock, us"]]
    for load, seen in results.items():
        rounds = {
            side: [figures for figures in seen["rounds"][side] if "host us a request" in figures] for side in SIDES
        }
        if not all(rounds.values()):
            continue
        for phase in rounds["stock"][0]["host us a request"]:
            stock, patched = (
                statistics.median(figures["host us a request"][phase] for figures in rounds[side]) for side in SIDES
            )
            lines.append([load, phase, f"{stock:.1f}", f"{patched:.1f}", f"{patched - stock:+.1f}"])
    return lines


def beside(results: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the lines of the table of what a request got, alone and beside one that may get two tokens."""
    lines = [["tree", "request", "alone", "row swapped", "row left"]]
    for side, arm in results.items():
        for kind, rows in arm["result"].items():
            if isinstance(rows, dict):
                cells = [f"{' '.join(map(str, row['tokens']))}, {row['ended']}" for row in rows.values()]
                lines.append([side, kind, *cells])
    return lines


def phases(cases: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the lines of the table of what the trials of CASES, which are blessed starts, spent on each phase."""
    lines: list[list[str]] = []
    for case, steps in cases.items():
        trials = steps.get("bless", {}).get("manifest", {}).get("trials", [])
        spent: dict[str, list[float]] = {}
        for phase in (phase for trial in trials for phase in trial["phases"]):
            spent.setdefault(phase["name"], []).append(phase["seconds"])
        if spent:
            lines = lines or [["case", "trials", *(f"{name}, s" for name in spent), "whole, s"]]
            medians = [statistics.median(seconds) for seconds in spent.values()]
            lines.append([case, str(len(trials)), *(f"{median:.1f}" for median in (*medians, sum(medians)))])
    return lines or [["case"], *[[case] for case in cases]]


def servers(serving: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[list[str]]:
    """Return the lines of the table of servers: a heading, then a line for each start of each case."""
    head = ["bootstrap", "start", "first answer, s", "new kernels, by round"]
    lines = [[*head, "missing when ready", "missing later", "refused prompts", "alive"]]
    for case, starts in serving.items():
        for name, start in starts.items():
            early = start.get("missed when ready", 0)
            answers = [*start.get("alone", {}).values(), *start.get("together", {}).values()]
            rounds = ", ".join(str(each["new"]) for each in start.get("rounds", []))
            line = [case, name, f"{start.get('seconds') or 0:.0f}" if start.get("seconds") else "never", rounds]
            if name == "cold":
                lines.append([*line, "", "", "", ""])
                continue
            refused = sum("tokens" not in answer for answer in answers)
            later = sum(start.get("missed", {}).values()) - early
            alive = "yes" if start.get("alive") else "no"
            lines.append([*line, str(early), str(later), f"{refused} of {len(answers)}", alive])
    return lines


def commands(blessing: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[list[str]]:
    """Return the lines of the table of nvllm's commands: a heading, then a line for each that blessed or served."""
    lines = [
        ["case", "command", "seconds", "came to", "starts, s", "new kernels, by round", "missing later", "answered"]
    ]
    for case, steps in blessing.items():
        for step in steps.values():
            words = step.get("command", "").split()
            if words[1:2] not in (["bless"], ["serve"]):
                continue
            lines.append([case, f"`{' '.join(words[:2] + words[5:])}`", f"{step['seconds']:.0f}", *_came_to(step)])
    return lines


def reported(serve: Mapping[str, Any]) -> list[list[str]]:
    """Return the lines of the table of the kernels that were compiled for requests of SERVE, and of whose."""
    lines = [["kernel", "variants"]]
    lines += [[f"`{name}`", str(count)] for name, count in serve["missing"].items()]
    waited = sorted({request for names in serve["waited"].values() for request in names})
    return [*lines, [f"requests that waited: {len(waited)}, such as `{waited[0]}`" if waited else "", ""]]


_MOST = 8
"""Kernels of a comparison that are listed."""
_LONGEST = 60
"""Characters of a kernel's name: those of C++ name every argument of a template."""


def traces(benching: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the tables of the traces of a bench: of each profile, and of the kernels that both have."""
    arms = [["case", "profile", "steps", "kernels", "calls", "GPU us", "that clear pages: calls, us", "trace, kB"]]
    parts = []
    for case, steps in benching.items():
        bench = steps["bench"]
        for table in bench["kernels"]:
            clearing = [f"`{each['name']}`: {each['calls']}, {each['microseconds']:.1f}"
                        for each in table["kernels"] if "zero_" in each["name"]]  # fmt: skip
            trace = bench["traces"][table["arm"]]
            calls, microseconds = (sum(each[what] for each in table["kernels"]) for what in ("calls", "microseconds"))
            figures = [trace["steps"], len(table["kernels"]), calls, round(microseconds)]
            kilobytes = str(round(trace["bytes"] / 1e3))
            arms.append([case, table["arm"], *map(str, figures), "; ".join(clearing), kilobytes])
        names = bench["common"][0]["first"], bench["common"][0]["other"]
        common = [["kernel", *(f"{name}: calls, us" for name in names), "us of one call, ratio"]]
        for each in bench["common"][:_MOST]:
            both = [*zip(each["calls"], each["microseconds"], strict=True)]
            cells = [f"{calls}, {microseconds:.0f}" for calls, microseconds in both]
            first, second = (microseconds / calls for calls, microseconds in both)
            common.append([f"`{each['name'][:_LONGEST]}`", *cells, f"{second / first:.3f}"])
        parts += [f"{case}: {len(bench['common'])} kernels of both, those that took longest", markdown(common)]
    return [markdown(arms), *parts]


def repeats(results: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the lines of the table of the blesses of RESULTS, a line for each profile."""
    head = [
        "profile",
        "blesses",
        "rejected",
        "seconds of a bless",
        "files",
        "variants",
        "trees",
        "last round with a new kernel",
    ]
    lines = [[*head, "compiled in a trial", "steps that never met", "drawn: answered", "missing later"]]
    profiles: dict[str, list[Mapping[str, Any]]] = {}
    for case, steps in results.items():
        profiles.setdefault(case.rpartition(", case ")[0], []).append(steps)
    for profile, cases in profiles.items():
        blesses = [step for steps in cases for name, step in steps.items() if name.startswith("bless ")]
        made = [step["manifest"] for step in blesses if "manifest" in step]
        served = [steps["serve"] for steps in cases if "drawn" in steps.get("serve", {})]
        compiled = sum(trial["compiles"] for manifest in made for trial in manifest["trials"])
        rounds = [max(at for at, new in enumerate(each["coverage"]["new"], 1) if new) for each in made]
        lines.append(
            [
                profile,
                str(len(blesses)),
                str(len(blesses) - len(made)),
                _range([step["seconds"] for step in blesses]),
                _range([each["files"] for each in made]),
                _range([sum(kernel["variants"] for kernel in each["coverage"]["kernels"]) for each in made]),
                str(len({each["tree_hash"] for each in made})),
                _range(rounds),
                str(compiled),
                _range([len(each["coverage"].get("unmet", [])) for each in made]),
                ", ".join(f"{each['drawn'].get('200', 0)} of {sum(each['drawn'].values())}" for each in served),
                str(sum(sum(each.get("missing", {}).values()) for each in served)) if served else "",
            ]
        )
    return lines


def _range(values: Sequence[float]) -> str:
    """Return the least and the most of VALUES as text."""
    least, most = (f"{end(values):.0f}" for end in (min, max)) if values else ("", "")
    return least if least == most else f"{least} to {most}"


def pressures(results: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the lines of the table of what the large model's server had in use after each step of RESULTS."""
    lines = [["after", "answers", "seconds", "preempted so far", "KV cache in use", "GPU, MiB", "processes, MiB"]]
    steps = results.get("blessed", {})
    for step in ("ready", "pressed", "drawn", "pressed again"):
        seen = steps.get(step, {})
        if "metrics" in seen:
            answered = {**seen.get("answers", {}), **seen.get("drawn", {})}
            answers = ", ".join(f"{count} {name}" for name, count in answered.items())
            metrics, memory = seen["metrics"], seen["memory"]
            figures = [f"{metrics['preempted']:.0f}", f"{100 * metrics['kv in use']:.1f} %", str(memory["gpu"])]
            sizes = ", ".join(map(str, memory["processes"].values()))
            lines.append([step, answers, str(seen.get("seconds", "")), *figures, sizes])
    return lines


def _came_to(step: Mapping[str, Any]) -> list[str]:
    """Return what the command of STEP came to: refusals, and what its starts took and needed."""
    codes = ", ".join(dict.fromkeys(each["code"] for each in step.get("refusals", []))) or f"status {step['status']}"
    manifest = step.get("manifest")
    if manifest is not None:
        starts = [sum(phase["seconds"] for phase in each["phases"]) for each in (manifest["cold"], *manifest["trials"])]
        unmet = manifest["coverage"].get("unmet", [])
        rounds = ", ".join(map(str, manifest["coverage"]["new"])) + (f"; never met: {len(unmet)}" if unmet else "")
        made = f"{manifest['files']} files, good trials: {len(manifest['trials'])}"
        return [made, ", ".join(f"{seconds:.0f}" for seconds in starts), rounds, "", ""]
    if "alone" in step:
        answers = [*step["alone"].values(), *step["together"].values()]
        answered = sum("tokens" in answer for answer in answers)
        drawn = step.get("drawn", {})
        more = f"; {drawn.get('200', 0)} of {sum(drawn.values())} drawn" if drawn else ""
        return ["served", "", "", str(sum(step["missing"].values())), f"{answered} of {len(answers)}{more}"]
    return ["allowed" if step["status"] == 0 else f"refused: {codes}", "", "", "", ""]


def recycled(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the lines of the table of what recycled states held: a heading, then a line for each engine of RESULTS."""
    lines = [["engine", "states before clearing", "after", "requests on used blocks", "seconds"]]
    for name in checks.HELD:
        seen = [block for block in results.get(name, {}).get("result", {}).get("seen", []) if block["before"] != "zero"]
        before, after = ({str(block[key]) for block in seen} for key in ("cleared", "after"))
        seconds = f"{results.get(name, {}).get('seconds', '')}"
        lines.append([name.partition(", ")[2], ", ".join(before), ", ".join(after), str(len(seen)), seconds])
    return lines


def tortured(servers: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return the lines of the table of the torture: a heading, then a line for each of SERVERS that was asked."""
    columns = ["server", "requests", "2xx", "4xx", "5xx", "hung up", "connections", "ended", "neighbour, s", "seconds"]
    lines = [[*columns, "kernels missing"]]
    for name in ("eager", "blessed"):
        server = servers.get(name, {})
        if "requests" in server:
            of = [sum(n for code, n in server["statuses"].items() if code[0] == first) for first in "245"]
            counts = [server["requests"], *of, server["statuses"].get("0", 0), server["connections"]]
            figures = [*counts, server["engine ended"], server["slowest answer of the neighbour"], server["seconds"]]
            lines.append([name, *map(str, figures), str(sum(server["kernels missing"].values()))])
    return lines


def comparisons(campaigns: Mapping[str, Mapping[str, Any]], cases: Sequence[str]) -> list[str]:
    """Return the tables of the CASES of CAMPAIGNS: what each came to, its arms, its findings, and its traces."""
    ended = [["case", "command", "seconds", "came to"]]
    arms = [["case", "arm", "outcome", "runs", "outputs", "correct", "tokens/s", "trees"]]
    findings = list[str]()
    kernels = [["case", "arm", "traces", "kernels", "calls", "GPU ms", "tokens", "GPU ms a token"]]
    for case in cases:
        steps = campaigns.get(case, {})
        step = steps.get("campaign", {})
        codes = ", ".join(dict.fromkeys(each["code"] for each in step.get("refusals", [])))
        outcome = f"status {step['status']}" if "status" in step else "did not end" if steps else "did not run"
        words = f"`{' '.join(step['command'].split()[:2])}`" if step else ""
        seconds = f"{step['seconds']:.0f}" if step else ""
        ended.append([case, words, seconds, (codes or outcome) + checks.broken_by(steps)])
        trees = {each["arm"]: each["trees"] for each in step.get("artifacts", [])}
        compared = step if "arms" in step else steps.get("report", {})  # of the legs that ended
        for arm in compared.get("arms", []):
            valid = f"{arm['valid']} of {arm['runs']}"
            hashes = ", ".join(tree[:12] for tree in trees.get(arm["name"], []))
            speed = arm.get("figures", {}).get("output tokens/s", arm["tokens_per_second"])
            figures = [str(arm["samples"]), f"{100 * arm['correct']:.0f} %", f"{speed:.1f}", hashes]
            arms.append([case, arm["name"], arm["outcome"], valid, *figures])
        for each in compared.get("findings", []):
            code = f" Compiled code: {each['artifacts']}." if "artifacts" in each else ""
            findings.append(f"- {case}: {each['factor']}: **{each['finding']}**: {each['text']}.{code}")
        for table in step.get("kernels", []):
            calls = sum(each["calls"] for each in table["kernels"])
            counts = [table.get("run", 1), len(table["kernels"]) + table["others"], calls]
            milliseconds, tokens = table["microseconds"] / 1e3, table.get("tokens", 0)
            each_token = f"{milliseconds / tokens:.3f}" if tokens else "not known"
            kernels.append([case, table["arm"], *map(str, counts), f"{milliseconds:.2f}", str(tokens), each_token])
    tables = [markdown(rows) for rows in (ended, arms, kernels) if len(rows) > 1]
    return [*tables, *(["\n".join(findings)] if findings else [])]


def document(results: Mapping[str, Any]) -> str:
    """Return RESULTS, of one run, as text: what it ran on, the checks, and the tables of its parts."""
    environment = results["environment"]
    wrong = checks.wrong(results)
    parts = [
        "{gpu}, driver {driver}, vLLM {vllm}, torch {torch}, Triton {triton}, Python {python}, {date}".format(
            **environment
        ),
        "One run. Commit: {commit}. Machine: {machine}. Parts: {asked}.".format(
            **results["run"], asked=", ".join(results["run"]["parts"])
        ),
        "### Checks",
    ]
    verdicts = [["check", "verdict"]]
    for check in checks.of_run(results):
        assert check.__doc__ is not None
        verdicts.append([check.__doc__.rstrip("."), "FAIL" if list(check(results)) else "PASS"])
    parts.append(markdown(verdicts))
    if wrong:
        parts.append("\n".join(f"WRONG: {line}" for line in wrong))
    return "\n\n".join([*parts, *tables(results)])


def tables(results: Mapping[str, Any]) -> list[str]:
    """Return the tables of the parts of RESULTS, each after its heading."""
    whole = {part: table for part, table in TABLES.items() if part in results["run"]["parts"]}
    return [text for part, table in whole.items() if part in results or part in EARLY for text in table(results)]


EARLY = frozenset({"probes", "serving", "blessing"})
"""Parts whose tables say what is missing of a run that broke off."""


def _sized(results: Mapping[str, Any]) -> list[str]:
    """Return the tables of the large model in RESULTS."""
    cases = results["sized"]
    tables_of = (markdown(commands(cases)), markdown(pressures(cases)), *comparisons(cases, ("ablated",)))
    return ["### A model of 1.7 billion weights", *tables_of]


TABLES: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "probes": lambda results: ["### States in a recycled block", markdown(recycled(results))],
    "serving": lambda results: [
        "### Blessed, and served from a read-only cache",
        markdown(servers(results.get("serving", {}))),
    ],
    "blessing": lambda results: ["### By nvllm itself", markdown(commands(results.get("blessing", {})))],
    "adapted": lambda results: [
        "### An adapter",
        markdown(commands(results["adapted"])),
        "Kernels that the first blessing lacked:",
        markdown(reported(results["adapted"]["extended"]["serve"])),
    ],
    "shapes": lambda results: [
        "### Profiles with other bounds",
        markdown(commands(results["shapes"])),
        "### Phases of a blessed start",
        markdown(phases(results["shapes"])),
    ],
    "repeats": lambda results: ["### Blessed again and again", markdown(repeats(results["repeats"]))],
    "sized": _sized,
    "benching": lambda results: ["### Traces of a bench", *traces(results["benching"])],
    "campaigns": lambda results: ["### Comparisons", *comparisons(results["campaigns"], [*checks.CAMPAIGNS])],
    "torture": lambda results: ["### Torture", markdown(tortured(results["torture"]))],
    "throughput": lambda results: ["### Throughput", *throughput(results["throughput"])],
    "loads": lambda results: [
        "### Throughput of the series against stock",
        markdown(loads(results["loads"])),
        *(
            ["### What the host does for a request", markdown(lines)]
            if len(lines := host_phases(results["loads"])) > 1
            else []
        ),
    ],
    "allowed": lambda results: ["### Beside a request that may get two tokens", markdown(beside(results["allowed"]))],
}
"""The tables of each part of a run."""
