"""The journal of a bisect: the file that its records are appended to.

The file has one JSON line for each record. A line is on the disk before anything that follows from it happens. A
process that is killed while it writes leaves a torn last line; nothing has followed from it, so it is dropped. Any
other line that nvllm did not write is refused, because a search that believes a damaged verdict finds the wrong patch.
Each line has a chained hash: the sha256 of the hash of the line before and of its own text. So one changed bit is
noticed wherever it is. Journals of the first format, which have none, are still read and continued.

A journal of another model of flaky failures (`records.MODEL`) is refused if its failure was ever flaky, because this
nvllm would have decided otherwise. If it was steady, the first record that is appended is preceded by `Continued`; a
set search may then ask for other sets than before, and its journal is replayed only by the version that wrote it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from nvllm.bisect.records import (
    FIRST,
    MODEL,
    SCHEMA,
    Back,
    BisectStart,
    BisectState,
    Continued,
    Corrected,
    End,
    JournalEntry,
    JournalRecord,
    Judged,
    Limits,
    Lost,
    Sent,
    Skip,
    Tried,
    fold,
)
from nvllm.core import canonical, documents, durable, paths, reading, schemas
from nvllm.core.canonical import Json
from nvllm.core.fields import Count, Form, Seconds, Tagged
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.trials.trial import Built, Ids, TrialOutcome

_KINDS: Mapping[str, type[JournalRecord]] = {
    "start": BisectStart,
    "build": Built,
    "sent": Sent,
    "lost": Lost,
    "trial": Tried,
    "verdict": Judged,
    "back": Back,
    "skip": Skip,
    "limits": Limits,
    "model": Continued,
    "probe": Corrected,
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
        self._model = self.state.start.model

    def append(self, record: JournalRecord) -> None:
        """Append RECORD. When this returns, it is on the disk.

        Raises Refused NV806 if it cannot be written; the journal is then as it was before.
        """
        if self._model != MODEL:
            self._model = MODEL
            self.append(Continued(MODEL))
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
    first = JournalEntry(round(clock(), 3), start)
    text, chain = line(0, first, _NO_CHAIN)
    _place(path, text, start, aside)
    return Journal(path, (first,), chain, clock)


def adopt(path: Path, log: Journal) -> None:
    """Copy LOG, a journal from elsewhere, to PATH, where no journal is.

    Raises Refused as `create` does.
    """
    _place(path, _whole(read_bytes(log.path)), log.state.start, None)


def _place(path: Path, text: bytes, start: BisectStart, aside: Path | None) -> None:
    """Make TEXT, which begins with START, the journal at PATH; see `create`."""
    if aside is None and path.exists() and read_bytes(path).partition(b"\n")[1]:
        cure = f"nvllm bisect run --image {start.image}"
        existing = f"the journal of a bisect of {start.image}, which `nvllm bisect start --discard` would rename"
        raise refuse("NV807", str(path), "no journal", existing, cure)
    fresh = path.with_name(f".{path.name}.new")
    try:
        paths.ensure(path.parent)
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


def load(path: Path, clock: Callable[[], float] = time.time) -> Journal:
    """Return the journal at PATH, of a search that this nvllm can repeat and continue.

    Raises Refused as `read` does, and NV804 if another model decided a flaky search.
    """
    log = read(path, clock)
    refusal = outdated(log)
    if refusal is not None:
        raise Refused([refusal])
    return log


def outdated(log: Journal) -> Refusal | None:
    """Return NV804 if another model than that of this nvllm decided the flaky search of LOG."""
    model = log.state.start.model
    if model == MODEL or not _ever_flaky(entry.record for entry in log.entries):
        return None
    cure = "use the version of nvllm which wrote it, or start again with --discard; the cache has the probe's trials"
    actual = f"model {model}, of another version of nvllm: this one would have decided otherwise"
    return Refusal("NV804", str(log.path), f"a flaky search that was decided by model {MODEL}", actual, cure)


def _ever_flaky(written: Iterable[JournalRecord]) -> bool:
    """Return whether the failure was declared flaky, or one source was ever both good and bad."""
    trees: dict[Ids, str] = {}
    outcomes: set[tuple[Ids | str, TrialOutcome]] = set()
    for record in written:
        if isinstance(record, BisectStart) and record.flaky:
            return True
        if isinstance(record, Built):
            trees[record.chosen] = record.tree
        elif isinstance(record, Tried) and record.outcome != "untestable":
            source = trees.get(record.chosen) or record.chosen
            outcomes.add((source, record.outcome))
    return len(outcomes) > len({source for source, _ in outcomes})


def read(path: Path, clock: Callable[[], float] = time.time) -> Journal:
    """Return the journal at PATH, whatever decided it, to list it and to keep its images.

    Raises Refused NV107 if there is none, NV804 with each line that is damaged.
    """
    if not path.exists() or not (data := _whole(read_bytes(path))):
        cure = "start one: nvllm bisect start IMAGE --bad SET --good SET --test PROBE"
        raise refuse("NV107", str(path), "the journal of a bisect", "none", cure)
    entries: list[JournalEntry] = []
    refusals: list[Refusal] = []
    chain, tasks = _NO_CHAIN, dict[str, Sent | None]()
    for number, text in enumerate(data.split(b"\n")[:-1]):
        try:
            entry = _entry(number, text)
            _fit(entries[0].record if entries else entry.record, entry.record)
            _follow(tasks, entry.record)
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
    with contextlib.suppress(OSError, ValueError):
        match canonical.decode(reading.content(path, reading.JOURNAL).partition(b"\n")[0]):
            case {"time": int() | float() as when}:
                return float(when)
    return 0.0


_NO_CHAIN = "0" * 64
"""What stands for the hash of the line before the first one."""


def line(number: int, entry: JournalEntry, before: str) -> tuple[bytes, str]:
    """Return ENTRY as line NUMBER, counted from 0, and its chained hash: canonical JSON and a newline.

    BEFORE is the hash of the line before; empty in a journal of the first format.
    """
    record = entry.record
    document: dict[str, Json] = {"n": number, "time": entry.when, "record": _NAMES[type(record)]}
    document |= cast("dict[str, Json]", documents.converter(FORM).unstructure(record))
    chain = _chained(before, document) if before else ""
    return canonical.encode({**document, "chain": chain} if chain else document) + b"\n", chain


def _chained(before: str, document: Mapping[str, Json]) -> str:
    return hashlib.sha256(before.encode() + canonical.encode(dict(document))).hexdigest()


def _entry(number: int, text: bytes) -> JournalEntry:
    """Return the record in TEXT, line NUMBER. Raises ValueError, which says what is wrong with the line."""
    try:
        document: Any = canonical.decode(text)
    except ValueError as error:
        raise ValueError("a line that is not JSON") from error
    problems = schemas.validate(FORM, document)
    if problems:
        raise ValueError("; ".join(f"{problem.path}: {problem.actual}, not {problem.allowed}" for problem in problems))
    if document["n"] != number:
        raise ValueError(f"record {document['n']} in place of record {number}")
    if (document["record"] == "start") != (number == 0):
        raise ValueError(f"the record {document['record']} in line {number + 1}")
    record = documents.converter(FORM).structure(document, _KINDS[document["record"]])
    if isinstance(record, Tried):
        _ = record.trial  # raises ValueError unless outcome and stage fit
    return JournalEntry(document["time"], record)


def _next_chain(text: bytes, entry: JournalEntry, before: str) -> str:
    """Return the chained hash of TEXT, the line of ENTRY; BEFORE is that of the line before.

    It is empty for a journal of the first format. Raises ValueError if the line, or one before it, was changed.
    """
    document = cast("dict[str, Json]", canonical.decode(text))
    written = document.pop("chain", "")
    if not before or (isinstance(entry.record, BisectStart) and entry.record.schema == FIRST):
        chain = ""
    else:
        chain = _chained(before, document)
    if written != chain or text != canonical.encode({**document, "chain": chain} if chain else document):
        raise ValueError("a line whose chained hash is wrong: it, or a line before it, was changed")
    return chain


def _said_chain(text: bytes) -> str:
    """Return the chained hash that the damaged line TEXT has, so that the lines after it can be read; or nothing."""
    with contextlib.suppress(ValueError):
        document = canonical.decode(text)
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
        named = {*start.low, *start.high, *(patch for key, others in related for patch in (key, *others))}
        if unknown := named.difference(start.order):
            raise ValueError(f"patches that are not in its series: {', '.join(sorted(unknown))}")
        if not (low < high and problem.combinations.valid(low) and problem.combinations.valid(high)):
            raise ValueError("ends that are not closed, contain a conflict, or of which neither contains the other")
    elif isinstance(record, End):
        if not record.culprits or order(high.intersection(record.culprits) - low) != record.culprits:
            raise ValueError(f"culprits that are not between the ends: {', '.join(record.culprits) or 'none'}")
    elif not isinstance(record, BisectStart | Limits | Continued | Corrected):
        chosen = frozenset(record.chosen)
        between = low <= chosen <= high and problem.combinations.valid(chosen)
        if not between or order(chosen) != record.chosen:
            raise ValueError(f"not a set of the search: {', '.join(record.chosen) or 'no patch'}")


def _follow(tasks: dict[str, Sent | None], record: JournalRecord) -> None:
    """Keep in TASKS every task up to RECORD: as it was sent while it is on its way, None after its end.

    Raises ValueError if RECORD sends a task again, or ends one that is not on its way with the same set.
    """
    if isinstance(record, Sent):
        if record.task in tasks:
            raise ValueError(f"the task {record.task}, which was sent before")
        tasks[record.task] = record
    elif isinstance(record, Lost) or (isinstance(record, Tried) and record.task):
        known = tasks.get(record.task)
        if known is None or known.chosen != record.chosen:
            raise ValueError(f"the end of the task {record.task}, which is not on its way with that set")
        tasks[record.task] = None


def read_bytes(path: Path) -> bytes:
    """Return the bytes of the journal at PATH. Raises Refused NV804 if they cannot be read."""
    try:
        return reading.content(path, reading.JOURNAL)
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
        # Not O_APPEND: the line is written after the last whole one, in the place of a torn one.
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


def _write(descriptor: int, text: bytes, offset: int) -> None:
    while text:
        written = os.pwrite(descriptor, text, offset)
        text, offset = text[written:], offset + written
        durable.reached("partly")


def _unwritten(path: Path, error: OSError) -> Refusal:
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    parent = str(path.parent)
    cure = f"df -h {shlex.quote(parent)} && nvllm gc" if full else f"chmod u+rwx {shlex.quote(parent)}"
    return Refusal("NV806", str(path), "a record on the disk", error.strerror or str(error), cure)


def _damaged(where: str, reason: str) -> Refusal:
    cure = "restore a copy of the journal, or start again with --discard; the cache keeps the trials of the probe"
    return Refusal("NV804", where, "a record as nvllm writes it", reason, cure)
