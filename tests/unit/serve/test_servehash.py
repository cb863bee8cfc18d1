"""The serve hash: one that is written down, every factor changes it, and nothing else does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core import canonical
from nvllm.core.plan import (
    ACCESS_ARGUMENTS,
    ACCESS_ENVIRONMENT,
    CpuLayout,
    LaunchPlan,
    Mount,
    PlannedCache,
    PlannedCommand,
    PlannedGpu,
    PlannedTemplate,
    Scratch,
)
from nvllm.core.spec import Access, GpuNeed, HostNeed, Probe, ResourceLimits, Waiver
from nvllm.serve import servehash
from support.host_samples import CPU as HOST_CPU
from support.plansamples import GPUS, PLAN, SPEC, plan, with_profile

GOLDEN = replace(PLAN, build_hash="b" * 64)
"""The sample with a build hash that is no function of our own files."""

CPU = GOLDEN.cpu

GPU = PlannedGpu("GPU-1", "NVIDIA GB10", "12.1", "580.95.05")


def limited(**sizes: int) -> Callable[[LaunchPlan], LaunchPlan]:
    return lambda plan: replace(plan, limits=replace(plan.limits, **sizes))


def modelled(**changes: Any) -> Callable[[LaunchPlan], LaunchPlan]:
    return lambda plan: replace(plan, model=replace(plan.model, **changes))


def drafting(**changes: str) -> Callable[[LaunchPlan], LaunchPlan]:
    """A draft that differs from the served model in its place alone, with CHANGES."""
    return lambda plan: replace(plan, draft=replace(plan.model, **{"path": "/drafts/tiny", **changes}))


def adapted(**changes: str) -> Callable[[LaunchPlan], LaunchPlan]:
    return lambda plan: replace(plan, adapters=(replace(plan.model, **{"path": "/adapters/mine", **changes}),))


TEMPLATE = PlannedTemplate("templates/mine.jinja", "/templates/mine.jinja", 5, "a" * 64)


def asking(plan: LaunchPlan) -> LaunchPlan:
    """Return PLAN as the planner makes it for a profile with a key file."""
    if plan.access.key_file is not None:
        return plan
    environment = {**plan.environment, **ACCESS_ENVIRONMENT}
    asked = replace(plan, access=Access("/srv/key", "0.0.0.0"), environment=environment)
    return commanding(lambda engine: (*engine, *ACCESS_ARGUMENTS))(asked)


def commanding(change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Callable[[LaunchPlan], LaunchPlan]:
    """Return what gives a plan the command that CHANGE makes of its engine's."""
    return lambda plan: replace(plan, command=replace(plan.command, engine=change(plan.command.engine)))


def with_gpu(**changes: str) -> Callable[[LaunchPlan], LaunchPlan]:
    return lambda plan: replace(plan, gpus=(replace(GPU, **changes),))


def with_cpu(**changes: Any) -> Callable[[LaunchPlan], LaunchPlan]:
    return lambda plan: replace(plan, cpu=replace(CPU, **changes))


def said(name: str, text: str) -> Callable[[LaunchPlan], LaunchPlan]:
    return lambda plan: replace(plan, environment={**plan.environment, name: text})


MATTERS: dict[str, Callable[[LaunchPlan], LaunchPlan]] = {
    "build_hash": lambda plan: replace(plan, build_hash="c" * 64),
    "dev": lambda plan: replace(plan, dev=True),
    "sentinels": lambda plan: replace(plan, sentinels=("drain",)),
    "waivers": lambda plan: replace(plan, waivers=(Waiver("writable-root", "why"),)),
    "model.tree": modelled(tree="sha256:" + "9" * 64),
    "model.revision": modelled(revision="d" * 40),
    "model.path": modelled(path="/models/other"),
    "draft": drafting(),
    "draft.tree": drafting(tree="sha256:" + "9" * 64),
    "draft.revision": drafting(revision="d" * 40),
    "draft.path": drafting(path="/drafts/other"),
    "adapters": adapted(),
    "adapters.tree": adapted(tree="sha256:" + "9" * 64),
    "adapters.path": adapted(path="/adapters/other"),
    "template": lambda plan: replace(plan, template=TEMPLATE),
    "template.sha256": lambda plan: replace(plan, template=replace(TEMPLATE, sha256="b" * 64)),
    "command: another value": commanding(lambda words: (*words[:-1], "256")),
    "command: one more": commanding(lambda words: (*words, "--seed", "1")),
    "command: one less": commanding(lambda words: words[:-2]),
    "command: the gate": lambda plan: replace(
        plan, command=replace(plan.command, gate=(plan.command.interpreter, "-E", *plan.command.gate[2:]))
    ),
    "environment: another value": said("OMP_NUM_THREADS", "3"),
    "environment: one more": said("VLLM_NEW_SWITCH", "1"),
    "environment: one less": lambda plan: replace(
        plan, environment={name: text for name, text in plan.environment.items() if name != "OMP_NUM_THREADS"}
    ),
    "limits.memory": limited(memory=1),
    "limits.shared_memory": limited(shared_memory=1),
    "limits.temporary": limited(temporary=1),
    "limits.pids": limited(pids=1),
    "gpus": with_gpu(),
    "gpus.name": with_gpu(name="NVIDIA RTX PRO 6000"),
    "gpus.capability": with_gpu(capability="12.0"),
    "gpus.driver": with_gpu(driver="590.1"),
    "cpu.machine": with_cpu(machine="aarch64"),
    "cpu.kind": with_cpu(kind="GenuineIntel 6 143"),
    "cpu.flags: one more": with_cpu(flags=(*CPU.flags, "sse4a")),
    "cpu.flags: one less": with_cpu(flags=CPU.flags[:-1]),
    "cpu.layout: none": with_cpu(layout=None),
    "cpu.layout.count": with_cpu(layout=CpuLayout(9, 4, 1)),
    "cpu.layout.cores": with_cpu(layout=CpuLayout(8, 8, 1)),
    "cpu.layout.nodes": with_cpu(layout=CpuLayout(8, 4, 2)),
    "gpus: two": lambda plan: replace(plan, gpus=(GPU, GPU)),
}

