"""`nvllm bless` and blessed `nvllm serve` on a GPU: `python -m gpu.blessing PLACE SCRATCH CASE [TRIALS]`.

Every command is `nvllm` itself. Only what the machine lacks is stood in for: the container engine (`daemon.py`), the
image in it (`project.py`), and NVIDIA's container toolkit, which only says its version. A case has these for itself,
and must have a network of its own, because every container listens on one port. Prints a line of JSON after each step,
each with all before it: the commands with their exit status, what they printed, and what else was seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu import machine, project, serving
from gpu.machine import Place
from gpu.project import BILLIONS, GDN, IMAGE, TINY, Ground
from gpu.torturing import SEED
from nvllm.image.identity import Build
from torture import campaign
from torture.cases import Case
from torture.drawing import MODEL, Drawer

TOOLKIT = "1.18.0"
"""What the stand-in for NVIDIA's container toolkit says."""

LONGEST = 1500.0
"""Seconds for a command; a bless has several starts in it, and others may run beside it."""

Seen = dict[str, Any]


@dataclass
class Bench:
    """A case under way on a GROUND: the RESULTS so far, which `keep` says."""

    ground: Ground
    trials: tuple[str, ...]
    """The option for the number of trials, if it is named."""
    say: Callable[[Seen], None]
    results: Seen = field(default_factory=dict)
    """What was seen, by the name of the step."""
    longest: float = LONGEST
    """Seconds for a command."""

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "DOCKER_CONFIG": str(self.ground.engine),
            "DOCKER_HOST": f"unix://{self.ground.engine}/engine.sock",
            "NVLLM_HOME": str(self.ground.home),
            "PATH": f"{self.ground.engine}/bin:{os.environ['PATH']}",
            "PYTHONPATH": self.ground.place.commands(),
        }

    def keep(self, step: str, seen: Seen) -> Seen:
        self.results.setdefault(step, {}).update(seen)
        self.say(self.results)
        return seen

    def nvllm(self, step: str, *words: str, module: str = "nvllm") -> Seen:
        """Run nvllm with WORDS, keep as STEP what came of it, and return the result that it printed."""
        argv = [sys.executable, "-m", module, "--project", str(self.ground.project), "--json", *words]
        began = time.monotonic()
        log = self.ground.home / f"{step.replace(' ', '-').replace(',', '')}.err"
        with log.open("wb") as stream:
            done = subprocess.run(argv, env=self.env, stdout=subprocess.PIPE, stderr=stream, timeout=self.longest)
        output = machine.whole_json(done.stdout.decode(errors="replace"))
        seconds = round(time.monotonic() - began, 1)
        seen = {"command": " ".join(["nvllm", *words]), "status": done.returncode, "seconds": seconds}
        if done.returncode:
            seen["refusals"] = output.get("refusals", [])
            seen["said"] = log.read_text(errors="replace")[-2000:]
        self.keep(step, seen)
        result: Seen = output.get("result") or {}
        return result

    # What a command left

    def bless(self, step: str, profile: str, *words: str, module: str = "nvllm") -> bool:
        """Bless PROFILE; keep as STEP what the manifest says, and return whether there is one."""
        if not self.nvllm(step, "bless", IMAGE, "--profile", profile, *words, module=module):
            return False
        (path,) = (self.ground.project / "manifests/blessed").glob("*.json")
        self.keep(step, {"manifest": summary(json.loads(path.read_text(encoding="utf-8")))})
        return True

    def served(self, step: str, profile: str, model: str, drawn: int = 0) -> None:
        """Serve PROFILE in the background, ask its MODEL what no workload asks, DRAWN requests too, and stop."""
        result = self.nvllm(step, "serve", IMAGE, "--profile", profile, "--detach")
        if result:
            self.keep(step, {key: result[key] for key in ("tree", "guard", "slow", "container")})
            self.asked(step, model)
            if drawn:
                self.drawn(step, drawn, model)
            self.observe(step)
            self.stop(step, profile)

    def asked(self, step: str, model: str) -> None:
        """Ask what is served the prompts that no workload has, and keep the answers."""

        def ask(length: int, seed: int) -> Seen:
            return serving.ask(8000, serving.prompt(length, seed), model=model)

        self.keep(step, {"alone": {str(length): ask(length, 1) for length in serving.LENGTHS}})
        with ThreadPoolExecutor(len(serving.LENGTHS)) as pool:
            together = list(pool.map(lambda length: ask(length, 2), serving.LENGTHS))
        self.keep(step, {"together": dict(zip(map(str, serving.LENGTHS), together, strict=True))})

    def drawn(self, step: str, count: int, model: str = TINY) -> None:
        """Ask MODEL COUNT requests drawn from the schema that its server publishes; keep how many had which status."""
        with urllib.request.urlopen("http://127.0.0.1:8000/openapi.json", timeout=60) as answer:
            drawer = Drawer(json.load(answer), SEED)
        asked = (to_model(case, model) for case in campaign.drawn(drawer, count, SEED))
        with ThreadPoolExecutor(campaign.AT_ONCE) as pool:
            outcomes = list(pool.map(lambda case: campaign.send(8000, case), asked))
        statuses = Counter(str(outcome.status) for outcome in outcomes)
        wrong = [f"{campaign.shown(outcome.case)}: {outcome.wrong}" for outcome in outcomes if outcome.wrong]
        self.keep(step, {"drawn": dict(sorted(statuses.items())), "wrong": wrong})

    def observe(self, step: str) -> None:
        """Keep what `status` says: is the engine alive, which kernels did it lack, and what does its cache cover."""
        time.sleep(3)  # the supervisor reads the log once a second
        (instance,) = self.nvllm(f"{step}: status", "status")["instances"]
        missing = dict(Counter(kernel["name"] for kernel in instance["kernels"]))
        self.keep(step, {"alive": instance["stage"] == "ready", "missing": missing, "kv tokens": instance["kv_tokens"]})
        waited = {kernel["key"]: kernel["requests"] for kernel in instance["kernels"] if kernel["arguments"]}
        self.keep(step, {"coverage": instance.get("coverage"), "waited": waited})

    def stop(self, step: str, profile: str) -> None:
        """Stop PROFILE, and keep as part of STEP what the log of its engine says."""
        instance = f"nvllm-{IMAGE}-{profile}"
        self.nvllm(f"{step}: stop", "stop", instance)
        lines = self.nvllm(f"{step}: logs", "logs", instance)["lines"]
        self.keep(step, marks("\n".join(lines)))

    def tampered(self, step: str, profile: str) -> None:
        """Serve PROFILE with one bit of its cache changed, and again with the bit as it was."""
        file = max(self.ground.places.trees.rglob("*.cubin"), key=lambda cubin: cubin.stat().st_size)
        for name in (step, f"{step}: mended"):
            mode, data = file.stat().st_mode, bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.chmod(0o600)
            file.write_bytes(data)
            file.chmod(mode)
            self.nvllm(name, "serve", IMAGE, "--profile", profile, "--dry-run")
        self.keep(step, {"file": file.name})


