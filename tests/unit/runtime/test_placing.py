"""What an init container places: exactly the files that the gate then expects, hashed while they are copied."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache.cachetree import INDUCTOR
from nvllm.core.plan import CACHE
from nvllm.runtime import placing
from nvllm.serve import planner
from support import blessings_world
from support.plansamples import MODEL, PLAN


@pytest.fixture
def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path, Any]]:
    """A stored cache, an empty target, and what the gate expects of a plan that loads the cache."""
    store, tree = blessings_world.stored(tmp_path)
    launch = planner.expectations(planner.loading(PLAN, tree), (MODEL,), tree)
    programs, target = tmp_path / "programs", tmp_path / "placed"
    programs.mkdir()
    target.mkdir()
    (programs / placing.LAUNCH).write_bytes(launch)
    monkeypatch.setattr(placing, "__file__", str(programs / "placing.py"))
    yield store.path(tree.hash), target, json.loads(launch)
    for directory, _, _ in os.walk(target):
        Path(directory).chmod(0o755)


def modes(root: Path) -> dict[str, str]:
    """Return the modes below ROOT, except in Inductor's directory: the engine gets a copy of its files."""
    return {
        os.path.relpath(path, root): f"{stat.S_IMODE(path.stat().st_mode):04o}"
        for path in [root, *root.rglob("*")]
        if INDUCTOR not in {parent.name for parent in path.parents}
    }


def test_the_copy_is_the_tree(placed: tuple[Path, Path, Any]) -> None:
    source, target, expected = placed
    assert placing.main(str(target), str(source)) == 0
    assert modes(target / placing.CACHE) == modes(source)
    assert expected["cache"]["path"] == CACHE
    for path in (one for one in source.rglob("*") if one.is_file()):
        assert (target / placing.CACHE / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_the_run_directory_has_the_sentinels_and_nothing_else(placed: tuple[Path, Path, Any]) -> None:
    _, target, _ = placed
    assert placing.main(str(target)) == 0
    assert sorted(os.listdir(target)) == [placing.RUN]
    assert set(modes(target / placing.RUN).values()) == {"0755", "0444"}
    assert sorted(os.listdir(target / placing.RUN)) == sorted(["launch.json", *PLAN.sentinels])


def test_a_second_run_leaves_nothing_of_the_first(placed: tuple[Path, Path, Any]) -> None:
    source, target, _ = placed
    victim = next(path for path in source.rglob("model") if path.is_file())
    whole, recorded = victim.read_bytes(), modes(source)
    blessings_world.writable(victim).write_bytes(b"another pickle")
    assert placing.main(str(target), str(source)) == placing.REFUSED
    (target / placing.RUN / "more").write_bytes(b"")
    victim.write_bytes(whole)
    assert placing.main(str(target), str(source)) == 0
    assert modes(target / placing.CACHE) == recorded
    assert sorted(os.listdir(target / placing.RUN)) == sorted(["launch.json", *PLAN.sentinels])


def test_another_byte_is_refused(placed: tuple[Path, Path, Any], capsys: pytest.CaptureFixture[str]) -> None:
    source, target, _ = placed
    victim = next(path for path in source.rglob("model") if path.is_file())
    blessings_world.writable(victim).write_bytes(b"another pickle")
    assert placing.main(str(target), str(source)) == placing.REFUSED
    assert victim.relative_to(source).as_posix() in capsys.readouterr().out


def test_a_file_that_is_missing_is_refused(placed: tuple[Path, Path, Any]) -> None:
    source, target, _ = placed
    blessings_world.writable(source / "modelinfos/Lfm2.json").unlink()
    assert placing.main(str(target), str(source)) == placing.REFUSED


def test_a_file_that_nobody_expects_does_not_get_there(placed: tuple[Path, Path, Any], tmp_path: Path) -> None:
    source, target, _ = placed
    other = tmp_path / "other"
    shutil.copytree(source, other)
    other.chmod(0o755)
    (other / "extra.so").write_bytes(b"code")
    assert placing.main(str(target), str(other)) == 0
    assert not (target / placing.CACHE / "extra.so").exists()
