"""A model of a real size, blessed, served, pressed and compared: `python -m gpu.sized PLACE SCRATCH CASE [TRIALS]`.

It stands on what `blessing.py` stands on. The model (`large_model.py`) is written on the machine. Served from its
blessed cache it gets more requests at once than its KV cache has room for, so that some are preempted; then 1,000
that are drawn from the schema of its server; then the same pressure again. After that no kernel may be missing, the KV
cache must be empty, and memory as it was before the last pressure.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu import blessing, campaigns, serving
from gpu.blessing import Bench, Seen
from gpu.project import BILLIONS, IMAGE, LARGE, LARGE_EAGER

PRESSED, PROMPT, ANSWER = 64, 400, 800
"""Requests at once, tokens of a prompt and of an answer: all can begin, and the KV cache has no room for their ends."""

DRAWN = 1000

METRICS = {
    "kv in use": "vllm:kv_cache_usage_perc",
    "preempted": "vllm:num_preemptions_total",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
}
"""What is read of the server's own metrics, by its name there."""

LONGEST = 300.0
"""Seconds for an answer under pressure."""
SETTLED = 60.0
"""Seconds within which no request runs any more, once all are answered or their clients have hung up."""


def metrics() -> dict[str, float]:
    """Return what the server says of METRICS, over all its engines."""
    with urllib.request.urlopen("http://127.0.0.1:8000/metrics", timeout=60) as answer:
        text = answer.read().decode()
    samples = {
        name: re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE) for name, metric in METRICS.items()
    }
    return {name: sum(map(float, values)) for name, values in samples.items()}


def processes() -> Iterator[tuple[str, int]]:
    """Yield the command and the bytes in memory of each process of an engine in the network of this one."""
    own = os.readlink("/proc/self/ns/net")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if os.readlink(process / "ns/net") == own and re.search(r"VLLM::|vllm serve", command):
                pages = int((process / "statm").read_text().split()[1])
                yield command.split(" /")[0][:40], pages * os.sysconf("SC_PAGE_SIZE")


def memory() -> Seen:
    """Return the MiB in memory of the engine's processes, and those of the GPU, which others may use too."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    sizes = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30).stdout.split()
    return {"processes": {name: size >> 20 for name, size in sorted(processes())}, "gpu": sum(map(int, sizes))}


def settled() -> Seen:
    """Wait until no request runs, and return what the server and the machine say then."""
    until = time.monotonic() + SETTLED
    while (seen := metrics())["running"] + seen["waiting"] and time.monotonic() < until:
        time.sleep(1)
    time.sleep(2)  # a step that was under way frees its blocks after it
    return {"metrics": metrics(), "memory": memory()}


def press(seed: int) -> Seen:
    """Ask all of PRESSED at once, and return how many were answered in full, and the seconds."""
    began = time.monotonic()

    def ask(number: int) -> str:
        answer = serving.ask(8000, serving.prompt(PROMPT, seed + number), ANSWER, model=BILLIONS, seconds=LONGEST)
        return "whole" if len(answer.get("tokens", [])) == ANSWER else str(answer.get("failed", "short"))[:100]

    with ThreadPoolExecutor(PRESSED) as pool:
        answers = Counter(pool.map(ask, range(PRESSED)))
    return {"answers": dict(answers), "seconds": round(time.monotonic() - began, 1)}


def blessed(bench: Bench) -> None:
    """Bless the model, serve it, press it, ask it what is drawn, and press it again."""
    if not bench.bless("bless", LARGE, *bench.trials):
        return
    step = "serve"
    result = bench.nvllm(step, "serve", IMAGE, "--profile", LARGE, "--detach")
    if not result:
        return
    bench.keep(step, {key: result[key] for key in ("tree", "guard", "slow", "container")})
    bench.asked(step, BILLIONS)
    bench.keep("ready", settled())
    bench.keep("pressed", press(1000))
    bench.keep("pressed", settled())
    bench.drawn("drawn", DRAWN, BILLIONS)
    bench.keep("drawn", settled())
    bench.keep("pressed again", press(2000))
    bench.keep("pressed again", settled())
    bench.observe(step)
    bench.stop(step, LARGE)


def ablated(bench: Bench) -> None:
    """Compare the model with and without the page zeroer, each in two fresh containers."""
    words = ("--profile", LARGE_EAGER, "--sentinels", "page-zeroer", "--runs", "2", *campaigns.asked(bench))
    campaigns.compared(bench, "ablate", *words)


CASES: Mapping[str, Callable[[Bench], None]] = {"blessed": blessed, "ablated": ablated}

if __name__ == "__main__":
    blessing.run(sys.argv[1:], CASES, BILLIONS)
