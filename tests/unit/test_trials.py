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
