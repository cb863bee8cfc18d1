"""A compile cache, written by one `vllm serve` and loaded read-only by the next: `python serving.py PLACE SCRATCH`.

The first server writes the cache and answers one prompt. The second has it read-only, must load it, and answers
prompts that the first never saw, alone and all at once. Prints a line of JSON after each step, each with all before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu import machine
from tests.gpu.machine import CACHE, SENTINELS, Place, Process

LENGTHS = (1, 2, 15, 16, 17, 64, 111)
"""Tokens of the prompts: where Triton makes other variants of a kernel, which it does for 1 and for multiples of 16."""

STARTED, ASKED = 300.0, 60.0
"""Seconds that a server may take to answer first, and then for each prompt."""

ARGUMENTS = ("--max-model-len", "128", "--max-num-seqs", "8", "--gpu-memory-utilization", "0.1")
COMPILED = {"VLLM_USE_AOT_COMPILE": "1", "VLLM_COMPILE_CACHE_SAVE_FORMAT": "unpacked"}
SEALED = {**COMPILED, "VLLM_FORCE_AOT_LOAD": "1"}


@dataclass(frozen=True)
class Server:
    """A running `vllm serve` on PORT, its process, and the file of its log."""

    port: int
    process: subprocess.Popen[str]
    log: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, prompt: Sequence[int], seconds: float) -> dict[str, Any]:
        """Return the answer to PROMPT: its tokens, or what went wrong."""
        question = {
            "model": "model",
            "prompt": list(prompt),
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            data=json.dumps(question).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return {"tokens": json.load(answer)["choices"][0]["token_ids"]}
        except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
            return {"failed": f"{type(error).__name__}: {error}"}

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


def prompt(length: int, seed: int = 0) -> list[int]:
    """Return LENGTH tokens that no prompt of another LENGTH or SEED begins with."""
    return [3 + (7 * length + 31 * seed + 5 * at) % 250 for at in range(length)]


def tree_hash(place: Path) -> str:
    """Return a hash over the names and the bytes of all files below PLACE."""
    found = hashlib.sha256()
    for path in sorted(one for one in place.rglob("*") if one.is_file()):
        found.update(f"{path.relative_to(place)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def serve(place: Place, process: Process, port: int, log: Path) -> tuple[Server, float | None]:
    """Start PROCESS and wait until it answers one prompt; return the server and the seconds, None if it never did."""
    began = time.monotonic()
    server = Server(port, machine.start(place, process, log), log)
    while time.monotonic() - began < STARTED and server.alive():
        if "tokens" in server.ask(prompt(5), ASKED):
            return server, time.monotonic() - began
        time.sleep(0.5)
    return server, None


def marks(log: str) -> dict[str, Any]:
    """Return what the LOG of a server says of the cache, the switches, and the kernels that were missing."""
    return {
        "loaded": log.count("Directly load AOT compilation from path"),
        "saved": log.count("saved AOT compiled function to"),
        "missed": machine.missed(log),
        "sentinels": machine.sentinels(log),
    }


def asked(server: Server) -> dict[str, Any]:
    """Return the answers to a prompt of each of LENGTHS, alone, then to all at once, and whether the server lives."""
    alone = {str(length): server.ask(prompt(length, 1), ASKED) for length in LENGTHS}
    with ThreadPoolExecutor(len(LENGTHS)) as pool:
        together = list(pool.map(lambda length: server.ask(prompt(length, 2), ASKED), LENGTHS))
    return {
        "alone": alone,
        "together": {str(length): found for length, found in zip(LENGTHS, together, strict=True)},
        "alive": server.alive() and "tokens" in server.ask(prompt(5), ASKED),
    }


def measure(place: Place, scratch: Path, say: Callable[[dict[str, Any]], None]) -> None:
    """Serve twice, and SAY what was seen so far after each step."""
    model, cache = scratch / "model", scratch / "compiled"
    for directory in (model, cache):
        directory.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "tiny_models", "tiny-lfm2", str(model)], check=True)
    found: dict[str, Any] = {}
    arms = {
        "cold": Process(
            "patched", (), scratch / "cold", SENTINELS, {**COMPILED, "TRITON_CACHE_DIR": f"{CACHE}/triton"}, {}, cache
        ),
        "sealed": Process("patched", (), scratch / "sealed", SENTINELS, SEALED, {}, cache, sealed=True),
    }
    for number, (name, arm) in enumerate(arms.items()):
        port = 8100 + number
        argv = ["-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", "model"]
        argv = machine.python(*argv, "--port", str(port), "--host", "127.0.0.1", *ARGUMENTS)
        argv = ["sh", "-c", 'exec "$@" >&2', "sh", *argv]  # all that a server says is its log
        if name == "sealed":  # what the first server compiled besides, so that only what it had not is missing
            shutil.copytree(cache / "triton", arm.scratch / "triton")
        before = tree_hash(cache)
        log = scratch / f"{name}.log"
        server, seconds = serve(place, replace(arm, argv=argv), port, log)
        found[name] = {"seconds": seconds, **marks(log.read_text(errors="replace"))}
        say(found)
        if name == "sealed" and seconds is not None:
            found[name] |= asked(server)
            say(found)
        server.stop()
        found[name] |= marks(log.read_text(errors="replace"))
        found[name]["unchanged"] = tree_hash(cache) == before
        say(found)
        if seconds is None:
            found[name]["log"] = log.read_text(errors="replace")[-3000:]
            say(found)
            return


if __name__ == "__main__":
    measure(Place(Path(sys.argv[1])), Path(sys.argv[2]), lambda found: print(json.dumps(found), flush=True))
