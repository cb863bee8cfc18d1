"""Where a file of one source lies in another: the file that the other alone has, and that resembles it most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath

_LEAST = 0.5
"""The share of common lines from which two files are one, as `git diff --find-renames` has it by default."""


def moved(path: str, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> str | None:
    """Return the path in NEW of the file PATH of OLD, None if no file resembles it.

    OLD and NEW are path to content. Only files that OLD lacks are looked at, of the same suffix. Of files that resemble
    it alike the one with the same name is taken, then the first.
    """
    if path not in old:
        return None
    name, lines = PurePosixPath(path), _lines(old[path])
    scores = [
        (_resemblance(lines, _lines(new[other])), PurePosixPath(other).name == name.name, other)
        for other in sorted(new.keys() - old.keys(), reverse=True)
        if PurePosixPath(other).suffix == name.suffix
    ]
    best = max(scores, default=(0.0, False, ""))
    return best[2] if best[0] >= _LEAST else None


def _lines(data: bytes) -> Counter[bytes]:
    return Counter(line for line in data.split(b"\n") if line.strip())


def _resemblance(first: Counter[bytes], second: Counter[bytes]) -> float:
    """Return the share of lines that both have, from 0 to 1."""
    size = max(first.total(), second.total())
    return (first & second).total() / size if size else 0.0
