"""The matrix of a bisect: which patches each set holds, and what each of its trials came to, as text and as a drawing.

A column is a set. In colour, its name and its patches have the colour of its verdict, and each trial has its own.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from nvllm.bisect import search
from nvllm.bisect.combinations import set_hash
from nvllm.bisect.journal import BisectState
from nvllm.bisect.verdict import PatchSet, TrialOutcome

MARKS: dict[TrialOutcome, str] = {"good": "+", "bad": "x", "untestable": "?"}
LEGEND = "● in the set; + good, x bad, ? untestable"
_PAINT: dict[str, str] = {"good": "\x1b[32m", "bad": "\x1b[31m", "untestable": "\x1b[90m"}
_PLAIN = "\x1b[0m"
_COLOURS: dict[str, str] = {"good": "#2e9e5b", "bad": "#d1453b", "untestable": "#9aa0a6"}
_WIDE = 7
"""Trials in one row of a column: as many as the name of a set has digits."""
_CELL, _LINE = 18, 13


def tried_sets(state: BisectState) -> tuple[PatchSet, ...]:
    """Return the sets that were tried, in the order in which they were tried first."""
    return tuple(state.trials)


def verdicts(state: BisectState) -> tuple[TrialOutcome | None, ...]:
    """Return what the search takes each set for that was tried; None where that is open."""
    problem, evidence = state.problem, state.evidence
    found = [search.concluded(problem, evidence, chosen) for chosen in tried_sets(state)]
    return tuple(None if one is None else one.outcome for one in found)


def matrix(state: BisectState) -> list[tuple[str, ...]]:
    """Return the matrix as rows: first the names of the sets, then one row a patch, then all trials, in their order.

    A dot stands for a patch that is in the set. The trials of a set that has many go on in further rows.
    """
    sets = tried_sets(state)
    rows: list[tuple[str, ...]] = [("patch", *(set_hash(chosen) for chosen in sets))]
    rows += [(patch, *("●" if patch in chosen else "·" for chosen in sets)) for patch in state.start.order]
    marks = ["".join(MARKS[one.outcome] for one in state.trials[chosen]) for chosen in sets]
    for first in range(0, max(map(len, marks), default=1), _WIDE):
        rows.append(("" if first else "trials", *(one[first : first + _WIDE] for one in marks)))
    return rows


def matrix_text(state: BisectState, *, color: bool) -> str:
    """Return the matrix, aligned."""
    rows, found = matrix(state), verdicts(state)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    trials = len(state.start.order) + 1
    lines = []
    for number, (label, *cells) in enumerate(rows):
        line = label.ljust(widths[0])
        for cell, width, outcome in zip(cells, widths[1:], found, strict=True):
            if not color:
                shown = cell
            elif number >= trials:
                shown = "".join(_painted(mark, _outcome(mark)) for mark in cell)
            else:
                shown = _painted(cell, outcome)
            line += "  " + shown + " " * (width - len(cell))
        lines.append(line.rstrip())
    return "\n".join(lines)


def _painted(text: str, outcome: TrialOutcome | None) -> str:
    return text if outcome is None else f"{_PAINT[outcome]}{text}{_PLAIN}"


def _outcome(mark: str) -> TrialOutcome:
    return next(outcome for outcome, one in MARKS.items() if one == mark)


def matrix_svg(state: BisectState) -> str:
    """Return the matrix as a drawing: patches, then the name of each set, then its trials, one below the other."""
    sets, order, found = tried_sets(state), state.start.order, verdicts(state)
    left = 10 + 8 * max(len(one) for one in (*order, "trials"))
    most = max((len(tried) for tried in state.trials.values()), default=0)
    below = _CELL * len(order) + 75
    width, height = left + _CELL * len(sets) + 10, below + _LINE * most + 5
    parts = [f'<text x="0" y="{_CELL * row + 13}">{html.escape(patch)}</text>' for row, patch in enumerate(order)]
    parts.append(f'<text x="0" y="{below}">trials</text>')
    for column, (chosen, outcome) in enumerate(zip(sets, found, strict=True)):
        x = left + _CELL * column
        parts += _column(order, chosen, x, _COLOURS[outcome or "untestable"])
        said = html.escape(f"{set_hash(chosen)}: {state.evidence.tally(chosen)}")
        parts.append(
            f'<text transform="translate({x + 11} {_CELL * len(order) + 62}) rotate(-90)" '
            f'style="fill: {_COLOURS[outcome or "untestable"]}">{set_hash(chosen)}<title>{said}</title></text>'
        )
        for number, one in enumerate(state.trials[chosen]):
            detail = html.escape(f"{one.outcome} {one.kind or one.stage or ''}, {one.seconds:.1f} s: {one.reason}")
            parts.append(
                f'<text x="{x + 4}" y="{below + _LINE * number}" style="fill: {_COLOURS[one.outcome]}">'
                f"{MARKS[one.outcome]}<title>{detail}</title></text>"
            )
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img">{"".join(parts)}</svg>'


def _column(order: Sequence[str], chosen: PatchSet, x: int, colour: str) -> list[str]:
    """Return the patches of CHOSEN as boxes of COLOUR, and the others as empty ones."""
    return [
        f'<rect x="{x}" y="{_CELL * row}" width="{_CELL - 3}" height="{_CELL - 3}" rx="3" '
        f'fill="{colour if patch in chosen else "none"}" stroke="#9aa0a6" stroke-opacity="0.4"/>'
        for row, patch in enumerate(order)
    ]
