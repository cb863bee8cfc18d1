"""Trials: what a set is blamed for, how the program is run, and what the host is.

The engine itself is the end-to-end tests' affair; what is here needs none.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, cast

import pytest

from nvllm.core import proc
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import GpuNeed, HostNeed
from nvllm.engine.engine import Engine
from nvllm.image.identity import Build
from nvllm.patches.series import Sentinel, Series
from nvllm.serve.fresh import FreshInstances
from nvllm.trials import bench, probe
from nvllm.trials.trial import Built
from support import locks
from support.host_samples import HOST
from support.plansamples import PLAN, SPEC, front_end, places, project, write_lock
from support.rows import each_row


def refused(*codes: str) -> Refused:
    return Refused(Refusal(code, "somewhere", "this", "that", "do it") for code in codes)


@each_row(
    ("codes", "stage"),
    [
        (["NV301"], "apply"),
        (["NV208"], "build"),
        (["NV313", "NV314"], "build"),
        (["NV703"], "boot"),
        (["NV703", "NV301"], "apply"),
    ],
)
def test_what_a_set_is_to_blame_for_makes_it_untestable(codes: list[str], stage: str) -> None:
    trial = bench.blamed(refused(*codes), 1.0).trial
    assert (trial.outcome, trial.stage, trial.kind) == ("untestable", stage, " ".join(sorted(codes)))


@each_row("codes", [["NV510"], ["NV301", "NV506"]])
def test_what_the_host_is_to_blame_for_stops_the_bisect(codes: list[str]) -> None:
    with pytest.raises(Refused):
        bench.blamed(refused(*codes), 1.0)


def test_a_program_asks_the_engine_that_holds_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = tmp_path / "probe.sh", tmp_path / "said"
    path.write_text(f'#!/bin/sh\necho "$DOCKER_HOST $DOCKER_TLS_VERIFY $DOCKER_CERT_PATH $HF_TOKEN" > {said}\n')
    path.chmod(0o755)
    given = {"DOCKER_HOST": "tcp://there:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/certs"}
    for name, value in (given | {"HF_TOKEN": "secret"}).items():
        monkeypatch.setenv(name, value)
    test = probe.program(path, (), "", build_only=True)
    assert bench.run_probe(test, {}, Path("/dev/null"), time.monotonic(), proc.Programs()).trial.outcome == "good"
    assert said.read_text() == "tcp://there:2376 1 /certs \n"


def test_the_program_is_told_what_it_judges(tmp_path: Path) -> None:
    path, log = tmp_path / "probe.sh", tmp_path / "engine.log"
    said = tmp_path / "said"
    path.write_text(f'#!/bin/sh\necho "$NVLLM_IMAGE $NVLLM_PATCHES $NVLLM_ADDRESS" > {said}\nexit 7\n')
    path.chmod(0o755)
    log.write_text("RuntimeError: wrong answer\n")
    test = probe.program(path, (), "log=wrong answer", build_only=False)
    environment = {"NVLLM_IMAGE": "sha256:1", "NVLLM_PATCHES": "a,b", "NVLLM_ADDRESS": "http://127.0.0.1:9"}
    trial = bench.run_probe(test, environment, log, time.monotonic(), proc.Programs()).trial
    assert (trial.outcome, trial.kind) == ("bad", "log=wrong answer")
    assert said.read_text() == "sha256:1 a,b http://127.0.0.1:9\n"
    assert len(trial.evidence) == 64


GIB = 1 << 30
PROFILE = replace(next(iter(SPEC.profiles.values())), gpu=None, host=HostNeed(3 * GIB))


@each_row(("available", "wanted", "runs"), [(16 * GIB, 4, 4), (7 * GIB, 4, 2), (GIB, 4, 1), (None, 4, 4), (GIB, 1, 1)])
def test_as_many_trials_as_there_is_memory_for(available: int | None, wanted: int, runs: int) -> None:
    found, why = bench.at_once(wanted, PROFILE, replace(HOST, mem_available=available))
    assert found == runs
    assert bool(why) == (runs < wanted)


def test_a_trial_names_the_sentinels_that_its_set_reads() -> None:
    reader = replace(locks.patch("reader"), reads_sentinels=True)
    drain, zeroer = (replace(locks.patch(name), sentinel=Sentinel(name)) for name in ("drain", "zeroer"))
    series = Series("nvllm.series/1", "v1", "1.0", "0" * 40, (reader, drain, zeroer))
    (name, profile), *_ = SPEC.profiles.items()
    spec = replace(SPEC, profiles={**SPEC.profiles, name: replace(profile, sentinels=("zeroer", "drain"))})
    for patches, kept in (
        ((reader, drain, zeroer), ("zeroer", "drain")),
        ((reader, drain), ("drain",)),
        ((drain, zeroer), ()),
        ((), ()),
    ):
        build = bench.with_own_sentinels(Build(spec, locks.GOOD, patches), name, series)
        assert build.spec.profiles[name].sentinels == kept
        assert build.build_hash == Build(spec, locks.GOOD, patches).build_hash


def test_one_gpu_one_trial() -> None:
    profile = replace(PROFILE, gpu=GpuNeed(("12.0",), "580.00"))
    assert bench.at_once(4, profile, HOST) == (1, "one GPU, one trial")
    assert bench.at_once(1, profile, HOST) == (1, "")


class NoContainers:
    """An engine on which nothing runs."""

    def containers(self) -> tuple[()]:
        return ()


def test_what_is_cleared_ends_the_probe_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is neither an image nor an engine here; the probe is a program that runs."""
    path, began = tmp_path / "probe.sh", tmp_path / "began"
    path.write_text(f"#!/bin/sh\ntouch {began}\nsleep 60\n")
    path.chmod(0o755)
    test = probe.program(path, (), "", build_only=True)
    trying = bench.EngineBench(
        project(tmp_path), places(tmp_path), "demo", "eager", test, cast("Engine", NoContainers())
    )
    monkeypatch.setattr(trying, "ensure_image", lambda build: "image")
    write_lock(trying.project)
    ended: list[Refused] = []

    def trial() -> None:
        try:
            trying.trial(Built((), "", "", "image", 0.0))
        except Refused as refused:
            ended.append(refused)

    thread = threading.Thread(target=trial)
    thread.start()
    while not began.exists():
        time.sleep(0.01)
    trying.clear()
    thread.join(10)
    assert not thread.is_alive()
    assert [one.refusals[0].found for one in ended] == ["signal 15"]


