"""The report of a bisect: text for a terminal, and JSON. `page` has it for other people.

The matrix has a column for each set that was tried: its patches, and the outcome of each of its trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from nvllm.bisect import judge, search
from nvllm.bisect.combinations import PatchSet, set_hash
from nvllm.bisect.records import BisectStart, BisectState, Tried
from nvllm.bisect.search import Done, Line, NextTrial
from nvllm.core.canonical import Json
from nvllm.trials.trial import Built, TrialOutcome

MARKS: dict[TrialOutcome, str] = {"good": "+", "bad": "x", "untestable": "?"}
LEGEND = "● in the set; + good, x bad, ? untestable"
_KEPT = {"good": "the good ones", "bad": "the bad ones", "all": "all", "none": "none"}
_OUTCOMES = {mark: outcome for outcome, mark in MARKS.items()}
_PAINT: dict[TrialOutcome, str] = {"good": "\x1b[32m", "bad": "\x1b[31m", "untestable": "\x1b[90m"}
_PLAIN = "\x1b[0m"
_WIDE = 7
"""The most trials in one row of a column: the name of a set is as wide."""

_SHOWN = 0.0005
"""The smallest probability that three digits do not show as 0."""


def verdicts(state: BisectState) -> tuple[TrialOutcome | None, ...]:
    """Return the verdict of each set that was tried, in order; None where it is open."""
    found = [search.concluded(state.problem, state.evidence, chosen) for chosen in state.trials]
    return tuple(None if one is None else one.outcome for one in found)


def matrix(state: BisectState) -> list[tuple[str, ...]]:
    """Return the rows of the matrix: the names of the sets, a row for each patch of the bigger end, and the trials.

    The sets are in the order of their first trials. A filled dot marks a patch of the set. If a set has many trials,
    they continue in further rows.
    """
    rows: list[tuple[str, ...]] = [("patch", *map(set_hash, state.trials))]
    rows += [(patch, *("●" if patch in chosen else "·" for chosen in state.trials)) for patch in state.start.high]
    marks = ["".join(MARKS[one.outcome] for one in tried) for tried in state.trials.values()]
    for first in range(0, max(map(len, marks), default=1), _WIDE):
        rows.append(("" if first else "trials", *(one[first : first + _WIDE] for one in marks)))
    return rows


def matrix_text(state: BisectState, *, color: bool, width: int | None = None) -> str:
    """Return the matrix as aligned text. With COLOR, a set has the colour of its verdict and a trial its own.

    Sets that do not fit into WIDTH columns of a terminal follow below, in a matrix of their own.
    """
    rows, found = matrix(state), verdicts(state)
    names, *columns = zip(*rows, strict=True)
    place = max(map(len, names))
    at_once = len(columns) if width is None else max(1, (width - place) // (_WIDE + 2))
    blocks = []
    for first in range(0, max(1, len(columns)), max(1, at_once)):
        lines = []
        for number, label in enumerate(names):
            line = label.ljust(place)
            for column, outcome in list(zip(columns, found, strict=True))[first : first + at_once]:
                cell, trials = column[number], number > len(state.start.high)
                painted = "".join(_painted(one, _OUTCOMES[one]) for one in cell) if trials else _painted(cell, outcome)
                line += "  " + (painted if color else cell) + " " * (_WIDE - len(cell))
            lines.append(line.rstrip())
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _painted(text: str, outcome: TrialOutcome | None) -> str:
    return text if outcome is None else f"{_PAINT[outcome]}{text}{_PLAIN}"


def conclusion(start: BisectStart, done: Done) -> str:
    """Return what was found, in a few sentences."""
    names, fix = ", ".join(done.culprits), start.find == "fix"
    if done.stopped:
        return f"open: {done.stopped}. Best answer so far: among {names}."
    verb = "repairs it" if fix else "breaks it"
    if start.mode == "set":
        if len(done.culprits) != 1:
            verb = f"together {'repair' if fix else 'break'} it"
        proved = "1-minimal, none of them can be left out" if done.certified else "it is not proved that all are needed"
        found = f"{names}: {verb}; {proved}."
    elif done.exact:
        sure = f", with probability {max(chance for _, chance in done.posterior):.3f}" if done.flaky else ""
        place = "the first that does" if done.first else "an earlier one may do so too: not every prefix was tried"
        found = f"{names} {verb}{sure}; {place}" + ("." if done.certified else "; not certified.")
    else:
        found = f"one of {names} {verb}; what lies between them cannot be told apart."
    return " ".join([found, *_along(done), *_rest(start, done, "it")])


def _along(done: Done) -> list[str]:
    """Return a sentence for each patch of the set that is there because a culprit requires it."""
    return [f"{name} comes along, required by {', '.join(by)}." for name, by in done.along]


def _rest(start: BisectStart, done: Done, without: str) -> list[str]:
    """Return the sentences on what happens WITHOUT the culprits, and on further causes."""
    rest = done.rest
    if rest is None or not rest.holds:
        return []
    fix = start.find == "fix"
    if rest.verdict.outcome == ("good" if fix else "bad"):
        kept = "still repaired" if fix else "still broken"
        if not done.further:
            more = "" if start.further else "; start again with --all to find it"
            return [f"Everything without {without} is {kept}: there is another cause{more}."]
        others = [f"{', '.join(one.culprits)}{'' if one.certified else ' (not certified)'}" for one in done.further]
        return [
            f"Everything without {without} is {kept}. Further causes: {'; '.join(others)}.",
            *_rest(start, done.further[-1], "any of these causes"),
        ]
    gone = "not repaired" if fix else "not broken"
    return [f"Everything without {without} is {gone}."]


def certificate_text(state: BisectState, done: Done) -> str:
    """Return the certificate, one line for each set."""
    lines = []
    for line in (*done.certificate, *([] if done.rest is None else [done.rest])):
        ordered = ", ".join(state.problem.combinations.ordered(line.chosen)) or "no patch"
        held = "holds" if line.holds else "DOES NOT HOLD"
        lines.append(f"{line.role}: {line.verdict} [{line.verdict.tally}], {held} ({set_hash(line.chosen)}: {ordered})")
    return "\n".join(lines)


def ends_text(state: BisectState) -> str:
    """Return the trials of both ends, with the intervals of their failure rates."""
    evidence = state.evidence
    return "\n".join(
        f"the {name} end: {judge.rate_text(evidence.tally(chosen))}{replicas_text(state, chosen)}"
        for name, chosen in state.problem.ends.items()
    )


def replicas_text(state: BisectState, chosen: PatchSet) -> str:
    """Return a remark on the trials of CHOSEN that wrote the same bytes; empty if no two of them did."""
    alike = state.replicas(chosen)
    return f"; {alike} trials wrote the same bytes: one sample, if the engine is deterministic" if alike else ""


def corrections_text(state: BisectState) -> str:
    """Return what was said when the probe was corrected; empty if it never was."""
    said = [
        f"the probe was corrected; verdicts of the one before that still hold: {_KEPT[one.kept]}"
        for one in state.corrections
    ]
    return "\n".join(said)


def given_up_text(state: BisectState) -> str:
    """Return the sets that were given up, each with the command that tries it again; empty if there are none."""
    image, lines = state.start.image, []
    for chosen, counted in state.evidence.tallies.items():
        if counted.unknown:
            word = "back" if chosen in state.skipped else "retry"
            again = f"nvllm bisect {word} {set_hash(chosen)} --image {image}"
            lines.append(f"{set_hash(chosen)} was given up, {counted}; to try it again: {again}")
    return "\n".join(lines)


def posterior_text(weights: Sequence[tuple[str, float]]) -> str:
    """Return the probability of each patch to be a culprit, highest first."""
    ranked = sorted(weights, key=lambda one: -one[1])
    shown = [one for one in ranked if one[1] >= _SHOWN]
    width = max((len(name) for name, _ in shown), default=0)
    lines = ["probability of each patch to be a culprit:", *(f"  {name:<{width}}  {one:.3f}" for name, one in shown)]
    if others := len(ranked) - len(shown):
        lines.append(f"  {others} other{'s' if others > 1 else ''}: less than 0.001")
    return "\n".join(lines)


def known(state: BisectState, done: Done | None) -> tuple[tuple[str, float], ...]:
    """Return the probability of each patch to be a culprit, final if DONE."""
    return search.beliefs(state.problem, state.evidence) if done is None else done.posterior


def next_text(state: BisectState, wanted: NextTrial) -> str:
    """Return which set is tried next, as a command takes it, and why."""
    return f"next: {','.join(state.problem.combinations.ordered(wanted.chosen)) or 'none'} ({wanted.reason})"


def text(state: BisectState, done: Done | None, *, color: bool, width: int | None = None) -> str:
    """Return the report for a terminal of WIDTH columns; None: for a file."""
    start = state.start
    parts = [f"bisect of {start.image}, series {start.series}: --find {start.find}, {start.mode} mode"]
    parts += [
        f"{matrix_text(state, color=color, width=width)}\n{LEGEND}",
        ends_text(state),
        posterior_text(known(state, done)),
    ]
    parts += filter(None, [corrections_text(state), given_up_text(state)])
    if done is not None:
        parts += filter(None, [conclusion(start, done), certificate_text(state, done), *done.notes])
    return "\n\n".join(parts) + "\n"


def data(state: BisectState, done: Done | None) -> dict[str, Json]:
    """Return the report for programs."""
    found: Json = None
    if done is not None:
        found = {
            "culprits": list(done.culprits),
            "exact": done.exact,
            "certified": done.certified,
            "flaky": done.flaky,
            "notes": list(done.notes),
            "certificate": [_line_data(state, line) for line in done.certificate],
            "comes_along": [{"patch": name, "required_by": list(by)} for name, by in done.along],
            "first": done.first,
            "rest": None if done.rest is None else _line_data(state, done.rest),
            "further": [list(one.culprits) for one in done.further],
            "stopped": done.stopped,
        }
    return {
        "image": state.start.image,
        "series": state.start.series,
        "find": state.start.find,
        "mode": state.start.mode,
        "ends": [_end_data(state, name, chosen) for name, chosen in state.problem.ends.items()],
        "corrections": [one.kept for one in state.corrections],
        "sets": [_set_data(state, chosen) for chosen in state.trials],
        "posterior": dict(known(state, done)),
        "found": found,
    }


def _line_data(state: BisectState, line: Line) -> Json:
    return {
        "role": line.role,
        "patches": list(state.problem.combinations.ordered(line.chosen)),
        "outcome": line.verdict.outcome,
        "confidence": line.verdict.confidence,
        "holds": line.holds,
    }


def _end_data(state: BisectState, name: str, chosen: PatchSet) -> Json:
    tally = state.evidence.tally(chosen)
    low, high = judge.failure_rate(tally).interval()
    patches: list[Json] = list(state.problem.combinations.ordered(chosen))
    rate: Json = {"low": low, "high": high, "level": 0.95}
    return {"end": name, "patches": patches, "bad": tally.bad, "good": tally.good, "failure_rate": rate}


def _set_data(state: BisectState, chosen: PatchSet) -> Json:
    evidence, built = state.evidence, state.builds.get(chosen)
    verdict = search.concluded(state.problem, evidence, chosen)
    tried: list[Json] = [_without_set(one) for one in state.trials[chosen]]
    return {
        "set": set_hash(chosen),
        "patches": list(state.problem.combinations.ordered(chosen)),
        "verdict": str(evidence.tally(chosen)),
        "outcome": verdict.outcome if verdict else None,
        "confidence": verdict.confidence if verdict else None,
        "build": None if built is None else _without_set(built),
        "trials": tried,
        "replicas": state.replicas(chosen),
    }


def _without_set(record: Built | Tried) -> Json:
    """Return RECORD without its set, and without the run directory: a report may go to another machine."""
    return {name: value for name, value in asdict(record).items() if name not in ("chosen", "run")}
