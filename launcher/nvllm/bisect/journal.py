"""The journal of a bisect: JSON lines that are only ever appended, each on the disk before the next thing happens.

A process that is killed while it writes leaves a last line that is torn. Nothing was done because of such a line, so
it is dropped. Every other line must be one that nvllm wrote, in its place; else the journal is refused, because a
search that believes a damaged verdict finds the wrong patch.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from nvllm.bisect import history
from nvllm.bisect.history import FORM, KINDS, End, Entry, Record, Start, State, Tried
from nvllm.core import canonical, convert, durable, paths, schemas
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, Refused

_NAMES = {kind: name for name, kind in KINDS.items()}


def _trace(point: str) -> None:
    """Do nothing. Tests replace this in a child process, to kill it at POINT."""


class Log(Protocol):
    """Where records go and come from."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return what was recorded, in order."""

    def append(self, record: Record) -> None:
        """Add RECORD. When this returns, it lasts."""


class MemoryLog:
    """A log that lasts as long as the process: for simulations and forecasts."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = list(entries)

    @classmethod
    def of(cls, *records: Record) -> MemoryLog:
        return cls(Entry(0.0, record) for record in records)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)

    def append(self, record: Record) -> None:
        self._entries.append(Entry(0.0, record))


class Journal:
    """The journal at PATH, whose first record is there. Whoever appends holds the bisect's lock; see `held`."""

    def __init__(self, path: Path, entries: tuple[Entry, ...], clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._entries = list(entries)
        self._clock = clock

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)

    def append(self, record: Record) -> None:
        """Append RECORD. Raises Refused NV806 if it cannot be written; the journal is then as it was before."""
        entry = Entry(round(self._clock(), 3), record)
        _append(self.path, line(len(self._entries), entry))
        self._entries.append(entry)


def create(path: Path, start: Start, aside: Path | None = None, clock: Callable[[], float] = time.time) -> Journal:
    """Make the journal at PATH, with START in it; one that is there gets the name ASIDE instead of its own.

    PATH is at every moment the one that was there, or the new one with its first record, or none: a disk that fills
    or a kill costs no journal. Raises Refused NV807 if one is there and ASIDE is None, NV806 if none can be made.
    """
    if aside is None and path.exists() and read_bytes(path).partition(b"\n")[1]:
        raise Refused(
            [
                Refusal(
                    "NV807",
                    str(path),
                    "no journal, or one that is set aside",
                    f"the journal of a bisect of {start.image}",
                    f"nvllm bisect run --image {start.image}; or start with --discard, which sets the journal aside",
                )
            ]
        )
    first, fresh = Entry(round(clock(), 3), start), path.with_name(f".{path.name}.new")
    try:
        paths.ensure(path.parent)
        _write_whole(fresh, line(0, first))
        if aside is not None and path.exists():
            os.link(path, aside)  # it keeps its own name too until the new one takes that
        _trace("aside")
        fresh.replace(path)
        _trace("renamed")
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
        raise Refused([Refusal("NV107", str(path), "the journal of a bisect", "none", cure)])
    entries: list[Entry] = []
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
    if refusals:
        raise Refused(refusals)
    return Journal(path, tuple(entries), clock)


def unfinished(directory: Path) -> Iterator[State]:
    """Yield the state of every bisect below DIRECTORY that is not over. A damaged journal goes on nowhere."""
    for path in sorted(directory.glob("*/journal.jsonl")):
        with contextlib.suppress(Refused):
            state = history.fold(entry.record for entry in load(path).entries)
            if state.end is None:
                yield state


def line(number: int, entry: Entry) -> bytes:
    """Return ENTRY as the line with NUMBER, counted from 0: canonical JSON and a newline."""
    record = entry.record
    document: dict[str, Json] = {"n": number, "time": entry.when, "record": _NAMES[type(record)]}
    document |= cast("dict[str, Json]", convert.converter(FORM).unstructure(record))
    return canonical.encode(document) + b"\n"


