"""The watchdog of a campaign: it ends the running engine before the host runs out of memory.

With unified memory an engine that grows takes the memory of the kernel and of every program. The kernel then kills
what it likes, or stands still. So MemAvailable is looked at all the time, and below a floor the container is killed
first; whoever waits for the engine finds it gone, and asks `below` for the reason. `nvllm serve` has no watchdog:
what serves users is not ended for others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from nvllm.core.refusal import Refused
from nvllm.host import facts

INTERVAL = 0.5
"""Seconds between two looks."""


class MemoryWatch:
    """A watch over MemAvailable. END kills the container and says whether there was one; FLOOR is in bytes."""

    def __init__(self, floor: int, end: Callable[[], bool]) -> None:
        self.floor = floor
        self.below: int | None = None
        """The first figure below the floor, in bytes; None as long as there was none."""
        self._end = end
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[MemoryWatch]:
        """Watch for the duration of the context."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        ended = False
        while not self._over.wait(INTERVAL):
            available = facts.memory().get("MemAvailable")
            if self.below is None and available is not None and available < self.floor:
                self.below = available
            if self.below is not None and not ended:
                with contextlib.suppress(Refused):  # the container engine did not answer; it is asked again
                    ended = self._end()
