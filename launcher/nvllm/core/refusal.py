"""Refusals: why nvllm does not go on, collected, sorted and shown together.

Nothing below the command line exits or prints. A function that finds something wrong returns a
:class:`Refusal`, or raises :class:`Refused` with all that it found. The codes are in ``catalogue.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nvllm.core import catalogue

_EMPTY = "an empty text"


@dataclass(frozen=True, slots=True, order=True)
class Refusal:
    """One refusal: its stable code, where it was found, what was expected and found, and the cure."""

    code: str
    where: str
    expected: str
    found: str
    cure: str

    def __post_init__(self) -> None:
        if self.code not in catalogue.CODES:
            raise ValueError(f"{self.code} is not in the catalogue")
        # A name or an argument may be empty, and a refusal says all four things.
        object.__setattr__(self, "where", self.where or _EMPTY)
        object.__setattr__(self, "found", self.found or _EMPTY)

    @property
    def title(self) -> str:
        return catalogue.CODES[self.code].title

    @property
    def kind(self) -> catalogue.RefusalKind:
        return catalogue.CODES[self.code].kind

    @property
    def blame(self) -> catalogue.Blame | None:
        return catalogue.BLAMES.get(self.code)


APART = 3
"""So many refusals with one code, finding and cure are shown one by one. More of them are one entry with a count."""

NAMED = 5
"""So many places such an entry names."""


class Refused(Exception):  # noqa: N818 - it is the outcome of a check, not an error of the program
    """Raised with all refusals that were found, at least one."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals: Sequence[Refusal] = tuple(sorted(set(refusals), key=_order))
        if not self.refusals:
            raise ValueError("a Refused needs at least one refusal")
        super().__init__(
            "; ".join(f"{r.code} {r.where}: expected {r.expected}, found {r.found}" for r in self.refusals)
        )

    @property
    def exit_code(self) -> int:
        """3 if anything was refused, else 2 for wrong input, else 1 for what failed."""
        return max(catalogue.EXIT_CODES[refusal.kind] for refusal in self.refusals)


def _order(refusal: Refusal) -> tuple[str, list[tuple[int, str]], Refusal]:
    """Sort by code, then by place as people count: line 4 before line 12."""
    parts = re.split(r"0*([0-9]+)", refusal.where)  # text and number in turn; a longer number is a larger one
    return refusal.code, [(len(part), part) if at % 2 else (0, part) for at, part in enumerate(parts)], refusal


def counted(refusals: Iterable[Refusal]) -> Sequence[Refusal]:
    """Return REFUSALS to show, with one entry for more than `APART` that differ only in where and in what was expected.

    They have one cause, such as --offline with an empty store, and one cure.
    """
    return sorted(_counted(refusals), key=_order)


def _counted(refusals: Iterable[Refusal]) -> Iterator[Refusal]:
    causes: dict[tuple[str, str, str], list[Refusal]] = {}
    for refusal in refusals:
        causes.setdefault((refusal.code, refusal.found, refusal.cure), []).append(refusal)
    for (code, actual, cure), several in causes.items():
        if len(several) <= APART:
            yield from several
        else:
            several.sort(key=_order)
            where = _several(refusal.where for refusal in several)
            expected = _several(refusal.expected for refusal in several)
            yield Refusal(code, where, expected, f"{actual}, {len(several)} times", cure)


def _several(texts: Iterable[str]) -> str:
    """Return the first `NAMED` of TEXTS, and how many others there are."""
    different = list(dict.fromkeys(texts))
    more = [f"and {len(different) - NAMED} more"] if len(different) > NAMED else []
    return "; ".join([*different[:NAMED], *more])


def refuse(code: str, where: str, expected: str, actual: str, cure: str) -> Refused:
    """Return the :class:`Refused` that holds one refusal, to be raised by the caller."""
    return Refused([Refusal(code, where, expected, actual, cure)])


def refuse_any(refusals: Iterable[Refusal]) -> None:
    """Raise :class:`Refused` if REFUSALS is not empty."""
    every = tuple(refusals)
    if every:
        raise Refused(every)


@contextmanager
def collected(refusals: list[Refusal]) -> Iterator[None]:
    """Add what is refused in the context to REFUSALS, and go on behind it: one command shows all of its refusals."""
    try:
        yield
    except Refused as refused:
        refusals += refused.refusals


@contextmanager
def refusing(code: str, where: str, expected: str, cure: str) -> Iterator[None]:
    """Turn an OSError of the context into :class:`Refused`; what was found is the system's own word for it."""
    try:
        yield
    except OSError as error:
        raise refuse(code, where, expected, error.strerror or str(error), cure) from error
