"""Torture on a GPU, without Docker: `python -m gpu.torturing PLACE SCRATCH CASES`.

The campaign of tests/torture asks two servers of the patched tree: one that compiles nothing, `eager`, and one that has
its compile cache read-only, as `nvllm` serves it, `blessed`. What is asked is drawn from the schema that each server
publishes, CASES of it, besides what was thought of. Prints a line of JSON after each step, each with all before it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu import serving
from gpu.machine import CACHE, SENTINELS, Place, Process
from gpu.serving import Bench, Case, Server
from torture import cases
from torture.campaign import FLOODS, Campaign, drawn, send
from torture.drawing import MODEL, Drawer

SEED = 26
EAGER = ("--enforce-eager",)
_READY = "Application startup complete"
"""The last line of a start in the log of vLLM's server."""


@dataclass
class Tortured:
    """A server that BEGIN starts on its own; see `campaign.Target`."""

    begin: Callable[[], Server]
    starts: int = 0
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    @property
    def port(self) -> int:
        return self.server.port

    def alive(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False

    def restart(self) -> None:
        if self.starts:
            self.server.stop()
        self.starts += 1
        self.server = self.begin()

    def trace(self) -> str:
        log = self.server.text().rpartition(_READY)[2]  # what a start warns of ends no server
        files = re.findall(r'File "[^"]*/(vllm/[^"]+", line \d+)', log)
        errors = re.findall(r"\b(\w+(?:Error|Exception): .*)", log)
        return f"{errors[0] if errors else 'no error in the log'} at {files[-1] if files else 'no line'}"


class Torture:
    """Both campaigns, with what PLACE holds; files lie below SCRATCH."""

    def __init__(self, place: Place, scratch: Path, count: int) -> None:
        self._bench = Bench(place, scratch, lambda _: None)
        self._count = count
        self._seen: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._model = scratch / "model"
        self._model.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "gpu.models", "tiny-lfm2", str(self._model)], check=True)

    def run(self) -> None:
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(self._eager), pool.submit(self._blessed)]:
                done.result()

    def _eager(self) -> None:
        argv = self._argv(EAGER)
        self._torture("eager", lambda number: Process("patched", argv, self._scratch("eager", number), SENTINELS))

    def _blessed(self) -> None:
        cache = self._bench.scratch / "compiled"
        cache.mkdir()
        argv = self._argv(())
        cold = Process("patched", argv, self._scratch("cold", 0), SENTINELS, serving.BLESSING, {}, cache)
        server = self._started("cold", cold)
        rounds = serving.rounds(server, serving.ROUNDS, serving.QUIET)
        server.stop()
        self._keep("cold", {"rounds": rounds, **serving.marks(server)})
        fresh, before = serving.inductors(cache), serving.files(cache)
        seeds = [{"from": str(cache / path), "to": f"{CACHE}/{path}"} for path in fresh]
        holds = {"launch.json": json.dumps({"cache": {"missing": "report", "seeds": seeds}})}
        seeding = [sys.executable, str(self._bench.place.repository / "launcher/nvllm/runtime/seed.py"), *argv]

        def sealed(number: int) -> Process:
            scratch = self._scratch("blessed", number)
            environment = serving.BLESSED
            return Process(
                "patched", seeding, scratch, SENTINELS, environment, holds, cache, True, fresh, (serving.SCRATCH,)
            )

        self._torture("blessed", sealed)
        self._keep("blessed", {"cache unchanged": serving.files(cache) == before})

    def _torture(self, name: str, process: Callable[[int], Process]) -> None:
        starts = iter(range(1, 100))
        target = Tortured(lambda: self._started(name, process(next(starts))))
        send(target.port, cases.completion(logprobs=1), 300)  # the first one compiles, unless a bless has asked it
        began, campaign = time.monotonic(), Campaign(target, name)
        try:
            campaign.run(cases.every())
            with urllib.request.urlopen(f"http://127.0.0.1:{target.port}/openapi.json", timeout=60) as answer:
                document = json.load(answer)
            campaign.run(drawn(Drawer(document, SEED), self._count, SEED))
            for what, connect in FLOODS.items():
                campaign.flood(what, connect)
        finally:
            result, server = campaign.result, target.server
            alive = target.alive()
            server.stop()
            self._keep(
                name,
                {
                    "requests": result.requests,
                    "statuses": {str(status): count for status, count in sorted(result.statuses.items())},
                    "connections": result.connections,
                    "findings": result.findings,
                    "engine ended": result.ended,
                    "slowest answer of the neighbour": round(result.slowest, 1),
                    "seconds": round(time.monotonic() - began, 1),
                    "alive at the end": alive,
                    "kernels missing": dict(Counter(server.missed())),
                },
            )

    def _argv(self, more: tuple[str, ...]) -> list[str]:
        argv = self._bench.argv(Case("tiny-lfm2", True, {}, more), self._model)
        names = argv.index("--served-model-name") + 1
        return [*argv[:names], MODEL, *argv[names:]]

    def _scratch(self, name: str, number: int) -> Path:
        return self._bench.scratch / f"{name}-{number}"

    def _started(self, name: str, process: Process) -> Server:
        server, seconds = self._bench.started(name, name, process)
        if seconds is None:
            self._keep(name, {"log": server.text()[-4000:]})
            raise SystemExit(f"{name}: the server did not answer")
        return server

    def _keep(self, name: str, values: dict[str, Any]) -> None:
        with self._lock:
            self._seen.setdefault(name, {}).update(values)
            print(json.dumps(self._seen), flush=True)


if __name__ == "__main__":
    where, files_of, count = sys.argv[1:]
    Torture(Place(Path(where)), Path(files_of), int(count)).run()
