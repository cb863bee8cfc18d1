"""`nvllm gate`: measure the hardware before a long campaign, and keep what was found."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from nvllm.cli.frame import App, Group, with_app
from nvllm.core import documents, proc
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, refuse_any
from nvllm.host import facts, gates, locks, memory_gate
from nvllm.host.gates import FORM, GateName, GateRecord
from nvllm.host.locks import Holder, Key
from nvllm.host.memory_gate import MemoryLimits
from nvllm.host.memtester import Memtester

EXAMPLES = """
Examples:
  nvllm gate memory --bands 4G,32G,64G    memtester over bands of memory, one after the other
  nvllm gate memory --bands 64M --dry-run
"""

_SIZE = re.compile(r"([1-9][0-9]{0,8})(M|G)(?:iB)?")
_UNITS = {"M": 2**20, "G": 2**30}


class Bytes(click.ParamType[int]):
    """A size such as 512M, 4G or 4GiB, in bytes."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value.strip())
        if found is None:
            self.fail(f"{value!r} is no size such as 512M or 4G.", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


class BytesList(Bytes):
    """Sizes with commas between them, each once."""

    name = "sizes"

    def convert(  # type: ignore[override]
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(dict.fromkeys(Bytes.convert(self, one, param, ctx) for one in value.split(",")))


gate = Group("gate", epilog=EXAMPLES)


@gate.command("memory", epilog=EXAMPLES)
@click.option("--bands", type=BytesList(), required=True, metavar="SIZES", help="Bands, such as 4G,32G,64G.")
@click.option("--loops", type=click.IntRange(1), default=1, show_default=True, help="Loops of memtester for each band.")
@click.option("--swap", type=Bytes(), default="1G", show_default=True, metavar="SIZE", help="Most swap in use before.")
@click.option("--dry-run", is_flag=True, help="Say what would be tested, or why not; test nothing.")
@with_app
def memory(app: App, bands: tuple[int, ...], loops: int, swap: int, dry_run: bool) -> None:
    """memtester locks each band in memory and tests all of it. Faults are counted, and shown by test and address.

    Large bands take hours. One that would leave the host less than 512 MiB is refused before it starts.
    """
    limits = MemoryLimits(bands, loops, swap)
    if dry_run:
        proc.require("memtester", "memtester")
        planned = [{"bytes": one, "loops": loops} for one in bands]
        text = "\n".join(f"would test a band of {gates.band_text(one)}, {loops} loops" for one in bands)
        app.show(
            "gate memory --dry-run",
            {"bands": planned, "swap": swap},
            lambda: app.out.line(text),
            memory_gate.unready(limits, facts.memory()),
        )
        return
    record, path = _memory(app, limits)
    cure = f"replace what is faulty, and test it again: {limits.cure}"
    _say(app, "gate memory", [(record, path)], gates.problems(record, cure))


def _memory(app: App, limits: MemoryLimits) -> tuple[GateRecord, Path]:
    tester = Memtester(proc.require("memtester", "memtester"), app.places.gates / "programs")
    with _alone(app, "memory"):
        tester.end_left()
        refuse_any(memory_gate.unready(limits, facts.memory()))
        return memory_gate.recorded(limits, tester, facts.probe([]), app.places.gates, app.progress)


@contextmanager
def _alone(app: App, name: GateName) -> Iterator[None]:
    """Hold the lock of the gate NAME: two of a kind would measure each other."""
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with locks.acquire_all(app.places.locks, [Key("gate", name)], Holder(os.getpid(), began, f"nvllm gate {name}")):
        yield


def _say(app: App, command: str, found: Sequence[tuple[GateRecord, Path]], refusals: Sequence[Refusal]) -> None:
    """Say what was FOUND. Raises `Seen` with REFUSALS."""
    data: list[Json] = [{**_document(record), "file": str(path)} for record, path in found]

    def text() -> None:
        rows = [
            (record.gate, one.name, one.state, one.limit, one.found) for record, _ in found for one in record.checks
        ]
        app.out.table(["gate", "check", "", "limit", "found"], rows)
        for record, path in found:
            app.out.line(f"{record.gate} gate: {record.outcome}, {record.measured}: {path}")
            for band in record.bands:
                for fault in band.listed:
                    app.out.line(f"  {gates.band_text(band.bytes)}  {fault.test}  {fault.address}  {fault.found}")

    app.show(command, {"gates": data}, text, refusals)


def _document(record: GateRecord) -> dict[str, Json]:
    document = documents.unstructure(FORM, record)
    assert isinstance(document, dict)
    return document
