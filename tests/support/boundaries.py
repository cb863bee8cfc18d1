"""Every boundary of what a program writes: each system call that changes a file, and the middle of each write.

`watch` puts itself before the calls by which Python changes files, so a boundary is there without anybody having named
it, in code of today and of tomorrow. Of the same run, in a process of its own, a test can then

- kill the process at boundary N, with what it wrote so far (`KILLED`);
- cut its power there: what was not synced is gone, the bytes (`BYTES_LOST`), or the bytes and the new names
  (`NAMES_LOST`);
- let the disk be full from there on (`FULL`);
- hold it there while another process does the same (`race`).

Nothing waits for a real disk: a sync is known to this module alone, which is what makes a thousand runs cheap.
"""

from __future__ import annotations

import _pyio
import builtins
import contextlib
import errno
import fcntl
import functools
import gc
import io
import itertools
import os
import shutil
import signal
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nvllm.core import durable
from nvllm.core.refusal import Refused

_REAL = {
    name: getattr(os, name)
    for name in (
        "open", "write", "pwrite", "fsync", "fdatasync", "ftruncate", "truncate", "fchmod", "chmod", "rename",
        "replace", "unlink", "remove", "rmdir", "mkdir", "link", "symlink", "utime", "chown", "fchown",
    )
}  # fmt: skip
_GROWING = {"open", "write", "pwrite", "fsync", "fdatasync", "rename", "replace", "mkdir", "link", "symlink"}
"""What a full disk refuses. Taking away and changing modes works on."""

Way = Literal["killed", "power cut, bytes lost", "power cut, names lost", "disk full"]
WAYS: tuple[Way, ...] = ("killed", "power cut, bytes lost", "power cut, names lost", "disk full")
KILLED, BYTES_LOST, NAMES_LOST, FULL = WAYS


@dataclass(frozen=True, slots=True)
class Point:
    """A boundary: its NUMBER in the run, from 1; the function WHERE it is, such as ``store.adopt``; the next CALL."""

    number: int
    where: str
    call: str

    def __str__(self) -> str:
        return f"{self.where}: {self.call}"


At = Callable[[Point], None]


@dataclass
class _Disk:
    """What has not reached the disk: descriptors of files, and names by what they took the place of."""

    files: dict[tuple[int, int], int] = field(default_factory=dict)
    names: list[tuple[str, str, bytes | None]] = field(default_factory=list)

    def dirty(self, descriptor: int) -> None:
        info = os.fstat(descriptor)
        if stat.S_ISREG(info.st_mode) and (info.st_dev, info.st_ino) not in self.files:
            self.files[info.st_dev, info.st_ino] = os.dup(descriptor)

    def renaming(self, source: Any, target: Any) -> None:
        place = os.path.abspath(os.fsdecode(target))
        before = Path(place).read_bytes() if os.path.isfile(place) else None
        self.names.append((os.path.abspath(os.fsdecode(source)), place, before))

    def synced(self, descriptor: int) -> None:
        info = os.fstat(descriptor)
        if stat.S_ISDIR(info.st_mode):
            inside = (info.st_dev, info.st_ino)
            self.names = [one for one in self.names if _identity(os.path.dirname(one[1])) != inside]
        elif (kept := self.files.pop((info.st_dev, info.st_ino), None)) is not None:
            os.close(kept)

    def lose(self, *, names: bool) -> None:
        """Leave what a cut of the power may leave: empty files where bytes were not synced; old names, if NAMES."""
        for descriptor in self.files.values():
            _REAL["ftruncate"](descriptor, 0)
        for source, target, before in reversed(self.names) if names else ():
            _REAL["rename"](target, source)
            if before is not None:
                with io.FileIO(target, "w") as stream:
                    stream.write(before)


def _identity(path: str) -> tuple[int, int]:
    info = os.stat(path)
    return info.st_dev, info.st_ino


def watch(at: At, disk: _Disk) -> None:
    """From now on in this process: call AT at each boundary, and keep in DISK what has not reached the disk."""
    count = 0

    def point(call: str) -> None:
        nonlocal count
        where = _where()
        if where is not None:
            count += 1
            at(Point(count, where, call))

    def wrapped(name: str) -> Callable[..., Any]:
        real = _REAL[name]

        @functools.wraps(real)
        def call(*args: Any, **keywords: Any) -> Any:
            if name in {"open", "mkdir"} and not _makes(name, *args, **keywords):
                return real(*args, **keywords)
            if name in {"write", "pwrite"}:
                return _write(real, point, disk, name, *args)
            point(name)
            if name in {"fsync", "fdatasync"}:
                disk.synced(args[0])
                return None
            if name in {"rename", "replace"}:
                disk.renaming(args[0], args[1])
            return real(*args, **keywords)

        return call

    for name in _REAL:
        setattr(os, name, wrapped(name))
    # The streams of the C library write where nobody looks; those in Python write through `os`.
    builtins.open = io.open = _pyio.open


