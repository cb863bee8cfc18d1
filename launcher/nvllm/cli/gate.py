"""`nvllm gate`: measure the hardware before a long campaign, and keep what was found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from nvllm.cli.frame import App, FiniteRange, Group, packed, with_app
from nvllm.core import documents, proc
from nvllm.core.canonical import Json
from nvllm.core.gaterules import DEFAULTS
from nvllm.core.refusal import Refusal, collected, refuse_any
from nvllm.host import disk_gate, facts, gate_records, gates, locks, memory_gate, thermal_gate
from nvllm.host.disk_gate import DiskLimits
from nvllm.host.facts import HostFacts
from nvllm.host.gate_records import Measured
from nvllm.host.gates import FORM, GateName, GateRecord
from nvllm.host.locks import Key
from nvllm.host.memory_gate import MemoryLimits
from nvllm.host.memtester import Memtester
from nvllm.host.thermal_gate import ThermalLimits

EXAMPLES = """
Examples:
  nvllm gate memory --bands 4G,32G,64G    memtester over bands of memory, one after the other
  nvllm gate memory --bands 64M --dry-run
  nvllm gate thermal --seconds 60         while something loads the GPU
  nvllm gate all --bands 4G               memory, thermal and disk
"""


Kept = tuple[GateRecord, Path]
"""A record, and where it lies."""


def _size(_context: click.Context, _parameter: click.Parameter, value: str) -> int:
    """Return the bytes of VALUE, such as 512M, 4G or 4GiB."""
    try:
        return gates.size(value.strip())
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _sizes(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Return the sizes in VALUE, which has commas between them, each once."""
    return tuple(dict.fromkeys(_size(context, parameter, text) for text in value.split(",")))


_POSITIVE = FiniteRange(0, min_open=True)
_DEGREES = click.IntRange(1, 200)
_option = functools.partial(click.option, show_default=True)

_MEMORY = (
    _option("--bands", callback=_sizes, required=True, metavar="SIZES", help="Bands, such as 4G,32G,64G."),
    _option("--loops", type=click.IntRange(1, 10_000), default=1, help="Loops for each band."),
    _option(
        "--swap", callback=_size, default=gates.size_text(DEFAULTS["swap"]), metavar="SIZE", help="Most swap in use."
    ),
)
_THERMAL = (
    _option("--seconds", type=click.IntRange(0, 86400), default=5, help="Look for so long."),
    _option(
        "--gpu-temperature", "gpu", type=_DEGREES, default=DEFAULTS["gpu-temperature"], help="Most degrees Celsius."
    ),
    _option(
        "--host-temperature", "host", type=_DEGREES, default=DEFAULTS["host-temperature"], help="Most degrees Celsius."
    ),
)
_DISK = (
    _option("--writes", type=click.IntRange(10, 100_000), default=200, help="How many writes."),
    _option("--p50", type=_POSITIVE, default=DEFAULTS["p50"], help="Most ms of half of them."),
    _option("--p99", type=_POSITIVE, default=DEFAULTS["p99"], help="Most ms of 99 % of them."),
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
    record, path = _memory(app, limits)
    _show_records(app, "gate memory", [(record, path)], gates.problems(record))


@gate.command("thermal", epilog=EXAMPLES)
@packed("limits", ThermalLimits, _THERMAL)
@with_app
def thermal(app: App, limits: ThermalLimits) -> None:
    """Temperatures and clocks of GPUs are those of NVML (the extra `gpu`), of the host those of the kernel.

    Run it while something loads the GPU. A host without GPU and sensors has not passed: nothing was measured.
    """
    record, path = _thermal(app, limits)
    refusals = gates.problems(record)
    if record.absent:
        cure = "run it on the host itself, with its sensors and GPUs"
        refusals = [Refusal("NV518", "thermal gate", "something to measure", gates.summary(record), cure)]
    _show_records(app, "gate thermal", [(record, path)], refusals)


@gate.command("disk", epilog=EXAMPLES)
@packed("limits", DiskLimits, _DISK)
@with_app
def disk(app: App, limits: DiskLimits) -> None:
    """It writes 4 KiB at a time into nvllm's cache directory, and waits until they are on the disk."""
    record, path = _disk(app, limits)
    _show_records(app, "gate disk", [(record, path)], gates.problems(record))


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
            record, path = run()
            records.append((record, path))
            refusals += gates.problems(record)
    _show_records(app, "gate all", records, refusals)


def _dry_run(app: App, command: str, limits: MemoryLimits) -> None:
    """Say which bands LIMITS would test, and everything that is in the way."""
    refusals = memory_gate.unready(limits, facts.memory())
    with collected(refusals):
        proc.require("memtester", "memtester")
    planned = [{"bytes": band, "loops": limits.loops} for band in limits.bands]
    text = "\n".join(f"would test a band of {gates.size_text(band)}, loops: {limits.loops}" for band in limits.bands)
    app.show(command, {"bands": planned, "swap": limits.swap}, lambda: app.out.line(text), refusals)


def _memory(app: App, limits: MemoryLimits) -> Kept:
    tester = Memtester(proc.require("memtester", "memtester"), app.places.gates / "programs")

    def measure(_: HostFacts, results: Measured) -> None:
        tester.end_left()
        refuse_any(memory_gate.unready(limits, facts.memory()))
        memory_gate.run(limits, tester, results, app.progress)

    return _kept(app, "memory", measure)


def _thermal(app: App, limits: ThermalLimits) -> Kept:
    return _kept(app, "thermal", lambda host, results: thermal_gate.run(limits, host, results, app.progress))


def _disk(app: App, limits: DiskLimits) -> Kept:
    return _kept(app, "disk", lambda _, results: disk_gate.run(limits, app.places.cache, results, app.progress))


def _kept(app: App, name: GateName, measure: Callable[[HostFacts, Measured], None]) -> Kept:
    """Run the gate NAME, which MEASUREs this host, and keep its record. Two of a kind would measure each other."""
    with locks.acquire_all(app.places.locks, [Key("gate", name)], locks.this_process(f"nvllm gate {name}")):
        host = facts.probe([])
        return gate_records.recorded(name, host, app.places.gates, app.progress, lambda results: measure(host, results))


def _show_records(app: App, command: str, records: Sequence[Kept], refusals: Sequence[Refusal]) -> None:
    """Show what RECORDS say, and where each lies. Raises `Seen` with REFUSALS."""
    data: list[Json] = []
    for record, path in records:
        document = documents.unstructure(FORM, record)
        assert isinstance(document, dict)
        data.append({**document, "file": str(path), "not_shown": gates.not_shown(record)})

    def text() -> None:
        rows = [
            (record.gate, check.name, check.state, check.limit, check.found)
            for record, _ in records
            for check in record.checks
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
