"""The journal of a bisect: its records, the state that they add up to, and the file that they are appended to.

The state is a fold over the records in order. Commands take everything they show from the state, so a journal shows the
same on another machine.

The file has one JSON line for each record. A line is on the disk before anything that follows from it happens. A
process that is killed while it writes leaves a torn last line; nothing has followed from it, so it is dropped. Any
other line that nvllm did not write is refused, because a search that believes a damaged verdict finds the wrong patch.
Each line has a chained hash: the sha256 of the hash of the line before and of its own text. So one changed bit is
noticed wherever it is. Journals of the first format, which have none, are still read and continued.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

from nvllm.bisect.combinations import Combinations
from nvllm.bisect.problem import Find, Mode, Problem, SearchEvidence, Settings
from nvllm.bisect.verdict import PatchSet, Tally, Trial, TrialOutcome, TrialStage, tally
from nvllm.core import canonical, convert, durable, paths, schemas
from nvllm.core.canonical import Json
from nvllm.core.fields import NOT_EMPTY, WRITTEN, Count, Form, Positive, Rule, Seconds, Tagged, Word
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any

SCHEMA = "nvllm.journal/2"
_FIRST = "nvllm.journal/1"
"""The format without chained hashes."""

Withdrawn = Literal["all", "trials", "last", "untestable", "skip"]
"""What `back` withdraws of a set: its trials, the last of them, the untestable ones, its skip, or trials and skip."""

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
    """The search and its inputs. INPUTS is the hash of the lock and the series, without the patch set.

    MAX_HOURS 0: no limit. FURTHER: search for other causes after the first.
    """

    schema: Annotated[str, Rule(choices=(SCHEMA, _FIRST))]
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
            Settings(
                self.confidence,
                self.repeats,
                self.patience,
                self.flaky,
                self.build_price,
                self.max_trials,
                self.max_hours or None,
            ),
            self.further,
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
    """CHOSEN was tried, for REASON. RECALLED: the trial came from the cache of trials.

    SAID is the end of what the probe or the engine wrote, RUN the run directory of the engine. BY_HAND: the user looked
    and gave the verdict.
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

    @property
    def trial(self) -> Trial:
        return Trial(self.outcome, self.kind, self.stage, self.evidence, self.seconds, self.said, self.run)


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
class End:
    """The search is over; see `search.Done`."""

    culprits: Ids
    exact: bool
    certified: bool