def _makes(name: str, path: Any, flags: int = 0, _mode: int = 0, *, dir_fd: int | None = None) -> bool:
    """Return whether the call NAME changes anything: what is there already is not made, and needs no room."""
    if name == "open" and not flags & (os.O_CREAT | os.O_TRUNC):
        return False
    try:
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return True
    return name == "open" and bool(flags & os.O_TRUNC)


def _write(
    real: Callable[..., int], point: Callable[[str], None], disk: _Disk, name: str, descriptor: int, data: Any, *at: int
) -> int:
    """Write DATA in two halves, with a boundary before each, if it goes to a file."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return real(descriptor, data, *at)
    point(name)
    disk.dirty(descriptor)
    view = memoryview(data).cast("B")
    half = len(view) // 2
    if half == 0:
        return real(descriptor, view, *at)
    written = real(descriptor, view[:half], *at)
    point(f"{name}, half done")
    return written + real(descriptor, view[half:], *(place + written for place in at))


def _where() -> str | None:
    """Return the function of the package that is about to make a call; None where it is the tests' own."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("nvllm."):
            return f"{name.removeprefix('nvllm.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return None


@contextlib.contextmanager
def no_disk() -> Iterator[None]:
    """Do not wait for the disk in what is prepared and looked at: it is thrown away in a moment."""
    os.fsync = lambda fd: None
    try:
        yield
    finally:
        os.fsync = _REAL["fsync"]


# A process of its own


@dataclass
class Child:
    """A process that does ACT, watched, and says on a pipe how far it came and how it ended."""

    pid: int
    said: io.TextIOWrapper
    go: int

    def line(self) -> str:
        return self.said.readline().rstrip("\n")

    def resume(self) -> None:
        os.write(self.go, b"\n")

    def end(self) -> int:
        """Wait for its end and return its exit status; negative, it is the signal that ended it."""
        self.said.close()
        os.close(self.go)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def begin(act: Callable[[], None], at: Callable[[Callable[[str], None], _Disk, int], At]) -> Child:
    """Fork a process that does ACT; AT gets how to say a line, what is not on the disk, and where to wait for `resume`.

    Its last line is ``done``, ``refused`` and the codes, or ``failed`` and a traceback in one line. What the command
    line makes of a full disk counts as refused here too.
    """
    said, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid != 0:
        os.close(said[1])
        os.close(go[0])
        return Child(pid, open(said[0], encoding="utf-8"), go[1])

    def say(line: str) -> None:
        _REAL["write"](said[1], line.replace("\n", " | ").encode() + b"\n")

    gc.disable()  # it would copy every page of the parent, for a process that ends in milliseconds
    try:
        os.close(said[0])
        os.close(go[1])
        disk = _Disk()
        _tell_when_blocked(say)
        watch(at(say, disk, go[0]), disk)
        try:
            act()
            say("done")
        except Refused as refused:
            say(f"refused {' '.join(sorted({one.code for one in refused.refusals}))}")
        except OSError as error:
            full = durable.full(error)
            if full is None:
                raise
            say(f"refused {full.refusals[0].code}")
    except BaseException:  # noqa: BLE001 - nothing of the tests may go on in the child
        say(f"failed {traceback.format_exc()}")
    finally:
        os._exit(0)


