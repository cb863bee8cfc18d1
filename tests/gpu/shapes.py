"""Blesses and serves profiles with other bounds: `python -m gpu.shapes PLACE SCRATCH CASE [TRIALS]`.

What an engine takes decides which kernels it needs: how long a prompt is, how many requests are computed at once, and
whether a long prompt is computed in parts while others generate. Everything else is as in `blessing.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

from gpu import blessing
from gpu.blessing import Bench
from gpu.project import FORKED, TINY

PROFILES = {
    "128 tokens and 2": "tiny-blessed",
    "128 tokens and 2, forked": FORKED,
    "512 tokens and 16": "tiny-512",
    "512 tokens and 64, in parts of 128": "tiny-chunked",
}
"""Profiles by the most tokens of a request, and the most requests at once; and how the engine is started."""

DRAWN = 1200
"""Requests that are drawn from the schema of a blessed server, and asked of it: it answers 3 in 10 of them."""


def shaped(profile: str, bench: Bench) -> None:
    """Bless PROFILE, serve it, and ask what no workload asks."""
    if bench.bless("bless", profile, *bench.trials):
        bench.served("serve", profile, TINY, DRAWN)


CASES: Mapping[str, Callable[[Bench], None]] = {case: partial(shaped, profile) for case, profile in PROFILES.items()}

if __name__ == "__main__":
    blessing.run(sys.argv[1:], CASES)
