"""Records of gates, and a program that says what memtester says of faulty memory: real faults cannot be had here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from nvllm.host import gates
from nvllm.host.gates import SCHEMA, GateCheck, GateRecord, Machine, MemoryBand
from support.host_samples import HOST, put_program

GIB, DAY = 2**30, 86400
NOW = 1_795_004_800.0
"""2026-11-18T12:26:40Z, a moment for tests."""
MEASURED = "2026-11-17T12:26:40Z"
"""One day before it."""

FACTS = replace(HOST, mem_total=64 * GIB, machine_id="0123456789abcdef0123456789abcdef")
HERE: Machine = gates.machine(FACTS)

PASSED = GateRecord(
    schema=SCHEMA,
    gate="memory",
    outcome="passed",
    measured=MEASURED,
    machine=HERE,
    boot="",
    kernel="6.12",
    versions={"memtester": "4.6.0"},
    checks=(GateCheck("band 4G", "passed", "no fault", "0 faults"),),
    bands=(MemoryBand(4 * GIB, 1, 18, 60.0, 0, ()),),
    limits={"swap": float(GIB)},
)


def record(**changes: Any) -> GateRecord:
    """Return a memory gate that was passed, with CHANGES."""
    return replace(PASSED, **changes)


_SAID = r"""
echo "memtester version 4.6.0 (64-bit)"
bytes=${1%B}
echo "want $((bytes / 1048576))MB ($bytes bytes)"
echo "got  $((bytes / 1048576))MB (${LOCKED:-$bytes} bytes), trying mlock ...locked."
echo "Loop 1/1:"
"""


def put_memtester(directory: Path, *lines: str, status: int = 0) -> Path:
    """Write a stand-in for memtester to DIRECTORY that says LINES in its loop, and ends with STATUS; return its path.

    A line that begins with ``FAILURE`` goes to standard error, as memtester's do.
    """
    said = [f"printf '%b\\n' '{one}'{' >&2' if 'FAILURE' in one else ''}" for one in lines]
    put_program(directory, "memtester", _SAID, *said, f"exit {status}")
    return directory / "memtester"


OK = "  Stuck Address       :            \\b\\b\\bsetting   0\\b\\b\\btesting   0\\b\\bok         "
BROKEN = (
    OK,
    "  Solid Bits          : \\b\\bFAILURE: 0x0000000000000001 != 0x0000000000000000 at offset 0x0000000000abc008.",
    "FAILURE: 0x0000000000000003 != 0x0000000000000002 at offset 0x0000000000abc010.",
    "  Checkerboard        : FAILURE: 0x5555555555555555 != 0x5555555555555554 at offset 0x0000000000abc008.",
)
"""What memtester says of two words that lose bits."""