def to_model(case: Case, model: str) -> Case:
    """Return CASE as it is asked of MODEL, if it names the one that requests are drawn for."""
    if isinstance(case.body, dict) and case.body.get("model") == MODEL:
        return replace(case, body={**case.body, "model": model})
    return case


def marks(log: str) -> Seen:
    """Return what the LOG of an engine says of the gate, the cache, the switches, and kernels that were missing."""
    gate = [json.loads(line.partition("nvllm.gate ")[2]) for line in log.splitlines() if "nvllm.gate {" in line]
    return {
        "gate": [event["event"] for event in gate],
        "loaded": log.count("Directly load AOT compilation from path"),
        "saved": log.count("saved AOT compiled function to"),
        "missed": dict(Counter(machine.missed(log))),
        "sentinels": machine.sentinels(log),
    }


def summary(manifest: Mapping[str, Any]) -> Seen:
    """Return what is kept of a MANIFEST: all but the trees and hashes of its files."""
    kept = ("label", "version", "unsafe", "serve_hash", "tree_hash", "claim", "kv_tokens", "cold", "coverage")
    trials = [{key: trial[key] for key in trial if key not in {"log", "boot"}} for trial in manifest["trials"]]
    return {**{key: manifest.get(key) for key in kept}, "files": len(manifest["tree"]["files"]), "trials": trials}


# The cases


