"""Run the patched engine on this machine's GPU and keep what was seen: `python -m gpu.run PLACE --output FILE`.

PLACE is what tests/gpu/lay.py laid out. FILE is written after each arm, so what was measured stays when a later one
fails. The exit status is 1 if a check fails; `--show FILE` prints what a file holds, and its checks, again.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu import checks, machine, repeats, report, serving
from gpu.machine import IN_PROCESS, SENTINELS, Place, Process

ROUNDS = 100


@dataclass(frozen=True)
class Arm:
    """A probe on a TREE with some switches on; which result it is, is its name."""

    tree: str
    script: str
    sentinels: Sequence[str] = ()
    arguments: Sequence[str] = ()
    seconds: float = 280.0
    env: Mapping[str, str] = field(default_factory=lambda: IN_PROCESS)


RECYCLE, GDN = "engine", "gdn"
ARMS: Mapping[str, Arm] = {
    "recycle, stock": Arm("stock", RECYCLE),
    "recycle, patched": Arm("patched", RECYCLE, SENTINELS),
    "recycle, switched off": Arm("patched", RECYCLE),
    "recycle, poison": Arm("patched", RECYCLE, (*SENTINELS, "poison")),
    "recycle, poison without ids": Arm("patched", RECYCLE, ("page-zeroer", "gdn-first-chunk", "poison")),
    "one token, stock": Arm("stock", GDN),
    "one token, patched": Arm("patched", GDN, ("gdn-first-chunk",)),
    "one token, whole series": Arm("patched", GDN, SENTINELS),
}
ALLOWED: Mapping[str, Arm] = {side: Arm(side, "allowed", SENTINELS) for side in ("stock", "patched")}
"""What a request gets beside another one that may get few tokens, on each tree."""
SIDES: Mapping[str, tuple[str, Sequence[str]]] = {
    "stock": ("stock", ()),
    "patched": ("patched", SENTINELS),
}
"""What throughput is compared of: a tree and its switches."""

Save = Callable[[str, Any], None]


def probe(place: Place, scratch: Path, name: str, arm: Arm) -> dict[str, Any]:
    """Run ARM to its end and return what it printed and what its log says."""
    directory = scratch / name.replace(", ", "-").replace(" ", "-")
    argv = machine.python("-m", arm.script, *arm.arguments)
    log = scratch / f"{directory.name}.log"
    began = time.monotonic()
    process = machine.start(place, Process(arm.tree, argv, directory, arm.sentinels, arm.env), log)
    try:
        printed, _ = process.communicate(timeout=arm.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        printed, _ = process.communicate()
    text = log.read_text(errors="replace") + printed
    result = machine.last_json(printed)
    return {
        "status": process.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "tree": arm.tree,
        "switches": list(arm.sentinels),
        "sentinels": machine.sentinels(text),
        "missed": machine.missed(text),
        "result": result,
        **({} if result else {"log": text[-3000:]}),
    }


def probes(place: Place, scratch: Path, arms: Mapping[str, Arm], save: Save) -> None:
    """Run ARMS side by side, each in an engine of its own."""
    with ThreadPoolExecutor(len(arms)) as pool:
        for name, done in {name: pool.submit(probe, place, scratch, name, arm) for name, arm in arms.items()}.items():
            save(name, done.result())


def served(place: Place, scratch: Path, cases: Sequence[str], save: Save) -> None:
    """Bless and serve blessed: CASES of serving.py."""
    scratch.mkdir(parents=True)
    path = os.pathsep.join([place.path("patched"), place.commands()])
    argv = machine.python("-m", "gpu.serving", str(place.root), str(scratch), *cases)
    followed(argv, path, scratch / "serving.log", lambda seen: save("serving", seen))


def tortured(place: Place, scratch: Path, count: int, save: Save) -> None:
    """Ask servers what no user means, and COUNT requests that are drawn: torturing.py."""
    scratch.mkdir(parents=True)
    path = os.pathsep.join([place.path("patched"), place.commands()])
    argv = machine.python("-m", "gpu.torturing", str(place.root), str(scratch), str(count))
    followed(argv, path, scratch / "torturing.log", lambda seen: save("torture", seen))


def followed(argv: Sequence[str], path: str, log: Path, keep: Callable[[Any], None]) -> None:
    """Run ARGV with PATH as Python's search path and its errors in LOG; call KEEP with each JSON object it prints."""
    environment = {**os.environ, "PYTHONPATH": path}
    with (
        log.open("w") as errors,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                keep(json.loads(line))
    if process.returncode:
        keep({"ended": {"status": process.returncode, "log": log.read_text(errors="replace")[-3000:]}})


def by_nvllm(
    place: Place, scratch: Path, part: str, cases: Sequence[str], trials: Sequence[str], save: Save, cards: int = 1
) -> None:
    """Bless and serve, or bench, by `nvllm` itself: CASES of PART side by side, each in a network of its own.

    TRIALS is the number of trials of a bless, if it is not to be that of nvllm. Each case has one of CARDS GPUs and an
    equal share of the processors, if the machine has several: the last cases have the last one.
    """
    for tree in (place.tree("patched"), place.root / "site"):  # an image has bytecode, and no process can write any
        compileall.compile_dir(tree, quiet=2, workers=0)
    results: dict[str, Any] = {}
    lock = threading.Lock()

    def keep(seen: dict[str, Any]) -> None:
        with lock:
            results.update(seen)
            save(part, results)

    def run(case: str) -> None:
        directory = scratch / case.replace(" ", "-").replace(",", "")
        directory.mkdir(parents=True)
        card = cases.index(case) * cards // len(cases)
        argv = [
            *(on_card(place, card, cards) if cards > 1 else []),
            "unshare",
            "--net",
            *machine.python("-m", f"gpu.{part}", str(place.root), str(directory), case, *trials),
        ]
        environment = {**os.environ, "PYTHONPATH": place.commands()}
        with (
            directory.with_suffix(".log").open("w") as log,
            subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True, env=environment) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    keep(json.loads(line))
        if process.returncode:
            log_end = directory.with_suffix(".log").read_text(errors="replace")[-3000:]
            keep({case: {**results.get(case, {}), "ended": {"status": process.returncode, "said": log_end}}})

    with ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(run, cases))


