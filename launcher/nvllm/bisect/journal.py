"""The journal of a bisect: its records, the state that they add up to, and the file that they are appended to.

The state is a fold over the records in order. Commands take everything they show from the state, so a journal shows the
same on another machine.

The file has one JSON line for each record. A line is on the disk before anything that follows from it happens. A
process that is killed while it writes leaves a torn last line; nothing has followed from it, so it is dropped. Any
other line that nvllm did not write is refused, because a search that believes a damaged verdict finds the wrong patch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

from nvllm.bisect.combinations import Combinations
from nvllm.bisect.problem import Find, Mode, Problem, SearchEvidence, Settings
from nvllm.bisect.verdict import PatchSet, Tally, Trial, TrialOutcome, TrialStage, tally
from nvllm.core import canonical, convert, durable, paths, reading, schemas
from nvllm.core.canonical import Json
from nvllm.core.fields import NOT_EMPTY, WRITTEN, Count, Form, Positive, Rule, Seconds, Tagged, Word
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any

SCHEMA = "nvllm.journal/1"
Ids = tuple[Word, ...]
_NOTHING_LEFT = frozenset({"", hashlib.sha256(b"").hexdigest()})


@dataclass(frozen=True, slots=True)
class BisectProbe:
    """What judges an image. SHA256 covers program and settings; REGRESS, if given, is the one failure that counts."""

    command: Annotated[tuple[str, ...], NOT_EMPTY]
    sha256: str
    regress: Annotated[str, WRITTEN] = ""
    build_only: Annotated[bool, WRITTEN] = False


@dataclass(frozen=True, slots=True)
class BisectStart:
    """The search and its inputs. INPUTS is the hash of the lock and the series, without the patch set."""

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
    probe: BisectProbe
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
    """CHOSEN has an image. Sets with the same TREE, the hash of the patched source (empty: unknown), are one source."""

    chosen: Ids
    tree: str
    build_hash: str
    image: str
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Tried:
    """CHOSEN was tried, for REASON. RECALLED: the trial came from the cache of trials."""

    chosen: Ids
    outcome: TrialOutcome
    kind: str
    stage: TrialStage | None
    evidence: str
    seconds: Seconds
    recalled: bool
    reason: str

    @property
    def trial(self) -> Trial:
        return Trial(self.outcome, self.kind, self.stage, self.evidence, self.seconds)


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on CHOSEN from here on. It is for readers: the search computes verdicts from the trials."""

    chosen: Ids
    outcome: TrialOutcome
    detail: str
    confidence: Annotated[float, Rule(minimum=0, maximum=1)] | None


@dataclass(frozen=True, slots=True)
class Back:
    """The user withdraws all trials of CHOSEN, or its skip."""

    chosen: Ids


@dataclass(frozen=True, slots=True)
class Skip:
    """The user rules CHOSEN out: it counts as untestable."""

    chosen: Ids


@dataclass(frozen=True, slots=True)
class End:
    """The search is over; see `search.Done`."""

    culprits: Ids
    exact: bool
    certified: bool


JournalRecord: TypeAlias = BisectStart | Built | Tried | Judged | Back | Skip | End


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
    """The set of each trial, in the order of the trials."""
    end: End | None = None

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
        return SearchEvidence(tallies, self.builds.keys())

    def replicas(self, chosen: PatchSet) -> int:
        """Return how many trials of CHOSEN had the same outcome and wrote the same bytes: 0 if no two did.

        With a deterministic engine they are one sample, and an interval that counts them all is too narrow. Trials that
        wrote nothing are not counted.
        """
        left = Counter(
            (one.outcome, one.evidence) for one in self.trials.get(chosen, ()) if one.evidence not in _NOTHING_LEFT
        )
        most = max(left.values(), default=0)
        return most if most > 1 else 0

    def _tree(self, chosen: PatchSet) -> str:
        return self.builds[chosen].tree if chosen in self.builds else ""

    def after(self, record: JournalRecord) -> BisectState:
        """Return the state after RECORD."""
        match record:
            case BisectStart():
                return BisectState(record)
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


def fold(records: Iterable[JournalRecord]) -> BisectState:
    """Return the state after RECORDS, the first of which is the start."""
    first, *others = records
    assert isinstance(first, BisectStart)
    state = BisectState(first)
    for record in others:
        state = state.after(record)
    return state


