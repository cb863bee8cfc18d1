"""A bisect as people read it: the matrix of sets and trials, the certificate, a paragraph for upstream, a web page.

Everything here is a function from the entries of a journal to text. The page needs nothing from elsewhere.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from nvllm import ends, history
from nvllm.canonical import Json
from nvllm.combinations import set_hash
from nvllm.history import Entry, Start, State, Tried
from nvllm.refusal import Refused
from nvllm.search import Done, beliefs
from nvllm.verdict import Outcome, PatchSet

_MARKS: dict[Outcome, str] = {"good": "+", "bad": "x", "untestable": "?"}
_COLOURS: dict[Outcome, str] = {"good": "#2e9e5b", "bad": "#d1453b", "untestable": "#9aa0a6"}
_PALETTE = ("#3b6fd1", "#d1453b", "#2e9e5b", "#b8860b", "#8e44ad", "#16808f", "#c2185b", "#5d6d7e")
_CELL = 18


def tried_sets(state: State) -> tuple[PatchSet, ...]:
    """Return the sets that were tried, in the order in which they were tried first."""
    return tuple(state.trials)


def matrix(state: State) -> list[tuple[str, ...]]:
    """Return the matrix of patches and sets as rows: first the names of the sets, then one row a patch, then marks.

    A column is a set; a dot stands for a patch that is in it, and the last row has its trials: ``+`` good, ``x``
    bad, ``?`` untestable.
    """
    sets = tried_sets(state)
    rows: list[tuple[str, ...]] = [("patch", *(set_hash(chosen) for chosen in sets))]
    for patch in state.start.order:
        rows.append((patch, *("●" if patch in chosen else "·" for chosen in sets)))  # noqa: PERF401 - a table, row by row
    marks = ["".join(_MARKS[one.outcome] for one in state.trials[chosen]) for chosen in sets]
    rows.append(("trials", *(mark if len(mark) <= 7 else f"{mark[:4]}~{len(mark)}" for mark in marks)))
    return rows


def matrix_text(state: State) -> str:
    """Return the matrix, aligned."""
    rows = matrix(state)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def conclusion(start: Start, done: Done) -> str:
    """Return in one sentence what was found."""
    names = ", ".join(done.culprits)
    verb = "repairs it" if start.find == "fix" else "breaks it"
    if start.mode == "set":
        if len(done.culprits) != 1:
            verb = f"together {'repair' if start.find == 'fix' else 'break'} it"
        proved = "nothing can be left out" if done.certified else "something in it may not be needed"
        return f"{names}: {verb}; {proved}."
    if done.exact:
        sure = max((chance for _, chance in done.posterior), default=1.0)
        return f"{names} {verb}" + (f", with probability {sure:.3f}." if done.flaky else ".")
    return f"one of {names} {verb}; what lies between them cannot be told apart."


def certificate_text(state: State, done: Done) -> str:
    """Return the certificate, one line a set."""
    lines = []
    for line in done.certificate:
        ordered = ", ".join(state.problem.combinations.ordered(line.chosen)) or "no patch"
        held = "holds" if line.holds else "DOES NOT HOLD"
        lines.append(f"{line.role}: {line.verdict} [{line.verdict.tally}], {held} ({set_hash(line.chosen)}: {ordered})")
    return "\n".join(lines)


def ends_text(state: State) -> str:
    """Return how both ends behaved, with the intervals of their failure rates."""
    evidence = state.evidence
    bad, good = (
        (state.problem.high, state.problem.low)
        if state.start.find == "break"
        else (
            state.problem.low,
            state.problem.high,
        )
    )
    return "\n".join(
        f"the {name} end: {ends.rate_text(evidence.tally(chosen))}{replicas_text(state, chosen)}"
        for name, chosen in (("bad", bad), ("good", good))
    )


def replicas_text(state: State, chosen: PatchSet) -> str:
    """Return what is to be said of trials of CHOSEN that left the same bytes: nothing if no two of them did."""
    alike = state.replicas(chosen)
    return f"; {alike} trials left the same bytes: one sample, if the engine is deterministic" if alike else ""


def text(entries: Sequence[Entry], done: Done | None) -> str:
    """Return the whole report for a terminal."""
    state = history.fold(entry.record for entry in entries)
    start = state.start
    parts = [f"bisect of {start.image}, series {start.series}: --find {start.find}, {start.mode} mode"]
    parts += [matrix_text(state), ends_text(state)]
    if done is not None:
        parts += [conclusion(start, done), certificate_text(state, done), *done.notes]
    return "\n\n".join(parts) + "\n"


def upstream(entries: Sequence[Entry], done: Done) -> str:
    """Return a paragraph that can be pasted into an issue of the project that the patches are for."""
    state = history.fold(entry.record for entry in entries)
    start, trials = state.start, sum(len(tried) for tried in state.trials.values())
    images = len(state.builds)
    probe = " ".join(start.probe.command)
    how = f"Bisected by rebuilding: {images} images of series {start.series}, {trials} trials of `{probe}`"
    kind = "flaky" if done.flaky else "steady"
    lines = "\n".join(f"- {line}" for line in certificate_text(state, done).splitlines())
    ends_said = "; ".join(ends_text(state).splitlines())
    return f"{conclusion(start, done)}\n\n{how}, on {start.host}; the failure is {kind}. {ends_said}.\n\n{lines}\n"


def data(entries: Sequence[Entry], done: Done | None) -> dict[str, Json]:
    """Return the report for programs."""
    state = history.fold(entry.record for entry in entries)
    evidence = state.evidence
    order = state.problem.combinations.ordered
    tried: list[Json] = [
        {
            "set": set_hash(chosen),
            "patches": list(order(chosen)),
            "verdict": str(evidence.tally(chosen)),
            "trials": [one.outcome for one in state.trials[chosen]],
            "replicas": state.replicas(chosen),
        }
        for chosen in tried_sets(state)
    ]
    found: Json = None
    if done is not None:
        found = {
            "culprits": list(done.culprits),
            "exact": done.exact,
            "certified": done.certified,
            "flaky": done.flaky,
            "posterior": dict(done.posterior),
            "notes": list(done.notes),
            "certificate": [
                {
                    "role": line.role,
                    "patches": list(order(line.chosen)),
                    "outcome": line.verdict.outcome,
                    "confidence": line.verdict.confidence,
                    "holds": line.holds,
                }
                for line in done.certificate
            ],
        }
    return {
        "image": state.start.image,
        "series": state.start.series,
        "find": state.start.find,
        "mode": state.start.mode,
        "sets": tried,
        "found": found,
    }


def belief_history(entries: Sequence[Entry]) -> list[tuple[tuple[str, float], ...]]:
    """Return the probability of each patch to be the culprit, before the first trial and after each one."""
    first, *others = [entry.record for entry in entries]
    state = history.fold([first])
    beliefs_so_far = [beliefs(state.problem, state.evidence)]
    for record in others:
        state = state.after(record)
        if isinstance(record, Tried):
            beliefs_so_far.append(beliefs(state.problem, state.evidence))
    return beliefs_so_far


def page(entries: Sequence[Entry], done: Done | None, refused: Refused | None = None) -> str:
    """Return the report as one HTML page that refers to nothing outside itself; REFUSED says why nothing was found."""
    state = history.fold(entry.record for entry in entries)
    start = state.start
    title = html.escape(f"bisect of {start.image}, series {start.series}")
    parts = [f"<h1>{title}</h1>", f"<p>{html.escape(f'--find {start.find}, {start.mode} mode')}</p>"]
    if done is not None:
        parts.append(f"<p class=found>{html.escape(conclusion(start, done))}</p>")
    parts += ["<h2>Patches and sets</h2>", _matrix_svg(state)]
    if start.mode == "ordered":
        parts += ["<h2>Probability of each patch, trial by trial</h2>", _belief_svg(entries)]
    parts += ["<h2>Ends</h2>", f"<pre>{html.escape(ends_text(state))}</pre>"]
    for one in refused.refusals if refused is not None else ():
        said = f"{one.code} {one.title}: {one.where}\nexpected {one.expected}\nfound {one.found}\n{one.cure}"
        parts.append(f"<pre>{html.escape(said)}</pre>")
    if done is not None:
        parts += ["<h2>Certificate</h2>", f"<pre>{html.escape(certificate_text(state, done))}</pre>"]
        parts += ["<h2>For upstream</h2>", f"<pre>{html.escape(upstream(entries, done))}</pre>"]
    return _PAGE.format(title=title, body="\n".join(parts))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
:root {{ color-scheme: light dark }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
svg {{ max-width: 100%; height: auto }} svg text {{ font: 12px ui-monospace, monospace; fill: currentColor }}
pre {{ white-space: pre-wrap }} .found {{ font-size: 1.2rem; font-weight: 600 }}
</style></head><body>
{body}
</body></html>
"""


