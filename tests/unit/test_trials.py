"""Trials: what a set is blamed for, how the program is run, and what the host is.

The engine itself is the end-to-end tests' affair; what is here needs none.
"""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from host_samples import HOST
from nvllm import probe, trials
from nvllm.refusal import Refusal, Refused
from nvllm.spec import GpuNeed, HostNeed
from plansamples import SPEC


def refused(*codes: str) -> Refused:
    return Refused(Refusal(code, "somewhere", "this", "that", "do it") for code in codes)


@pytest.mark.parametrize(
    ("codes", "stage"),
    [(["NV301"], "apply"), (["NV208"], "build"), (["NV703"], "boot"), (["NV703", "NV301"], "apply")],
)
def test_what_a_set_is_to_blame_for_makes_it_untestable(codes: list[str], stage: str) -> None:
    trial = trials.blamed(refused(*codes), 1.0)
    assert (trial.outcome, trial.stage, trial.kind) == ("untestable", stage, " ".join(sorted(codes)))


@pytest.mark.parametrize("codes", [["NV510"], ["NV301", "NV506"]])
def test_what_the_host_is_to_blame_for_stops_the_bisect(codes: list[str]) -> None:
    with pytest.raises(Refused):
        trials.blamed(refused(*codes), 1.0)


def test_the_program_is_told_what_it_judges(tmp_path: Path) -> None:
    path, log = tmp_path / "probe.sh", tmp_path / "engine.log"
    said = tmp_path / "said"
    path.write_text(f'#!/bin/sh\necho "$NVLLM_IMAGE $NVLLM_PATCHES $NVLLM_ADDRESS" > {said}\nexit 7\n')
    path.chmod(0o755)
    log.write_text("RuntimeError: wrong answer\n")
    test = probe.program(path, (), "log=wrong answer", build_only=False)
    environment = {"NVLLM_IMAGE": "sha256:1", "NVLLM_PATCHES": "a,b", "NVLLM_ADDRESS": "http://127.0.0.1:9"}
    trial = trials.run_probe(test, environment, log, time.monotonic())
    assert (trial.outcome, trial.kind) == ("bad", "log=wrong answer")
    assert said.read_text() == "sha256:1 a,b http://127.0.0.1:9\n"
    assert len(trial.evidence) == 64


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", trials.free_port()))


def test_hosts_are_alike_by_what_computes() -> None:
    assert trials.host_class(replace(HOST, gpus=())).startswith("cpu-")
    assert trials.host_class(HOST) == trials.host_class(replace(HOST, gpus=HOST.gpus * 2))


GIB = 1 << 30
PROFILE = replace(next(iter(SPEC.profiles.values())), gpu=None, host=HostNeed(3 * GIB))


@pytest.mark.parametrize(
    ("available", "wanted", "runs"), [(16 * GIB, 4, 4), (7 * GIB, 4, 2), (GIB, 4, 1), (None, 4, 4), (GIB, 1, 1)]
)
def test_as_many_trials_as_there_is_memory_for(available: int | None, wanted: int, runs: int) -> None:
    found, why = trials.at_once(wanted, PROFILE, replace(HOST, mem_available=available))
    assert found == runs
    assert bool(why) == (runs < wanted)


def test_one_gpu_one_trial() -> None:
    profile = replace(PROFILE, gpu=GpuNeed(("12.0",), "580.00"))
    assert trials.at_once(4, profile, HOST) == (1, "one GPU, one trial")
    assert trials.at_once(1, profile, HOST) == (1, "")
