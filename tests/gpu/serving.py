"""Blessing and blessed serving on a GPU, without Docker: `python -m gpu.serving PLACE SCRATCH [CASE...]`.

For each case a first `vllm serve` writes the compile cache, after one prompt or after rounds of the workload that
`nvllm bless` asks. Then others have it read-only, as a blessed serve has it: `nvllm`'s own program fills the scratch
over Inductor's directory, and `nvllm`'s own cache manager does what is declared about a kernel that is missing. They
are asked what the first one was not. Prints a line of JSON after each step, each with all before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu import machine
from gpu.machine import CACHE, SENTINELS, Place, Process
from nvllm.bless import joint
from nvllm.core import workload
from nvllm.core.workload import Request

LENGTHS = (1, 2, 15, 16, 17, 64, 111)
"""Tokens of the prompts: where Triton makes other variants of a kernel, which it does for 1 and for multiples of 16."""

LONGEST, AT_ONCE, ROUNDS, QUIET = 128, 8, 6, 2
"""Of the workload: tokens and requests of the engine, rounds at most, and how many without a new kernel are enough."""

CACHE_BYTES = 256 << 20
"""Of the KV cache. Measured at each start it would differ, the number of blocks with it, and some kernels with that."""

STARTED, ASKED = 240.0, 90.0
"""Seconds that a server may take to answer first, and then for each prompt."""

SCRATCH = "/tmp/nvllm-kernels"
"""Where the cache manager keeps what a blessed serve compiled: `SCRATCH` of launcher/nvllm/runtime/triton_cache.py."""

CODE = {".py", ".so", ".cubin", ".ptx", ".cpp", ".h"}
"""The files in Inductor's directory that are compiled code; it writes others also when it only loads."""

BLESSING = {"VLLM_USE_AOT_COMPILE": "1", "TRITON_CACHE_DIR": f"{CACHE}/triton"}
BLESSED = {**BLESSING, "VLLM_FORCE_AOT_LOAD": "1"}


@dataclass(frozen=True)
class Start:
    """A start on a sealed cache: what is done about a missing kernel, and whether Inductor's directory is FILLED."""

    missing: str
    filled: bool = True
    workload: bool = False


@dataclass(frozen=True)
class Case:
    """A MODEL, what the first server is asked, one prompt or the WORKLOAD, and the starts on its cache, by name."""

    model: str
    workload: bool
    starts: dict[str, Start]
    arguments: tuple[str, ...] = ()


GDN = ("--additional-config", '{"gdn_prefill_backend":"triton"}')
CASES: dict[str, Case] = {
    "tiny-lfm2, one prompt": Case("tiny-lfm2", False, {"report": Start("report"), "refuse": Start("refuse")}),
    "tiny-lfm2, workload": Case(
        "tiny-lfm2", True, {"report": Start("report", workload=True), "not filled": Start("report", filled=False)}
    ),
    "qwen3-next, workload": Case("qwen3-next", True, {"report": Start("report", workload=True)}, GDN),
}

Answer = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A running `vllm serve` on PORT: its process, and the file of its log."""

    port: int
    process: subprocess.Popen[str]
    log: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def missed(self) -> list[str]:
        return machine.missed(self.text())

    def ask(self, prompt: Sequence[int], answer: int = 8, settings: Answer | None = None) -> Answer:
        """Return the ANSWER tokens after PROMPT, or what went wrong."""
        return ask(self.port, prompt, answer, settings)

    def stream(self, request: Request, more: Callable[[], bool]) -> bool:
        """Ask REQUEST part by part until MORE returns false; return whether the server takes it."""
        question = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            data=json.dumps({"model": "model", **joint.fields(request), "stream": True}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(question, timeout=ASKED) as answer:
                for line in answer:
                    if line.startswith(b"data: {") and not more():
                        break
        except urllib.error.HTTPError as error:
            return error.code != 400
        return True

    def stop(self) -> None:
        """End the server as `nvllm` does, by SIGTERM; its processes have half a minute."""
        if not self.alive():
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def sees(self, path: str) -> Path:
        """Return where the server's own PATH is for others: it has mounts of its own."""
        return Path(f"/proc/{self.process.pid}/root{path}")


