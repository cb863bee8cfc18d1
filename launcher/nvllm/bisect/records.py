"""The records of a bisect, and the state that they add up to.

The state is a fold over the records in order. Commands take everything they show from the state, so a journal shows the
same on another machine.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias, TypeVar

from nvllm.bisect.combinations import Combinations, PatchSet
from nvllm.bisect.forecast import Forecast, forecast
from nvllm.bisect.problem import (
    Find,
    Mode,
    Problem,
    SearchEvidence,
    Settings,
    Tally,
    tally,
)
from nvllm.core.fields import Positive, Rule, Seconds, Word
from nvllm.trials.trial import BisectProbe, Built, Ids, Trial, TrialOutcome, TrialStage

SCHEMA = "nvllm.journal/2"
FIRST = "nvllm.journal/1"
"""The format without chained hashes."""

MODEL = 7
"""The number of the model by which a search decides. A change of its decisions raises it.

1: all sets of one verdict fail equally often. 2: builds may differ (`posterior`). 3: the sets of a certificate are
tried in turn (`judge.in_turn`), and more builds must agree (`Search.confirmed`). 4: a doubt about builds is settled by
more trials of them, and a steady set search chooses by how many patches are likely needed (`density`). 5: where the
watch is in doubt, it asks at once for more trials (`judge.watch`). 6: a search for all causes has one limit of trials.
7: more builds count for the line without the last culprits, any set without one that showed the effect must agree
(`Search.confirmed`), and few of few patches are needed (`density`).
"""

Withdrawn = Literal["all", "trials", "last", "untestable", "skip"]
"""What `back` withdraws of a set: its trials, the last of them, the untestable ones, its skip, or trials and skip."""

Kept = Literal["good", "bad", "all", "none"]
"""Which verdicts of a probe still hold when it is corrected."""

K = TypeVar("K")
V = TypeVar("V")

_NOTHING_LEFT = frozenset({"", hashlib.sha256(b"").hexdigest()})
"""The evidence of trials that wrote nothing; equal evidence of these does not make them one sample."""


@dataclass(frozen=True, slots=True)
class PatchSummary:
    """What the series says of a patch. UPSTREAM is its pull request or issue, as owner/repository#number, or empty."""

    summary: str
    upstream: Annotated[str, Rule(r"^([A-Za-z0-9._-]+/[A-Za-z0-9._-]+#[0-9]+)?$")] = ""


@dataclass(frozen=True, slots=True)
class BisectStart:
    """The search and its inputs. INPUTS is the hash of the lock and the series, without the patch set.

    MAX_HOURS 0: no limit. FURTHER: search for other causes after the first. MODEL: see `MODEL`. VERSION and COMMIT of
    vLLM and the SUMMARIES of the patches are for reports. SAME_BYTES: see `Settings`. Journals of earlier versions of
    nvllm lack these five.
    """

    schema: Annotated[str, Rule(choices=(SCHEMA, FIRST))]
    image: str
    profile: str
    series: str
    inputs: str
    order: Annotated[Ids, Rule(unique=True)]
    requires: Mapping[str, Ids]
    conflicts: Mapping[str, Ids]
    low: Ids
    high: Ids
    find: Find
    mode: Mode
    confidence: Annotated[float, Rule(minimum=0.5, maximum=0.9999)]
    repeats: Positive
    patience: Positive
    flaky: bool
    build_price: Seconds
    probe: BisectProbe
    host: str
    max_trials: Positive = 400
    max_hours: Seconds = 0.0
    further: bool = False
    version: str = ""
    commit: str = ""
    summaries: Mapping[str, PatchSummary] = field(default_factory=dict)
    model: Positive = 1
    same_bytes: bool = False

    @property
    def problem(self) -> Problem:
        requires = {patch: frozenset(others) for patch, others in self.requires.items()}
        conflicts = {patch: frozenset(others) for patch, others in self.conflicts.items()}
        return Problem(
            Combinations(self.order, requires, conflicts),
            frozenset(self.low),
            frozenset(self.high),
            self.find,
            self.mode,
            Settings(
                self.confidence,
                self.repeats,
                self.patience,
                self.flaky,
                self.build_price,
                self.max_trials,
                self.max_hours or None,
                self.same_bytes,
            ),
            self.further,
        )