_KINDS: Mapping[str, type[JournalRecord]] = {
    "start": BisectStart,
    "build": Built,
    "trial": Tried,
    "verdict": Judged,
    "back": Back,
    "skip": Skip,
    "end": End,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class JournalLine:
    """What every line has besides its record: its number N, from 0, and the seconds since 1970."""

    n: Count
    time: Seconds


FORM: Form[JournalRecord] = Form(
    "journal", SCHEMA, "One line of a bisect's journal", Tagged("record", _KINDS, JournalLine)
)


class Log:
    """Records in memory, for simulations. A `Journal` has them on the disk as well."""

    def __init__(self, entries: Iterable[JournalEntry]) -> None:
        self._entries = list(entries)

    @classmethod
    def of(cls, *records: JournalRecord) -> Log:
        return Log(JournalEntry(0.0, record) for record in records)

    @property
    def entries(self) -> tuple[JournalEntry, ...]:
        return tuple(self._entries)

    @property
    def state(self) -> BisectState:
        return fold(entry.record for entry in self._entries)

    def append(self, record: JournalRecord) -> None:
        self._entries.append(JournalEntry(0.0, record))


class Journal(Log):
    """The journal at PATH, which has ENTRIES. Only the holder of the bisect's lock may append."""

    def __init__(self, path: Path, entries: Iterable[JournalEntry], clock: Callable[[], float] = time.time) -> None:
        super().__init__(entries)
        self.path = path
        self._clock = clock

    def append(self, record: JournalRecord) -> None:
        """Append RECORD. When this returns, it is on the disk.

        Raises Refused NV806 if it cannot be written; the journal is then as it was before.
        """
        entry = JournalEntry(round(self._clock(), 3), record)
        _append(self.path, line(len(self._entries), entry))
        self._entries.append(entry)


def create(
    path: Path, start: BisectStart, aside: Path | None = None, clock: Callable[[], float] = time.time
) -> Journal:
    """Create the journal at PATH with START as its first record; rename an existing one to ASIDE.

    PATH is the old journal or the whole new one at every moment, so neither a full disk nor a kill loses a journal.
    Raises Refused NV807 if one exists and ASIDE is None, and NV806 if the new one cannot be written.
    """
    if aside is None and path.exists() and read_bytes(path).partition(b"\n")[1]:
        cure = f"nvllm bisect run --image {start.image}; or start again with --discard, which renames the journal"
        found = f"the journal of a bisect of {start.image}"
        raise refuse("NV807", str(path), "no journal", found, cure)
    first, fresh = JournalEntry(round(clock(), 3), start), path.with_name(f".{path.name}.new")
    try:
        paths.ensure(path.parent)
        _write_whole(fresh, line(0, first))
        if aside is not None and path.exists():
            os.link(path, aside)  # it keeps its own name until the new one replaces it
        durable.reached("aside")
        fresh.replace(path)
        durable.reached("renamed")
        durable.sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise Refused([_unwritten(path, error)]) from error
    return Journal(path, (first,), clock)


def load(path: Path, clock: Callable[[], float] = time.time) -> Journal:
    """Return the journal at PATH. Raises Refused NV107 if there is none, NV804 with each line that is damaged."""
    if not path.exists() or not (data := _whole(read_bytes(path))):
        cure = "nvllm bisect start IMAGE --bad SET --good SET --test PROBE"
        raise refuse("NV107", str(path), "the journal of a bisect", "none", cure)
    entries: list[JournalEntry] = []
    refusals: list[Refusal] = []
    for number, text in enumerate(data.split(b"\n")[:-1]):
        try:
            entry = _entry(number, text)
            _fit(entries[0].record if entries else entry.record, entry.record)
        except ValueError as error:
            refusals.append(_damaged(f"{path}:{number + 1}", str(error)))
            if not number:
                break  # of which patches the others may be, it alone says
        else:
            entries.append(entry)
    refuse_any(refusals)
    return Journal(path, entries, clock)


def unfinished(directory: Path) -> Iterator[BisectState]:
    """Yield the state of every unfinished bisect below DIRECTORY, except those with a damaged journal."""
    for path in sorted(directory.glob("*/journal.jsonl")):
        with contextlib.suppress(Refused):
            state = load(path).state
            if state.end is None:
                yield state


def line(number: int, entry: JournalEntry) -> bytes:
    """Return ENTRY as line NUMBER, counted from 0: canonical JSON and a newline."""
    record = entry.record
    document: dict[str, Json] = {"n": number, "time": entry.when, "record": _NAMES[type(record)]}
    document |= cast("dict[str, Json]", convert.converter(FORM).unstructure(record))
    return canonical.encode(document) + b"\n"


def _entry(number: int, text: bytes) -> JournalEntry:
    """Return the record in TEXT, line NUMBER. Raises ValueError, which says what is wrong with the line."""
    try:
        document: Any = canonical.decode(text)
    except ValueError as error:
        raise ValueError("a line that is not JSON") from error
    problems = schemas.validate(FORM, document)
    if problems:
        raise ValueError("; ".join(f"{one.path}: {one.found}, not {one.allowed}" for one in problems))
    if document["n"] != number:
        raise ValueError(f"record {document['n']} in place of record {number}")
    if (document["record"] == "start") != (number == 0):
        raise ValueError(f"the record {document['record']} in line {number + 1}")
    record = convert.converter(FORM).structure(document, _KINDS[document["record"]])
    if isinstance(record, Tried):
        _ = record.trial  # raises ValueError unless outcome and stage fit
    return JournalEntry(document["time"], record)


def _fit(start: JournalRecord, record: JournalRecord) -> None:
    """Raise ValueError if RECORD has patches or sets that are not part of the search of START."""
    assert isinstance(start, BisectStart)
    problem = start.problem
    order, low, high = problem.combinations.ordered, problem.low, problem.high
    if record is start:
        related = itertools.chain(start.requires.items(), start.conflicts.items())
        named = {*start.low, *start.high, *(one for key, others in related for one in (key, *others))}
        if unknown := named.difference(start.order):
            raise ValueError(f"patches that are not in its series: {', '.join(sorted(unknown))}")
        if not (low < high and problem.combinations.valid(low) and problem.combinations.valid(high)):
            raise ValueError("ends that are not closed, contain a conflict, or of which neither contains the other")
    elif isinstance(record, End):
        if not record.culprits or order(high.intersection(record.culprits) - low) != record.culprits:
            raise ValueError(f"culprits that are not between the ends: {', '.join(record.culprits) or 'none'}")
    elif not isinstance(record, BisectStart):
        chosen = frozenset(record.chosen)
        between = low <= chosen <= high and problem.combinations.valid(chosen)
        if not between or order(chosen) != record.chosen:
            raise ValueError(f"not a set of the search: {', '.join(record.chosen) or 'no patch'}")


def read_bytes(path: Path) -> bytes:
    """Return the bytes of the journal at PATH. Raises Refused NV804 if they cannot be read."""
    try:
        return reading.content(path, reading.JOURNAL)
    except OSError as error:
        raise Refused([_damaged(str(path), error.strerror or str(error))]) from error


def _whole(data: bytes) -> bytes:
    """Return DATA without a torn last line, which lacks its newline or has zeros that never reached the disk."""
    whole = data[: data.rfind(b"\n") + 1]
    start = whole.rfind(b"\n", 0, -1) + 1
    return whole[:start] if b"\0" in whole[start:] else whole


def _append(path: Path, text: bytes) -> None:
    """Append TEXT to PATH after its last whole line, and sync it to the disk."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise Refused([_unwritten(path, error)]) from error
    try:
        end = len(_whole(reading.content(path, reading.JOURNAL)))
        try:
            os.ftruncate(descriptor, end)
            durable.reached("ready")
            _write(descriptor, text, end)
            durable.reached("written")
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, end)  # a torn line would be dropped anyway; this keeps it from the next reader
            raise Refused([_unwritten(path, error)]) from error
        durable.reached("synced")
    finally:
        os.close(descriptor)


def _write_whole(path: Path, text: bytes) -> None:
    """Write TEXT to PATH, which nobody else writes, and sync it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _write(descriptor, text, 0)
        durable.reached("written")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, text: bytes, place: int) -> None:
    while text:
        written = os.pwrite(descriptor, text, place)
        text, place = text[written:], place + written
        durable.reached("partly")


def _unwritten(path: Path, error: OSError) -> Refusal:
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    cure = f"make room on the file system of {path.parent}" if full else f"make {path.parent} writable for this user"
    return Refusal(
        "NV806", str(path), "a record on the disk", error.strerror or str(error), f"{cure}, then repeat the command"
    )


def _damaged(where: str, found: str) -> Refusal:
    cure = "restore a copy of the journal, or start again with --discard; the cache keeps the trials"
    return Refusal("NV804", where, "a record as nvllm writes it", found, cure)
