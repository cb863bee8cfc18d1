"""Parts of a whole as people write them: ``45/50`` and ``90%``."""

from __future__ import annotations

import re

FLOOR = r"^([0-9]{1,9}/[1-9][0-9]{0,8}|([0-9]{1,2}(\.[0-9]{1,9})?|100)%)$"
"""A part in a document. It does not say that 60/50 is more than the whole."""

_FRACTION = re.compile(r"(\d{1,9})/(\d{1,9})")
_PERCENT = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)%")
_LONGEST = 40
"""Characters of a part that are shown."""
_LAST_DIGIT = 1e-9
"""By how much a part may differ as a float: 47/60 is none, and 47 of 60 must reach it."""


def part(text: str) -> float:
    """Return the part of a whole that TEXT names: ``45/50`` is 0.9, and so is ``90%``.

    Raises ValueError for anything else: for a bare number, which may mean either, and for a part outside 0 to 1.
    """
    if match := _FRACTION.fullmatch(text):
        whole = int(match[2])
        value = int(match[1]) / whole if whole else 2.0
    elif match := _PERCENT.fullmatch(text):
        value = float(match[1]) / 100
    else:
        raise ValueError(f"{text[:_LONGEST]}, which is neither a count of a whole nor a percentage")
    if value > 1:
        raise ValueError(f"{text[:_LONGEST]}, which is more than the whole")
    return value


def reached(correct: int, asked: int, floor: float) -> bool:
    """Return whether CORRECT of those ASKED are at least the part FLOOR of them."""
    return correct >= floor * asked * (1 - _LAST_DIGIT)