CANNOT_MATTER: dict[str, Callable[[LaunchPlan], LaunchPlan]] = {
    "schema": lambda plan: replace(plan, schema="nvllm.plan/2"),
    "serve_hash": lambda plan: replace(plan, serve_hash="e" * 64),
    "instance": lambda plan: replace(plan, instance="other"),
    "image": lambda plan: replace(plan, image="other"),
    "image_id": lambda plan: replace(plan, image_id="sha256:" + "2" * 64),
    "manifest_id": lambda plan: replace(plan, manifest_id="sha256:" + "2" * 64),
    "profile": lambda plan: replace(plan, profile="other"),
    "served_name": lambda plan: replace(plan, served_name="other"),
    "access": asking,
    "mounts": lambda plan: replace(plan, mounts=tuple(Mount("/other" + one.source, one.target) for one in plan.mounts)),
    "scratch": lambda plan: replace(plan, scratch=(Scratch("/tmp", 1),)),
    "user": lambda plan: replace(plan, user="7:7"),
    "port": lambda plan: replace(plan, port=9),
    "host": lambda plan: replace(plan, host=HostNeed(1)),
    "gpu": lambda plan: replace(plan, gpu=GpuNeed(("9.0",), "1")),
    "cache": lambda plan: replace(plan, cache=PlannedCache("f" * 64, "/cache")),
    "environment: the force to load": said("VLLM_FORCE_AOT_LOAD", "1"),
    "probe": lambda plan: replace(plan, probe=Probe("other", 1)),
    "limits.start_timeout": limited(start_timeout=1),
    "limits.stall_timeout": limited(stall_timeout=1),
    "limits.open_files": limited(open_files=1),
    "limits.drain_timeout": limited(drain_timeout=1),
    "command: the drain": commanding(lambda words: (*words, "--shutdown-timeout", "10")),
    "model.name": modelled(name="other"),
    "draft.name": lambda plan: replace(plan, draft=plan.draft and replace(plan.draft, name="other")),
    "environment: the log level": said("VLLM_LOGGING_LEVEL", "DEBUG"),
    "command: the served name": commanding(lambda words: exchange(words, "--served-model-name", "x")),
    "command: the address": commanding(lambda words: exchange(words, "--host", "127.0.0.1")),
    "command: the port": commanding(lambda words: exchange(words, "--port", "9000")),
}


def exchange(command: tuple[str, ...], option: str, value: str) -> tuple[str, ...]:
    index = command.index(option) + 1
    return (*command[:index], value, *command[index + 1 :])


def test_one_that_is_written_down() -> None:
    """A change here is a change of every serve hash that anybody has noted: raise the domain's version."""
    assert servehash.serve_hash(GOLDEN) == "44a8f187d7568031a13101ae91330880ba5fd570fd7358d4c2b339e430acd7fc"
    assert servehash.DOMAIN == "nvllm.serve/2"


def test_the_hash_is_over_the_factors_under_its_domain() -> None:
    assert servehash.serve_hash(GOLDEN) == canonical.digest("nvllm.serve/2", servehash.factors(GOLDEN))


def test_a_plan_carries_its_own_hash() -> None:
    assert PLAN.serve_hash == servehash.serve_hash(PLAN)


@pytest.mark.parametrize("factor", MATTERS)
def test_a_factor_that_changes_alone_changes_the_hash(factor: str) -> None:
    assert servehash.serve_hash(MATTERS[factor](GOLDEN)) != servehash.serve_hash(GOLDEN)


def test_no_two_factors_are_taken_for_each_other() -> None:
    hashes = [servehash.serve_hash(change(GOLDEN)) for change in MATTERS.values()]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("name", CANNOT_MATTER)
