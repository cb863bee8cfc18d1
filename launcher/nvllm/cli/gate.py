"""`nvllm gate`: measure the hardware before a long campaign, and keep what was found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from nvllm.cli.frame import App, FiniteRange, Group, packed, with_app
from nvllm.core import documents, proc
from nvllm.core.canonical import Json
from nvllm.core.gaterules import FSYNC_P50, FSYNC_P99, GPU_DEGREES, HOST_DEGREES, SWAP_IN_USE
from nvllm.core.refusal import Refusal, collected, refuse_any
from nvllm.host import disk_gate, facts, gate_records, gates, locks, memory_gate, thermal_gate
from nvllm.host.disk_gate import DiskLimits
from nvllm.host.facts import HostFacts
from nvllm.host.gate_records import Measured
from nvllm.host.gates import FORM, GateName, GateRecord
from nvllm.host.locks import Key
from nvllm.host.memory_gate import MemoryLimits
from nvllm.host.memtester import Memtester
from nvllm.host.thermal_gate import ThermalLimits, ThermalSources

EXAMPLES = """
Examples:
  nvllm gate memory --bands 4G,32G,64G    memtester over bands of memory, one after the other
  nvllm gate memory --bands 64M --dry-run
  nvllm gate thermal --seconds 60         while something loads the GPU
  nvllm gate all --bands 4G               memory, thermal and disk
