"""Which record decides about a gate that a profile requires, and what it takes to satisfy it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nvllm.core import clock
from nvllm.core.gaterules import DEFAULTS, DiskGateRule, GateRules, MemoryGateRule, ThermalGateRule
from nvllm.host import gates
from nvllm.host.gates import FiledRecord, GateCheck, GateOutcome, GateRecord, GateState, MemoryBand
from support.gate_samples import DAY, FACTS, GIB, HERE, MEASURED, NOW, record

RULES = GateRules(memory=MemoryGateRule(30, 4 * GIB))


def judged(*records: GateRecord | None, rules: GateRules = RULES, now: float = NOW) -> str | list[str]:
    """Return what is found, by the refusals, of RECORDS, oldest first; None is a damaged one."""
    filed = tuple(
        FiledRecord(f"gates/{number}.json", one.gate if one else "memory", one, "" if one else "not JSON")
        for number, one in enumerate(records)
    )
    found = gates.judge(GateState(rules, filed, now), FACTS)
    return found if isinstance(found, str) else [one.found for one in found]


def band(size: int, faults: int = 0) -> MemoryBand:
    return MemoryBand(size, 1, 18, 1.0, faults, ())


def test_a_gate_that_was_passed_here_satisfies() -> None:
    assert judged(record()) == f"memory gate passed {MEASURED}"
    assert judged(rules=GateRules()) == "the profile requires none"


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ((), "no such run"),
        ((record(bands=(band(GIB),)),), "no such run"),
        ((record(gate="disk"),), "no such run"),
        ((None,), "a damaged record: not JSON"),
        ((record(), None), "a damaged record: not JSON"),
        ((record(outcome="failed"),), f"failed on {MEASURED}: band 4G: 0 faults"),
        ((record(), record(outcome="failed", bands=(band(GIB, 2),))), f"failed on {MEASURED}: band 4G: 0 faults"),
        ((record(outcome="failed"), record(bands=(band(GIB),))), f"failed on {MEASURED}: band 4G: 0 faults"),
        ((record(outcome="not measured"),), f"not measured on {MEASURED}: band 4G: 0 faults"),
        ((record(machine=replace(HERE, id="1" * 64)),), f"a record of another machine: machine id {'1' * 12}, here"),
        ((record(machine=replace(HERE, memory=32)),), "a record of another machine: memory 32 GiB, here 64 GiB"),
        ((record(machine=replace(HERE, gpus=())),), "a record of another machine: GPUs none, here GPU-6f1c"),
        ((record(measured="2026-10-01T00:00:00Z"),), "a run of 2026-10-01T00:00:00Z, 48.5 days ago"),
        (
            (record(measured="2026-11-18T12:26:41Z"),),
            "a record of 2026-11-18T12:26:41Z, which is in the future of this host's clock",
        ),
    ],
)
def test_what_does_not_satisfy(records: tuple[GateRecord | None, ...], found: str) -> None:
    said = judged(*records)
    assert [one[: len(found)] for one in said] == [found]


def test_a_small_or_an_interrupted_run_hides_no_larger_one() -> None:
    interrupted = record(outcome="interrupted", bands=())
    assert judged(record(), record(bands=(band(GIB),)), interrupted) == f"memory gate passed {MEASURED}"


def test_a_run_with_looser_limits_does_not_satisfy() -> None:
    loose = record(limits={"swap": 2.0 * GIB})
    assert judged(loose) == [f"a run of {MEASURED} with looser limits: --swap {2.0 * GIB:g}"]
    assert judged(record(limits={})) == [f"a run of {MEASURED} with looser limits: --swap inf"]
    assert judged(record(), loose) == f"memory gate passed {MEASURED}"
    assert judged(record(outcome="failed"), loose) == [f"failed on {MEASURED}: band 4G: 0 faults"]
    assert judged(loose, rules=GateRules(MemoryGateRule(30, 4 * GIB, 2 * GIB))) == f"memory gate passed {MEASURED}"


def test_the_cure_has_the_limits_of_the_profile() -> None:
    rules = GateRules(MemoryGateRule(1, GIB, GIB // 2), ThermalGateRule(7, gpu_temperature=90), DiskGateRule(9, p99=50))
    found = gates.judge(GateState(rules, (), NOW), FACTS)
    assert not isinstance(found, str)
    assert [one.cure for one in found] == [
        "nvllm gate memory --bands 1G --swap 512M",
        "nvllm gate thermal --gpu-temperature 90",
        "nvllm gate disk --p99 50",
    ]


def test_a_later_pass_cures_a_failure() -> None:
    assert judged(record(outcome="failed"), None, record()) == f"memory gate passed {MEASURED}"


def test_a_band_with_faults_is_not_tested() -> None:
    assert record(bands=(band(8 * GIB, 1), band(2 * GIB))).largest == 2 * GIB


def test_every_gate_is_refused_with_the_command_that_runs_it() -> None:
    rules = GateRules(MemoryGateRule(1, 3 * GIB // 2), ThermalGateRule(7), DiskGateRule(9))
    found = gates.judge(GateState(rules, (), NOW), FACTS)
    assert not isinstance(found, str)
    assert [(one.code, one.where, one.cure) for one in found] == [
        ("NV516", "gates of this host: memory", "nvllm gate memory --bands 1536M"),
        ("NV516", "gates of this host: thermal", "nvllm gate thermal"),
        ("NV516", "gates of this host: disk", "nvllm gate disk"),
    ]
    assert found[0].expected == "a memory gate of a band of 1536M that this machine passed in the last 1 days"


@given(st.floats(min_value=0, max_value=60 * DAY), st.integers(1, 60))
def test_the_limit_of_age_is_exact(age: float, days: int) -> None:
    satisfied = isinstance(judged(record(), rules=GateRules(MemoryGateRule(days, GIB)), now=NOW - DAY + age), str)
    assert satisfied is (age <= days * DAY)


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        ([], "not measured"),
        (["absent"], "not measured"),
        (["absent", "passed"], "passed"),
        (["not measured", "passed"], "not measured"),
        (["not measured", "failed", "passed"], "failed"),
    ],
)
def test_what_checks_come_to(states: list[gates.CheckState], outcome: str) -> None:
    found = [GateCheck("one", state, "", "") for state in states]
    assert gates.outcome(found) == outcome
    refused = [one.code for one in gates.problems(record(checks=tuple(found)))]
    assert refused == [{"failed": "NV517", "not measured": "NV518"}[one] for one in states if one[0] in "fn"]


def test_the_machine_id_does_not_leave_the_host() -> None:
    assert FACTS.machine_id not in repr(HERE)
    assert gates.machine(replace(FACTS, machine_id="other")) != HERE


def test_a_stamp_is_utc() -> None:
    assert time.gmtime(record().when)[:6] == (2026, 11, 17, 12, 26, 40)
    with pytest.raises(ValueError, match="day is out of range"):
        _ = record(measured="2026-02-30T00:00:00Z").when


SIZES = st.integers(1, 10**15) | st.integers(1, 10**8).map(lambda count: count * 2**20)


@given(SIZES)
def test_a_size_is_read_back_as_it_is_written(size: int) -> None:
    assert gates.size(gates.size_text(size)) == size


@given(SIZES, SIZES)
@example(10**15, 1)
def test_a_cure_is_as_strict_as_the_profile(band: int, swap: int) -> None:
    (need,) = gates.needs(GateRules(memory=MemoryGateRule(30, band, swap)))
    words = need.cure.split()
    assert band <= gates.size(words[words.index("--bands") + 1]) < band + 2**20
    given = words[words.index("--swap") + 1] if "--swap" in words else gates.size_text(DEFAULTS["swap"])
    assert gates.size(given) == swap


@pytest.mark.parametrize("text", ["", "5", "05M", "64K", "1BiB", "5MB", "4g", "1.5G", "99999999999G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="no size such as 512M"):
        gates.size(text)


MACHINES = (HERE, replace(HERE, id="1" * 64))
RECORDS = st.lists(
    st.tuples(st.integers(0, 90), st.sampled_from(get_args(GateOutcome)), st.sampled_from([1, 4]), st.booleans()),
    max_size=8,
)


@given(RECORDS, st.integers(1, 60))
def test_what_is_outdated_decides_nothing(found: list[tuple[int, GateOutcome, int, bool]], days: int) -> None:
    rules = GateRules(memory=MemoryGateRule(days, 4 * GIB))
    filed = [
        FiledRecord(f"{number}", "memory", made)
        for number, (age, outcome, size, elsewhere) in enumerate(sorted(found, key=lambda row: -row[0]))
        for made in [
            record(
                measured=clock.stamp(NOW - age * DAY),
                outcome=outcome,
                bands=(band(size * GIB),),
                machine=MACHINES[elsewhere],
            )
        ]
    ]
    gone = gates.outdated(filed, [("memory", days)], NOW)
    left = [one for one in filed if one not in gone]
    before, after = (gates.judge(GateState(rules, tuple(some), NOW), FACTS) for some in (filed, left))
    assert isinstance(before, str) is isinstance(after, str)
    assert {one.record.machine for one in left if one.record} == {one.record.machine for one in filed if one.record}
    assert all(one.record is not None and one.record.when < NOW - max(days, gates.KEPT_DAYS) * DAY for one in gone)


def test_a_damaged_record_is_never_outdated() -> None:
    filed = [FiledRecord("1", "memory", None, "not JSON"), FiledRecord("2", "memory", record())]
    assert gates.outdated(filed, [], NOW + 9999 * DAY) == []
