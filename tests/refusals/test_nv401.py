"""NV401, model missing: the locked model is not on this host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.lock import LockedModel, ModelFile
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import DirectoryModel
from nvllm.models.memo import HashCache
from nvllm.models.modeltree import located, tree_hash, tree_of, verify
from support import locking

CURE = "nvllm model make tiny-lfm2"
FILES = (ModelFile("config.json", 2, "0" * 64),)
DIRECTORY = LockedModel("directory", tree_hash(FILES), FILES)
HUB = LockedModel("huggingface", tree_hash(FILES), FILES, repo="acme/tiny", follow="main", revision="a" * 40)


def _verified(locked: LockedModel, place: Path) -> Refusal:
    (found,) = verify(locked, place, HashCache.none(), cure=CURE)
    assert found.code == "NV401"
    return found


def _raised(ask: Callable[[], object]) -> Refusal:
    with pytest.raises(Refused) as caught:
        ask()
    assert caught.value.exit_code == 3
    (found,) = caught.value.refusals
    return found


def test_no_such_directory(tmp_path: Path) -> None:
    refusal = _verified(DIRECTORY, tmp_path / "tiny")
    assert refusal == Refusal(
        "NV401", str(tmp_path / "tiny"), f"the model with tree {DIRECTORY.tree}", "no such directory", CURE
    )
    assert _raised(lambda: located(DIRECTORY, tmp_path / "tiny", cure=CURE)) == refusal


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "tiny").write_text("")
    assert _verified(DIRECTORY, tmp_path / "tiny").found == "not a directory"


def test_locking_a_directory_that_is_not_there(tmp_path: Path) -> None:
    refusal = _raised(lambda: tree_of(tmp_path / "tiny", cure=CURE))
    assert (refusal.code, refusal.found, refusal.cure) == ("NV401", "no such directory", CURE)
    assert refusal.expected == "a directory with a model"


def test_locking_a_directory_without_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refusal = _raised(lambda: tree_of(tmp_path))
    assert (refusal.code, refusal.where, refusal.found) == ("NV401", str(tmp_path), "no file in it")
    assert refusal.cure == "put the model's files there"


def test_a_cache_without_the_repository(tmp_path: Path) -> None:
    refusal = _verified(HUB, tmp_path)
    assert refusal.where == str(tmp_path / "models--acme--tiny")
    assert refusal.expected == f"revision {'a' * 40}"
    assert refusal.found == "no revision of it"
    assert refusal.cure == f"hf download acme/tiny --revision {'a' * 40}"
    assert _raised(lambda: located(HUB, tmp_path, cure=CURE)) == refusal


def test_a_branch_without_a_snapshot_is_not_a_revision(tmp_path: Path) -> None:
    repository = tmp_path / "models--acme--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("b" * 40)
    (repository / "snapshots").mkdir()
    assert _verified(HUB, tmp_path).found == "no revision of it"


def test_no_model_is_locked_without_its_files(tmp_path: Path) -> None:
    """One of the user's own; what a recipe makes is locked without being made."""
    world = locking.World(tmp_path)
    spec = locking.changed(locking.SPEC, models={"mine": DirectoryModel("directory", DIRECTORY.tree)})
    refusal = _raised(lambda: world.lock(spec))
    assert (refusal.code, refusal.where, refusal.found) == ("NV401", str(world.models / "mine"), "no such directory")
    assert refusal.cure == "put the model's files into a directory mine, and its parent into NVLLM_MODELS"
    (world.models / "mine").mkdir(parents=True)
    assert _raised(lambda: world.lock(spec)).found == "no file in it"