"""


class Bytes(click.ParamType[int]):
    """A size such as 512M, 4G or 4GiB, in bytes."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return gates.size(value.strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class BytesList(Bytes):
    """Sizes with commas between them, each once."""

    name = "sizes"

    def convert(  # type: ignore[override]
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(dict.fromkeys(Bytes.convert(self, one, param, ctx) for one in value.split(",")))


Kept = tuple[GateRecord, Path]
"""A record, and where it lies."""

_POSITIVE = FiniteRange(0, min_open=True)
_DEGREES = click.IntRange(1, 200)
_option = functools.partial(click.option, show_default=True)

_MEMORY = (
    _option("--bands", type=BytesList(), required=True, metavar="SIZES", help="Bands, such as 4G,32G,64G."),
    _option("--loops", type=click.IntRange(1, 10_000), default=1, help="Loops for each band."),
    _option("--swap", type=Bytes(), default=gates.size_text(SWAP_IN_USE), metavar="SIZE", help="Most swap in use."),
)
_THERMAL = (
    _option("--seconds", type=click.IntRange(0, 86400), default=5, help="Look for so long."),
    _option("--gpu-temperature", "gpu", type=_DEGREES, default=GPU_DEGREES, help="Most degrees Celsius."),
    _option("--host-temperature", "host", type=_DEGREES, default=HOST_DEGREES, help="Most degrees Celsius."),
)
_DISK = (
    _option("--writes", type=click.IntRange(10, 100_000), default=200, help="How many writes."),
    _option("--p50", type=_POSITIVE, default=FSYNC_P50, help="Most ms of half of them."),
    _option("--p99", type=_POSITIVE, default=FSYNC_P99, help="Most ms of 99 % of them."),
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be tested, or why not; test nothing.")

gate = Group("gate", epilog=EXAMPLES)


@gate.command("memory", epilog=EXAMPLES)
@packed("limits", MemoryLimits, _MEMORY)
@_dry_run_option
@with_app
def memory(app: App, limits: MemoryLimits, dry_run: bool) -> None:
    """memtester locks each band in memory and tests all of it. Faults are counted, and shown by test and address.

    Large bands take hours. One that would leave the host less than 512 MiB is refused before it starts.
    """
    if dry_run:
        _dry_run(app, "gate memory --dry-run", limits)
        return
    kept = _memory(app, limits)
    _say(app, "gate memory", [kept], _problems(kept))


@gate.command("thermal", epilog=EXAMPLES)
@packed("limits", ThermalLimits, _THERMAL)
@with_app
def thermal(app: App, limits: ThermalLimits) -> None:
    """Temperatures and clocks of GPUs are those of NVML (the extra `gpu`), of the host those of the kernel.

    Run it while something loads the GPU. A host without GPU and sensors has not passed: nothing was measured.
    """
    kept = _thermal(app, limits)
    _say(app, "gate thermal", [kept], [*_problems(kept), *_unmeasured(kept)])


@gate.command("disk", epilog=EXAMPLES)
@packed("limits", DiskLimits, _DISK)
@with_app
def disk(app: App, limits: DiskLimits) -> None:
    """It writes 4 KiB at a time into nvllm's cache directory, and waits until they are on the disk."""
    kept = _disk(app, limits)
    _say(app, "gate disk", [kept], _problems(kept))


@gate.command("all", epilog=EXAMPLES)
@packed("bands", MemoryLimits, _MEMORY)
@_dry_run_option
@packed("degrees", ThermalLimits, _THERMAL)
@packed("times", DiskLimits, _DISK)
@with_app
def all_gates(app: App, bands: MemoryLimits, dry_run: bool, degrees: ThermalLimits, times: DiskLimits) -> None:
    """The quick gates come first. A gate for hardware that this host lacks, such as a GPU, is shown as
    absent and not refused.
    """
    if dry_run:
        _dry_run(app, "gate all --dry-run", bands)
        return
    records: list[Kept] = []
    refusals: list[Refusal] = []
    runs = (functools.partial(_disk, app, times), functools.partial(_thermal, app, degrees))
    for run in (*runs, functools.partial(_memory, app, bands)):
        with collected(refusals):  # what one gate lacks does not hinder another
            kept = run()
            records.append(kept)
            refusals += _problems(kept)
    _say(app, "gate all", records, refusals)


def _dry_run(app: App, command: str, limits: MemoryLimits) -> None:
    """Say which bands LIMITS would test, and everything that is in the way."""
    refusals = memory_gate.unready(limits, facts.memory())
    with collected(refusals):
        proc.require("memtester", "memtester")
    planned = [{"bytes": one, "loops": limits.loops} for one in limits.bands]
    text = "\n".join(f"would test a band of {gates.size_text(one)}, loops: {limits.loops}" for one in limits.bands)
    app.show(command, {"bands": planned, "swap": limits.swap}, lambda: app.out.line(text), refusals)


def _problems(kept: Kept) -> list[Refusal]:
    """Return NV517 and NV518 for what did not pass, each with its cure."""
    record, _ = kept
    again = f"nvllm gate {record.gate}"
    if record.gate == "memory":
        asked = [one.name.removeprefix("band ") for one in record.checks if one.name.startswith("band ")]
        again += f" --bands {','.join(asked)}"
        faulty = f"replace faulty memory, or stop what makes the host swap, and test it again: {again}"
        return gates.problems(record, faulty, f"stop what uses memory, and test it again: {again}")
    if record.gate == "thermal":
        faulty = f"cool the machine, or update what is too old, and look again: {again}"
        return gates.problems(record, faulty, f"install driver and nvidia-ml-py, and look again: {again}")
    faulty = f"set NVLLM_HOME to a directory on a faster disk, and measure it: {again}"
    return gates.problems(record, faulty, faulty)


def _unmeasured(kept: Kept) -> list[Refusal]:
    """Return NV518 if the host has nothing of the kind that the gate measures."""
    record, _ = kept
    if record.outcome != "not measured" or any(one.state != "absent" for one in record.checks):
        return []
    cure = "run it on the host itself, with its sensors and GPUs"
    return [Refusal("NV518", f"{record.gate} gate", "something to measure", gates.summary(record), cure)]


def _thermal(app: App, limits: ThermalLimits) -> Kept:
    return _kept(app, "thermal", lambda host: thermal_gate.run(limits, host, ThermalSources(), app.progress))


def _disk(app: App, limits: DiskLimits) -> Kept:
    return _kept(app, "disk", lambda _: disk_gate.run(limits, app.places.cache, app.progress))


def _kept(app: App, name: GateName, measure: Callable[[HostFacts], Measured]) -> Kept:
    """Run the gate NAME, which MEASUREs this host, and keep its record."""
    with _alone(app, name):
        host = facts.probe([])
        record = gate_records.measured(name, host, measure(host))
        return record, gate_records.write(app.places.gates, record)


def _memory(app: App, limits: MemoryLimits) -> Kept:
    tester = Memtester(proc.require("memtester", "memtester"), app.places.gates / "programs")
    with _alone(app, "memory"):
        tester.end_left()
        refuse_any(memory_gate.unready(limits, facts.memory()))
        return memory_gate.recorded(limits, tester, facts.probe([]), app.places.gates, app.progress)


@contextmanager
def _alone(app: App, name: GateName) -> Iterator[None]:
    """Hold the lock of the gate NAME: two of a kind would measure each other."""
    with locks.acquire_all(app.places.locks, [Key("gate", name)], locks.this_process(f"nvllm gate {name}")):
        yield


def _say(app: App, command: str, records: Sequence[Kept], refusals: Sequence[Refusal]) -> None:
    """Show what RECORDS say, and where each lies. Raises `Seen` with REFUSALS."""
    data: list[Json] = [
        {**_document(record), "file": str(path), "not_shown": gates.not_shown(record)} for record, path in records
    ]

    def text() -> None:
        rows = [
            (record.gate, one.name, one.state, one.limit, one.found) for record, _ in records for one in record.checks
        ]
        app.out.table(["gate", "check", "", "limit", "found"], rows)
        for record, path in records:
            app.out.line(f"{record.gate} gate: {record.outcome}, {record.measured}: {path}")
            if open_question := gates.not_shown(record):
                app.out.line(f"  This does not show {open_question}")
            for band in record.bands:
                for fault in band.listed:
                    app.out.line(f"  {gates.size_text(band.bytes)}  {fault.test}  {fault.address}  {fault.found}")

    app.show(command, {"gates": data}, text, refusals)


def _document(record: GateRecord) -> dict[str, Json]:
    document = documents.unstructure(FORM, record)
    assert isinstance(document, dict)
    return document