def _entry(number: int, text: bytes) -> Entry:
    """Return the record in TEXT, the line with NUMBER. Raises ValueError, with what is wrong, for any other line."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("a line that is not JSON") from error
    problems = schemas.validate(FORM, document)
    if problems:
        raise ValueError("; ".join(f"{one.path}: {one.found}, not {one.allowed}" for one in problems))
    if document["n"] != number:
        raise ValueError(f"record {document['n']} in the place of record {number}")
    if (document["record"] == "start") != (number == 0):
        raise ValueError(f"the record {document['record']} in line {number + 1}")
    record = convert.converter(FORM).structure(document, KINDS[document["record"]])
    if isinstance(record, Tried):
        _ = record.trial  # raises ValueError for an outcome that does not go with its stage
    return Entry(document["time"], record)


def _fit(start: Record, record: Record) -> None:
    """Raise ValueError if RECORD is of patches or sets that the search of START has nothing to do with."""
    assert isinstance(start, Start)
    if record is start:
        related = itertools.chain(start.requires.items(), start.conflicts.items())
        named = {*start.low, *start.high, *(one for key, others in related for one in (key, *others))}
        if unknown := named.difference(start.order):
            raise ValueError(f"patches that are not of its series: {', '.join(sorted(unknown))}")
    problem = start.problem
    order, low, high = problem.combinations.ordered, problem.low, problem.high
    if record is start:
        if not (low < high and problem.combinations.valid(low) and problem.combinations.valid(high)):
            raise ValueError("ends that are not closed, hold a conflict, or lie not one inside the other")
    elif isinstance(record, End):
        if not record.culprits or order(high.intersection(record.culprits) - low) != record.culprits:
            raise ValueError(f"culprits that are not between the ends: {', '.join(record.culprits) or 'none'}")
    elif not isinstance(record, Start):
        chosen = frozenset(record.chosen)
        between = low <= chosen <= high and problem.combinations.valid(chosen)
        if not between or order(chosen) != record.chosen:
            raise ValueError(f"no set of the search: {', '.join(record.chosen) or 'no patch'}")


def read_bytes(path: Path) -> bytes:
    """Return the bytes of the journal at PATH. Raises Refused NV804 if they cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused([_damaged(str(path), error.strerror or str(error))]) from error


def _whole(data: bytes) -> bytes:
    """Return DATA without a torn last line: one without an end, or one of which a part never reached the disk."""
    whole = data[: data.rfind(b"\n") + 1]
    start = whole.rfind(b"\n", 0, -1) + 1
    return whole[:start] if b"\0" in whole[start:] else whole


def _append(path: Path, text: bytes) -> None:
    """Append TEXT to PATH after its last whole line, and let it reach the disk."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise Refused([_unwritten(path, error)]) from error
    try:
        end = len(_whole(path.read_bytes()))
        try:
            os.ftruncate(descriptor, end)
            _trace("ready")
            _write(descriptor, text, end)
            _trace("written")
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, end)  # half a line would be dropped anyway; the next reader need not see it
            raise Refused([_unwritten(path, error)]) from error
        _trace("synced")
    finally:
        os.close(descriptor)


def _write_whole(path: Path, text: bytes) -> None:
    """Make TEXT the content of PATH, which nobody else writes, and let it reach the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _write(descriptor, text, 0)
        _trace("written")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, text: bytes, place: int) -> None:
    while text:
        written = os.pwrite(descriptor, text, place)
        text, place = text[written:], place + written
        _trace("partly")


def _unwritten(path: Path, error: OSError) -> Refusal:
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    cure = f"make room on the file system of {path.parent}" if full else f"make {path.parent} writable for this user"
    return Refusal("NV806", str(path), "a line on the disk", error.strerror or str(error), f"{cure}, then run it again")


def _damaged(where: str, found: str) -> Refusal:
    cure = "put back a copy of the journal, or start again with --discard; the memo keeps the trials"
    return Refusal("NV804", where, "a record as nvllm writes it", found, cure)