def _tell_when_blocked(say: Callable[[str], None]) -> None:
    """Say ``blocked`` when a lock that is wanted is not free, and then do as was asked."""
    real = fcntl.flock

    def flock(descriptor: Any, operation: int) -> None:
        try:
            real(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            say("blocked")
            real(descriptor, operation)

    fcntl.flock = flock


@dataclass(frozen=True, slots=True)
class Scenario:
    """Something that is attacked, in a directory of its own.

    PREPARE makes what was before. ACT, of contender 0 or 1, makes something new of it. FOUND says what the next
    command finds: ``old``, ``new 0`` or ``new 1``, or ``new`` where both bring the same; it raises for whatever is
    half. CODES is what a full disk is refused with, LOSES what whoever comes second may be refused with. Without
    STRICT a full disk may also be of no consequence.
    """

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path, int], None]
    found: Callable[[Path], str]
    codes: frozenset[str]
    loses: frozenset[str] = frozenset()
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was attacked at POINT, and what came of it: FOUND by the next command; SAID by the processes themselves."""

    point: Point
    found: str
    said: tuple[str, ...] = ()


def fail(scenario: Scenario, way: Way, directory: Path) -> Iterator[Outcome]:
    """Let SCENARIO meet its end by WAY at each of its boundaries in turn, each time below DIRECTORY anew."""
    for number, place in _worlds(scenario, directory):
        child = begin(functools.partial(scenario.act, place, 0), _ending(way, number))
        lines = [line.rstrip("\n") for line in child.said]
        status = child.end()
        if not lines[0].startswith("at "):
            assert lines == ["done"], f"{scenario.name}, with nothing in its way: {lines}"
            return
        point = Point(number, *lines[0].removeprefix("at ").split(": ", 1))
        ended = lines[1:]
        _expected(scenario, way, point, ended, status)
        with no_disk():
            found = scenario.found(place)
            what = f"{scenario.name}, {way} at {point}"
            assert found in {"old", "new", "new 0"}, f"{what}: {found}"
            _go_on(scenario, place, again=found == "old")
            assert scenario.found(place).startswith("new"), f"{what}: it does not go on"
        yield Outcome(point, found.partition(" ")[0], tuple(ended))


def _worlds(scenario: Scenario, directory: Path) -> Iterator[tuple[int, Path]]:
    """Yield numbers from 1 without end, each with a directory of its own below DIRECTORY, prepared for SCENARIO."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        with no_disk():
            scenario.prepare(Path(name))
        for number in itertools.count(1):
            with tempfile.TemporaryDirectory(dir=directory) as copy:
                shutil.copytree(name, copy, symlinks=True, dirs_exist_ok=True)
                yield number, Path(copy)


def _go_on(scenario: Scenario, place: Path, *, again: bool) -> None:
    """Do AGAIN what came to nothing, and let the other contender follow: nothing that was left is in their way."""
    if again:
        scenario.act(place, 0)
    try:
        scenario.act(place, 1)
    except Refused as refused:
        if not {one.code for one in refused.refusals} <= scenario.loses:
            raise


def _expected(scenario: Scenario, way: Way, point: Point, ended: list[str], status: int) -> None:
    what = f"{scenario.name}, {way} at {point}: {ended}, {status}"
    if way != FULL:
        assert (ended, status) == ([], -signal.SIGKILL), what
    else:
        (how,) = ended
        assert (_codes(how) <= scenario.codes) if how != "done" else not scenario.strict, what


def _codes(ended: str) -> set[str]:
    """Return the codes with which a process ENDED; what is no refusal is a code that nobody allows."""
    how, _, codes = ended.partition(" ")
    return set(codes.split()) if how == "refused" else {ended}


def _ending(way: Way, number: int) -> Callable[[Callable[[str], None], _Disk, int], At]:
    def made(say: Callable[[str], None], disk: _Disk, _go: int) -> At:
        passed = 0

        def at(point: Point) -> None:
            nonlocal passed
            if way == FULL and point.call.partition(",")[0] not in _GROWING:
                return
            passed += 1
            if passed == number:
                say(f"at {point}")
            if way == FULL:
                if passed >= number:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            elif passed == number:
                if way != KILLED:
                    disk.lose(names=way == NAMES_LOST)
                os.kill(os.getpid(), signal.SIGKILL)

        return at

    return made


def race(scenario: Scenario, directory: Path) -> Iterator[Outcome]:
    """Hold contender 0 at each boundary in turn, and let contender 1 come as far as it can before 0 goes on."""
    for number, place in _worlds(scenario, directory):
        first = begin(functools.partial(scenario.act, place, 0), _waiting(number))
        line = first.line()
        if not line.startswith("at "):
            first.end()
            assert line == "done", f"{scenario.name}, alone: {line}"
            return
        point = Point(number, *line.removeprefix("at ").split(": ", 1))
        second = begin(functools.partial(scenario.act, place, 1), lambda *_: lambda _: None)
        line = second.line()
        first.resume()
        said = (_last(first, ""), _last(second, line))
        what = f"{scenario.name}, two at {point}: {said}"
        assert all(one == "done" or _codes(one) <= scenario.loses for one in said), what
        assert "done" in said, what
        with no_disk():
            found = scenario.found(place)
        winners = {f"new {who}" for who in (0, 1) if said[who] == "done"}
        assert found in {"new", *winners}, f"{what}: {found}"
        yield Outcome(point, found, said)


def _waiting(number: int) -> Callable[[Callable[[str], None], _Disk, int], At]:
    def made(say: Callable[[str], None], _disk: _Disk, go: int) -> At:
        def at(point: Point) -> None:
            if point.number == number:
                say(f"at {point}")
                os.read(go, 1)

        return at

    return made


def _last(child: Child, line: str) -> str:
    """Return how CHILD ended, after LINE, which it has said: being blocked on the way there is no news."""
    while line in {"", "blocked"}:
        line = child.line()
    child.end()
    return line
