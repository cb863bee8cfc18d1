"""The table of host checks, on facts that are made up: each check alone, all of them together, and the texts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core import catalogue
from nvllm.core.plan import LaunchPlan
from nvllm.core.spec import HostNeed
from nvllm.host import checks
from nvllm.host.checks import DiskNeed, Subject
from nvllm.host.facts import (
    HOME_LABEL,
    INSTANCE_LABEL,
    RUN_LABEL,
    ContainerFact,
    DiskFacts,
    HostFacts,
    Listener,
    LockFacts,
)
from support.host_samples import ENGINE, GIB, GPU, HOST, NEED, PLAN, refusals

WELL = Subject(PLAN, HOST, (DiskNeed("/var/lib/nvllm", 10 * GIB, "the image"),))

_LABELS = {INSTANCE_LABEL: PLAN.instance}
_OURS = ContainerFact(PLAN.instance, _LABELS, True, "ab" * 32)


def _on(facts: HostFacts, plan: LaunchPlan | None = PLAN) -> list[str]:
    return [refusal.code for refusal in refusals(replace(WELL, plan=plan, facts=facts))]


def test_every_check_is_in_the_catalogue_once_and_by_code() -> None:
    codes = [check.code for check in checks.TABLE]
    assert codes == sorted(set(codes))
    assert set(codes) <= set(catalogue.CODES)


def test_a_host_on_which_nothing_is_wrong_is_ok_in_every_check() -> None:
    assert refusals(WELL) == ()
    assert [outcome.name for outcome in checks.outcomes(WELL) if outcome.state != "ok"] == []
    assert all(outcome.detail for outcome in checks.outcomes(WELL))


def test_without_a_profile_only_the_host_is_judged() -> None:
    bare = Subject(None, HOST)
    judged = [outcome.code for outcome in checks.outcomes(bare) if outcome.state == "ok"]
    assert judged == ["NV510", "NV511", "NV513", "NV514"]
    assert {outcome.state for outcome in checks.outcomes(bare)} == {"ok", "skipped"}


def test_a_profile_without_gpu_needs_neither_gpu_nor_toolkit() -> None:
    facts = replace(HOST, gpus=(), gpu_problem="nvidia-smi ended", toolkit=None)
    assert _on(facts, replace(PLAN, gpu=None)) == []


def test_everything_that_is_wrong_is_said_at_once_and_by_code() -> None:
    facts = replace(
        HOST,
        mem_available=GIB,
        disks={"/var/lib/nvllm": DiskFacts(GIB, 1)},
        listeners=(Listener(8000, 7, "other"),),
        interfaces=frozenset({"lo"}),
        gpus=(replace(GPU, capability="8.6", driver="535.1"),),
        toolkit="1.17.7",
        engine=replace(ENGINE, api_version="1.40"),
        containers=(_OURS, ContainerFact(PLAN.instance, {}, False, "cd" * 32)),
        locks=LockFacts("/var/lib/nvllm/locks", "flock answers: Function not implemented"),
    )
    found = refusals(replace(WELL, facts=facts, plan=replace(PLAN, sentinels=("nobody-reads",))))
    codes = ["NV502", "NV503", "NV504", "NV505", "NV506", "NV507", "NV508", "NV509", "NV511", "NV513", "NV514", "NV602"]
    assert [refusal.code for refusal in found] == codes


def test_doctor_shows_the_refusals_that_serve_gives() -> None:
    subject = replace(WELL, facts=replace(HOST, mem_available=1, engine=None))
    outcomes = checks.outcomes(subject)
    assert tuple(refusal for outcome in outcomes for refusal in outcome.refusals) == refusals(subject)
    assert all((outcome.state == "refused") == bool(outcome.refusals) for outcome in outcomes)


def test_without_an_engine_nothing_is_ok_that_it_would_have_to_say() -> None:
    states = {
        outcome.code: outcome.state for outcome in checks.outcomes(replace(WELL, facts=replace(HOST, engine=None)))
    }
    assert states["NV510"] == "refused"
    assert {states[code] for code in ("NV508", "NV509", "NV511", "NV514")} == {"skipped"}


def test_every_gpu_that_is_not_right_is_named() -> None:
    others = tuple(replace(GPU, index=index, uuid=f"GPU-{index}", capability="8.9") for index in (1, 2))
    found = refusals(replace(WELL, facts=replace(HOST, gpus=(GPU, *others))))
    assert [(refusal.code, refusal.where) for refusal in found] == [
        ("NV502", "GPU 1 (NVIDIA GB10, GPU-1)"),
        ("NV502", "GPU 2 (NVIDIA GB10, GPU-2)"),
    ]


def test_too_few_gpus() -> None:
    found = refusals(replace(WELL, plan=replace(PLAN, gpu=replace(NEED, count=2))))
    assert [(refusal.code, refusal.expected, refusal.found) for refusal in found] == [
        ("NV501", "at least 2 NVIDIA GPUs", "1")
    ]


@pytest.mark.parametrize(
    ("driver", "refused"),
    [
        ("575.51.03", False),
        ("575.51.02", True),
        ("575.6", True),  # by number: 6 is less than 51
        ("580.9", False),
        ("1000.1", False),
        ("[N/A]", True),
    ],
)
def test_drivers_are_compared_by_number(driver: str, refused: bool) -> None:
    assert _on(replace(HOST, gpus=(replace(GPU, driver=driver),))) == (["NV503"] if refused else [])


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("1.17.8", False),
        ("1.17.8-1", False),
        ("1.17.10", False),
        ("1.18.0", False),
        ("1.17.8-rc.1", True),
        ("1.17.7", True),
        ("1.9.0", True),
        ("unknown", True),
        (None, True),
    ],
)
def test_toolkits_are_compared_by_number(version: str | None, refused: bool) -> None:
    assert _on(replace(HOST, toolkit=version)) == (["NV504"] if refused else [])


@pytest.mark.parametrize(
    ("api", "refused"), [("1.41", False), ("1.50", False), ("1.9", True), ("1.40", True), ("", True)]
)
def test_engine_apis_are_compared_by_number(api: str, refused: bool) -> None:
    assert _on(replace(HOST, engine=replace(ENGINE, api_version=api))) == (["NV511"] if refused else [])


@given(need=st.integers(1, 2**45), available=st.integers(0, 2**45))
def test_memory_is_refused_exactly_when_it_is_short(need: int, available: int) -> None:
    plan = replace(PLAN, host=HostNeed(need))
    found = refusals(replace(WELL, plan=plan, facts=replace(HOST, mem_available=available)))
    assert [refusal.code for refusal in found] == (["NV505"] if available < need else [])
    for refusal in found:
        assert float(refusal.found.split()[0]) < float(refusal.expected.split()[2]), "the text must show the shortage"


def test_what_goes_to_one_file_system_is_added_up() -> None:
    facts = replace(HOST, disks={"/a": DiskFacts(10 * GIB, 1), "/b": DiskFacts(10 * GIB, 1)})
    needs = (DiskNeed("/a", 6 * GIB, "the store"), DiskNeed("/b", 6 * GIB, "the layers"))
    (refusal,) = refusals(replace(WELL, facts=facts, disk=needs))
    assert (refusal.code, refusal.where, refusal.found) == ("NV506", "/a, /b", "10.0 GiB free")
    assert refusal.expected == "at least 12.0 GiB free (6.0 GiB for the store, 6.0 GiB for the layers)"
    apart = replace(facts, disks={**facts.disks, "/b": DiskFacts(10 * GIB, 2)})
    assert refusals(replace(WELL, facts=apart, disk=needs)) == ()


def test_a_stopped_container_of_ours_is_no_obstacle() -> None:
    assert _on(replace(HOST, containers=(replace(_OURS, running=False),))) == []


def test_a_container_of_another_name_is_none_of_our_business() -> None:
    assert _on(replace(HOST, containers=(ContainerFact("postgres", {}, True, "ef" * 32),))) == []


def test_a_container_of_another_home_is_not_ours_to_end() -> None:
    for running, labels, cure in (
        (
            True,
            {RUN_LABEL: f"/srv/hers/state/runs/{PLAN.instance}"},
            f"NVLLM_HOME=/srv/hers nvllm stop {PLAN.instance}",
        ),
        (
            False,
            {RUN_LABEL: f"/home/her/.local/state/nvllm/runs/{PLAN.instance}"},
            f"XDG_STATE_HOME=/home/her/.local/state nvllm stop {PLAN.instance}",
        ),
        (True, {}, f"docker stop {PLAN.instance}"),
    ):
        other = replace(_OURS, running=running, labels={**_LABELS, HOME_LABEL: "another", **labels})
        (refusal,) = refusals(replace(WELL, facts=replace(HOST, containers=(other,), home="ours")))
        assert (refusal.code, refusal.cure) == ("NV509", cure)


def test_a_renamed_container_of_ours_is_foreign() -> None:
    renamed = replace(_OURS, labels={INSTANCE_LABEL: "nvllm-cpu-tiny-eager"})
    (refusal,) = refusals(replace(WELL, facts=replace(HOST, containers=(renamed,))))
    assert refusal.code == "NV509"
    assert refusal.found == "container abababababab, labelled nvllm.instance=nvllm-cpu-tiny-eager"


def test_a_rootless_engines_bridge_is_not_looked_for_on_the_host() -> None:
    rootless = replace(ENGINE, rootless=True)
    assert _on(replace(HOST, engine=rootless, interfaces=frozenset({"lo"}))) == []


def test_known_sentinels_are_accepted_whatever_else_is_known() -> None:
    plan = replace(PLAN, sentinels=("zeroer", "drain"))
    assert refusals(replace(WELL, plan=plan, sentinels=frozenset({"zeroer", "drain", "more"}))) == ()


def test_a_disk_need_at_a_path_that_nobody_looked_at_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        refusals(replace(WELL, disk=(DiskNeed("/elsewhere", 1, "x"),)))
