"""memtester: the one module that runs it, and reads what it prints."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from nvllm.core import proc
from nvllm.core.proc import Programs
from nvllm.host.gates import MemoryBand, MemoryFault

LISTED = 100
"""Most faults of a band that are listed; all are counted."""

TESTS = 18
"""Tests of one loop of memtester 4.6 on 64 bits, the stuck address among them; for progress alone."""

_TEST = re.compile(r"  (\w[\w -]*?) *: ")
_FAULT = re.compile(r"FAILURE: (.*?) ?at (?:offset|physical address) (0x[0-9a-fA-F]+)")
_GOT = re.compile(r"got +\d+MB \((\d{1,18}) bytes\), trying mlock \.\.\.(.*)")
_LOOP = re.compile(r"Loop \d+")
_VERSION = re.compile(r"memtester version (\S+)")

_FAULTS_FOUND = 0x02 | 0x04
"""Bits of the exit status: a stuck address line, and a failure of another test."""
_LONGEST = 1 << 16
"""Bytes of a line that are kept: a test's progress is drawn in one line, with backspaces."""


class MemtesterFailed(Exception):  # noqa: N818 - memtester's answer, not an error of the program
    """memtester did not test the whole band: it said TEXT."""


class MemtesterOutput:
    """What memtester has printed so far. ADVANCE is called with 1 for each test that has ended."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._rest = b""
        self._test = "memtester"
        self.version = "unknown"
        self.locked = 0
        """Bytes that were locked in memory."""
        self.loops = self.tests = self.faults = 0
        self.listed: list[MemoryFault] = []
        self.last = ""
        """The last line that was not empty."""

    def heard(self, chunk: bytes) -> None:
        """Add CHUNK, any part of the output, standard error included."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._line(line.replace(b"\b", b"").decode("utf-8", "replace"))
        # The start of a line names the test, and its end has the fault.
        self._rest = rest if len(rest) <= _LONGEST else rest[:64] + rest[-1024:]

    def _line(self, line: str) -> None:
        if line.strip():
            self.last = " ".join(line.split())[:300]
        if (version := _VERSION.match(line)) is not None:
            self.version = version[1]
        if (got := _GOT.match(line)) is not None:  # it prints that again, with less, when it cannot lock so much
            self.locked = int(got[1]) if got[2] == "locked." else 0
        self.loops += _LOOP.match(line) is not None
        if (test := _TEST.match(line)) is not None:
            self._test = test[1]
            self.tests += 1
            self._advance(1)
        if (fault := _FAULT.search(line)) is not None:
            self.faults += 1
            if len(self.listed) < LISTED:
                self.listed.append(MemoryFault(self._test, fault[2], fault[1]))

    def band(self, size: int, seconds: float) -> MemoryBand:
        """Return what was printed of a band of SIZE bytes that took SECONDS."""
        return MemoryBand(size, self.loops, self.tests, round(seconds, 3), self.faults, tuple(self.listed))


class Memtester:
    """memtester at PATH. LEDGER notes what runs, so that a later run ends what a killed one has left."""

    def __init__(self, path: str, ledger: Path) -> None:
        self._path = path
        self._programs = Programs(ledger)
        self.version = "unknown"

    def end_left(self) -> int:
        """End the runs that a killed process has left, and return how many there were."""
        return self._programs.end_left()

    def test(self, size: int, loops: int, advance: Callable[[int], None]) -> MemoryBand:
        """Test a band of SIZE bytes so many LOOPS, call ADVANCE for each test, and return what was found.

        Raises MemtesterFailed if the whole band could not be locked and tested, and KeyboardInterrupt after memtester
        has ended.
        """
        output, began = MemtesterOutput(advance), time.monotonic()
        argv = [self._path, f"{size}B", str(loops)]
        status = self._programs.follow(argv, env=proc.environment({}), heard=output.heard)
        self.version = output.version
        band = output.band(size, time.monotonic() - began)
        if output.locked != size:
            raise MemtesterFailed(f"{output.locked} bytes of {size} could be locked in memory; it said: {output.last}")
        if status < 0 or status & ~_FAULTS_FOUND or band.loops != loops or bool(status) != bool(band.faults):
            outcome = f"status {status} after {band.loops} of {loops} loops, with {band.faults} faults printed"
            raise MemtesterFailed(f"{outcome}; it said: {output.last}")
        return band