def _matrix_svg(state: State) -> str:
    sets, order = tried_sets(state), state.start.order
    left = 10 + 8 * max((len(one) for one in order), default=0)
    width, height = left + _CELL * len(sets) + 10, _CELL * (len(order) + 1) + 70
    parts = []
    for row, patch in enumerate(order):
        parts.append(f'<text x="0" y="{_CELL * row + 13}">{html.escape(patch)}</text>')
        for column, chosen in enumerate(sets):
            colour = _colour(state, chosen) if patch in chosen else "none"
            parts.append(
                f'<rect x="{left + _CELL * column}" y="{_CELL * row}" width="{_CELL - 3}" height="{_CELL - 3}" rx="3" '
                f'fill="{colour}" stroke="#9aa0a6" stroke-opacity="0.4"/>'
            )
    for column, chosen in enumerate(sets):
        x, y = left + _CELL * column + 11, _CELL * len(order) + 62
        said = html.escape(f"{set_hash(chosen)}: {state.evidence.tally(chosen)}")
        parts.append(
            f'<text transform="translate({x} {y}) rotate(-90)" fill="{_colour(state, chosen)}">{set_hash(chosen)}'
            f"<title>{said}</title></text>"
        )
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img">{"".join(parts)}</svg>'


def _colour(state: State, chosen: PatchSet) -> str:
    tally = state.evidence.tally(chosen)
    if tally.blocked or not tally.conclusive:
        return _COLOURS["untestable"]
    return _COLOURS["bad" if tally.bad else "good"]


def _belief_svg(entries: Sequence[Entry]) -> str:
    rows = belief_history(entries)
    width, height, left = 900, 260, 40
    step = (width - left - 160) / max(len(rows) - 1, 1)
    parts = [f'<line x1="{left}" y1="{height}" x2="{width - 160}" y2="{height}" stroke="currentColor"/>']
    parts += [f'<text x="0" y="{height - one * (height - 20) + 4:.0f}">{one:.1f}</text>' for one in (0.0, 0.5, 1.0)]
    ranked = sorted(range(len(rows[0])), key=lambda index: -rows[-1][index][1])
    for place, index in enumerate(ranked):
        colour = _PALETTE[place] if place < len(_PALETTE) else "#9aa0a6"
        points = " ".join(
            f"{left + at * step:.1f},{height - row[index][1] * (height - 20):.1f}" for at, row in enumerate(rows)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if place < len(_PALETTE):
            name = html.escape(f"{rows[0][index][0]} {rows[-1][index][1]:.3f}")
            parts.append(f'<text x="{width - 150}" y="{30 + 18 * place}" style="fill: {colour}">{name}</text>')
    return f'<svg viewBox="0 0 {width} {height + 10}" width="{width}" role="img">{"".join(parts)}</svg>'