def blessed(bench: Bench) -> None:
    """Bless as users do, serve, ask what the bootstrap was not asked, and change a bit."""
    profile = "tiny-blessed"
    bench.nvllm("unblessed", "serve", IMAGE, "--profile", profile, "--dry-run")
    if bench.bless("bless", profile, *bench.trials):
        bench.tampered("tampered", profile)
        bench.served("serve", profile, TINY)


def extended(bench: Bench) -> None:
    """Bless with one request alone, serve and ask, add the kernels that were missing, serve and ask again."""
    profile, few = "tiny-extended", ("--unsafe-trials", "1")
    if bench.bless("bless", profile, *few, module="gpu.fewer"):
        bench.served("serve", profile, TINY)
        if bench.bless("extend", profile, "--extend", *few):
            bench.served("serve extended", profile, TINY)


def gdn(bench: Bench) -> None:
    """Bless and serve a gated delta net."""
    profile = "gdn-blessed"
    if bench.bless("bless", profile, *bench.trials):
        bench.served("serve", profile, GDN)


CASES: Mapping[str, Callable[[Bench], None]] = {"blessed": blessed, "extended": extended, "gated delta net": gdn}


# What a case stands on


def raise_loopback() -> None:
    """Bring up the loopback interface of this network, which is new."""
    with socket.socket() as asking:
        fcntl.ioctl(asking, 0x8914, struct.pack("16sh14x", b"lo", 1))


def prepare(bench: Bench, models: Sequence[str] = (GDN,)) -> Build:
    """Write project, MODELS and state of BENCH, and return the build of its image."""
    ground = bench.ground
    made = {name: ground.home / "models" / name for name in models}
    for directory in (*made.values(), ground.engine / "bin", ground.project, ground.places.models):
        directory.mkdir(parents=True)
    write_toolkit(ground)
    for name, directory in made.items():
        make_model(bench, name, directory)
    build = project.write(ground, made)
    for name, directory in made.items():
        directory.rename(ground.places.models / name)
    bench.keep("ground", {"build": build.build_hash})
    bench.nvllm("model", "model", "make", IMAGE, TINY)
    return build


def write_toolkit(ground: Ground) -> None:
    """Write what stands in for NVIDIA's container toolkit, into a directory that is there."""
    toolkit = ground.engine / "bin/nvidia-ctk"
    toolkit.write_text(f"#!/bin/sh\necho 'No toolkit, but gpu.blessing; version {TOOLKIT}'\n", encoding="utf-8")
    toolkit.chmod(0o755)


def make_model(bench: Bench, name: str, directory: Path) -> None:
    """Write the model NAME into DIRECTORY. The code that draws a large one is in a package that only an image has."""
    if name != BILLIONS:
        subprocess.run([sys.executable, "-m", "gpu.models", name, str(directory)], env=bench.env, check=True)
        return
    env = {**bench.env, "PYTHONPATH": f"{bench.env['PYTHONPATH']}:{bench.ground.place.root / 'site'}"}
    argv = [sys.executable, "-m", "gpu.large_model", str(directory)]
    subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=True)


@contextlib.contextmanager
def engine(bench: Bench) -> Iterator[None]:
    """Run the stand-in for an engine."""
    directory = bench.ground.engine
    argv = [sys.executable, "-m", "gpu.daemon", str(directory)]
    with (directory / "daemon.log").open("wb") as log:
        process = subprocess.Popen(argv, env=bench.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while not (directory / "engine.sock").exists() and process.poll() is None:
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(30)


def run(argv: list[str], cases: Mapping[str, Callable[[Bench], object]], *models: str) -> None:
    """Run the one of CASES that ARGV names, on the place, in the scratch and with the trials that it names too.

    MODELS are those of its project besides the one that nvllm makes; one if none is named.
    """
    root, scratch, case, *trials = argv
    at = Path(scratch)
    bench = Bench(
        Ground(Place(Path(root)), at / "project", at / "home", at / "engine"),
        ("--unsafe-trials", *trials) if trials else (),
        lambda results: print(json.dumps({case: results}), flush=True),
    )
    raise_loopback()
    project.lay(bench.ground, prepare(bench, models or (GDN,)))
    with engine(bench):
        cases[case](bench)


if __name__ == "__main__":
    run(sys.argv[1:], CASES)
