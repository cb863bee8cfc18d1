"""For how long the GPU is kept busy while the host queues a call. No torch in here."""

from __future__ import annotations

from collections.abc import Sequence


class Delay:
    """Keeps the GPU busy for as long as the host takes to queue a call, by contender.

    How long that is depends on the host, so it is measured: at first what it took lately, MARGIN times, and twice as
    much each time that it was too short, up to LONGEST.
    """

    MARGIN, LONGEST = 3.0, 200_000.0

    def __init__(self, cycles_per_us: float) -> None:
        self._cycles_per_us = cycles_per_us
        self._us: dict[str, float] = {}

    def cycles(self, name: str, host: Sequence[float]) -> int:
        """Return for how many clock cycles the GPU is to be busy; HOST is what the call took the host lately, in us."""
        return int(self._us.setdefault(name, self.MARGIN * max(host)) * self._cycles_per_us)

    def lengthen(self, name: str) -> bool:
        """Take twice as long for NAME from now on; return False if it takes the longest already."""
        before = self._us[name]
        self._us[name] = min(2 * before, self.LONGEST)
        return self._us[name] > before
