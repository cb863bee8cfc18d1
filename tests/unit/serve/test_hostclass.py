"""The class of a host: what the serve hash knows changes it, and nothing else does."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from nvllm.host.facts import Cpu, Gpu, HostFacts
from nvllm.serve.hostclass import host_class
from support.host_samples import HOST

GPU = Gpu(0, "GPU-1", "NVIDIA GB10", "12.1", "580.95.05")
CPU = Cpu("x86_64", "GenuineIntel 6 143", ("avx2", "avx512f"), 8, 4, 1)
BARE = replace(HOST, cpu=CPU, gpus=())
WITH_GPU = replace(BARE, gpus=(GPU,))


def test_avx2_and_avx512_never_share_a_verdict() -> None:
    assert host_class(BARE) != host_class(replace(BARE, cpu=replace(CPU, flags=("avx2",))))


@pytest.mark.parametrize(
    "other",
    [
        replace(BARE, cpu=replace(CPU, kind="AuthenticAMD 25 1")),
        replace(BARE, cpu=replace(CPU, machine="aarch64")),
        replace(BARE, cpu=replace(CPU, cores=2)),
        WITH_GPU,
    ],
)
def test_what_the_serve_hash_knows_changes_the_class(other: HostFacts) -> None:
    assert host_class(other) != host_class(BARE)


@pytest.mark.parametrize("gpu", [replace(GPU, name="NVIDIA H100"), replace(GPU, driver="590.1")])
def test_another_gpu_or_driver_is_another_class(gpu: Gpu) -> None:
    assert host_class(replace(WITH_GPU, gpus=(gpu,))) != host_class(WITH_GPU)


@pytest.mark.parametrize(
    "other",
    [
        replace(WITH_GPU, gpus=(GPU, replace(GPU, index=1, uuid="GPU-2"))),
        replace(WITH_GPU, cpu=replace(CPU, count=16, cores=8)),
        replace(WITH_GPU, mem_available=1, uid=7),
    ],
)
def test_nothing_else_does(other: HostFacts) -> None:
    assert host_class(other) == host_class(WITH_GPU)


def test_a_class_is_a_value_that_a_label_takes() -> None:
    assert re.fullmatch(r"gpu-x86_64-[0-9a-f]{12}", host_class(WITH_GPU))
