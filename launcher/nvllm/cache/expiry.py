"""Expiry: until when a blessing is served.

A blessing says that a cache was tried on a day. Drivers, libraries and what is known about either go on; a
manifest that lies in a repository for ever would be served for ever. So a bless may name its end, and a profile
may say how old a blessing of it can become; whichever comes first counts.
"""

from __future__ import annotations

import re

from nvllm.cache import manifest
from nvllm.core.refusal import Refusal, Refused

DAY = 86_400
_UNITS = {"h": 3600, "d": DAY, "w": 7 * DAY}
_FOR = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNTIL = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WHERE = "--expires"


def parse(text: str, now: float) -> int:
    """Return the seconds since 1970 that TEXT means at NOW (seconds).

    TEXT is ``30d`` (from now on; also ``h`` and ``w``), a day, ``2027-01-31``, which begins at midnight UTC, or a
    time as manifests write it. Raises Refused NV108 for anything else, and for what is over.
    """
    forms = "a time to come: 30d, 2027-01-31 or 2027-01-31T12:00:00Z"
    length = _FOR.fullmatch(text)
    try:
        if length is not None:
            found = int(now) + int(length[1]) * _UNITS[length[2]]
        else:
            found = manifest.seconds(f"{text}T00:00:00Z" if _UNTIL.fullmatch(text) else text)
    except ValueError:
        raise Refused([Refusal("NV108", _WHERE, forms, text, "write --expires 30d")]) from None
    if found <= now:
        raise Refused(
            [Refusal("NV108", _WHERE, forms, f"{manifest.stamp(found)}, which is over", "write --expires 30d")]
        )
    return found


def end(created: float, expires: int | None, valid_days: int | None) -> int | None:
    """Return when a blessing that was CREATED (seconds) ends, or None if it never does.

    EXPIRES is what was asked of the bless, VALID_DAYS what the profile allows; the earlier one counts.
    """
    ends = [expires] if expires is not None else []
    ends += [int(created) + valid_days * DAY] if valid_days is not None else []
    return min(ends, default=None)
