"""A bisect as people read it: the matrix of sets and trials, the certificate, a paragraph for upstream, a web page.

Everything here is a function from the entries of a journal to text. The page needs nothing from elsewhere.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from nvllm.bisect import end_proof, journal, search
from nvllm.bisect.combinations import set_hash
from nvllm.bisect.journal import BisectStart, BisectState, JournalEntry, Tried
from nvllm.bisect.matrix import LEGEND, matrix_svg, matrix_text, tried_sets
from nvllm.bisect.problem import Problem
from nvllm.bisect.search import Done, beliefs
from nvllm.bisect.verdict import PatchSet
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refused

_PALETTE = ("#3b6fd1", "#d1453b", "#2e9e5b", "#b8860b", "#8e44ad", "#16808f", "#c2185b", "#5d6d7e")
_SHOWN = 0.0005
"""A probability that three digits show as more than nothing."""


def conclusion(start: BisectStart, done: Done) -> str:
    """Return in one sentence what was found."""
    names = ", ".join(done.culprits)
    verb = "repairs it" if start.find == "fix" else "breaks it"
    if start.mode == "set":
        if len(done.culprits) != 1:
            verb = f"together {'repair' if start.find == 'fix' else 'break'} it"
        proved = "nothing can be left out" if done.certified else "it is not proved that nothing can be left out"
        return f"{names}: {verb}; {proved}."
    if done.exact:
        sure = f", with probability {max(chance for _, chance in done.posterior):.3f}" if done.flaky else ""
        return f"{names} {verb}{sure}" + ("." if done.certified else "; not certified.")
    return f"one of {names} {verb}; what lies between them cannot be told apart."


def certificate_text(state: BisectState, done: Done) -> str:
    """Return the certificate, one line a set."""
    lines = []
    for line in done.certificate:
        ordered = ", ".join(state.problem.combinations.ordered(line.chosen)) or "no patch"
        held = "holds" if line.holds else "DOES NOT HOLD"
        lines.append(f"{line.role}: {line.verdict} [{line.verdict.tally}], {held} ({set_hash(line.chosen)}: {ordered})")
    return "\n".join(lines)


def ends_text(state: BisectState) -> str:
    """Return how both ends behaved, with the intervals of their failure rates."""
    evidence = state.evidence
    return "\n".join(
        f"the {name} end: {end_proof.rate_text(evidence.tally(chosen))}{replicas_text(state, chosen)}"
        for name, chosen in _ends(state.problem)
    )


def _ends(problem: Problem) -> tuple[tuple[str, PatchSet], tuple[str, PatchSet]]:
    """Return the bad end and the good one, each with its name."""
    low, high = problem.low, problem.high
    return (("bad", high), ("good", low)) if problem.find == "break" else (("bad", low), ("good", high))


def replicas_text(state: BisectState, chosen: PatchSet) -> str:
    """Return what is to be said of trials of CHOSEN that left the same bytes: nothing if no two of them did."""
    alike = state.replicas(chosen)
    return f"; {alike} trials left the same bytes: one sample, if the engine is deterministic" if alike else ""


def posterior_text(weights: Sequence[tuple[str, float]]) -> str:
    """Return the probability of each patch to be a culprit, the highest first."""
    ranked = sorted(weights, key=lambda one: -one[1])
    shown = [one for one in ranked if one[1] >= _SHOWN]
    width = max((len(name) for name, _ in shown), default=0)
    lines = ["probability of each patch to be a culprit:", *(f"  {name:<{width}}  {one:.3f}" for name, one in shown)]
    if others := len(ranked) - len(shown):
        lines.append(f"  {others} other{'s' if others > 1 else ''}: less than 0.001")
    return "\n".join(lines)


def known(state: BisectState, done: Done | None) -> tuple[tuple[str, float], ...]:
    """Return the probability of each patch: of what was found if DONE, otherwise of what is known so far."""
    return search.beliefs(state.problem, state.evidence) if done is None else done.posterior


def text(entries: Sequence[JournalEntry], done: Done | None, *, color: bool) -> str:
    """Return the whole report for a terminal."""
    state = journal.fold(entry.record for entry in entries)
    start = state.start
    parts = [f"bisect of {start.image}, series {start.series}: --find {start.find}, {start.mode} mode"]
    parts += [f"{matrix_text(state, color=color)}\n{LEGEND}", ends_text(state), posterior_text(known(state, done))]
    if done is not None:
        parts += [conclusion(start, done), certificate_text(state, done), *done.notes]
    return "\n\n".join(parts) + "\n"


def upstream(entries: Sequence[JournalEntry], done: Done) -> str:
    """Return a paragraph that can be pasted into an issue of the project that the patches are for."""
    state = journal.fold(entry.record for entry in entries)
    start, trials = state.start, sum(len(tried) for tried in state.trials.values())
    images = len(state.builds)
    probe = " ".join(start.probe.command)
    how = f"Bisected by rebuilding: {images} images of series {start.series}, {trials} trials of `{probe}`"
    kind = "flaky" if done.flaky else "steady"
    lines = "\n".join(f"- {line}" for line in certificate_text(state, done).splitlines())
    ends_said = "; ".join(ends_text(state).splitlines())
    return f"{conclusion(start, done)}\n\n{how}, on {start.host}; the failure is {kind}. {ends_said}.\n\n{lines}\n"


def data(entries: Sequence[JournalEntry], done: Done | None) -> dict[str, Json]:
    """Return the report for programs."""
    state = journal.fold(entry.record for entry in entries)
    order = state.problem.combinations.ordered
    found: Json = None
    if done is not None:
        found = {
            "culprits": list(done.culprits),
            "exact": done.exact,
            "certified": done.certified,
            "flaky": done.flaky,
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
        "ends": [_end_data(state, name, chosen) for name, chosen in _ends(state.problem)],
        "sets": [_set_data(state, chosen) for chosen in tried_sets(state)],
        "posterior": dict(known(state, done)),
        "found": found,
    }


def _end_data(state: BisectState, name: str, chosen: PatchSet) -> Json:
    tally = state.evidence.tally(chosen)
    low, high = end_proof.failure_rate(tally).interval()
    patches: list[Json] = list(state.problem.combinations.ordered(chosen))
    rate: Json = {"low": low, "high": high, "level": 0.95}
    return {"end": name, "patches": patches, "bad": tally.bad, "good": tally.good, "failure_rate": rate}


def _set_data(state: BisectState, chosen: PatchSet) -> Json:
    evidence, built = state.evidence, state.builds.get(chosen)
    verdict = search.concluded(state.problem, evidence, chosen)
    tried: list[Json] = [
        {
            "outcome": one.outcome,
            "kind": one.kind,
            "stage": one.stage,
            "seconds": one.seconds,
            "evidence": one.evidence,
            "recalled": one.recalled,
            "reason": one.reason,
        }
        for one in state.trials[chosen]
    ]
    build: Json = None
    if built is not None:
        build = {"build_hash": built.build_hash, "tree": built.tree, "image": built.image, "seconds": built.seconds}
    return {
        "set": set_hash(chosen),
        "patches": list(state.problem.combinations.ordered(chosen)),
        "verdict": str(evidence.tally(chosen)),
        "outcome": verdict.outcome if verdict else None,
        "confidence": verdict.confidence if verdict else None,
        "build": build,
        "trials": tried,
        "replicas": state.replicas(chosen),
    }


def belief_history(entries: Sequence[JournalEntry]) -> list[tuple[tuple[str, float], ...]]:
    """Return the probability of each patch to be the culprit, before the first trial and after each one."""
    first, *others = [entry.record for entry in entries]
    state = journal.fold([first])
    beliefs_so_far = [beliefs(state.problem, state.evidence)]
    for record in others:
        state = state.after(record)
        if isinstance(record, Tried):
            beliefs_so_far.append(beliefs(state.problem, state.evidence))
    return beliefs_so_far


def page(entries: Sequence[JournalEntry], done: Done | None, refused: Refused | None = None) -> str:
    """Return the report as one HTML page that refers to nothing outside itself; REFUSED says why nothing was found."""
    state = journal.fold(entry.record for entry in entries)
    start = state.start
    title = html.escape(f"bisect of {start.image}, series {start.series}")
    parts = [f"<h1>{title}</h1>", f"<p>{html.escape(f'--find {start.find}, {start.mode} mode')}</p>"]
    if done is not None:
        parts.append(f"<p class=found>{html.escape(conclusion(start, done))}</p>")
    parts += ["<h2>Patches and sets</h2>", matrix_svg(state), f"<p>{LEGEND}</p>"]
    parts += ["<h2>Probability of each patch to be a culprit, trial by trial</h2>", _belief_svg(entries)]
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


def _belief_svg(entries: Sequence[JournalEntry]) -> str:
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
