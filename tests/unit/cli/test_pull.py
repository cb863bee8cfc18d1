"""`nvllm pull` of a blessing that nobody signed, through the command line, and the bless that tries it.

The registry is a real server, and the container engine is the one of `bless_world`, which is made up. No image travels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache import promotion
from nvllm.cache.blessings import Blessings
from nvllm.cache.manifest import Manifest
from nvllm.cache.store import TreeStore
from nvllm.cli.main import main
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.engine import engine
from nvllm.fleet import blessings as fleet_blessings
from nvllm.fleet import images
from nvllm.fleet.images import Pulled
from nvllm.image.buildrecord import Record
from nvllm.serve import startup
from support import blessings_world, oci_registry
from support.bless_world import FakeEngine, examined
from support.oci_registry import NAME, Registry
from support.plansamples import FrontEnd, places


@pytest.fixture
def server() -> Iterator[Registry]:
    with oci_registry.running() as running:
        yield running


def result(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(["--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)["result"]


def test_pull_then_bless_the_candidate(
    server: Registry,
    front: FrontEnd,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examination, made_up = examined(front)
    blessed = pushed(server, examination.plan, tmp_path / "elsewhere")
    stand_in(examination, made_up, tmp_path, monkeypatch)
    pull = ("pull", f"{server.url.removeprefix('http://')}/{NAME}", "demo", "--blessing", "eager")
    (blessing,) = result(capsys, *pull)["blessings"]
    assert (blessing["new"], blessing["candidate"]) == (True, blessed.tree_hash)
    assert main([*pull]) == 0
    *_, state, command = capsys.readouterr().out.splitlines()
    assert state == "demo-eager v7  a candidate: the profile names no signers, so trials here must show what it claims"
    assert command == f"  nvllm bless demo --profile eager --candidate {blessed.tree_hash[:12]}"
    assert main(command.split()[1:]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("blessed: demo-eager v1, 5 of 5 fresh boots good")
    assert f"CANDIDATE {blessed.tree_hash[:12]}: the trials run code that another host compiled" in captured.err
    assert made_up.benches == []
    (blessing,) = result(capsys, *pull)["blessings"]
    assert (blessing["new"], blessing["candidate"], blessing["version"]) == (False, None, 1)


def pushed(server: Registry, plan: Any, elsewhere: Path) -> Manifest:
    """Push the blessing of PLAN from another host, and return its manifest."""
    where = Places(elsewhere / "cache", elsewhere / "state")
    tree = TreeStore(where.trees).adopt(blessings_world.cache(elsewhere / "fresh"), "cure")
    blessings = blessings_world.blessings(elsewhere)
    promotion.promote(blessings, blessings_world.bless(tree, plan, version=7))
    (blessing,) = blessings.all()
    fleet_blessings.push_blessing(blessing, blessings, "linux/amd64", where, server.repository(), Silent())
    assert blessing.manifest is not None
    return blessing.manifest


def stand_in(examination: Any, made_up: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the project, the engine and the image be made up."""
    plan = examination.plan
    record = Record("demo", plan.build_hash, plan.image_id, ())
    monkeypatch.setattr(startup, "POLL", 0.005)
    for name in ("bless", "push"):
        monkeypatch.setattr(f"nvllm.cli.{name}.examine", lambda *_, **__: examination)
    monkeypatch.setattr("nvllm.cli.push.fresh_build", lambda *_: examination.build)
    monkeypatch.setattr("nvllm.cli.image_argument.selected", lambda _: "demo")
    monkeypatch.setattr(engine, "require", lambda: made_up)
    monkeypatch.setattr(images, "pull_image", lambda *_, **__: Pulled(record, f"sha256:{'c' * 64}"))
    for directory in ("images", "manifests"):
        (tmp_path / "project" / directory).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    assert Blessings.of_project(Project(tmp_path / "project"), places(tmp_path)).all() == ()
