"""The report of a bisect: text for a terminal, and JSON. `page` has it for other people.

The matrix has a column for each set that was tried: its patches, and the outcome of each of its trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from nvllm.bisect import judge, posterior, search
from nvllm.bisect.answer import Done, Line, NextTrial
from nvllm.bisect.combinations import PatchSet, set_hash
from nvllm.bisect.problem import Tally
from nvllm.bisect.records import BisectStart, BisectState, Tried
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

_WEAKER = 0.05
"""The p-value from which on everything without the culprits is said to fail more often than a set that is good."""

_DIFFER = (
    "This differs from build to build: an artifact is to blame, not a patch alone. Sets that all have the answer, or"
    " all lack it, do not fail equally often; the matrix shows which."
)
_ARTIFACTS_DIFFER = (
    "This differs from build to build: an artifact is to blame, not a patch alone. Artifacts that should fail equally"
    " often do not; the list of them shows which."
)
_MAY_DIFFER = (
    "This may differ from build to build: an artifact may be to blame, not a patch alone. More trials of each build, by"
    " a higher --patience, would tell."
)
_COMPILES = (
    "If the profile compiles, this compares several compiles of it:"
    " nvllm ablate {} --profile {} --artifacts 5 --probe FILE"
)
_NEVER_MIXED = (
    "No build was both good and bad: the failure is steady, which a search without --flaky proves, or this differs from"
    " build to build: an artifact is to blame, not a patch."
)

_UNEVEN_SETS = (
    "Sets that all have the answer, or all lack it, do not fail equally often, although builds cannot differ: another"
    " patch changes how often it fails."
)
_ANEW = (
    "builds may differ: each boot compiles code and kernels anew, with --on on any of the machines;"
    " `nvllm bisect run --artifacts N` tells N compiles of a set apart"
)
_SAME_BYTES = "all boots of a set run the same bytes (enforce-eager, on the CPU), so builds cannot differ"

_SHOWN = 0.0005
"""The smallest probability that three digits do not show as 0."""


def verdicts(state: BisectState) -> tuple[TrialOutcome | None, ...]:
    """Return the verdict of each set that was tried, in order; None where it is open."""
    concluded = [search.concluded(state.problem, state.evidence, chosen) for chosen in state.trials]
    return tuple(None if verdict is None else verdict.outcome for verdict in concluded)


def matrix(state: BisectState) -> list[tuple[str, ...]]:
    """Return the rows of the matrix: the names of the sets, a row for each patch of the bigger end, and the trials.

    The sets are in the order of their first trials. A filled dot marks a patch of the set. If a set has many trials,
    they continue in further rows.
    """
    rows: list[tuple[str, ...]] = [("patch", *map(set_hash, state.trials))]
    rows += [(patch, *("●" if patch in chosen else "·" for chosen in state.trials)) for patch in state.start.high]
    marks = ["".join(MARKS[trial.outcome] for trial in tried) for tried in state.trials.values()]
    for first in range(0, max(map(len, marks), default=1), _WIDE):
        rows.append(("" if first else "trials", *(line[first : first + _WIDE] for line in marks)))
    return rows


def matrix_text(state: BisectState, *, color: bool, width: int | None = None) -> str:
    """Return the matrix as aligned text. With COLOR, a set has the colour of its verdict and a trial its own.

    Sets that do not fit into WIDTH columns of a terminal follow below, in a matrix of their own.
    """
    rows, outcomes = matrix(state), verdicts(state)
    names, *columns = zip(*rows, strict=True)
    label_width = max(map(len, names))
    at_once = len(columns) if width is None else max(1, (width - label_width) // (_WIDE + 2))
    blocks = []
    for first in range(0, max(1, len(columns)), max(1, at_once)):
        lines = []
        for number, label in enumerate(names):
            line = label.ljust(label_width)
            for column, outcome in list(zip(columns, outcomes, strict=True))[first : first + at_once]:
                cell, trials = column[number], number > len(state.start.high)
                painted = (
                    "".join(_painted(mark, _OUTCOMES[mark]) for mark in cell) if trials else _painted(cell, outcome)
                )
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
        return " ".join([f"open: {done.stopped}. Best answer so far: among {names}.", *_builds(start, done)])
    verb = "repairs it" if fix else "breaks it"
    if start.mode == "set":
        if len(done.culprits) != 1:
            verb = f"together {'repair' if fix else 'break'} it"
        proved = "1-minimal, none of them can be left out" if done.certified else "it is not proved that all are needed"
        sentence = f"{names}: {verb}; {proved}."
    elif done.exact:
        sure = f", with probability {max(chance for _, chance in done.posterior):.3f}" if done.flaky else ""
        order = "the first that does" if done.first else "an earlier one may do so too: not every prefix was tried"
        sentence = f"{names} {verb}{sure}; {order}" + ("." if done.certified else "; not certified.")
    else:
        sentence = f"one of {names} {verb}; what lies between them cannot be told apart."
    along = [f"{name} comes along, required by {', '.join(by)}." for name, by in done.along]
    return " ".join([sentence, *along, *_before(start, done), *_rest(start, done, "it"), *_builds(start, done)])


def _builds(start: BisectStart, done: Done) -> list[str]:
    """Return what builds that differ mean for the answer, and what to do."""
    spread = done.spread
    if spread is None:
        return []
    if spread.by_fact:
        return [_UNEVEN_SETS] if spread.differs else []
    if not spread.mixed:
        return [_NEVER_MIXED]
    if not spread.too_likely:
        return []
    differ = _ARTIFACTS_DIFFER if spread.artifacts > spread.sets else _DIFFER
    return [differ if spread.differs else _MAY_DIFFER, _COMPILES.format(start.image, start.profile)]


def spread_text(done: Done) -> str:
    """Return how many builds the answer of a flaky search rests on, and how much they differ; empty if steady."""
    spread = done.spread
    if spread is None:
        return ""
    several = spread.artifacts > spread.sets
    tried = f"{spread.artifacts} artifacts of {spread.sets} builds" if several else f"{spread.artifacts} builds"
    what = "artifact" if several else "build"
    correlation = f"trials of one {what} are correlated by {spread.low:g} to {spread.high:g} at 95 %"
    return (
        f"{tried} in {spread.trials} trials; {_SAME_BYTES if spread.by_fact else correlation};"
        f" equal {what}s would be as uneven with p = {spread.p:.3f}"
    )


def varies_text(start: BisectStart) -> str:
    """Return what differs from boot to boot of one set in a flaky search; empty if the engine is not booted."""
    if not start.flaky or start.probe.build_only:
        return ""
    return _SAME_BYTES if start.same_bytes else _ANEW


def artifacts_text(state: BisectState) -> str:
    """Return the artifacts, one line for each set that has any; empty if no trial loaded one."""
    return "\n".join(
        f"artifacts of {set_hash(chosen)}: "
        + "; ".join(f"{tree[:12] or 'compiled at boot'} {counted}" for tree, counted in by_tree.items())
        for chosen, by_tree in ((chosen, counted.artifacts) for chosen, counted in state.tallies.items())
        if by_tree
    )


def remarks(state: BisectState, done: Done) -> tuple[str, ...]:
    """Return the notes of DONE, how much builds differ, the artifacts, and what its certificate takes for granted."""
    return (*done.notes, *filter(None, (spread_text(done), artifacts_text(state), assumptions(done))))


def assumptions(done: Done) -> str:
    """Return what a certificate takes for granted, and what would break it; empty if nothing is certified."""
    if not done.certified:
        return ""
    if not done.flaky:
        return (
            "The certificate takes the failure as steady: a set always fails or never does, in each of its builds. A"
            " failure rate below 1, or another build of a set that behaves otherwise, would break it."
        )
    independent = "builds of different sets"
    if done.spread is not None and (done.spread.by_fact or done.spread.artifacts > done.spread.sets):
        independent = "boots" if done.spread.by_fact else "artifacts"
    return (
        f"The certificate takes {independent} as independent; the mean failure rate of all sets with the"
        " answer as equal, and that of all without it; and the failure as monotone: a set fails at least as often as"
        " its parts. A rate that changes with time, a patch that hides the failure, or one that only makes it rarer"
        " would break it."
    )


def _before(start: BisectStart, done: Done) -> list[str]:
    """Return whether the prefix without the culprit of a flaky ordered search shows the effect more rarely."""
    if start.mode == "set" or not done.flaky or len(done.certificate) < 2:
        return []
    return list(filter(None, [_weaker(start, done, done.certificate[1], "The series before it")]))


def _rest(start: BisectStart, done: Done, without: str) -> list[str]:
    """Return the sentences on what happens WITHOUT the culprits, and on further causes."""
    rest, fix = done.rest, start.find == "fix"
    if rest is None or not (rest.holds or done.further):
        return []
    tally, everything = rest.verdict.tally, f"Everything without {without}"
    gone, kept, verb = ("not repaired", "repaired", "passes") if fix else ("not broken", "broken", "fails")
    shows = rest.holds and rest.verdict.outcome == ("good" if fix else "bad")
    most = f"in at most {_most_percent(start, tally)} % of boots, 95 % ({tally})"
    if done.further:
        left = f"is still {kept}" if shows else f"{verb} too, {most}"
        others = [
            f"{', '.join(cause.culprits)}{'' if cause.certified else ' (not certified)'}" for cause in done.further
        ]
        return [
            f"{everything} {left}. Further causes: {'; '.join(others)}.",
            *_rest(start, done.further[-1], "any of these causes"),
        ]
    if shows:
        more = "" if start.further else "; start again with --all to find it"
        differ = ", or builds differ" if _may_differ(done) else ""
        return [f"{everything} is still {kept}: there is another cause{differ}{more}."]
    if not done.flaky:
        return [f"{everything} is {gone} if the failure is steady, and {verb} {most}."]
    if weaker := _weaker(start, done, rest, everything):
        return [weaker]
    sound = f"is {gone}: it " if _most_percent(start, tally) <= 100 * posterior.SOUND else ""
    return [f"{everything} {sound}{verb} {most}."]


def _may_differ(done: Done) -> bool:
    return done.flaky and (done.spread is None or not done.spread.by_fact)


def _most_percent(start: BisectStart, tally: Tally) -> int:
    """Return the upper bound, at 95 %, of the share of boots in which a set with TALLY shows the effect."""
    return math.ceil(100 * posterior.at_most(start.problem.count(tally)))


def _weaker(start: BisectStart, done: Done, line: Line, name: str) -> str:
    """Return that the set of LINE, called NAME, shows the effect more rarely than the cause, but not never.

    It is compared with the end that lacks the effect; empty if it may show it as rarely as that.
    """
    tally = line.verdict.tally
    seen, others = start.problem.count(tally), start.problem.count(done.lacking)
    if not seen.hits or (others.hits and posterior.more_often(seen, others) >= _WEAKER):
        return ""
    verb = "fails" if start.find == "break" else "passes"
    return (
        f"{name} {verb} less often, but not never: {tally}, at most {_most_percent(start, tally)} % of boots, 95 %."
        f" There may be a weaker cause{', or the builds differ' if _may_differ(done) else ''}."
    )


def certificate_text(state: BisectState, done: Done) -> str:
    """Return the certificate, one line for each set."""
    lines = []
    for line in (*done.certificate, *([] if done.rest is None else [done.rest])):
        ordered = ", ".join(state.problem.combinations.ordered(line.chosen)) or "no patch"
        what = f"{line.role}: {line.verdict} [{line.verdict.tally}]"
        lines.append(f"{what}, {'holds' if line.holds else 'DOES NOT HOLD'} ({set_hash(line.chosen)}: {ordered})")
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
    lines = [
        f"the probe was corrected; verdicts of the one before that still hold: {_KEPT[correction.kept]}"
        for correction in state.corrections
    ]
    return "\n".join(lines)


def given_up_text(state: BisectState) -> str:
    """Return the sets that were given up, each with the command that tries it again; empty if there are none."""
    image, asked, lines = state.start.image, state.problem, []
    for chosen, counted in state.evidence.tallies.items():
        end = chosen in asked.ends.values()
        if judge.given_up(counted, asked.settings) if end else counted.unknown:
            word = "back" if chosen in state.skipped else "retry"
            again = f"nvllm bisect {word} {set_hash(chosen)} --image {image}"
            lines.append(f"{set_hash(chosen)} was given up, {counted}; to try it again: {again}")
    return "\n".join(lines)


def posterior_text(weights: Sequence[tuple[str, float]]) -> str:
    """Return the probability of each patch to be a culprit, highest first."""
    listed = sorted([row for row in weights if row[1] >= _SHOWN], key=lambda row: -row[1])
    width = max((len(name) for name, _ in listed), default=0)
    rows = [f"  {name:<{width}}  {chance:.3f}" for name, chance in listed]
    lines = ["probability of each patch to be a culprit:", *rows]
    if others := len(weights) - len(listed):
        lines.append(f"  {others} other{'s' if others > 1 else ''}: less than 0.001")
    return "\n".join(lines)


def known(state: BisectState, done: Done | None) -> tuple[tuple[str, float], ...]:
    """Return the probability of each patch to be a culprit, final if DONE."""
    return search.beliefs(state.problem, state.evidence) if done is None else done.posterior


def next_text(state: BisectState, trial: NextTrial) -> str:
    """Return which set is tried next, as a command takes it, and why."""
    return f"next: {','.join(state.problem.combinations.ordered(trial.chosen)) or 'none'} ({trial.reason})"


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
    if done is None:
        parts += filter(None, [artifacts_text(state)])
    else:
        parts += filter(None, [conclusion(start, done), certificate_text(state, done), *remarks(state, done)])
    return "\n\n".join(parts) + "\n"


def data(state: BisectState, done: Done | None) -> dict[str, Json]:
    """Return the report for programs."""
    answer: Json = None
    if done is not None:
        answer = {
            "culprits": list(done.culprits),
            "exact": done.exact,
            "certified": done.certified,
            "flaky": done.flaky,
            "notes": list(done.notes),
            "certificate": [_line_data(state, line) for line in done.certificate],
            "comes_along": [{"patch": name, "required_by": list(by)} for name, by in done.along],
            "first": done.first,
            "rest": None if done.rest is None else _line_data(state, done.rest),
            "further": [list(cause.culprits) for cause in done.further],
            "stopped": done.stopped,
            "builds": _spread_data(done),
            "assumptions": assumptions(done),
        }
    return {
        "image": state.start.image,
        "series": state.start.series,
        "find": state.start.find,
        "mode": state.start.mode,
        "ends": [_end_data(state, name, chosen) for name, chosen in state.problem.ends.items()],
        "corrections": [correction.kept for correction in state.corrections],
        "sets": [_set_data(state, chosen) for chosen in state.trials],
        "posterior": dict(known(state, done)),
        "found": answer,
    }


def _line_data(state: BisectState, line: Line) -> Json:
    return {
        "role": line.role,
        "patches": list(state.problem.combinations.ordered(line.chosen)),
        "outcome": line.verdict.outcome,
        "confidence": line.verdict.confidence,
        "holds": line.holds,
    }


def _spread_data(done: Done) -> Json:
    spread = done.spread
    if spread is None:
        return None
    return {
        "builds": spread.sets,
        "artifacts": spread.artifacts,
        "trials": spread.trials,
        "correlation": {"low": spread.low, "high": spread.high, "level": 0.95},
        "same_bytes": spread.by_fact,
        "p": spread.p,
        "mixed": spread.mixed,
        "differ": spread.differs,
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
    tried: list[Json] = [_without_set(trial) for trial in state.trials[chosen]]
    loaded: list[Json] = [
        {"tree": tree, "bad": counted.bad, "good": counted.good}
        for tree, counted in state.tallies[chosen].artifacts.items()
    ]
    return {
        "set": set_hash(chosen),
        "patches": list(state.problem.combinations.ordered(chosen)),
        "verdict": str(evidence.tally(chosen)),
        "outcome": verdict.outcome if verdict else None,
        "confidence": verdict.confidence if verdict else None,
        "build": None if built is None else _without_set(built),
        "trials": tried,
        "artifacts": loaded,
        "replicas": state.replicas(chosen),
    }


def _without_set(record: Built | Tried) -> Json:
    """Return RECORD without its set, and without the run directory: a report may go to another machine."""
    return {name: value for name, value in asdict(record).items() if name not in ("chosen", "run")}
