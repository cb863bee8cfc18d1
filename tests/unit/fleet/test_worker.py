"""The worker: its own class, the image by digest, the trial of one machine, and nothing of it left behind.

The engine is played; `tests/fleet/test_trials.py` has a real one.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from nvllm.cache.store import TreeStore
from nvllm.cli.fleet import lines
from nvllm.core.paths import Places
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.fleet import candidates, images, tasks
from nvllm.fleet.tasks import (
    MOST_EVIDENCE,
    MOST_LINE,
    BootAnswer,
    BootTask,
    ReadyAnswer,
    ReadyTask,
    RefusedAnswer,
    ServedProfile,
    StatusAnswer,
    StatusTask,
    TrialAnswer,
    TrialTask,
)
from nvllm.fleet.worker import Worker
from nvllm.host import locks
from nvllm.host.facts import TASK_LABEL, ContainerFact
from nvllm.host.locks import HeldLocks, Holder, Key
from nvllm.image import identity
from nvllm.image.builder import ImageBuilder
from nvllm.image.identity import Build
from nvllm.serve import startup
from nvllm.serve.examination import Depth, Examination
from nvllm.serve.fresh import FreshInstances
from nvllm.trials import probe
from support import bless_world, oci_registry
from support.buildable import IMAGE, Buildable
from support.oci_registry import Registry
from support.plansamples import FrontEnd
from support.played_engine import PlayedEngine
from support.task_samples import TASK


@dataclass
class Site:
    """A project, its image in a registry, and a host with a worker; SAID is where the probe writes."""

    made: Buildable
    kept: Registry
    engine: PlayedEngine
    task: TrialTask
    places: Places
    said: Path

    def worker(self) -> Worker:
        engine = cast("Engine", self.engine)
        return Worker(self.made.project, self.places, lambda: engine, lambda _: self.kept.repository(), Silent())

    def answer(self, **fields: Any) -> tasks.Answer:
        worker = self.worker()
        try:
            return worker.answer(tasks.task_line(replace(self.task, **fields)))
        finally:
            worker.end()

    def refused(self, **fields: Any) -> list[str]:
        found = self.answer(**fields)
        assert isinstance(found, RefusedAnswer)
        return [one.code for one in found.refusals]


@pytest.fixture
def site(tmp_path: Path, buildable: Buildable) -> Iterator[Site]:
    made, said = buildable, tmp_path / "said"
    build, _ = identity.load_build(made.project, IMAGE, ["guard"])
    program = tmp_path / "probe"
    program.write_text(f'#!/bin/sh\necho "$NVLLM_PATCHES $NVLLM_TASK" | tee {said}\nexit 3\n')
    program.chmod(0o755)
    engine, places = PlayedEngine(), Places(tmp_path / "other/cache", tmp_path / "other/state")
    with oci_registry.running() as kept:
        image = ImageBuilder(made.project, made.places, Silent(), offline=True).image(build)
        pushed = images.push_image(image, images.tag_of(build), kept.repository())
        task = replace(
            TASK,
            image=IMAGE,
            build_hash=build.build_hash,
            manifest=pushed.digest,
            test=probe.program(program, (), "", build_only=True),
            program=base64.b64encode(program.read_bytes()).decode(),
        )
        found = Site(made, kept, engine, task, places, said)
        found.task = replace(task, host=found.worker().host)
        yield found


def test_a_trial_comes_back_with_its_evidence(site: Site) -> None:
    found = site.answer()
    assert isinstance(found, TrialAnswer), found
    assert (found.task, found.host, found.outcome, found.kind) == (site.task.task, site.task.host, "bad", "exit 3")
    assert found.bytes == site.said.read_bytes() == f"guard {site.task.task}\n".encode()
    assert tasks.answer(tasks.answer_line(found), "here") == found
    assert site.engine.labels == {TASK_LABEL: site.task.task}
    assert site.engine.tags == [f"nvllm:{IMAGE}-{site.task.build_hash[:12]}"]  # not the one of the newest build
    assert list((site.places.state / "worker").iterdir()) == []
    assert locks.status(site.places.locks) == ()


def test_a_task_of_another_class_runs_nothing(site: Site) -> None:
    assert site.refused(host="cpu-x86_64-000000000000") == ["NV342"]
    assert not site.said.exists()
    assert site.engine.loaded == {}


def test_another_project_builds_another_image(site: Site) -> None:
    assert site.refused(build_hash="0" * 64) == ["NV332"]


def test_another_probe_than_the_named_one_is_not_run(site: Site) -> None:
    assert site.refused(program=base64.b64encode(b"#!/bin/sh\ntouch /tmp/other\n").decode()) == ["NV341"]
    assert not site.said.exists()


def test_an_image_that_the_registry_does_not_have(site: Site) -> None:
    assert site.refused(manifest=f"sha256:{'0' * 64}") == ["NV331"]


def test_what_the_host_is_to_blame_for_is_no_verdict(site: Site) -> None:
    began = Holder(1, "2026-11-22T00:00:00Z", "another")
    with locks.acquire_all(site.places.locks, [Key("worker", "host")], began), pytest.MonkeyPatch.context() as patch:
        patch.setattr("nvllm.fleet.worker.PREDECESSOR", 0.0)
        assert site.refused() == ["NV508"]


def test_evidence_has_a_bound(site: Site, tmp_path: Path) -> None:
    loud = tmp_path / "loud"
    loud.write_text("#!/bin/sh\nhead -c 1048577 /dev/zero\n")
    loud.chmod(0o755)
    test = probe.program(loud, (), "", build_only=True)
    assert site.refused(test=test, program=base64.b64encode(loud.read_bytes()).decode()) == ["NV345"]


@dataclass
class BlessSite:
    """A host that boots for a bless: its worker, the tree that another host compiled, and the TASK."""

    site: Site
    task: BootTask
    engine: bless_world.FakeEngine

    def answer(self, task: tasks.Task) -> tasks.Answer:
        worker = self.site.worker()
        try:
            return worker.answer(tasks.task_line(task))
        finally:
            worker.end()

    def refused(self, task: tasks.Task) -> list[str]:
        found = self.answer(task)
        assert isinstance(found, RefusedAnswer), found
        return sorted({one.code for one in found.refusals})

    def serving(self, **fields: Any) -> BootTask:
        return replace(self.task, served=replace(self.task.served, **fields))


@pytest.fixture
def blessed(site: Site, tmp_path: Path, front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> Iterator[BlessSite]:
    monkeypatch.setattr(startup, "POLL", 0.005)
    build, _ = identity.load_build(site.made.project, IMAGE, None)
    image = ImageBuilder(site.made.project, site.made.places, Silent(), offline=True).image(build)
    pushed = images.push_image(image, images.tag_of(build), site.kept.repository())
    with bless_world.world(tmp_path / "driver", front) as made:
        compiled = made.work.bootstrap(Silent())
        digest = candidates.push_candidate(
            compiled.tree, "demo-eager", "", "linux/amd64", made.places, site.kept.repository(), Silent()
        )

        @contextlib.contextmanager
        def examined(
            _instances: FreshInstances, _build: Build, _profile: str, _depth: Depth
        ) -> Iterator[tuple[Examination, HeldLocks]]:
            yield made.found, made.work.held_locks

        monkeypatch.setattr(FreshInstances, "examined", examined)
        served = ServedProfile(
            IMAGE, "eager", build.build_hash, site.task.repository, pushed.digest, site.task.host,
            made.found.plan.serve_hash,
        )  # fmt: skip
        yield BlessSite(site, BootTask("2" * 32, 1, 2, served, digest, compiled), made.engine)


def test_a_boot_comes_back_with_its_log(blessed: BlessSite) -> None:
    found = blessed.answer(blessed.task)
    assert isinstance(found, BootAnswer), found
    assert (found.task, found.host, found.serve_hash) == (
        blessed.task.task, blessed.task.served.host, blessed.task.served.serve_hash,
    )  # fmt: skip
    assert found.record.number == 2
    assert found.record.good
    assert b"Directly load AOT compilation" in found.bytes
    assert tasks.answer(tasks.answer_line(found), "here") == found
    TreeStore(blessed.site.places.trees).verify(blessed.task.compiled.tree, "")
    assert list(blessed.site.places.blessing.iterdir()) == []
    assert blessed.site.engine.labels == {TASK_LABEL: blessed.task.task}


def test_a_host_that_is_ready_starts_nothing(blessed: BlessSite) -> None:
    found = blessed.answer(ReadyTask("2" * 32, blessed.task.served))
    assert found == ReadyAnswer("2" * 32, blessed.task.served.host, blessed.task.served.serve_hash)
    assert blessed.site.engine.loaded
    assert blessed.engine.plans == []


def test_a_boot_on_another_class_build_or_serve_hash_starts_nothing(blessed: BlessSite) -> None:
    assert blessed.refused(blessed.serving(host="cpu-x86_64-000000000000")) == ["NV342"]
    assert blessed.refused(blessed.serving(build_hash="0" * 64)) == ["NV332"]
    assert blessed.refused(blessed.serving(serve_hash="0" * 64)) == ["NV332"]
    assert blessed.engine.plans == []


def test_a_candidate_that_was_tampered_with_starts_nothing(blessed: BlessSite) -> None:
    compiled = blessed.task.compiled
    file = replace(compiled.tree.files[0], sha256="0" * 64)
    other = replace(compiled, tree=replace(compiled.tree, files=(file, *compiled.tree.files[1:])))
    assert blessed.refused(replace(blessed.task, compiled=other)) == ["NV907"]
    assert blessed.engine.plans == []


def test_a_boot_that_compiles_is_refused_and_its_log_stays(blessed: BlessSite) -> None:
    blessed.engine.warm = (*blessed.engine.warm, bless_world.SAVED)
    assert blessed.refused(blessed.task) == ["NV912"]
    assert len(list(blessed.site.places.blessing.glob("*/1/trial-2/engine.log"))) == 1


def test_a_log_has_a_bound(blessed: BlessSite) -> None:
    blessed.engine.warm = ("x" * (MOST_EVIDENCE + 1), *blessed.engine.warm)
    assert blessed.refused(blessed.task) == ["NV345"]


def container(name: str, task: str) -> ContainerFact:
    return ContainerFact(name, {TASK_LABEL: task}, running=True, id=f"id-{name}")


def test_containers_of_its_own_tasks_are_swept_and_no_others(site: Site) -> None:
    """A worker of this home was killed in the task `a...`; `b...` is one of another home on the same engine."""
    notes = site.places.state / "worker"
    notes.mkdir(parents=True)
    (notes / ("a" * 32)).touch()
    site.engine.running = [container("mine", "a" * 32), container("theirs", "b" * 32)]
    status = site.worker().answer(tasks.task_line(StatusTask()))
    assert isinstance(status, StatusAnswer)
    assert status.orphans == ("mine",)
    assert isinstance(site.answer(), TrialAnswer)
    assert [one.name for one in site.engine.running] == ["theirs"]


def test_a_status_takes_no_lock_and_sweeps_nothing(site: Site) -> None:
    with locks.acquire_all(site.places.locks, [Key("worker", "host")], Holder(1, "2026-11-22T00:00:00Z", "a worker")):
        found = site.worker().answer(tasks.task_line(StatusTask()))
    assert found == StatusAnswer(site.task.host, (), ("worker host",), ())


@pytest.mark.parametrize("line", [b"{}\n", b"\0\n", json.dumps({"ask": "trial"}).encode(), b"9" * (MOST_LINE + 1)])
def test_a_bad_line_is_answered_with_its_refusals(site: Site, line: bytes) -> None:
    found = site.worker().answer(line)
    assert isinstance(found, RefusedAnswer)
    assert {one.code for one in found.refusals} == {"NV341"}


def test_a_line_that_is_too_long_is_one_bad_line() -> None:
    stream = io.BytesIO(b"a" * (3 * MOST_LINE) + b"\nnext\n\nlast")
    first, *others = lines(stream)
    assert len(first) == MOST_LINE + 1
    assert others == [b"next\n", b"\n", b"last"]


def test_refused_names_the_task(site: Site) -> None:
    found = site.answer(host="cpu-other")
    assert isinstance(found, RefusedAnswer)
    assert found.task == site.task.task
    with pytest.raises(Refused, match="NV342"):
        raise tasks.refusals(found, "gb10")
