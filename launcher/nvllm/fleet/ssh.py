"""Workers over ssh, for machines without a cluster: `ssh HOST nvllm worker --pipe`, one for each line that is carried.

The program ssh is the user's, with their keys and configuration. What comes back is believed as little as what Ray
brings: `machines` and `boots` hold each answer against its task. Closing the pipe ends the worker and its containers.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO

from nvllm import __version__
from nvllm.core import proc
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.fleet import tasks
from nvllm.fleet.machines import ClusterNode, NotCarriedError, cancelled_by_interrupt
from nvllm.fleet.pipe import BEAT, CHUNK, SILENCE, LineSplitter
from nvllm.fleet.tasks import HelloAnswer

_HOST = r"(?:[A-Za-z0-9._-]+@)?(?:[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_ADDRESS = re.compile(rf"ssh://({_HOST})(/.*)?")
# Nobody is there to answer a question; a host that is not there is noticed after 15 s, and a cut link after 45.
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=3")

_LOOKS = 0.1
"""Seconds between two looks whether the driver or the program ssh ends."""
_SHOWN = 400
"""Characters of a line of another machine, or of the end of its messages, that are shown."""
_MOST_MESSAGES = 1 << 20
"""Bytes of messages that one worker may send; what comes after them is not shown."""


@dataclass(frozen=True, slots=True)
class SshHost:
    """A host that the user named: its ADDRESS, the DESTINATION that ssh takes, and the directory of its PROJECT.

    Without a directory, nvllm there looks for the project where ssh starts it.
    """

    address: str
    destination: str
    project: str

    @property
    def name(self) -> str:
        return self.destination.removeprefix("ssh://")

    def argv(self, *words: str) -> list[str]:
        """Return the command that runs nvllm with WORDS there; a shell of that host reads the last argument."""
        options = [word for option in _OPTIONS for word in ("-o", option)]
        named = ["--project", self.project] if self.project else []
        # -T: a terminal there would change bytes on their way.
        return ["ssh", "-T", *options, self.destination, shlex.join(["nvllm", *named, *words])]


@dataclass(frozen=True, slots=True)
class SshLimits:
    """Seconds: until a worker says hello, between two empty lines, of silence, and until a worker has ended."""

    hello: float = 60.0
    beat: float = BEAT
    silence: float = SILENCE
    end: float = 30.0


def host(address: str) -> SshHost:
    """Return the host at ADDRESS. Raises Refused NV108 for an address of another form."""
    matched = _ADDRESS.fullmatch(address)
    if matched is None or not address.isprintable():
        expected = "ssh://HOST, ssh://USER@HOST:PORT or ssh://HOST/DIRECTORY; /~/ begins a path in the home there"
        raise refuse("NV108", "--on", expected, address, "name a host as ssh knows it, after ssh://")
    path = matched[2] or ""
    return SshHost(address, f"ssh://{matched[1]}", path.removeprefix("/~/") if path != "/" else "")


@dataclass
class SshMachines:
    """The HOSTS that the user named; see `machines.Carrier`. PROGRESS shows what their workers write to stderr."""

    hosts: Sequence[SshHost]
    progress: Progress
    limits: SshLimits = SshLimits()
    _classes: dict[str, str] = field(default_factory=dict)
    """The class of each host that has said hello."""
    _gone: set[str] = field(default_factory=set)
    """The hosts that said hello, and later none."""
    _ended: threading.Event = field(default_factory=threading.Event)

    def greet(self) -> None:
        with ThreadPoolExecutor(len(self.hosts)) as threads, cancelled_by_interrupt(self.cancel):
            refuse_any(refusal for refusals in threads.map(self._problem, self.hosts) for refusal in refusals)

    def _problem(self, named: SshHost) -> list[Refusal]:
        """Return why there is no worker on NAMED, if there is none."""
        try:
            with self._greeted(named):
                return []
        except NotCarriedError as error:
            expected, cure = f"a worker of nvllm {__version__}", shlex.join(named.argv("--version"))
            return [Refusal("NV923", named.address, expected, str(error), cure)]

    def machines(self) -> Sequence[ClusterNode]:
        return [
            ClusterNode(named.address, named.name, self._classes.get(named.address, ""))
            for named in self.hosts
            if named.address not in self._gone
        ]

    def carry(self, machine: ClusterNode, line: bytes) -> bytes:
        named = next(ssh_host for ssh_host in self.hosts if ssh_host.address == machine.id)
        with self._greeted(named) as talk:
            talk.send(line)
            return talk.line("an answer", None) + b"\n"

    def cancel(self) -> None:
        self._ended.set()

    @contextlib.contextmanager
    def _greeted(self, named: SshHost) -> Iterator[_Talk]:
        """Start a worker on NAMED, which says hello, and end it with the context. Raises NotCarriedError."""
        with _talk(named, self.progress, self.limits, self._ended.is_set) as talk:
            try:
                hello = _hello(talk.line("a hello", self.limits.hello))
            except NotCarriedError:
                if named.address in self._classes:
                    self._gone.add(named.address)
                raise
            self._classes[named.address] = hello.host
            yield talk


def _hello(line: bytes) -> HelloAnswer:
    """Return the hello in LINE. Raises NotCarriedError if it is none, or one of another version."""
    try:
        answer = tasks.answer(line, "hello")
    except Refused as refused:
        raise NotCarriedError(f"no hello but {line[:80].decode('utf-8', 'replace')!r}") from refused
    if not isinstance(answer, HelloAnswer):
        raise NotCarriedError("another answer than a hello")
    if answer.version != __version__:
        raise NotCarriedError(f"nvllm {answer.version}")
    return answer


@dataclass
class _Talk:
    """A worker at the other end of PROCESS, which is the program ssh."""

    process: subprocess.Popen[bytes]
    name: str
    progress: Progress
    limits: SshLimits
    ended: Callable[[], bool]
    selector: selectors.BaseSelector
    _unsent: bytearray = field(default_factory=bytearray)
    _came: deque[bytes] = field(default_factory=deque)
    _split: LineSplitter = field(default_factory=LineSplitter)
    _messages: LineSplitter = field(default_factory=LineSplitter)
    _tail: bytes = b""
    """The end of what it wrote to stderr."""
    _written: int = 0
    """Bytes that it wrote to stderr."""
    _next_beat: float = 0.0

    def send(self, line: bytes) -> None:
        """Have the next `line` send LINE."""
        self._unsent += line

    def line(self, expected: str, limit: float | None) -> bytes:
        """Return the next line that comes, which is EXPECTED within LIMIT seconds (None: as long as it lives).

        Raises NotCarriedError if none comes.
        """
        began = heard = time.monotonic()
        while not self._came:
            now = time.monotonic()
            if self.ended():
                raise NotCarriedError("it was ended")
            if limit is not None and now - began > limit:
                raise NotCarriedError(f"not {expected} within {limit:g} s{self._last_words()}")
            if limit is None and now - heard > self.limits.silence:
                raise NotCarriedError(f"nothing came from it for {self.limits.silence:g} s")
            if limit is None and now >= self._next_beat and not self._unsent:
                self._next_beat = now + self.limits.beat
                self.send(b"\n")
            if self._step(_LOOKS):
                heard = now
            elif _pipe(self.process.stdout) not in self.selector.get_map():
                self._drain(1)
                raise NotCarriedError(f"ssh ended with {self._status()}{self._last_words()}")
        return self._came.popleft()

    def end(self) -> None:
        """Close the pipe and wait for the end of the worker; a worker that does not end is left by its connection."""
        stdin = _pipe(self.process.stdin)
        self._unsent.clear()
        with contextlib.suppress(KeyError):  # it is registered only while something is unsent
            self.selector.unregister(stdin)
        with contextlib.suppress(OSError):  # the other end is closed
            stdin.close()
        self._drain(self.limits.end)
        if self.process.poll() is None:
            self.process.kill()
        self._status()
        for stream in (self.process.stdout, self.process.stderr):
            _pipe(stream).close()

    def _drain(self, seconds: float) -> None:
        """Read what it still writes, until ssh has ended or SECONDS are over; only its messages are kept.

        A connection that ssh shares may have its stderr for longer than ssh runs.
        """
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self._step(_LOOKS)
            self._came.clear()
        self._step(0)

    def _status(self) -> int:
        """Return the exit status of ssh, which has closed its output or is killed."""
        try:
            return self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def _last_words(self) -> str:
        words = " ".join(self._tail.decode("utf-8", "replace").split())
        return f": {words}" if words else ""

    def _step(self, seconds: float) -> bool:
        """Read and write what can be, within SECONDS. Return whether its stdout wrote anything."""
        stdin, heard = _pipe(self.process.stdin), False
        if self._unsent and stdin not in self.selector.get_map():
            self.selector.register(stdin, selectors.EVENT_WRITE)
        for key, _ in self.selector.select(seconds):
            if key.fileobj is stdin:
                self._write(key.fd)
                continue
            data = os.read(key.fd, CHUNK)
            if not data:
                self.selector.unregister(key.fileobj)
            elif key.fileobj is self.process.stdout:
                heard = True
                self._came += self._split.add(data)
            else:
                self._show_messages(data)
        return heard

    def _write(self, stdin: int) -> None:
        try:
            del self._unsent[: os.write(stdin, self._unsent[:CHUNK])]
        except BrokenPipeError:
            self._unsent.clear()  # ssh has ended, and the end of its output says why
        if not self._unsent:
            self.selector.unregister(stdin)

    def _show_messages(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_SHOWN:]
        self._written += len(data)
        if self._written > _MOST_MESSAGES:
            return
        for line in self._messages.add(data):
            self.progress.note(f"{self.name}: {line[:_SHOWN].decode('utf-8', 'replace').rstrip()}")


@contextlib.contextmanager
def _talk(named: SshHost, progress: Progress, limits: SshLimits, ended: Callable[[], bool]) -> Iterator[_Talk]:
    """Start a worker on NAMED, and end it with the context. Raises Refused NV512 if there is no program ssh."""
    proc.require("ssh", "openssh-client")
    pipe = subprocess.PIPE
    # Ctrl-C reaches nvllm alone, which closes the pipe, so the worker has time to remove its containers. No buffer: the
    # selector knows nothing of bytes that lie in one.
    process = subprocess.Popen(
        named.argv("worker", "--pipe"), stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
    )
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            selector.register(_pipe(stream), selectors.EVENT_READ)
        os.set_blocking(_pipe(process.stdin).fileno(), False)
        talk = _Talk(process, named.name, progress, limits, ended, selector)
        try:
            yield talk
        finally:
            talk.end()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # each is a pipe
    return stream
