"""The launch plan as a document: it survives being written and read, and what is not one is not taken for one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.plan import LaunchPlan, Mount, PlannedCommand, PlannedGpu, Scratch, ServedModel, decode, encode
from nvllm.core.spec import GpuNeed, HostNeed, Probe, ResourceLimits, Waiver
from support import plansamples

texts = st.text(st.characters(codec="utf-8"), max_size=8)
sizes = st.integers(0, 2**53)
models = st.builds(ServedModel, texts, texts, texts, st.none() | texts)
plans = st.builds(
    LaunchPlan,
    schema=texts,
    instance=texts,
    image=texts,
    image_id=texts,
    build_hash=texts,
    profile=texts,
    dev=st.booleans(),
    serve_hash=texts,
    command=st.builds(PlannedCommand, st.tuples(texts, texts, texts), st.lists(texts, max_size=3).map(tuple)),
    environment=st.dictionaries(texts, texts, max_size=3),
    mounts=st.lists(st.builds(Mount, texts, texts), max_size=2).map(tuple),
    scratch=st.lists(st.builds(Scratch, texts, sizes), max_size=2).map(tuple),
    user=texts,
    port=sizes,
    limits=st.builds(ResourceLimits, sizes, sizes, sizes, sizes, sizes),
    host=st.builds(HostNeed, sizes),
    gpu=st.none() | st.builds(GpuNeed, st.lists(texts, max_size=2).map(tuple), texts, sizes),
    gpus=st.lists(st.builds(PlannedGpu, texts, texts, texts, texts), max_size=2).map(tuple),
    model=models,
    draft=st.none() | models,
    sentinels=st.lists(texts, max_size=2).map(tuple),
    waivers=st.lists(st.builds(Waiver, texts, texts), max_size=2).map(tuple),
    probe=st.builds(Probe, texts, sizes),
)


@given(plans)
def test_a_plan_that_is_written_and_read_is_the_same_plan(plan: LaunchPlan) -> None:
    assert decode(json.loads(canonical.pretty(encode(plan)))) == plan


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plansamples.PLAN.port = 1  # type: ignore[misc]  # that is what is tried
    assert not hasattr(plansamples.PLAN, "__dict__")


@pytest.mark.parametrize(
    "spoil",
    [{"port": "x"}, {"extra": 1}, {"command": "vllm serve"}, {"mounts": [{"source": "/a", "target": "/b", "rw": 1}]}],
)
def test_what_is_no_plan_is_not_read_as_one(spoil: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        decode({**encode(plansamples.PLAN), **spoil})


def test_a_plan_of_fewer_fields_is_none() -> None:
    others: list[Json] = [[], None, 1, "plan", {}]
    for other in others:
        with pytest.raises(ValueError):
            decode(other)
    document = encode(plansamples.PLAN)
    del document["gpus"]
    with pytest.raises(ValueError):
        decode(document)
