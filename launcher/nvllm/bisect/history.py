"""What a bisect has come to: the records of its journal, and the state that they add up to.

The state is nothing but a fold over the records, in their order. Whatever a command needs to know (what is next,
what is proved, why) it asks of the state, so that a journal carried to another machine tells the same there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeAlias

from nvllm.bisect.combinations import Combinations
from nvllm.bisect.end_proof import Find
from nvllm.bisect.problem import Evidence, Mode, Problem, Settings
from nvllm.bisect.verdict import Outcome, PatchSet, Stage, Tally, Trial, tally
from nvllm.core.fields import NOT_EMPTY, WRITTEN, Count, Form, Positive, Rule, Seconds, Tagged, Word

SCHEMA = "nvllm.journal/1"
Ids = tuple[Word, ...]
_NOTHING_LEFT = frozenset({"", hashlib.sha256(b"").hexdigest()})


@dataclass(frozen=True, slots=True)
class Probe:
    """What judges an image. SHA256 is of all that it is; REGRESS names the failure that counts, if only one does."""

    command: Annotated[tuple[str, ...], NOT_EMPTY]
    sha256: str
    regress: Annotated[str, WRITTEN] = ""
    build_only: Annotated[bool, WRITTEN] = False


@dataclass(frozen=True, slots=True)
class Start:
    """What is searched, with what, and in which world. INPUTS is the hash of lock and series without the patch set."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
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
    probe: Probe
    host: str

    @property
    def problem(self) -> Problem:
        requires = {one: frozenset(others) for one, others in self.requires.items()}
        conflicts = {one: frozenset(others) for one, others in self.conflicts.items()}
        return Problem(
            Combinations(self.order, requires, conflicts),
            frozenset(self.low),
            frozenset(self.high),
            self.find,
            self.mode,
            Settings(self.confidence, self.repeats, self.patience, self.flaky, self.build_price),
        )


@dataclass(frozen=True, slots=True)
class Built:
    """There is an image of CHOSEN. Sets of one TREE (empty: unknown) are one and the same source."""

    chosen: Ids
    tree: str
    build_hash: str
    image: str
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Tried:
    """CHOSEN was tried, for REASON. RECALLED: the trial was one of an earlier bisect, out of the memo."""

    chosen: Ids
    outcome: Outcome
    kind: str
    stage: Stage | None
    evidence: str
    seconds: Seconds
    recalled: bool
    reason: str

    @property
    def trial(self) -> Trial:
        return Trial(self.outcome, self.kind, self.stage, self.evidence, self.seconds)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the search took CHOSEN for, from then on. Written for readers; the state is computed from the trials."""

    chosen: Ids
    outcome: Outcome
    detail: str
    confidence: Annotated[float, Rule(minimum=0, maximum=1)] | None


@dataclass(frozen=True, slots=True)
class Back:
    """All trials of CHOSEN are withdrawn, and so is a skip."""

    chosen: Ids


@dataclass(frozen=True, slots=True)
class Skip:
    """CHOSEN is not to be tried: it counts as untestable."""

    chosen: Ids


@dataclass(frozen=True, slots=True)
class End:
    """The search is over; see `search.Done`."""

    culprits: Ids
    exact: bool
    certified: bool


Record: TypeAlias = Start | Built | Tried | Judged | Back | Skip | End

KINDS: Mapping[str, type[Record]] = {
    "start": Start,
    "build": Built,
    "trial": Tried,
    "verdict": Judged,
    "back": Back,
    "skip": Skip,
    "end": End,
}
"""What a line of a journal calls its record."""


@dataclass(frozen=True, slots=True)
class Line:
    """What every line of a journal has besides its record: its number from 0, and seconds since 1970."""

    n: Count
    time: Seconds


FORM: Form[Record] = Form("journal", SCHEMA, "One line of a bisect's journal", Tagged("record", KINDS, Line))


@dataclass(frozen=True, slots=True)
class Entry:
    """A record, and WHEN it was written: seconds since 1970."""

    when: float
    record: Record


@dataclass(frozen=True, slots=True)
class State:
    """Where a bisect stands."""

    start: Start
    trials: Mapping[PatchSet, tuple[Tried, ...]] = field(default_factory=dict)
    builds: Mapping[PatchSet, Built] = field(default_factory=dict)
    judged: Mapping[PatchSet, Judged] = field(default_factory=dict)
    skipped: frozenset[PatchSet] = frozenset()
    sequence: tuple[PatchSet, ...] = ()
    """The set of each trial, in the order of the trials."""
    end: End | None = None

    @property
    def last(self) -> PatchSet | None:
        """The set that was tried last, of those whose trials count."""
        return self.sequence[-1] if self.sequence else None

    @property
    def problem(self) -> Problem:
        return self.start.problem

    @property
    def evidence(self) -> Evidence:
        """Return what the trials say. Sets of one tree share their trials, because they are one image."""
        trees: dict[str, Tally] = {}
        tallies: dict[PatchSet, Tally] = {}
        for chosen, tried in self.trials.items():
            tallies[chosen] = tally(one.trial for one in tried)
            if name := self._tree(chosen):
                trees[name] = trees.get(name, Tally()) + tallies[chosen]
        for chosen in self.builds:
            if (name := self._tree(chosen)) in trees:
                tallies[chosen] = trees[name]
        tallies |= dict.fromkeys(self.skipped, Tally(untestable=1, stage="skipped"))
        return Evidence(tallies, self.builds.keys())

    def replicas(self, chosen: PatchSet) -> int:
        """Return how many trials of CHOSEN came to the same end and left the same bytes: 0 if no two did.

        Where the engine is deterministic, such trials are one sample and not several, whatever their number; an
        interval computed from the number is then too narrow. A trial that left nothing is not counted.
        """
        left = Counter(
            (one.outcome, one.evidence) for one in self.trials.get(chosen, ()) if one.evidence not in _NOTHING_LEFT
        )
        most = max(left.values(), default=0)
        return most if most > 1 else 0

    def _tree(self, chosen: PatchSet) -> str:
        return self.builds[chosen].tree if chosen in self.builds else ""

    def after(self, record: Record) -> State:
        """Return the state after RECORD."""
        match record:
            case Start():
                return State(record)
            case Built():
                return replace(self, builds={**self.builds, frozenset(record.chosen): record})
            case Tried():
                chosen = frozenset(record.chosen)
                return replace(
                    self,
                    trials={**self.trials, chosen: (*self.trials.get(chosen, ()), record)},
                    sequence=(*self.sequence, chosen),
                )
            case Judged():
                return replace(self, judged={**self.judged, frozenset(record.chosen): record})
            case Back():
                gone = frozenset(record.chosen)
                return replace(
                    self,
                    trials={chosen: tried for chosen, tried in self.trials.items() if chosen != gone},
                    judged={chosen: judged for chosen, judged in self.judged.items() if chosen != gone},
                    skipped=self.skipped - {gone},
                    sequence=tuple(chosen for chosen in self.sequence if chosen != gone),
                    end=None,
                )
            case Skip():
                return replace(self, skipped=self.skipped | {frozenset(record.chosen)}, end=None)
            case End():
                return replace(self, end=record)


def fold(records: Iterable[Record]) -> State:
    """Return the state that RECORDS, of which the first is the start, add up to."""
    first, *others = records
    assert isinstance(first, Start)
    state = State(first)
    for record in others:
        state = state.after(record)
    return state
