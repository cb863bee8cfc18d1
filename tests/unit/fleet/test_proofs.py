"""`nvllm patch prove --on`: the tests of patches on machines that have the project, and not its tests.

Registry and engines are played; workers and pytest are real, because a test that runs on the host needs no container.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from nvllm.cli.main import main
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.fleet import tasks, testfiles
from nvllm.fleet.machines import ClusterNode, MachinePool, NotCarriedError
from nvllm.fleet.proofs import ProofMachines
from nvllm.fleet.tasks import ProofAnswer, ProofTask, StatusAnswer
from nvllm.fleet.testfiles import PushedTests
from nvllm.fleet.worker import Worker
from nvllm.image.builder import ImageBuilder
from nvllm.patches import edit, seriesfile
from nvllm.patches.proved import ProofRecord
from nvllm.trials.proving import Job, Sets
from support import oci_registry
from support.buildable import IMAGE, Buildable
from support.oci_registry import NAME, Registry
from support.played_engine import PlayedEngine
from support.rows import each_row
from support.task_samples import PlayedMachines

TESTS = """\
import os
from pathlib import Path

import pytest

from helpers import patches

pytestmark = pytest.mark.nvllm_host


def test_guarded():
    assert "guard" in patches(), os.environ["NVLLM_IMAGE"]


def test_where():
    assert "key" in patches()
    assert len(os.environ["NVLLM_TASK"]) == 32
    assert not __file__.startswith("DRIVER")
    assert {path.name for path in Path(__file__).parents[2].iterdir()} == {
        "images", "manifests", "patches", "pytest.ini", "tests",
    }
