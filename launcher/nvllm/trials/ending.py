"""Ends trials that run at the same time, and says when one has been lost too often."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

_BETWEEN_CLEARS = 1.0
"""Seconds between two calls of `Bench.clear`: a trial that is to end may just have started an engine."""

MOST_LOSSES = 3
"""Tasks of one trial that a run of the driver may lose; after them something else is wrong than a machine."""


def end_all(running: Collection[Future[T]], clear: Callable[[], None]) -> None:
    """Call CLEAR until RUNNING have ended. An interrupt, one or more, makes them end sooner and never leaves them."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            clear()
        with contextlib.suppress(KeyboardInterrupt):
            if not wait(running, _BETWEEN_CLEARS).not_done:
                return
