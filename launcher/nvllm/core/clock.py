"""Times as nvllm writes them: UTC, to the second, ``2026-11-22T17:30:00Z``."""

from __future__ import annotations

import datetime
import time

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def now() -> str:
    """Return the time of this host's clock."""
    return stamp(time.time())


def stamp(seconds: float) -> str:
    """Return SECONDS since 1970 as text."""
    return time.strftime(_FORMAT, time.gmtime(seconds))


def seconds(text: str) -> int:
    """Return the seconds since 1970 of TEXT. Raises ValueError for what is no time."""
    return int(datetime.datetime.strptime(text, _FORMAT).replace(tzinfo=datetime.UTC).timestamp())


def compact(text: str) -> str:
    """Return TEXT, a time, as a part of a file's name: ``20261122T173000Z``."""
    return text.replace("-", "").replace(":", "")