def on_card(place: Place, card: int, cards: int) -> list[str]:
    """Return the words before a command that has GPU number CARD of CARDS, and as large a share of the processors.

    Without its own processors a case is timed while another one compiles on all of them.
    """
    processors = sorted(os.sched_getaffinity(0))
    share = len(processors) // cards
    mine = ",".join(map(str, processors[card * share :][:share]))
    return ["taskset", "--cpu-list", mine, "sh", str(place.repository / "tests/gpu/card.sh"), str(card)]


def throughput(place: Place, scratch: Path, rounds: int, load: str, save: Save) -> None:
    """Compare tokens per second under LOAD: one engine for each of SIDES, in turn and each time in another order."""
    engines = {}
    for side, (tree, sentinels) in SIDES.items():
        process = Process(tree, machine.python("-m", "gpu.throughput", load), scratch / side, sentinels, IN_PROCESS)
        engines[side] = machine.start(place, process, scratch / f"{side}.log")
    results: dict[str, Any] = {"rounds": {side: [] for side in SIDES}}
    try:
        for side, engine in engines.items():
            results[side] = next_line(engine) or {
                "failed": (scratch / f"{side}.log").read_text(errors="replace")[-3000:]
            }
            save("throughput", results)
        rng, ready = random.Random(6), [side for side in engines if "ready" in results[side]]
        for number in range(-2, rounds):
            for side in rng.sample(ready, len(ready)):
                answer = asked(engines[side])
                if number >= 0:
                    results["rounds"][side].append(report.round_of(answer))
            save("throughput", results)
    finally:
        for side, engine in engines.items():
            engine.kill()
            log = (scratch / f"{side}.log").read_text(errors="replace")
            results[side] |= {"sentinels": machine.sentinels(log), "missed": machine.missed(log)}
        save("throughput", results)