@each_row(
    ("name", "code", "verdict"),
    [
        ("boots", "NV703", ("bad", None)),
        ("boots", "NV301", ("untestable", "apply")),
        ("coherent", "NV703", ("untestable", "boot")),
        ("aot-loads", "NV703", ("untestable", "boot")),
    ],
)
def test_only_who_asks_whether_it_boots_blames_a_set_for_an_engine_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, verdict: tuple[str, str | None]
) -> None:
    class Refusing(FreshInstances):
        def examined(self, *_: object) -> NoReturn:
            raise refused(code)

    monkeypatch.setattr(bench, "FreshInstances", Refusing)
    there = tmp_path / f"{name}-{code}"
    there.mkdir()
    own, test = project(there), probe.builtin(name, ())
    trying = bench.EngineBench(own, places(there), "demo", "eager", test, cast("Engine", NoContainers()))
    monkeypatch.setattr(trying, "ensure_image", lambda build: "image")
    write_lock(own)
    trial = trying.trial(Built((), "", "", "image", 0.0))
    assert (trial.outcome, trial.stage) == verdict
    assert 0 <= trial.seconds < 60


@pytest.mark.parametrize(("name", "questions"), [("coherent", 3), ("golden", 1)])
def test_what_compares_texts_asks_greedily(tmp_path: Path, name: str, questions: int) -> None:
    """A model that is served with a temperature would differ by chance, and the wrong patch be found."""
    answer = tmp_path / "answer"
    answer.write_text(" fox\n")
    test = probe.builtin(name, (str(answer),) if name == "golden" else ())
    with front_end() as front:
        trial = bench.ask(test, replace(PLAN, port=front.port), time.monotonic()).trial
        front.body = front.body.replace(b" fox", b" cat")
        other = bench.ask(test, replace(PLAN, port=front.port), time.monotonic()).trial
    asked = [json.loads(one) for one in front.asked]
    assert [one["temperature"] for one in asked] == [0] * 2 * questions
    assert (trial.outcome, other.outcome) == ("good", "bad" if name == "golden" else "good")
    if name == "coherent":
        assert asked[0] == asked[2] != asked[1]


def test_a_golden_answer_is_compared_as_it_is_written(tmp_path: Path) -> None:
    """A model may well say a carriage return; only the newline that an editor leaves at the end is no part of it."""
    answer = tmp_path / "answer"
    answer.write_bytes("fo\rx \ufffd\n".encode())
    with front_end() as front:
        front.body = front.body.replace(b" fox", "fo\\rx \ufffd".encode())
        test = probe.builtin("golden", (str(answer),))
        trial = bench.ask(test, replace(PLAN, port=front.port), time.monotonic()).trial
    assert trial.outcome == "good"