def test_what_cannot_matter_changes_nothing(name: str) -> None:
    assert servehash.serve_hash(CANNOT_MATTER[name](GOLDEN)) == servehash.serve_hash(GOLDEN)


def test_the_reason_of_a_waiver_changes_nothing() -> None:
    one, other = (replace(GOLDEN, waivers=(Waiver("host-ipc", reason),)) for reason in ("a", "b"))
    assert servehash.serve_hash(one) == servehash.serve_hash(other)


@given(st.lists(st.sampled_from(sorted(MATTERS)), unique=True), st.lists(st.sampled_from(sorted(CANNOT_MATTER))))
def test_what_cannot_matter_cannot_matter_together_with_anything(factors: list[str], others: list[str]) -> None:
    one = GOLDEN
    for factor in factors:
        one = MATTERS[factor](one)
    other = one
    for name in others:
        other = CANNOT_MATTER[name](other)
    assert servehash.serve_hash(one) == servehash.serve_hash(other)


def test_every_field_of_a_plan_is_hashed_or_is_excluded_by_name() -> None:
    """A new field makes this fail until somebody decides: unknown means included."""
    fields = {field.name for field in dataclasses.fields(LaunchPlan)}
    whole = servehash.factors(replace(adapted()(GOLDEN), template=TEMPLATE))
    assert fields - servehash.EXCLUDED_FIELDS.keys() == whole.keys()
    assert whole.keys() - servehash.factors(GOLDEN).keys() == {"adapters", "template"}
    assert servehash.EXCLUDED_FIELDS.keys() <= fields
    assert {name.partition(":")[0].partition(".")[0] for name in MATTERS} == whole.keys()
    assert servehash.EXCLUDED_FIELDS.keys() <= CANNOT_MATTER.keys()
    limits = {field.name for field in dataclasses.fields(ResourceLimits)}
    assert {f"limits.{name}" for name in limits} <= MATTERS.keys() | CANNOT_MATTER.keys()


@given(st.permutations(sorted(GOLDEN.environment)), st.permutations(["a", "b", "c"]))
def test_order_decides_nothing_where_it_means_nothing(names: list[str], sentinels: list[str]) -> None:
    waivers = [Waiver(name, "why") for name in sentinels]
    one = replace(GOLDEN, sentinels=("a", "b", "c"), waivers=tuple(sorted(waivers, key=lambda waiver: waiver.name)))
    other = replace(
        one,
        environment={name: one.environment[name] for name in names},
        sentinels=tuple(sentinels),
        waivers=tuple(waivers),
    )
    assert servehash.serve_hash(one) == servehash.serve_hash(other)


def test_a_value_that_reads_like_an_excluded_option_is_a_value() -> None:
    """``--port`` as the last word has no value to skip, and what comes before it stays."""
    assert servehash.factors(replace(GOLDEN, command=PlannedCommand((), ("a", "--port"))))["command"] == ["a"]
    assert servehash.factors(replace(GOLDEN, command=PlannedCommand((), ("a", "--port", "1", "b"))))["command"] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 9000},
        {"probe": Probe("another", 3)},
        {"host": HostNeed(1)},
        {"limits": replace(SPEC.profiles["eager"].limits, start_timeout=7)},
        {"environment": {"OMP_NUM_THREADS": "2", "VLLM_LOGGING_LEVEL": "DEBUG"}},
        {"description": "another"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_profile_that_differs_in_what_cannot_matter_has_the_same_hash(changes: dict[str, Any]) -> None:
    assert plan(with_profile(SPEC, **changes)).serve_hash == PLAN.serve_hash


def test_the_same_gpu_in_another_slot_has_the_same_hash() -> None:
    spec = with_profile(SPEC, gpu=GpuNeed(("12.1",), "580.1"))
    assert plan(spec, gpus=GPUS[:1]).serve_hash == plan(spec, gpus=GPUS[1:]).serve_hash != PLAN.serve_hash


def test_where_gpus_do_the_work_the_number_of_cpus_is_no_factor() -> None:
    """What compiles host code for them is: launchers of kernels and wrappers are compiled for the CPU that is there."""
    spec = with_profile(SPEC, gpu=GpuNeed(("12.1",), "580.1"))
    one = plan(spec, gpus=GPUS)
    assert one.serve_hash == plan(spec, gpus=GPUS, cpu=replace(HOST_CPU, count=64, cores=32, nodes=2)).serve_hash
    assert one.serve_hash != plan(spec, gpus=GPUS, cpu=replace(HOST_CPU, flags=("avx2",))).serve_hash


def test_host_network_changes_the_hash_by_its_waiver_alone() -> None:
    spec = with_profile(SPEC, waivers=(Waiver("host-network", "why"),))
    assert servehash.factors(plan(spec)) == {**servehash.factors(PLAN), "waivers": ["host-network"]}