def every_load(place: Place, scratch: Path, rounds: int, loads: Sequence[str], save: Save) -> None:
    """Compare tokens per second under each of LOADS, one after the other."""
    results: dict[str, Any] = {}

    def keeper(load: str) -> Save:
        def keep(_: str, seen: Any) -> None:
            results[load] = seen
            save("loads", results)

        return keep

    for load in loads:
        directory = scratch / load.replace(", ", "-")
        directory.mkdir(parents=True)
        throughput(place, directory, rounds, load, keeper(load))


def beside(place: Place, scratch: Path, model: Path, save: Save) -> None:
    """Ask MODEL on each tree what it answers beside a request that may get two tokens."""
    scratch.mkdir()
    results: dict[str, Any] = {}

    def keep(side: str, seen: Any) -> None:
        results[side] = seen
        save("allowed", results)

    probes(place, scratch, {side: replace(arm, arguments=(str(model),)) for side, arm in ALLOWED.items()}, keep)


def asked(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Ask PROCESS for a round and return what it says, or nothing if it ended."""
    assert process.stdin is not None
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
    except BrokenPipeError:
        return {}
    return next_line(process)


def next_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next line of PROCESS, or nothing if it ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return dict(json.loads(line)) if line else {}


def environment() -> dict[str, Any]:
    """Return what the figures were taken on."""
    import torch
    import triton

    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "vllm": "0.21.0",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def machine_words() -> str:
    """Return what this machine is, without its name: its processors and its memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{os.cpu_count()} processors, {memory / 2**30:.0f} GiB"


def saver(output: Path, results: dict[str, Any]) -> Save:
    """Return what adds a result to RESULTS and writes all of them to OUTPUT, whole at any time."""

    def save(name: str, result: Any) -> None:
        results[name] = result
        scratch = output.with_suffix(".new")
        scratch.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        scratch.replace(output)

    return save


def parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    options = argparse.ArgumentParser(prog="python -m gpu.run", description=__doc__.split("\n\n")[0])
    options.add_argument("place", type=Path, nargs="?", metavar="PLACE")
    options.add_argument("--output", type=Path, metavar="FILE", help="where to keep what was seen")
    options.add_argument("--show", type=Path, metavar="FILE", help="print what FILE holds, and no more")
    options.add_argument("--commit", default="not recorded", help="what is run, as `git rev-parse HEAD` says it")
    options.add_argument("--machine", default=machine_words(), help="what it runs on, in words")
    options.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, help="the parts to run")
    options.add_argument("--cases", nargs="*", choices=serving.CASES, default=[*serving.CASES], help="of serving")
    options.add_argument("--blessings", nargs="*", choices=BLESSINGS, default=BLESSINGS, help="of blessing")
    options.add_argument("--benches", nargs="*", choices=BENCHES, default=BENCHES, help="of benching")
    options.add_argument("--campaigns", nargs="*", choices=CAMPAIGNS, default=CAMPAIGNS, help="of campaigns")
    options.add_argument("--cards", type=int, default=1, help="GPUs that campaigns share out (default 1)")
    options.add_argument("--trials", nargs=1, default=(), metavar="N", help="of a bless (default: those of nvllm)")
    options.add_argument("--seconds", type=int, default=14400, help="of repeats (default 14400)")
    options.add_argument("--requests", type=int, default=1200, help="drawn for torture, for each server (default 1200)")
    options.add_argument("--loads", nargs="*", choices=LOADS, default=LOADS, help="of loads")
    options.add_argument("--rounds", type=int, default=ROUNDS, help=f"of throughput (default {ROUNDS})")
    return options


BLESSINGS = ("blessed", "extended", "gated delta net")
"""The cases of blessing.py, which needs what `nvllm` needs."""

SHAPES = ("128 tokens and 2", "128 tokens and 2, forked", "512 tokens and 16", "512 tokens and 64, in parts of 128")
"""The cases of shapes.py, which needs what `nvllm` needs."""