def ask(
    port: int,
    prompt: Sequence[int],
    answer: int = 8,
    settings: Answer | None = None,
    model: str = "model",
    seconds: float = ASKED,
) -> Answer:
    """Return the ANSWER tokens after PROMPT of the MODEL on PORT within SECONDS, or what went wrong."""
    greedy = {"temperature": 0, "return_token_ids": True}
    question = {"model": model, "prompt": list(prompt), "max_tokens": answer, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps({**question, **(greedy if settings is None else settings)}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return {"status": 200, "tokens": json.load(response)["choices"][0].get("token_ids", [])}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "failed": error.read().decode(errors="replace")[:300]}
    except (OSError, ValueError, KeyError) as error:
        return {"status": 0, "failed": f"{type(error).__name__}: {error}"[:300]}


def prompt(length: int, seed: int = 0) -> list[int]:
    """Return LENGTH tokens that no prompt of another LENGTH or SEED begins with."""
    return [3 + (7 * length + 31 * seed + 5 * at) % 250 for at in range(length)]


def files(directory: Path) -> dict[str, str]:
    """Return the hash of each file below DIRECTORY, by its path."""
    every = (path for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in every}


def inductors(cache: Path) -> list[str]:
    """Return Inductor's directories in CACHE, which it also writes when it only loads."""
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("inductor_cache") if path.is_dir())


def started(place: Place, process: Process, port: int, log: Path) -> tuple[Server, float | None]:
    """Start PROCESS and wait until it answers one prompt; return the server and the seconds, None if it never did."""
    began = time.monotonic()
    server = Server(port, machine.start(place, process, log), log)
    while time.monotonic() - began < STARTED and server.alive():
        if "tokens" in server.ask(prompt(5)):
            return server, round(time.monotonic() - began, 1)
        time.sleep(0.5)
    return server, None


def marks(server: Server) -> Answer:
    """Return what the log of SERVER says of the cache, the switches, and the kernels that were missing."""
    log = server.text()
    return {
        "loaded": log.count("Directly load AOT compilation from path"),
        "saved": log.count("saved AOT compiled function to"),
        "missed": dict(Counter(server.missed())),
        "refused": log.count("CompileRefusedError"),
        "sentinels": machine.sentinels(log),
    }


def rounds(server: Server, most: int, quiet: int) -> list[Answer]:
    """Ask MOST rounds of `nvllm bless`, or until QUIET in a row brought no new kernel; return what each brought."""
    of = workload.bounds({"max-num-seqs": AT_ONCE}, LONGEST)
    seen: list[Answer] = []
    for number in range(most):
        began, before = time.monotonic(), len(server.missed())
        with ThreadPoolExecutor(AT_ONCE) as pool:
            statuses = Counter(
                str(answer["status"])
                for step in workload.steps(of, number)
                for answer in pool.map(
                    lambda request: server.ask(request.prompt, request.answer, dict(request.settings)), step
                )
            )
        joint_steps = workload.joint_steps(of, number)
        unmet = [step.name for step in joint_steps if not joint.ask(step, server.stream).met]
        new = len(server.missed()) - before
        seconds = round(time.monotonic() - began, 1)
        seen.append({"requests": statuses, "joint": len(joint_steps), "unmet": unmet, "new": new, "seconds": seconds})
        if not server.alive() or (len(seen) >= quiet and not any(each["new"] for each in seen[-quiet:])):
            break
    return seen


def asked(server: Server) -> Answer:
    """Return the answers to a prompt of each of LENGTHS, alone, then to all at once, and whether the server lives."""
    alone = {str(length): server.ask(prompt(length, 1)) for length in LENGTHS}
    with ThreadPoolExecutor(len(LENGTHS)) as pool:
        together = list(pool.map(lambda length: server.ask(prompt(length, 2)), LENGTHS))
    return {
        "alone": alone,
        "together": {str(length): answer for length, answer in zip(LENGTHS, together, strict=True)},
        "alive": server.alive() and "tokens" in server.ask(prompt(5)),
    }


