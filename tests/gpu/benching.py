"""`nvllm bench` on a GPU, traces included: `python -m gpu.benching PLACE SCRATCH CASE`.

It stands on what `blessing.py` stands on: every command is `nvllm` itself, and a case needs a network of its own.
Prints a line of JSON after each step, each with all before it.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu import blessing
from gpu.blessing import Bench, Seen
from gpu.project import EAGER, IMAGE, SWITCHED_OFF

STEP = "bench"
REQUESTS, AT_ONCE = 48, 4
"""Of a leg. The engine takes two requests at once, so a trace of these four has more steps than its bound."""

LOAD = ("--requests", str(REQUESTS), "--concurrency", str(AT_ONCE), "--prompt-len", "32", "--output-len", "32")


def traced(bench: Bench, vs: str) -> None:
    """Hold the profile VS against the eager one, each with a trace, and keep what was found."""
    where = bench.ground.home / "evidence"
    words = ("--profile", EAGER, "--vs", vs, "--runs", "1", *LOAD, "--trace", "--output", str(where))
    result = bench.nvllm(STEP, "bench", IMAGE, *words)
    kept = ("arms", "findings", "notes", "kernels", "common")
    bench.keep(STEP, {key: result[key] for key in kept if key in result})
    bench.keep(STEP, {"traces": {path.parts[-3]: trace(path) for path in sorted(where.glob("arms/*/trace/*.json.gz"))}})


def trace(path: Path) -> Seen:
    """Return what is kept of the trace at PATH: its size, its steps, and its events by kind."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        events: list[dict[str, Any]] = json.load(stream)["traceEvents"]
    steps = [
        event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("execute_")
    ]
    kinds = Counter(str(event["cat"]) for event in events if "cat" in event)
    return {"bytes": path.stat().st_size, "steps": len(steps), "events": dict(sorted(kinds.items()))}


CASES: Mapping[str, Callable[[Bench], object]] = {
    "traced, switched off": lambda bench: traced(bench, SWITCHED_OFF),
}


if __name__ == "__main__":
    blessing.run(sys.argv[1:], CASES)