BENCHES = ("traced, switched off",)
"""The cases of benching.py, which needs what `nvllm` needs."""

SIZED = ("blessed", "ablated")
"""The cases of sized.py, which needs what `nvllm` needs, and room for 1.7 billion weights."""

CAMPAIGNS = (
    "four arms, one artifact",
    "five artifacts",
    "three profiles, traced",
    "equal legs",
    "a step 5 percent slower",
)
"""The cases of campaigns.py, which needs what `nvllm` needs."""

LOADS = (
    "tiny, decode, eager",
    "tiny, decode, graphs",
    "tiny, prefill, graphs",
    "1B, decode, eager",
    "1B, decode, graphs",
    "1B, prefill, graphs",
)
"""The loads of throughput.py by which the series is compared; its first one is the part `throughput`."""

PARTS = (
    "probes",
    "serving",
    "blessing",
    "adapted",
    "shapes",
    "repeats",
    "sized",
    "benching",
    "campaigns",
    "torture",
    "throughput",
    "loads",
    "allowed",
)


def main(argv: Sequence[str]) -> int:
    chosen = parser().parse_args(argv)
    if chosen.show is not None:
        kept = json.loads(chosen.show.read_text(encoding="utf-8"))
        if "environment" not in kept:
            raise SystemExit(f"{chosen.show}: not what `python -m gpu.run` wrote")
        print(report.document(kept))
        return 0 if not checks.wrong(kept) else 1
    if chosen.output is None or chosen.output.exists():
        raise SystemExit("--output names a new file: one file holds the results of one run")
    place, scratch = Place(chosen.place.resolve()), chosen.place.resolve() / "scratch" / str(os.getpid())
    scratch.mkdir(parents=True)
    model = scratch / "model"
    model.mkdir()
    tiny = [sys.executable, str(place.repository / "launcher/nvllm/runtime/tiny_models.py"), "tiny-lfm2", str(model)]
    subprocess.run(tiny, check=True)
    results: dict[str, Any] = {}
    save = saver(chosen.output, results)
    save("environment", environment())
    save("run", {"commit": chosen.commit, "machine": chosen.machine, "parts": [*chosen.only]})
    run_parts(chosen, place, scratch, model, save)
    print(report.document(results))
    return 0 if not checks.wrong(results) else 1


def run_parts(chosen: argparse.Namespace, place: Place, scratch: Path, model: Path, save: Save) -> None:
    """Run the parts that are CHOSEN, one after the other."""

    def by_command(part: str, cases: Sequence[str], words: Sequence[str] = (), cards: int = 1) -> Callable[[], None]:
        return lambda: by_nvllm(place, scratch / part, part, cases, words, save, cards)

    def one_engine() -> None:
        (scratch / "throughput").mkdir()
        throughput(place, scratch / "throughput", chosen.rounds, "9B", save)

    arms = {n: replace(arm, arguments=(str(model),)) if arm.script == RECYCLE else arm for n, arm in ARMS.items()}
    runs: Mapping[str, Callable[[], None]] = {
        "probes": lambda: probes(place, scratch, arms, save),
        "serving": lambda: served(place, scratch / "serving", chosen.cases, save),
        "blessing": by_command("blessing", chosen.blessings, chosen.trials),
        "adapted": by_command("adapted", ["extended"]),
        "shapes": by_command("shapes", SHAPES, chosen.trials),
        "repeats": by_command("repeats", [*repeats.cases()], (str(chosen.seconds),)),
        "sized": by_command("sized", SIZED, chosen.trials),
        "benching": by_command("benching", chosen.benches),
        "campaigns": by_command("campaigns", chosen.campaigns, (), chosen.cards),
        "torture": lambda: tortured(place, scratch / "torture", chosen.requests, save),
        "throughput": one_engine,
        "loads": lambda: every_load(place, scratch / "loads", chosen.rounds, chosen.loads, save),
        "allowed": lambda: beside(place, scratch / "allowed", model, save),
    }
    for part in PARTS:
        if part in chosen.only:
            runs[part]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