@dataclass
class Bench:
    """Where the cases run: PLACE, SCRATCH for their files, and the RESULTS so far."""

    place: Place
    scratch: Path
    say: Callable[[Answer], None]
    results: Answer = field(default_factory=dict)
    _ports: Any = field(default_factory=lambda: iter(range(8100, 8200)))
    _lock: Any = field(default_factory=threading.Lock)

    def port(self) -> int:
        with self._lock:
            return int(next(self._ports))

    def keep(self, case: str, start: str, values: Answer) -> None:
        """Add VALUES to what is known of a START of a CASE, and say all that is known."""
        with self._lock:
            self.results.setdefault(case, {}).setdefault(start, {}).update(values)
            self.say(self.results)

    def case(self, name: str, case: Case) -> None:
        """Write the cache of CASE, then start on it."""
        directory = self.scratch / name.replace(", ", "-").replace(" ", "-")
        model, cache = directory / "model", directory / "compiled"
        for each in (model, cache):
            each.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "gpu.models", case.model, str(model)], check=True)
        process = Process("patched", self.argv(case, model), directory / "cold", SENTINELS, BLESSING, {}, cache)
        server, seconds = self.started(name, "cold", process)
        if seconds is not None and case.workload:
            self.keep(name, "cold", {"rounds": rounds(server, ROUNDS, QUIET)})
        server.stop()
        self.keep(name, "cold", marks(server))
        if seconds is None:
            return
        with ThreadPoolExecutor(len(case.starts)) as pool:
            done = [pool.submit(self.sealed, name, case, start, directory) for start in case.starts]
        for future in done:
            future.result()

    def argv(self, case: Case, model: Path) -> list[str]:
        """Return the command of a server, without its port."""
        argv = ["-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", "model"]
        argv += ["--host", "127.0.0.1", "--max-model-len", str(LONGEST), "--max-num-seqs", str(AT_ONCE)]
        argv += ["--gpu-memory-utilization", "0.08", "--kv-cache-memory-bytes", str(CACHE_BYTES)]
        return machine.python(*argv, *case.arguments)

    def started(self, case: str, start: str, process: Process) -> tuple[Server, float | None]:
        """Start PROCESS, and keep what came of it."""
        port, log = self.port(), process.scratch.with_suffix(".log")
        argv = ["sh", "-c", 'exec "$@" >&2', "sh", *process.argv, "--port", str(port)]  # all that it says is its log
        process = Process(**{**vars(process), "argv": argv})
        server, seconds = started(self.place, process, port, log)
        self.keep(case, start, {"seconds": seconds, **marks(server)})
        if seconds is None:
            self.keep(case, start, {"log": server.text()[-3000:]})
        return server, seconds

    def sealed(self, name: str, case: Case, start: str, directory: Path) -> None:
        """Start on the sealed cache of CASE and ask what its first server was not."""
        how, cache = case.starts[start], directory / "compiled"
        fresh = inductors(cache)
        seeds = [{"from": str(cache / path), "to": f"{CACHE}/{path}"} for path in fresh] if how.filled else []
        holds = {"launch.json": json.dumps({"cache": {"missing": how.missing, "seeds": seeds}})}
        seed = str(self.place.repository / "launcher/nvllm/runtime/seed.py")
        argv = [sys.executable, seed, *self.argv(case, directory / "model")]
        scratch = directory / start.replace(" ", "-")
        before = files(cache)
        process = Process("patched", argv, scratch, SENTINELS, BLESSED, holds, cache, True, fresh, (SCRATCH,))
        server, seconds = self.started(name, start, process)
        if seconds is not None:
            self.keep(name, start, {"missed when ready": len(server.missed()), "written": self.written(server, cache)})
            if how.workload:
                self.keep(name, start, {"rounds": rounds(server, 2, 3)})
                self.keep(name, start, {"missed by the workload": len(server.missed())})
            self.keep(name, start, asked(server))
            if server.alive():
                kept = [cubin.name for cubin in server.sees(SCRATCH).rglob("*.cubin")]
                self.keep(name, start, {"compiled": dict(Counter(kept)), "written": self.written(server, cache)})
        server.stop()
        self.keep(name, start, {**marks(server), "unchanged": files(cache) == before})

    def written(self, server: Server, cache: Path) -> dict[str, int]:
        """Return how many files SERVER has in Inductor's directories that CACHE has not, by the ends of their names."""
        new: Counter[str] = Counter()
        for directory in inductors(cache):
            new.update(
                Path(path).suffix
                for path in files(server.sees(f"{CACHE}/{directory}")).keys() - files(cache / directory).keys()
            )
        return dict(new)


def measure(place: Place, scratch: Path, names: Sequence[str], say: Callable[[Answer], None]) -> None:
    """Run the cases NAMES side by side, and SAY what was seen so far after each step."""
    bench = Bench(place, scratch, say)
    with ThreadPoolExecutor(len(names)) as pool:
        done = [pool.submit(bench.case, name, CASES[name]) for name in names]
    for each in done:
        each.result()


if __name__ == "__main__":
    where, files_of, *names = sys.argv[1:]
    measure(
        Place(Path(where)), Path(files_of), names or [*CASES], lambda results: print(json.dumps(results), flush=True)
    )