JournalRecord: TypeAlias = BisectStart | Built | Tried | Judged | Back | Skip | Limits | End


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
    tallies: Mapping[PatchSet, Tally] = field(default_factory=dict)
    """The trials, counted as they come, by set."""
    spent: float = 0.0
    """Seconds of builds and trials, without what the cache had."""

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
        return SearchEvidence(counts, self.builds.keys(), self.spent, len(self.sequence), named)

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

    def after(self, record: JournalRecord) -> BisectState:
        """Return the state after RECORD."""
        match record:
            case BisectStart():
                return BisectState(record)
            case Built():
                builds = {**self.builds, frozenset(record.chosen): record}
                return replace(self, builds=builds, spent=self.spent + record.seconds)
            case Tried():
                chosen = frozenset(record.chosen)
                return replace(
                    self,
                    trials={**self.trials, chosen: (*self.trials.get(chosen, ()), record)},
                    sequence=(*self.sequence, chosen),
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
            case Skip():
                return replace(self, skipped=self.skipped | {frozenset(record.chosen)}, end=None)
            case End():
                return replace(self, end=record)

    def withdrawn(self, chosen: PatchSet, what: Withdrawn) -> tuple[Tried, ...]:
        """Return the trials of CHOSEN that are withdrawn with WHAT."""
        tried = self.trials.get(chosen, ())
        match what:
            case "all" | "trials":
                return tried
            case "last":
                return tried[-1:]
            case "untestable":
                return tuple(one for one in tried if one.outcome == "untestable")
            case "skip":
                return ()

    def _without(self, chosen: PatchSet, what: Withdrawn) -> BisectState:
        gone = {id(one) for one in self.withdrawn(chosen, what)}
        kept = tuple(one for one in self.trials.get(chosen, ()) if id(one) not in gone)
        others = {one: tried for one, tried in self.trials.items() if one != chosen}
        counted = {one: count for one, count in self.tallies.items() if one != chosen}
        places = [index for index, one in enumerate(self.sequence) if one == chosen]
        dropped = {index for index, one in zip(places, self.trials.get(chosen, ()), strict=True) if id(one) in gone}
        return replace(
            self,
            trials={**others, chosen: kept} if kept else others,
            tallies={**counted, chosen: tally(one.trial for one in kept)} if kept else counted,
            judged={one: judged for one, judged in self.judged.items() if one != chosen},
            skipped=self.skipped - {chosen} if what in ("all", "skip") else self.skipped,
            sequence=tuple(one for index, one in enumerate(self.sequence) if index not in dropped),
            end=None,
        )


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
    "limits": Limits,
    "end": End,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class JournalLine:
    """What every line has besides its record: its number N, from 0, the seconds since 1970, and its chained hash."""

    n: Count
    time: Seconds
    chain: str = ""


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

    def __init__(
        self, path: Path, entries: Iterable[JournalEntry], chain: str, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(entries)
        self.path = path
        self._chain = chain
        self._clock = clock

    def append(self, record: JournalRecord) -> None:
        """Append RECORD. When this returns, it is on the disk.

        Raises Refused NV806 if it cannot be written; the journal is then as it was before.
        """
        entry = JournalEntry(round(self._clock(), 3), record)
        text, chain = line(len(self._entries), entry, self._chain)
        _append(self.path, text)
        self._entries.append(entry)
        self._chain = chain


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
        text, chain = line(0, first, _NO_CHAIN)
        _write_whole(fresh, text)
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
    return Journal(path, (first,), chain, clock)


def load(path: Path, clock: Callable[[], float] = time.time) -> Journal:
    """Return the journal at PATH. Raises Refused NV107 if there is none, NV804 with each line that is damaged."""
    if not path.exists() or not (data := _whole(read_bytes(path))):
        cure = "nvllm bisect start IMAGE --bad SET --good SET --test PROBE"
        raise refuse("NV107", str(path), "the journal of a bisect", "none", cure)
    entries: list[JournalEntry] = []
    refusals: list[Refusal] = []
    chain = _NO_CHAIN
    for number, text in enumerate(data.split(b"\n")[:-1]):
        try:
            entry = _entry(number, text)
            _fit(entries[0].record if entries else entry.record, entry.record)
            chain = _next_chain(text, entry, chain)
        except ValueError as error:
            refusals.append(_damaged(f"{path}:{number + 1}", str(error)))
            chain = _said_chain(text)
            if not number or not chain:
                break  # the others cannot be read without it
        else:
            entries.append(entry)
    refuse_any(refusals)
    return Journal(path, entries, chain, clock)


def started(path: Path) -> float:
    """Return when the bisect of the journal at PATH was started, in seconds since 1970; 0 if that cannot be read."""
    try:
        with path.open("rb") as stream:
            return float(json.loads(stream.readline())["time"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0.0


def unfinished(directory: Path) -> Iterator[BisectState]:
    """Yield the state of every unfinished bisect below DIRECTORY, except those with a damaged journal."""
    for path in sorted(directory.glob("*/journal.jsonl")):
        with contextlib.suppress(Refused):
            state = load(path).state
            if state.end is None:
                yield state


_NO_CHAIN = "0" * 64
"""What stands for the hash of the line before the first one."""


def line(number: int, entry: JournalEntry, before: str) -> tuple[bytes, str]:
    """Return ENTRY as line NUMBER, counted from 0, and its chained hash: canonical JSON and a newline.

    BEFORE is the hash of the line before; empty in a journal of the first format.
    """
    record = entry.record
    document: dict[str, Json] = {"n": number, "time": entry.when, "record": _NAMES[type(record)]}
    document |= cast("dict[str, Json]", convert.converter(FORM).unstructure(record))
    chain = _chained(before, document) if before else ""
    return canonical.encode({**document, "chain": chain} if chain else document) + b"\n", chain


def _chained(before: str, document: Mapping[str, Json]) -> str:
    return hashlib.sha256(before.encode() + canonical.encode(dict(document))).hexdigest()


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text}, which is no number")


def _number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _not_a_number(text)


def _entry(number: int, text: bytes) -> JournalEntry:
    """Return the record in TEXT, line NUMBER. Raises ValueError, which says what is wrong with the line."""
    try:
        document: Any = json.loads(text, parse_constant=_not_a_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
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


def _next_chain(text: bytes, entry: JournalEntry, before: str) -> str:
    """Return the chained hash of TEXT, the line of ENTRY; BEFORE is that of the line before.

    It is empty for a journal of the first format. Raises ValueError if the line, or one before it, was changed.
    """
    document: dict[str, Json] = json.loads(text)
    said = document.pop("chain", "")
    if not before or (isinstance(entry.record, BisectStart) and entry.record.schema == _FIRST):
        chain = ""
    else:
        chain = _chained(before, document)
    if said != chain or text != canonical.encode({**document, "chain": chain} if chain else document):
        raise ValueError("a line whose chained hash is wrong: it, or a line before it, was changed")
    return chain


def _said_chain(text: bytes) -> str:
    """Return the chained hash that the damaged line TEXT has, so that the lines after it can be read; or nothing."""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(text)
        if isinstance(document, dict):
            return str(document.get("chain", ""))
    return ""


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
    elif not isinstance(record, BisectStart | Limits):
        chosen = frozenset(record.chosen)
        between = low <= chosen <= high and problem.combinations.valid(chosen)
        if not between or order(chosen) != record.chosen:
            raise ValueError(f"not a set of the search: {', '.join(record.chosen) or 'no patch'}")


def read_bytes(path: Path) -> bytes:
    """Return the bytes of the journal at PATH. Raises Refused NV804 if they cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused([_damaged(str(path), error.strerror or str(error))]) from error


def _whole(data: bytes) -> bytes:
    """Return DATA without a torn last line, which lacks its newline or has zeros that never reached the disk.

    A last line that has something else for its newline is not torn but changed, and stays, to be refused.
    """
    whole = data[: data.rfind(b"\n") + 1]
    if data[len(whole) :][-2:-1] == b"}" and data[-1:] != b"\0":
        return data + b"\n"
    start = whole.rfind(b"\n", 0, -1) + 1
    return whole[:start] if b"\0" in whole[start:] else whole


def _append(path: Path, text: bytes) -> None:
    """Append TEXT to PATH after its last whole line, and sync it to the disk."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise Refused([_unwritten(path, error)]) from error
    try:
        end = len(_whole(path.read_bytes()))
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
