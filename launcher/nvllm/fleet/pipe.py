"""What a driver and `nvllm worker --pipe` agree on: lines, and empty ones that show that the other side lives.

A worker without Ray has nothing else that tells it that its driver is gone: sshd ends no program, and a link that was
cut closes nothing. So each side writes an empty line every few seconds, and gives up one that is silent.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nvllm.fleet.tasks import MOST_LINE

BEAT = 10.0
"""Seconds between two empty lines."""
SILENCE = 60.0
"""Seconds without a byte after which the other side is gone."""
CHUNK = 65536
"""Bytes that are read or written at once."""


@dataclass
class LineSplitter:
    """Splits what arrives into lines. Keeps little more than MOST_LINE bytes of one that does not end."""

    _rest: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> list[bytes]:
        """Return the lines that DATA completes, empty ones left out; or the start of one that is too long to be any."""
        self._rest += data
        *whole, rest = bytes(self._rest).split(b"\n") if b"\n" in data else (bytes(self._rest),)
        if len(rest) > MOST_LINE:
            whole, rest = [*whole, rest], b""
        self._rest = bytearray(rest)
        return [line for line in whole if line.strip()]


@dataclass
class DriverPipe:
    """The driver at the other end of the descriptor STREAM; WRITE sends it one line.

    If it closes its end, or is silent for SILENCE seconds, `lines` ends; a task that is under way then is ended by a
    SIGTERM to the main thread.
    """

    stream: int
    write: Callable[[str], None]
    beat: float = BEAT
    silence: float = SILENCE
    _lines: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _busy: bool = False
    _next_beat: float = 0.0

    def lines(self) -> Iterator[bytes]:
        """Yield each line of the driver, until it is gone."""
        threading.Thread(target=self._listen, daemon=True).start()  # it may wait for the driver when all else is over
        while (line := self._lines.get()) is not None:
            self._busy = True
            yield line

    def answer(self, line: str) -> None:
        """Send LINE, the answer to the line that was yielded last."""
        self._busy = False  # before it is sent: the driver may go as soon as it has it
        with self._guard:
            self.write(line)

    def _listen(self) -> None:
        split = LineSplitter()
        try:
            while (data := self._read()) is not None:
                for line in split.add(data):
                    self._lines.put(line)
        finally:
            if self._busy:  # as `kill` does, which unwinds a task in good order (cli/main.py)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            self._lines.put(None)

    def _read(self) -> bytes | None:
        """Return what came; None if the driver is gone. An empty line is sent at each interval meanwhile."""
        deadline = time.monotonic() + self.silence
        try:
            while (now := time.monotonic()) < deadline:
                if now >= self._next_beat:
                    self._next_beat = now + self.beat
                    with self._guard:
                        self.write("")
                if select.select([self.stream], [], [], self.beat)[0]:
                    return os.read(self.stream, CHUNK) or None
        except OSError:
            pass  # the reading end of what `write` writes to is closed
        return None
