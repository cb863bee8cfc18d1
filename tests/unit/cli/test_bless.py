"""`nvllm bless` through the command line: what it asks for, refuses, shows and writes.

The container engine is the one of `bless_world`, which is made up, and so is what was found of the host.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from nvllm.cache import manifest, promotion
from nvllm.cache.blessings import Blessings
from nvllm.cache.store import TreeStore
from nvllm.cli.main import main
from nvllm.core import clock, workload
from nvllm.core.paths import Project
from nvllm.core.spec import BlessRules
from nvllm.engine.engine import Engine
from nvllm.fleet import tasks
from nvllm.fleet.images import Pushed
from nvllm.fleet.machines import ClusterNode
from nvllm.fleet.tasks import BootTask, ReadyAnswer, ReadyTask
from nvllm.gc.projects import Projects
from nvllm.host import survey
from nvllm.image.builder import ImageBuilder
from nvllm.serve import hostclass, startup
from nvllm.serve.examination import Examination
from support import bless_world, blessings_world, evaluated
from support.bless_world import FakeEngine, examined
from support.plansamples import FrontEnd, places
from support.ssh_stand_in import SAYS_HELLO, Hosts
from support.task_samples import HOST, LOG, PlayedMachines, booted

BLESS = ("bless", "demo", "--profile", "eager")
FEW = (*BLESS, "--unsafe-trials", "2")
"""What blesses where the number of fresh boots does not matter; each takes a fifth of a second."""
ON = ("--on", "ray://head", "--registry", "127.0.0.1:5000/nvllm")


@dataclass
class World:
    """A project, and what an examination of its profile finds."""

    root: Path
    found: Examination
    engine: FakeEngine
    front: FrontEnd


@pytest.fixture
def rules() -> BlessRules:
    return BlessRules()


@pytest.fixture
def world(tmp_path: Path, front: FrontEnd, rules: BlessRules, monkeypatch: pytest.MonkeyPatch) -> World:
    found, engine = examined(front, rules)
    monkeypatch.setattr(startup, "POLL", 0.005)
    monkeypatch.setattr(workload, "SETTINGS", workload.SETTINGS[:1])  # the tests of bless ask more of them
    monkeypatch.setattr("nvllm.cli.bless.examine", lambda *_, **__: found)
    for directory in ("images", "manifests"):
        (tmp_path / "project" / directory).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    return World(tmp_path / "project", found, engine, front)


def said(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> Any:
    assert main(["--json", *argv]) == status
    printed = json.loads(capsys.readouterr().out)
    return printed["result"] if status == 0 else [(one["code"], one["where"]) for one in printed["refusals"]]


def key(directory: Path, name: str) -> str:
    place = directory / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", place], check=True)
    return str(place)


def test_a_bless_as_text(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*BLESS, "--expires", "30d"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("blessed: demo-eager v1, 5 of 5 fresh boots good: at least 54 % of boots are")
    assert " Until 20" in captured.out
    lines = captured.err.splitlines()
    assert lines[0] == "bootstrap: starting"
    good = [line for line in lines if ": good, start " in line]
    assert [line.partition(":")[0] for line in good] == [f"trial {number} of 5" for number in range(1, 6)]
    assert all(line.endswith(", answers 12, KV tokens 52428, peak memory 1024 MiB, compiled 0") for line in good)
    assert [*Projects(places(tmp_path).projects).roots().values()] == [world.root]


@pytest.mark.parametrize("rules", [evaluated.TEN])
def test_a_bless_that_is_evaluated(
    world: World, front: FrontEnd, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert said(capsys, *BLESS, status=2) == [("NV109", evaluated.FILE)]
    assert world.engine.benches == []
    root = evaluated.project(tmp_path)
    front.at_request = evaluated.answering(front, root, right=8)
    assert [code for code, _ in said(capsys, *FEW, status=1)] == ["NV918"]
    front.at_request = evaluated.answering(front, root, right=9)
    result = said(capsys, *FEW)
    assert result["evaluation"] == [f"{evaluated.FILE}: 9 of 10 correct"]
    assert main(["manifest", "show", result["label"]]) == 0
    assert f"9 of 10 correct, at least 9/10 asked for; {evaluated.FILE}, sha256 " in capsys.readouterr().out
    shown = said(capsys, "manifest", "show", result["label"])["manifest"]["trials"]
    assert [one.get("evaluation", {}).get("correct") for one in shown] == [9, None]


def test_a_candidate_is_blessed_by_its_trials_alone(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    store = places(world.root.parent)
    tree = TreeStore(store.trees).adopt(blessings_world.cache(world.root.parent / "sent"), "cure")
    blessings = Blessings.of_project(Project(world.root), store)
    candidate = blessings_world.bless(tree, world.found.plan, version=10**9)
    promotion.offer(blessings, candidate)
    option = ("--candidate", tree.hash[:12])
    assert said(capsys, *BLESS, "--candidate", "0123456789ab", status=2) == [("NV107", "--candidate")]
    for other in ("--extend", *ON[:1]):
        words = (other,) if other == "--extend" else ON
        assert said(capsys, *BLESS, *option, *words, status=2) == [("NV108", "nvllm bless")]
    result = said(capsys, *BLESS, *option)
    assert (result["version"], result["tree_hash"], result["boots"]) == (1, tree.hash, 5)
    assert world.engine.benches == []
    assert blessings.candidates() == ()
    assert blessings.trees() == {tree.hash}


@pytest.fixture
def spread(world: World, monkeypatch: pytest.MonkeyPatch) -> PlayedMachines:
    """A cluster with a machine of this class and one of another, and a registry that takes everything."""
    host = hostclass.host_class(survey.host_facts(places(world.root.parent), cast("Engine", world.engine)))

    def answer(machine: ClusterNode, task: BootTask | ReadyTask) -> bytes:
        if isinstance(task, ReadyTask):
            return tasks.answer_line(ReadyAnswer(task.task, host, task.served.serve_hash))
        path = next(one.path for one in task.compiled.tree.files if one.path.endswith("/model"))
        return tasks.answer_line(booted(task, LOG.replace(b"a/model", path.encode()), host))

    carrier = PlayedMachines([ClusterNode("1", "one", host), ClusterNode("2", "other", "cpu-other")], answer)
    carried: contextlib.AbstractContextManager[PlayedMachines] = contextlib.nullcontext(carrier)
    monkeypatch.setattr("nvllm.cli.bless.connected", lambda *_: carried)
    monkeypatch.setattr(ImageBuilder, "image", lambda *_: None)
    pushed = Pushed("the tag", f"sha256:{'c' * 64}", 0, 0)
    monkeypatch.setattr("nvllm.fleet.images.push_image", lambda *_: pushed)
    monkeypatch.setattr("nvllm.fleet.candidates.push_candidate", lambda *_: f"sha256:{'f' * 64}")
    return carrier


def test_trials_on_other_machines_are_in_the_manifest(
    world: World, spread: PlayedMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, *BLESS, *ON)
    assert found["machines"] == [None, *["one"] * 4]
    assert found["boots"] == 5
    assert len(world.engine.plans) == 1
    assert {name for name, _ in spread.carried} == {"1"}
    new = manifest.read(world.root / found["file"], found["file"])
    assert [one.machine.name if one.machine is not None else None for one in new.trials] == found["machines"]
    assert main(["manifest", "show", found["label"]]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines() if " yes " in line]
    assert [line[-1] for line in table] == ["here", *["one"] * 4]


def test_a_dry_run_says_where_and_does_nothing(
    world: World, spread: PlayedMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, *BLESS, *ON, "--dry-run")
    assert (found["boots"], found["boots_here"], found["machines"]) == (5, 1, ["one"])
    assert main([*BLESS, *ON, "--dry-run"]) == 0
    assert "the compile and trial 1 here; trials 2 to 5 on one" in capsys.readouterr().out
    assert said(capsys, *BLESS, "--dry-run")["boots_here"] == 5
    assert (spread.carried, world.engine.benches) == ([], [])


def test_without_a_machine_of_the_class_nothing_is_compiled(
    world: World, spread: PlayedMachines, capsys: pytest.CaptureFixture[str]
) -> None:
    spread.dead.add("1")
    assert [code for code, _ in said(capsys, *BLESS, *ON, status=3)] == ["NV343"]
    assert world.engine.benches == []


def test_hosts_over_ssh_are_greeted_before_anything(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ssh is a stand-in that runs the command here, in another HOME."""
    host = hostclass.host_class(survey.host_facts(places(tmp_path), cast("Engine", world.engine)))
    hosts = Hosts(tmp_path / "between")
    hosts.install()
    monkeypatch.setenv("PATH", str(hosts.bin), prepend=":")
    hosts.add("spark", SAYS_HELLO.replace(HOST, host), "cat > /dev/null")
    repository = ("--registry", "127.0.0.1:5000/nvllm")
    result = said(capsys, *BLESS, "--on", "ssh://spark/srv/mine", *repository, "--dry-run")
    assert (result["boots_here"], result["machines"]) == (1, ["spark"])
    assert said(capsys, *BLESS, "--on", "ssh://spark,ssh://off", *repository, status=1) == [("NV923", "ssh://off")]
    assert world.engine.benches == []


