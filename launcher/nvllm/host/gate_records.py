"""The records of gates in the state directory: one file for each run, written once and never changed.

::

    <state>/gates/memory-20261122T173000Z.json

A file that is not exactly what nvllm wrote is no record, but it is not ignored either: it may have been a failure.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nvllm.core import clock, documents, durable, paths, proc, reading, trusted
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refused
from nvllm.host import gates
from nvllm.host.facts import HostFacts
from nvllm.host.gates import FORM, GATES, SCHEMA, FiledRecord, GateCheck, GateName, GateRecord, MemoryBand

_FILE = re.compile(rf"({'|'.join(GATES)})-(\d{{8}}T\d{{6}}Z)(?:-(\d+))?\.json")


@dataclass
class Measured:
    """What a run of a gate has found so far."""

    checks: list[GateCheck] = field(default_factory=list)
    bands: list[MemoryBand] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def filed(directory: Path) -> tuple[FiledRecord, ...]:
    """Return the records in DIRECTORY, oldest first; a file that is none of nvllm's has a problem instead.

    Raises Refused NV109 for a directory that is not to be trusted, or cannot be read.
    """
    records = []
    for path in trusted.state(directory.parent, "NV109").listed(directory, "*.json"):
        named = _FILE.fullmatch(path.name)
        if named is not None:
            gate = next(gate for gate in GATES if gate == named[1])
            records.append(((named[2], int(named[3] or 0)), _read(path, gate, named[2])))
    return tuple(record for _, record in sorted(records, key=lambda pair: pair[0]))


def write(directory: Path, record: GateRecord) -> Path:
    """Write RECORD into DIRECTORY, and return its path. The caller holds the lock of the gate.

    Raises Refused NV920 if that fails.
    """
    stem = f"{record.gate}-{clock.compact(record.measured)}"
    with durable.writing(directory, "NV920"):
        paths.ensure(directory)
        taken = {path.name for path in reading.listed(directory, f"{stem}*.json")}
    # Two runs may end in one second, and no record replaces another.
    name = next(name for name in (f"{stem}.json", *(f"{stem}-{n}.json" for n in range(1, 1000))) if name not in taken)
    durable.replace(directory / name, documents.encode(FORM, record), 0o600, code="NV920")
    return directory / name


def recorded(
    gate: GateName, host: HostFacts, directory: Path, progress: Progress, measure: Callable[[Measured], None]
) -> tuple[GateRecord, Path]:
    """MEASURE the HOST for GATE, write the record into DIRECTORY, and return both. The caller holds the gate's lock.

    An interrupt is recorded too, then raised again; a fault that was found until then stays one. Raises Refused NV920.
    """
    results, interrupt = Measured(), None
    try:
        measure(results)
    except KeyboardInterrupt as raised:
        interrupt = raised
    outcome = gates.outcome(results.checks)
    if interrupt is not None and outcome != "failed":
        outcome = "interrupted"
    record = GateRecord(
        schema=SCHEMA,
        gate=gate,
        outcome=outcome,
        measured=clock.now(),
        machine=gates.machine(host),
        boot=proc.boot_id(),
        kernel=platform.release(),
        versions=results.versions,
        checks=tuple(results.checks),
        bands=tuple(results.bands),
        limits=results.limits,
        figures=results.figures,
    )
    path = write(directory, record)
    if interrupt is not None:
        progress.note(f"{gate} gate {outcome} after {len(results.checks)} checks: {path}")
        raise interrupt
    return record, path


def _read(path: Path, gate: GateName, stamp: str) -> FiledRecord:
    try:
        data = reading.unlinked(path, reading.STATE)
        record = documents.decode(FORM, data, lambda _: (), code="NV516", label=str(path), cure="nvllm gate --help")
        if record.gate != gate or clock.compact(record.measured) != stamp:
            return FiledRecord(str(path), gate, None, "its name is that of another run")
        _ = record.when  # raises ValueError for a day in no calendar, which the form cannot find
    except OSError as error:
        return FiledRecord(str(path), gate, None, error.strerror or str(error))
    except ValueError as error:
        return FiledRecord(str(path), gate, None, str(error))
    except Refused as refused:
        return FiledRecord(str(path), gate, None, refused.refusals[0].found)
    return FiledRecord(str(path), gate, record)