@dataclass(frozen=True, slots=True)
class Tried:
    """CHOSEN was tried, for REASON. RECALLED: the trial came from the cache of trials.

    SAID is the end of what the probe or the engine wrote, RUN the run directory of the engine. BY_HAND: the user looked
    and gave the verdict. TASK is the one that another machine was sent, empty for a trial on this one. ARTIFACT is the
    tree hash of the compile cache that it loaded, empty if it compiled for itself, or nothing.
    """

    chosen: Ids
    outcome: TrialOutcome
    kind: str
    stage: TrialStage | None
    evidence: str
    seconds: Seconds
    recalled: bool
    reason: str
    said: str = ""
    run: str = ""
    by_hand: bool = False
    task: str = ""
    artifact: str = ""

    @property
    def trial(self) -> Trial:
        return Trial(
            self.outcome, self.kind, self.stage, self.evidence, self.seconds, self.said, self.run, self.artifact
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """CHOSEN goes to another machine as TASK: written before it is sent, so that no result can count twice.

    MANIFEST is the digest of the image's manifest in the registry, CONFIG that of its configuration. HOST is the class
    of machines that may try it. ATTEMPT counts the tasks of one trial, from 1: all before it were lost.
    """

    task: Word
    chosen: Ids
    build_hash: str
    manifest: str
    config: str
    host: str
    attempt: Positive
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """TASK has no result and will have none, because of WHY. That says nothing about its patches."""

    task: Word
    chosen: Ids
    why: str


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on CHOSEN from here on. It is for readers: the search computes verdicts from the trials."""

    chosen: Ids
    outcome: TrialOutcome
    detail: str
    confidence: Annotated[float, Rule(minimum=0, maximum=1)] | None


@dataclass(frozen=True, slots=True)
class Back:
    """The user withdraws WHAT of CHOSEN."""

    chosen: Ids
    what: Withdrawn = "all"


@dataclass(frozen=True, slots=True)
class Skip:
    """The user rules CHOSEN out: it counts as untestable."""

    chosen: Ids


@dataclass(frozen=True, slots=True)
class Limits:
    """The user changes the limits of the search from here on; MAX_HOURS 0: no limit."""

    max_trials: Positive
    max_hours: Seconds


@dataclass(frozen=True, slots=True)
class Continued:
    """The search goes on by MODEL. The failure was steady so far: each model ends with the same certificate."""

    model: Positive


@dataclass(frozen=True, slots=True)
class Corrected:
    """The user has corrected the probe, and says that of the verdicts of the one before the KEPT ones still hold."""

    probe: BisectProbe
    kept: Kept


@dataclass(frozen=True, slots=True)
class End:
    """The search is over; see `answer.Done`."""

    culprits: Ids
    exact: bool
    certified: bool


_OfSearch: TypeAlias = BisectStart | Built | Sent | Lost | Tried | Judged | Back | Skip | Limits | Corrected | End
JournalRecord: TypeAlias = _OfSearch | Continued


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A record, and WHEN it was written, in seconds since 1970."""

    when: float
    record: JournalRecord


@dataclass(frozen=True, slots=True)
class BisectState:
    """Where a bisect stands."""

    start: BisectStart
    trials: Mapping[PatchSet, tuple[Tried, ...]] = field(default_factory=dict)
    builds: Mapping[PatchSet, Built] = field(default_factory=dict)
    judged: Mapping[PatchSet, Judged] = field(default_factory=dict)
    skipped: frozenset[PatchSet] = frozenset()
    sequence: tuple[PatchSet, ...] = ()
    """The set of each trial that counts, in the order of the trials."""
    numbers: tuple[int, ...] = ()
    """The number of each of these trials among all that were ever recorded, from 0: two trials may be equal."""
    recorded: int = 0
    """How many trials were ever recorded."""
    end: End | None = None
    tallies: Mapping[PatchSet, Tally] = field(default_factory=dict)
    """The trials, counted as they come, by set."""
    spent: float = 0.0
    """Seconds of builds and trials, without what the cache had."""
    corrections: tuple[Corrected, ...] = ()
    sent: Mapping[str, Sent] = field(default_factory=dict)
    """The tasks that are on their way, by name."""
    losses: Mapping[PatchSet, int] = field(default_factory=dict)
    """How many tasks of a set were lost since its last trial."""

    @property
    def last(self) -> PatchSet | None:
        """The set of the last trial that was not withdrawn."""
        return self.sequence[-1] if self.sequence else None

    @property
    def problem(self) -> Problem:
        return self.start.problem

    @property
    def evidence(self) -> SearchEvidence:
        """The trials, counted by set. Sets with the same tree share their trials."""
        named = {chosen: built.tree for chosen, built in self.builds.items() if built.tree}
        trees: dict[str, Tally] = {}
        for chosen, counted in self.tallies.items():
            if name := named.get(chosen, ""):
                trees[name] = trees.get(name, Tally()) + counted
        shared = {chosen: trees[name] for chosen, name in named.items() if name in trees}
        skipped = dict.fromkeys(self.skipped, Tally(untestable=1, stage="skipped"))
        counts = {**self.tallies, **shared, **skipped}
        waiting = {chosen: iter(tried) for chosen, tried in self.trials.items()}
        marks = {"bad": "x", "good": "+", "untestable": ""}
        history = tuple((chosen, mark) for chosen in self.sequence for mark in marks[next(waiting[chosen]).outcome])
        return SearchEvidence(counts, self.builds.keys(), self.spent, len(self.sequence), named, history)

    @property
    def forecast(self) -> Forecast:
        """What the search still costs."""
        builds = [built.seconds for built in self.builds.values()]
        trials = [trial.seconds for tried in self.trials.values() for trial in tried if not trial.recalled]
        return forecast(self.problem, self.evidence, builds, trials)

    def replicas(self, chosen: PatchSet) -> int:
        """Return how many trials of CHOSEN had the same outcome and wrote the same bytes: 0 if no two did.

        With a deterministic engine they are one sample, and an interval that counts them all is too narrow. Trials that
        wrote nothing are not counted.
        """
        left = Counter(
            (trial.outcome, trial.evidence)
            for trial in self.trials.get(chosen, ())
            if trial.evidence not in _NOTHING_LEFT
        )
        most = max(left.values(), default=0)
        return most if most > 1 else 0

    def after(self, record: JournalRecord) -> BisectState:
        """Return the state after RECORD."""
        if isinstance(record, Continued):
            return replace(self, start=replace(self.start, model=record.model))
        return self._after(record)

    def _after(self, record: _OfSearch) -> BisectState:
        match record:
            case BisectStart():
                return BisectState(record)
            case Built():
                builds = {**self.builds, frozenset(record.chosen): record}
                return replace(self, builds=builds, spent=self.spent + record.seconds)
            case Sent():
                return replace(self, sent={**self.sent, record.task: record})
            case Lost():
                chosen = frozenset(record.chosen)
                losses = {**self.losses, chosen: self.losses.get(chosen, 0) + 1}
                return replace(self, sent=_without(self.sent, record.task), losses=losses)
            case Tried():
                chosen = frozenset(record.chosen)
                return replace(
                    self,
                    sent=_without(self.sent, record.task),
                    losses=_without(self.losses, chosen),
                    trials={**self.trials, chosen: (*self.trials.get(chosen, ()), record)},
                    sequence=(*self.sequence, chosen),
                    numbers=(*self.numbers, self.recorded),
                    recorded=self.recorded + 1,
                    tallies={**self.tallies, chosen: self.tallies.get(chosen, Tally()).plus(record.trial)},
                    spent=self.spent + (0.0 if record.recalled else record.seconds),
                )
            case Judged():
                return replace(self, judged={**self.judged, frozenset(record.chosen): record})
            case Back():
                return self._without(frozenset(record.chosen), record.what)
            case Limits():
                start = replace(self.start, max_trials=record.max_trials, max_hours=record.max_hours)
                return replace(self, start=start, end=None)
            case Corrected():
                return self._corrected(record)
            case Skip():
                return replace(self, skipped=self.skipped | {frozenset(record.chosen)}, end=None)
            case End():
                return replace(self, end=record)

    def _named(self, chosen: PatchSet, what: Withdrawn) -> list[int]:
        """Return which trials of CHOSEN, by their number, WHAT names."""
        tried = self.trials.get(chosen, ())
        numbers = [*range(len(tried))]
        match what:
            case "all" | "trials":
                return numbers
            case "last":
                return numbers[-1:]
            case "untestable":
                return [number for number in numbers if tried[number].outcome == "untestable"]
            case "skip":
                return []

    def withdrawn(self, chosen: PatchSet, what: Withdrawn) -> tuple[Tried, ...]:
        """Return the trials of CHOSEN that are withdrawn with WHAT."""
        return tuple(self.trials[chosen][number] for number in self._named(chosen, what))

    def _without(self, chosen: PatchSet, what: Withdrawn) -> BisectState:
        left = self._only_without({chosen: self._named(chosen, what)})
        judged = {other: verdict for other, verdict in left.judged.items() if other != chosen}
        skipped = self.skipped - {chosen} if what in ("all", "skip") else self.skipped
        return replace(left, judged=judged, skipped=skipped)

    def refuted(self, kept: Kept) -> tuple[Tried, ...]:
        """Return the trials that are withdrawn when the probe is corrected and the verdicts KEPT still hold.

        A verdict by hand, and a set that does not apply, build or boot, are no word of the probe and stay.
        """
        gone = self._refuted(kept)
        return tuple(self.trials[chosen][number] for chosen, numbers in gone.items() for number in numbers)

    def _refuted(self, kept: Kept) -> dict[PatchSet, list[int]]:
        return {
            chosen: [
                number
                for number, trial in enumerate(tried)
                if not trial.by_hand and trial.stage in (None, "harness") and kept not in ("all", trial.outcome)
            ]
            for chosen, tried in self.trials.items()
        }

    def _corrected(self, record: Corrected) -> BisectState:
        left = self._only_without(self._refuted(record.kept))
        return replace(left, start=replace(self.start, probe=record.probe), corrections=(*self.corrections, record))

    def _only_without(self, gone: Mapping[PatchSet, Collection[int]]) -> BisectState:
        """Return the state without the trials GONE, by set and number; the end and the verdicts on their sets go too.

        A set may have two trials that are equal, so a trial is named by its number.
        """
        stays = {
            chosen: [number not in gone.get(chosen, ()) for number in range(len(tried))]
            for chosen, tried in self.trials.items()
        }
        waiting = {chosen: iter(flags) for chosen, flags in stays.items()}
        kept = [next(waiting[chosen]) for chosen in self.sequence]
        trials = {
            chosen: tuple(itertools.compress(self.trials[chosen], flags))
            for chosen, flags in stays.items()
            if any(flags)
        }
        changed = {chosen for chosen, flags in stays.items() if not all(flags)}
        counted = {
            chosen: tally(record.trial for record in tried) for chosen, tried in trials.items() if chosen in changed
        }
        return replace(
            self,
            trials=trials,
            sequence=tuple(itertools.compress(self.sequence, kept)),
            numbers=tuple(itertools.compress(self.numbers, kept)),
            tallies={chosen: counted.get(chosen, self.tallies[chosen]) for chosen in trials},
            judged={chosen: verdict for chosen, verdict in self.judged.items() if chosen not in changed},
            end=None,
        )


def _without(mapping: Mapping[K, V], key: K) -> Mapping[K, V]:
    return {other: value for other, value in mapping.items() if other != key}


def fold(records: Iterable[JournalRecord]) -> BisectState:
    """Return the state after RECORDS, the first of which is the start."""
    first, *others = records
    assert isinstance(first, BisectStart)
    state = BisectState(first)
    for record in others:
        state = state.after(record)
    return state
