"""Blesses a profile again and again, each time from nothing: `python -m gpu.repeats PLACE SCRATCH CASE SECONDS`.

A bless has one trial: what may go wrong by chance is which requests meet in a step, in its bootstrap as in its trial.
No bless begins that would not end within SECONDS. In the first case of each profile the last cache is served, and
asked requests that are drawn from the schema of its server.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpu import blessing
from gpu.blessing import Bench
from gpu.project import FORKED, FORKED_512, FORKED_CHUNKED, TINY
from gpu.shapes import DRAWN

BLESSES: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "128 tokens and 2": (FORKED, (7, 7, 6)),
    "512 tokens and 16": (FORKED_512, (5, 5, 5, 5)),
    "512 tokens and 64, in parts of 128": (FORKED_CHUNKED, (4, 4, 4, 4, 4)),
}
"""Each profile by its bounds, and how often each of its cases blesses it, side by side: twenty times in all."""

TRIALS = "1"


def repeated(profile: str, times: int, serves: bool, bench: Bench, until: float) -> None:
    """Bless PROFILE as many TIMES, before UNTIL on the monotonic clock, and serve the last cache if the case SERVES."""
    for number in range(1, times + 1):
        began = time.monotonic()
        step = f"bless {number}"
        again = ("--rebless",) if number > 1 else ()
        if bench.bless(step, profile, *bench.trials, *again):
            bench.keep(step, {"manifest": brief(bench.results[step]["manifest"])})
        took = time.monotonic() - began
        if time.monotonic() + took > until:
            break
    if serves:
        bench.served("serve", profile, TINY, DRAWN)


def brief(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return of a MANIFEST's summary what one of twenty is looked at for."""
    cold, coverage = manifest["cold"], manifest["coverage"]
    trials = [
        {key: each[key] for key in ("compiles", "loaded", "number", "phases", "saved", "unchanged")}
        for each in manifest["trials"]
    ]
    return {
        **{key: manifest[key] for key in ("version", "files", "tree_hash")},
        "cold": {key: cold[key] for key in ("kernels", "phases")},
        "coverage": {key: coverage[key] for key in ("kernels", "new", "requests", "unmet") if key in coverage},
        "trials": trials,
    }


def cases(until: float = 0.0) -> Mapping[str, Callable[[Bench], None]]:
    """Return the cases by name, which end by UNTIL on the monotonic clock."""
    return {
        f"{bounds}, case {number}": partial(repeated, profile, count, number == 1, until=until)
        for bounds, (profile, counts) in BLESSES.items()
        for number, count in enumerate(counts, start=1)
    }


if __name__ == "__main__":
    *words, seconds = sys.argv[1:]
    blessing.run([*words, TRIALS], cases(time.monotonic() + float(seconds)))
