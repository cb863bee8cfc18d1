"""Gates of the hardware: what was measured on this machine and when, and whether that is enough for a profile.

A gate runs before a long campaign: `memory_gate`, `thermal_gate` and `disk_gate` measure, `gate_records` keeps one
record for each run. Everything here is pure. A record counts only on the machine that it was made on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal, TypeAlias, get_args

from nvllm.core import canonical, clock
from nvllm.core.fields import Count, Form, Positive, Rule, Seconds, Sha256, Word
from nvllm.core.gaterules import DEFAULTS, GateRules
from nvllm.core.refusal import Refusal
from nvllm.host.facts import HostFacts

SCHEMA = "nvllm.hardware-gate/1"

GateName: TypeAlias = Literal["memory", "thermal", "disk"]
GATES: tuple[GateName, ...] = get_args(GateName)
GateOutcome: TypeAlias = Literal["passed", "failed", "not measured", "interrupted"]
CheckState: TypeAlias = Literal["passed", "failed", "not measured", "absent"]
"""``absent``: this machine has nothing of the kind, so there is nothing to measure."""

KEPT_DAYS = 30
"""Days in which a record is no garbage, even if no profile requires its gate: a profile may be written later."""

_MACHINE_DOMAIN = "nvllm.machine/1"
_DAY = 86400
_GIB, _MIB = 2**30, 2**20
_UNITS = {"G": _GIB, "M": _MIB, "B": 1}
_SIZE = re.compile(r"([1-9][0-9]{0,15})(?:([MG])(?:iB)?|B)")
_LARGEST = 2**50
"""More than a size in a profile may be, 10**15 bytes, in whole MiB."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a gate says something of. ID is a hash: machine-id(5) itself must not leave the host."""

    id: Sha256
    processor: str
    memory: Count
    """GiB, rounded: kernels differ in what they keep for themselves."""
    gpus: tuple[str, ...]
    """The UUID of each GPU."""


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One thing that a gate looked at: its NAME, the LIMIT that it is held against, and what was FOUND."""

    name: Word
    state: CheckState
    limit: str
    found: str


@dataclass(frozen=True, slots=True)
class MemoryFault:
    """A word of memory that did not hold what was written: the TEST that saw it, and its ADDRESS.

    The address is the offset in the tested band; the kernel tells physical addresses to root alone, and moves pages.
    """

    test: Word
    address: str
    found: str


@dataclass(frozen=True, slots=True)
class MemoryBand:
    """A band of BYTES that memtester tested in SECONDS: LOOPS times, all TESTS of it. LISTED are the first FAULTS."""

    bytes: Positive
    loops: Count
    tests: Count
    seconds: Seconds
    faults: Count
    listed: tuple[MemoryFault, ...]


@dataclass(frozen=True, slots=True)
class GateRecord:
    """<state>/gates/<gate>-<time>.json: one run of a gate."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    gate: GateName
    outcome: GateOutcome
    measured: Annotated[str, Rule(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", "a time in UTC, such as 2026-11-22T17:30:00Z")]
    """When it ended."""
    machine: Machine
    boot: str
    """The kernel's boot id. It is evidence; a gate holds after a reboot too."""
    kernel: str
    versions: Mapping[str, str]
    """Of programs and drivers that measured, by name."""
    checks: tuple[GateCheck, ...]
    bands: tuple[MemoryBand, ...] = ()
    """Of a memory gate."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """What the run was held against, by the names of the command's options: bytes, degrees Celsius, milliseconds."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was measured, by name; the unit ends the name."""

    @property
    def when(self) -> float:
        """When it ended, in seconds since 1970. Raises ValueError for a day that is in no calendar."""
        return clock.seconds(self.measured)

    @property
    def absent(self) -> bool:
        """Whether this machine has nothing of the kind that the gate measures."""
        return all(check.state == "absent" for check in self.checks)

    @property
    def largest(self) -> int:
        """Bytes of the largest band that was tested without a fault, 0 if none was."""
        return max((band.bytes for band in self.bands if not band.faults), default=0)


FORM = Form("hardware-gate", SCHEMA, "Record of a hardware gate", GateRecord)


@dataclass(frozen=True, slots=True)
class FiledRecord:
    """A record as it lies in the state directory: its PATH, and the RECORD, or the PROBLEM for which it is none."""

    path: str
    gate: GateName
    record: GateRecord | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GateState:
    """What the check of gates needs: the RULES of a profile, the records FILED here, oldest first, and the time NOW."""

    rules: GateRules = field(default_factory=GateRules)
    filed: tuple[FiledRecord, ...] = ()
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class GateNeed:
    """A gate that a profile requires: at most DAYS old, and for memory a band of at least BAND bytes.

    LIMITS are what the run must have been held against, or something stricter, by the names of the command's options.
    """

    gate: GateName
    days: int
    limits: Mapping[str, int]
    band: int = 0

    @property
    def cure(self) -> str:
        """The command whose run, if it passes, satisfies the need."""
        whole = math.ceil(self.band / _MIB) * _MIB  # memtester takes no band below a page
        bands = f" --bands {size_text(whole)}" if self.band else ""
        given = {name: most for name, most in self.limits.items() if most != DEFAULTS[name]}
        options = "".join(f" --{name} {size_text(most) if name == 'swap' else most}" for name, most in given.items())
        return f"nvllm gate {self.gate}{bands}{options}"

    @property
    def expected(self) -> str:
        sized = f" of a band of {size_text(self.band)}" if self.band else ""
        return f"a {self.gate} gate{sized} that this machine passed in the last {self.days} days"


def machine(facts: HostFacts) -> Machine:
    """Return the machine that FACTS describe."""
    return Machine(
        canonical.digest(_MACHINE_DOMAIN, facts.machine_id),
        facts.cpu.kind,
        round(facts.mem_total / _GIB),
        tuple(sorted(gpu.uuid for gpu in facts.gpus)),
    )


def needs(rules: GateRules) -> Iterator[GateNeed]:
    """Yield the gates that RULES require."""
    by_gate = asdict(rules)
    for gate in GATES:
        if (rule := by_gate[gate]) is not None:
            given = {name.replace("_", "-"): most for name, most in rule.items()}
            limits = {name: given[name] for name in DEFAULTS if name in given}
            yield GateNeed(gate, given["max-age"], limits, given.get("band", 0))


def decided(name: Word, limit: str, measured: str, *, passed: bool) -> GateCheck:
    """Return the check NAME, which was made, with its LIMIT and what was MEASURED."""
    return GateCheck(name, "passed" if passed else "failed", limit, measured)


def outcome(checks: Sequence[GateCheck]) -> GateOutcome:
    """Return what CHECKS come to: a failed one decides, then one that could not be made."""
    states = {check.state for check in checks}
    if "failed" in states:
        return "failed"
    return "passed" if "passed" in states and "not measured" not in states else "not measured"


def problems(record: GateRecord) -> list[Refusal]:
    """Return NV517 for each failed check of RECORD, and NV518 for each that could not be made."""
    bands = [check.name.removeprefix("band ") for check in record.checks if check.name.startswith("band ")]
    again = f"nvllm gate {record.gate} --bands {','.join(bands)}" if bands else f"nvllm gate {record.gate}"
    codes = {"failed": ("NV517", _FAULTY[record.gate]), "not measured": ("NV518", _UNMEASURED[record.gate])}
    unpassed = ((check, *codes[check.state]) for check in record.checks if check.state in codes)
    return [
        Refusal(code, f"{record.gate} gate: {check.name}", check.limit, check.found, f"{cure}: {again}")
        for check, code, cure in unpassed
    ]


def judge(state: GateState, facts: HostFacts) -> str | list[Refusal]:
    """Return what the records of STATE say on the host of FACTS, or NV516 for each gate that they do not satisfy."""
    here, passed, refusals = machine(facts), [], []
    for need in needs(state.rules):
        decisive = deciding(need, state.filed)
        problem = _unsatisfied(need, decisive, here, state.now)
        if problem is None:
            assert decisive is not None
            assert decisive.record is not None
            passed.append(f"{need.gate} gate passed {decisive.record.measured}")
        else:
            where = decisive.path if decisive is not None else f"gates of this host: {need.gate}"
            refusals.append(Refusal("NV516", where, need.expected, problem, need.cure))
    return refusals or ", ".join(passed) or "the profile requires none"


def deciding(need: GateNeed, filed: Sequence[FiledRecord]) -> FiledRecord | None:
    """Return the record of FILED, oldest first, that decides about NEED, or None.

    The newest one decides that could: a run of a smaller band, or with looser limits, says nothing unless it failed. An
    interrupted run says nothing. A damaged record decides, since it may have been one that failed.
    """
    passed_loosely = None
    for filed_record in reversed([entry for entry in filed if entry.gate == need.gate]):
        record = filed_record.record
        if record is None or record.outcome in {"failed", "not measured"}:
            return filed_record
        if record.outcome == "passed" and record.largest >= need.band:
            if not _looser(need, record):
                return filed_record
            passed_loosely = passed_loosely or filed_record
    return passed_loosely


def outdated(filed: Sequence[FiledRecord], days: Iterable[tuple[GateName, int]], before: float) -> list[FiledRecord]:
    """Return those of FILED, oldest first, that satisfy no profile and are not the newest of their gate and machine.

    DAYS are the gates that profiles require, each with the age that one of them allows; a record must have passed all
    of those before the time BEFORE. A damaged record is not among them: nobody knows what it was.
    """
    newest = {(entry.gate, entry.record.machine): entry.path for entry in filed if entry.record is not None}
    kept = dict.fromkeys(GATES, KEPT_DAYS)
    for gate, most in days:
        kept[gate] = max(kept[gate], most)
    return [
        old
        for old in filed
        if old.record is not None
        and old.path != newest[old.gate, old.record.machine]
        and old.record.when + kept[old.gate] * _DAY < before
    ]


def passed_here(filed: FiledRecord, here: Machine) -> bool:
    """Return whether FILED is a record of a run that passed on the machine HERE."""
    return filed.record is not None and filed.record.outcome == "passed" and filed.record.machine == here


def _unsatisfied(need: GateNeed, filed: FiledRecord | None, here: Machine, now: float) -> str | None:
    """Return why FILED does not satisfy NEED on the machine HERE at NOW, None if it does."""
    if filed is None:
        return "no such run"
    record = filed.record
    if record is None:
        return f"a damaged record: {filed.problem}"
    if record.machine != here:
        return f"a record of another machine: {_difference(record.machine, here)}"
    if record.outcome != "passed":
        return f"{record.outcome} on {record.measured}: {summary(record)}"
    if looser := _looser(need, record):
        return f"a run of {record.measured} with looser limits: {', '.join(looser)}"
    age = now - record.when
    if age < 0:
        return f"a record of {record.measured}, which is in the future of this host's clock"
    if age > need.days * _DAY:
        return f"a run of {record.measured}, {age / _DAY:.1f} days ago"
    return None


def _looser(need: GateNeed, record: GateRecord) -> list[str]:
    """Return the limits of RECORD that are looser than those of NEED, as options."""
    given = {name: record.limits.get(name, math.inf) for name in need.limits}
    return [f"--{name} {most:g}" for name, most in given.items() if most > need.limits[name]]


def _difference(recorded: Machine, here: Machine) -> str:
    pairs = (
        ("machine id", recorded.id[:12], here.id[:12]),
        ("processor", recorded.processor, here.processor),
        ("memory", f"{recorded.memory} GiB", f"{here.memory} GiB"),
        ("GPUs", ", ".join(recorded.gpus) or "none", ", ".join(here.gpus) or "none"),
    )
    return "; ".join(f"{name} {before}, here {now}" for name, before, now in pairs if before != now)


_FASTER = "set NVLLM_HOME to a directory on a faster disk, and measure it"
_FAULTY: Mapping[GateName, str] = {
    "memory": "replace faulty memory, or stop what makes the host swap, and test it again",
    "thermal": "cool the machine, or update what is too old, and look again",
    "disk": _FASTER,
}
"""What to do about a check that failed."""
_UNMEASURED: Mapping[GateName, str] = {
    "memory": "stop what uses memory, and test it again",
    "thermal": "install driver and nvidia-ml-py, and look again",
    "disk": _FASTER,
}
"""What to do about a check that could not be made."""
_NOT_SHOWN: Mapping[GateName, str] = {
    "memory": "that other pages are sound: the kernel chose these, and the next run gets others.",
    "thermal": "that clocks hold under load: it looked for some seconds, whatever the GPU did then. Not every driver "
    "tells that heat slows a clock down; on a GB10 the reasons are not reliable. Compare tokens/s of first and last "
    "runs.",
    "disk": "how fast the disk is while an engine loads from it.",
}
"""What a pass does not show."""


def not_shown(record: GateRecord) -> str:
    """Return what a run that passed, as RECORD has it, does not show; empty for any other."""
    return _NOT_SHOWN[record.gate] if record.outcome == "passed" else ""


def summary(record: GateRecord) -> str:
    """Return what did not pass in RECORD, in one line; what passed if everything did."""
    checks = [check for check in record.checks if check.state != "passed"] or list(record.checks)
    return "; ".join(f"{check.name}: {check.found}" for check in checks[:5]) or "nothing was measured"


def size_text(size: int) -> str:
    """Return SIZE bytes as `--bands` and `--swap` take it: exactly, in the largest unit that fits."""
    unit = next(unit for unit, of in _UNITS.items() if size % of == 0)
    return f"{size // _UNITS[unit]}{unit}"


def size(text: str) -> int:
    """Return the bytes of TEXT, such as 512M, 4G, 4GiB or 1000B. Raises ValueError for what is no size."""
    match = _SIZE.fullmatch(text)
    number = 0 if match is None else int(match[1]) * _UNITS[match[2] or "B"]
    if not 0 < number <= _LARGEST:
        raise ValueError(f"{text!r} is no size such as 512M or 4G.")
    return number