@pytest.mark.parametrize("words", [ON[:2], ON[2:]])
def test_on_and_registry_go_together(world: World, words: tuple[str, ...]) -> None:
    assert main([*BLESS, *words]) == 2


def test_json_is_one_document_and_the_lines_stay(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BLESS, "--unsafe-trials", "1", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)["result"]
    assert (result["boots"], result["unsafe"], result["expires"], result["signed"]) == (1, True, None, False)
    assert "trial 1 of 1: good, " in captured.err


@pytest.mark.parametrize("rules", [BlessRules(valid_days=30)])
def test_the_end_of_a_bless(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    few = (*BLESS, "--unsafe-trials", "1")
    assert said(capsys, *few, "--expires", "31d", status=2) == [("NV108", "--expires")]
    assert said(capsys, *few, "--expires", "yesterday", status=2) == [("NV108", "--expires")]
    assert world.engine.benches == [], "nothing was started"
    by_rule = clock.seconds(said(capsys, *few)["expires"])
    assert abs(by_rule - time.time() - 30 * manifest.DAY) < 60
    by_word = clock.seconds(said(capsys, *few, "--rebless", "--expires", "12h")["expires"])
    assert abs(by_word - time.time() - 12 * 3600) < 60


@pytest.mark.parametrize("rules", [BlessRules(signers="manifests/allowed_signers")])
def test_a_profile_that_requires_a_signature(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, stranger = key(tmp_path, "ours"), key(tmp_path, "stranger")
    signers = world.root / "manifests/allowed_signers"
    signers.write_text(f"ops@example.org {Path(ours + '.pub').read_text()}")
    signers.chmod(0o644)
    assert said(capsys, *BLESS, status=3) == [("NV909", "--sign")]
    assert said(capsys, *BLESS, "--sign", stranger, status=3) == [("NV909", f"--sign {stranger}")]
    assert world.engine.benches == [], "nothing was started"
    assert said(capsys, *BLESS, "--sign", ours)["signed"] is True
    assert said(capsys, "manifest", "show", "demo-eager")["signed"] is True
    assert said(capsys, "manifest", "verify", "demo-eager", "--signers", str(signers))["signer"] == "ops@example.org"


def test_a_blessing_is_extended_or_replaced_and_there_must_be_one(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    few = (*BLESS, "--unsafe-trials", "1")
    assert said(capsys, *few, "--rebless", "--extend", status=2) == [("NV108", "nvllm bless")]
    assert said(capsys, *few, "--extend", status=2) == [("NV108", "--extend")]
    assert world.engine.benches == [], "nothing was started"


def rejecting(world: World, *compiles: int) -> None:
    """Let engines that load what was compiled in COMPILES, counted from 1, answer otherwise than the bootstrap."""

    def answers(_body: bytes) -> None:
        loads = len(world.engine.plans) > loaded[len(world.engine.benches)]
        wrong = loads and len(world.engine.benches) in compiles
        world.front.body = bless_world.answer([9] * 16 if wrong else bless_world.TOKENS)

    loaded = defaultdict[int, int](lambda: len(world.engine.plans))
    world.front.at_request = answers


def test_of_three_compiles_one_that_passes_is_blessed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    rejecting(world, 1, 3)
    made = said(capsys, *FEW, "--artifacts", "3")
    assert (made["compiles"], made["rejected"], made["boots"], len(world.engine.benches)) == (3, [1, 3], 2, 3)
    assert main([*FEW, "--artifacts", "2", "--rebless"]) == 0
    assert "2 of 2 compiles passed, 0 did not. " in capsys.readouterr().out


def test_three_compiles_of_which_none_passes_are_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    rejecting(world, 1, 2, 3)
    refused = said(capsys, *FEW, "--artifacts", "3", status=1)
    assert {code for code, _ in refused} == {"NV912"}
    assert len(world.engine.benches) == 3


@pytest.mark.parametrize("other", [["--extend"], ["--candidate", "0" * 12], ON])
def test_compiles_are_compared_from_nothing_and_here(
    world: World, capsys: pytest.CaptureFixture[str], other: Sequence[str]
) -> None:
    assert said(capsys, *BLESS, "--artifacts", "3", *other, status=2) == [("NV108", "nvllm bless --artifacts")]