"""
HELPERS = "import os\n\n\ndef patches():\n    return os.environ['NVLLM_PATCHES'].split(',')\n"
SETTINGS = "[pytest]\npythonpath = tests\naddopts = --disable-plugin-autoload\n"
NODES = ("tests/series/test_it.py::test_guarded", "tests/series/test_it.py::test_where")


@dataclass
class Fleet:
    """A driver with a PROJECT and its tests, the registry KEPT, and machines whose project has no tests."""

    made: Buildable
    kept: Registry
    carrier: PlayedMachines
    capsys: pytest.CaptureFixture[str]
    hosts: dict[str, Worker] = field(default_factory=dict)

    def add(self, directory: Path, name: str) -> None:
        root = directory / name / "project"
        shutil.copytree(self.made.project.root, root, ignore=shutil.ignore_patterns("tests", "pytest.ini"))
        engine, places = PlayedEngine(), Places(directory / name / "cache", directory / name / "state")
        self.hosts[name] = Worker(
            Project(root, self.made.project.platform),
            places,
            lambda: cast("Engine", engine),
            lambda _: self.kept.repository(),
            Silent(),
        )
        self.carrier.listed.append(ClusterNode(name, name, self.hosts[name].host))

    def carried(self, machine: ClusterNode, task: ProofTask) -> bytes:
        return tasks.answer_line(self.hosts[machine.id].answer(tasks.task_line(task)))

    def proved(self) -> list[tuple[ProofRecord, ...]]:
        """Return what machines make of the proofs of `guard`, without the command around it."""
        project = self.made.project
        series = seriesfile.of(project, "v0.28.0")
        guard = edit.carried(series, "guard", "patches/v0.28.0")
        pool = MachinePool(self.carrier, self.carrier.listed[0].label, Silent(), "add a machine")
        builder = ImageBuilder(project, self.made.places, Silent(), offline=True)
        prover = ProofMachines(pool, builder, self.kept.repository(), IMAGE, "eager")
        return list(prover.prove([Job(Sets(guard, (), ("guard",)), NODES[:1])]))

    def prove(self) -> Any:
        """Return what `patch prove --on` says of the patches."""
        registry = f"{self.kept.url.removeprefix('http://')}/{NAME}"
        argv = ["--project", str(self.made.project.root), "--platform", "linux/amd64", "patch", "prove", IMAGE]
        assert main([*argv, "--on", "ssh://one", "--registry", registry, "--json"]) == 0
        return json.loads(self.capsys.readouterr().out)["result"]["patches"]


@pytest.fixture
def fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compiled_once: None
) -> Iterator[Fleet]:
    made = Buildable(tmp_path / "driver", ("guard", "key"))
    root = made.project.root
    series = root / "patches/v0.28.0/series.yaml"
    nodes = iter(NODES)
    series.write_text(re.sub(r"proved-by: .*", lambda _: f"proved-by: ['{next(nodes)}']", series.read_text()))
    for path, text in (
        ("tests/series/test_it.py", TESTS),
        ("tests/helpers.py", HELPERS),
        ("tests/.hidden", ""),
        ("pytest.ini", SETTINGS),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text.replace("DRIVER", str(root)))
    monkeypatch.setenv("NVLLM_HOME", str(made.home))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{made.home}/no-engine")
    with oci_registry.running() as kept:
        carrier = PlayedMachines([], lambda machine, task: world.carried(machine, task))
        carried: contextlib.AbstractContextManager[PlayedMachines] = contextlib.nullcontext(carrier)
        monkeypatch.setattr("nvllm.cli.patch_prove.connected", lambda *_: carried)
        world = Fleet(made, kept, carrier, capsys)
        try:
            yield world
        finally:
            for worker in world.hosts.values():
                worker.end()


@pytest.mark.thorough
def test_patches_are_proved_at_once_on_machines_without_their_tests(fleet: Fleet, tmp_path: Path) -> None:
    fleet.add(tmp_path, "one")
    fleet.add(tmp_path, "two")
    both, carried = threading.Barrier(2, timeout=60), fleet.carrier.answer

    def together(machine: ClusterNode, task: ProofTask) -> bytes:
        both.wait()
        return carried(machine, task)

    fleet.carrier.answer = together
    patches = fleet.prove()
    assert [(patch["id"], patch["state"]) for patch in patches] == [("guard", "proved"), ("key", "proved")]
    assert {name for name, _ in fleet.carrier.carried} == {"one", "two"}
    host = fleet.carrier.listed[0].label
    assert {test["record"]["machine"] for patch in patches for test in patch["tests"]} == {host}
    written = json.loads((fleet.made.project.root / "patches/v0.28.0/proofs.json").read_bytes())
    assert [(proof["patch"], proof["machine"]) for proof in written["proofs"]] == [("guard", host), ("key", host)]
    assert written["proofs"][0]["without"]["text"].startswith("AssertionError: sha256:")
    assert [test["to_run"] for patch in fleet.prove() for test in patch["tests"]] == [False, False]
    assert len(fleet.carrier.carried) == 2
    for worker in fleet.hosts.values():
        assert list((worker.places.state / "worker").iterdir()) == []
        assert list((worker.places.state / "task").rglob("probes/*")) == []


def test_a_machine_that_is_lost_proves_nothing(fleet: Fleet, tmp_path: Path) -> None:
    fleet.add(tmp_path, "one")
    fleet.add(tmp_path, "two")
    carried = fleet.carrier.answer

    def dying(machine: ClusterNode, task: ProofTask) -> bytes:
        if machine.id == "one":
            raise NotCarriedError("it died")
        return carried(machine, task)

    fleet.carrier.answer = dying
    ((record,),) = fleet.proved()
    assert record.verdict == "proved"
    assert [(name, task.attempt) for name, task in fleet.carrier.carried] == [("one", 1), ("two", 2)]


def test_records_that_are_not_of_their_task_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    fleet.add(tmp_path, "one")
    carried, answers = fleet.carrier.answer, list[tasks.Answer]()

    def keeping(machine: ClusterNode, task: ProofTask) -> bytes:
        answers.append(tasks.answer(carried(machine, task), "one"))
        return tasks.answer_line(answers[0])

    fleet.carrier.answer = keeping
    (records,) = fleet.proved()
    (answer,) = answers
    assert isinstance(answer, ProofAnswer)
    (record,) = answer.records
    assert records == answer.records
    rows = (
        replace(answer, host="cpu-other"),
        replace(answer, records=()),
        replace(answer, records=(record, record)),
        replace(answer, records=(replace(record, machine="cpu-other"),)),
        replace(answer, records=(replace(record, patch="key"),)),
        replace(answer, records=(replace(record, node=NODES[1]),)),
        replace(answer, records=(replace(record, patch_sha256="0" * 64),)),
        replace(answer, records=(replace(record, test_sha256="0" * 64),)),
        replace(answer, records=(replace(record, verdict="passes-without"),)),
        replace(answer, records=(replace(record, whole=replace(record.whole, image=record.without.image)),)),
        StatusAnswer(answer.host, (), (), ()),
    )
    for row in rows:

        def answered(machine: ClusterNode, task: ProofTask, row: tasks.Answer = row) -> bytes:
            return tasks.answer_line(replace(row, task=task.task) if isinstance(row, ProofAnswer) else row)

        fleet.carrier.answer = answered
        with pytest.raises(Refused) as refused:
            fleet.proved()
        assert {refusal.code for refusal in refused.value.refusals} == {"NV345"}, row
    fleet.carrier.answer = lambda machine, task: tasks.answer_line(answer)  # that of another task
    with pytest.raises(Refused, match="NV345"):
        fleet.proved()


def test_proofs_that_are_lost_again_and_again_end_the_run(fleet: Fleet, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        fleet.add(tmp_path, name)

    def dying(machine: ClusterNode, task: ProofTask) -> bytes:
        raise NotCarriedError("it died")

    fleet.carrier.answer = dying
    with pytest.raises(Refused, match="NV344"):
        fleet.proved()
    assert len(fleet.carrier.carried) == 3


def test_what_a_machine_refuses_ends_the_run(fleet: Fleet, tmp_path: Path) -> None:
    fleet.add(tmp_path, "one")
    root = fleet.hosts["one"].project.root
    (root / "patches/v0.28.0/0001-guard.patch").write_text("another patch\n")
    with pytest.raises(Refused) as refused:
        fleet.proved()
    assert [(one.code, one.where.partition(":")[0]) for one in refused.value.refusals] == [("NV105", "one")]


def test_options_that_do_not_go_together_are_refused(fleet: Fleet) -> None:
    for words in (["--on", "ssh://one"], ["--registry", "a/b"], ["--on", "ssh://one", "--registry", "a/b", "--each"]):
        assert main(["--project", str(fleet.made.project.root), "patch", "prove", IMAGE, *words]) == 2
    assert "--each runs its tests here" in fleet.capsys.readouterr().err


def test_the_files_of_tests_are_one_archive_by_its_bytes(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, repository, places = fleet.made.project.root, fleet.kept.repository(), Places(tmp_path, tmp_path)
    (root / "tests/series/run.sh").write_text("#!/bin/sh\n")
    (root / "tests/series/run.sh").chmod(0o700)
    pushed = testfiles.push(root, NODES, repository, Silent())
    assert testfiles.push(root, NODES, repository, Silent()) == pushed
    assert f"tests-{pushed.digest.removeprefix('sha256:')}" in fleet.kept.manifests
    target = tmp_path / "target"
    target.mkdir()
    testfiles.bring(pushed, target, repository, places, Silent())
    files = {str(path.relative_to(target)): path for path in target.rglob("*") if path.is_file()}
    assert {*files} == {"pytest.ini", "tests/helpers.py", "tests/series/run.sh", "tests/series/test_it.py"}
    assert {name: path.stat().st_mode & 0o777 for name, path in files.items() if name.endswith((".sh", ".ini"))} == {
        "tests/series/run.sh": 0o755,
        "pytest.ini": 0o644,
    }
    monkeypatch.setattr(testfiles, "MOST", 100)
    with pytest.raises(Refused, match="NV108"):
        testfiles.push(root, NODES, repository, Silent())


@each_row("member", ["../outside", "/outside", "a/../b"])
def test_an_archive_with_another_place_is_refused(tmp_path: Path, fleet: Fleet, member: str) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(member))
    digest = f"sha256:{hashlib.sha256(data.getvalue()).hexdigest()}"
    fleet.kept.blobs[digest] = data.getvalue()
    target = tmp_path / digest
    target.mkdir()
    with pytest.raises(Refused, match="NV306"):
        testfiles.bring(
            PushedTests(digest, len(data.getvalue())),
            target,
            fleet.kept.repository(),
            Places(tmp_path, tmp_path),
            Silent(),
        )
    assert not any(target.iterdir())
