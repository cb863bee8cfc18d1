"""Staging: the tampering matrix, the private copy, what it cannot be written by, and what is noticed later."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nvllm.cache import staging
from nvllm.cache.cachetree import Tree
from nvllm.cache.store import TreeStore
from nvllm.core import durable
from nvllm.core.refusal import Refused
from support.blessings_world import AOT, CURE, FILES, LOCKS, cache, child, read_tree, stored, writable
from support.tampering import TAMPERINGS, Tampering, add, chmod, flip, remove


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk a thousand times: what survives a crash is tried in test_store.py."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def world(tmp_path: Path) -> tuple[TreeStore, Tree, Path]:
    store, tree = stored(tmp_path)
    return store, tree, store.path(tree.hash)


@pytest.mark.parametrize("tamper", TAMPERINGS.values(), ids=list(TAMPERINGS))
def test_no_tampered_tree_is_staged(world: tuple[TreeStore, Tree, Path], tmp_path: Path, tamper: Tampering) -> None:
    """One file in each way; test_attacks.py has each file of a larger tree."""
    store, tree, place = world
    tamper(place / f"{AOT}/rank_0_0/model", tmp_path / "outside")
    with pytest.raises(Refused) as refused:
        store.stage(tree, tmp_path / "staging", CURE)
    assert {(one.code, one.cure) for one in refused.value.refusals} == {("NV907", CURE)}
    assert list((tmp_path / "staging").iterdir()) == []
    with pytest.raises(Refused) as verified:
        store.verify(tree, CURE)
    assert {one.where for one in refused.value.refusals} == {one.where for one in verified.value.refusals}


@pytest.mark.parametrize("path", FILES)
def test_a_file_of_another_owner_is_refused(
    world: tuple[TreeStore, Tree, Path], tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root gives the file away; for anybody else the kernel's answer is changed, because only root can."""
    store, tree, place = world
    if os.geteuid() == 0:
        os.chown(place / path, 4242, 4242)
        expected = "a file of user 4242"
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        expected = f"a file of user {os.getuid()}"
    with pytest.raises(Refused) as refused:
        store.stage(tree, tmp_path / "staging", CURE)
    assert expected in {one.found for one in refused.value.refusals}


def test_a_file_that_comes_while_others_are_copied(
    world: tuple[TreeStore, Tree, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tree, place = world
    late = place / AOT / "rank_0_0/late"
    monkeypatch.setattr(durable, "reached", lambda *_: writable(late).write_bytes(b"payload"))
    with pytest.raises(Refused, match="changed while it was read"):
        store.stage(tree, tmp_path / "staging", CURE)


def test_every_deviation_is_said_at_once(world: tuple[TreeStore, Tree, Path], tmp_path: Path) -> None:
    store, tree, place = world
    one, two, three, _ = (place / path for path in FILES)
    flip(one, tmp_path / "x")
    remove(two, tmp_path / "x")
    add(place / "modelinfos/Lfm2.json", tmp_path / "x")
    chmod(three, tmp_path / "x")
    with pytest.raises(Refused) as refused:
        store.stage(tree, tmp_path / "staging", CURE)
    said = {(os.path.relpath(one.where, place), one.expected.split()[0]) for one in refused.value.refusals}
    assert {
        (f"{AOT}/rank_0_0/model", "sha256"),
        (f"{AOT}/inductor_cache/c4/c45.so", "a"),
        (f"{AOT}/inductor_cache/c4/c45.cpp", "mode"),
        ("modelinfos/Lfm2.json.extra", "no"),
    } <= said


def test_a_huge_extra_file_is_not_copied(world: tuple[TreeStore, Tree, Path], tmp_path: Path) -> None:
    store, tree, place = world
    huge = writable(place / "modelinfos/huge")
    huge.touch()
    os.truncate(huge, 1 << 43)  # 8 TiB, none of it on the disk: reading it would take hours
    with pytest.raises(Refused, match="an extra file"):
        store.stage(tree, tmp_path / "staging", CURE)


def test_a_tree_that_is_not_there_is_one_refusal(tmp_path: Path) -> None:
    store, tree = stored(tmp_path)
    store.remove(tree.hash)
    with pytest.raises(Refused) as refused:
        store.stage(tree, tmp_path / "staging", CURE)
    assert [one.found for one in refused.value.refusals] == ["no such directory"]


# The copy


def test_the_copy_is_the_tree_and_private(world: tuple[TreeStore, Tree, Path], tmp_path: Path) -> None:
    store, tree, _ = world
    staged = store.stage(tree, tmp_path / "staging", CURE)
    assert read_tree(staged.path, CURE) == tree
    assert stat.S_IMODE(staged.path.parent.stat().st_mode) == 0o700
    assert (staged.path / LOCKS).is_dir()
    assert {one.mode for one in tree.files} == {"0444", "0555"}
    assert staging.recheck(staged, CURE) == []
    other = store.stage(tree, tmp_path / "staging", CURE)
    assert other.path != staged.path
    staging.discard(staged.path.parent)
    staging.discard(staged.path.parent)
    assert not staged.path.parent.exists()


def test_the_level_is_what_the_file_system_gives(world: tuple[TreeStore, Tree, Path], tmp_path: Path) -> None:
    """Tried on a file of our own, never assumed: whichever answer comes, the level says it."""
    store, tree, _ = world
    (tmp_path / "probe").write_bytes(b"x")
    has = staging.enable_verity(tmp_path / "probe")
    assert store.stage(tree, tmp_path / "staging", CURE).level == ("fs-verity" if has else "staged")


@pytest.mark.parametrize(("answers", "level"), [([True], "fs-verity"), ([True, False], "staged"), ([False], "staged")])
def test_one_file_without_the_guard_is_a_copy_without_it(
    world: tuple[TreeStore, Tree, Path],
    tmp_path: Path,
    answers: list[bool],
    level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No file system with fs-verity is at hand, so the call answers as one."""
    store, tree, _ = world
    asked: list[Path] = []

    def enable(path: Path) -> bool:
        asked.append(path)
        assert os.access(path, os.W_OK)
        assert stat.S_IMODE(path.stat().st_mode) & 0o200, "the kernel wants it before the right to write goes"
        return answers[min(len(asked), len(answers)) - 1]

    monkeypatch.setattr(staging, "enable_verity", enable)
    assert store.stage(tree, tmp_path / "staging", CURE).level == level
    assert len(asked) == (len(tree.files) if all(answers) else answers.index(False) + 1)


def test_a_source_that_changes_later_does_not_reach_the_copy(
    world: tuple[TreeStore, Tree, Path], tmp_path: Path
) -> None:
    store, tree, place = world
    staged = store.stage(tree, tmp_path / "staging", CURE)
    for path in FILES:
        flip(place / path, tmp_path / "x")
    assert read_tree(staged.path, CURE) == tree
    assert staging.recheck(staged, CURE) == []


# What cannot be written

FULL = """
import resource, signal, sys
from pathlib import Path
from support.blessings_world import CURE, cache
from nvllm.core.refusal import Refused
from nvllm.cache.store import TreeStore

store = TreeStore(Path(sys.argv[1], "trees"))
tree = store.adopt(Path(sys.argv[1], "fresh"), CURE)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    store.stage(tree, Path(sys.argv[1], "staging"), CURE)
except Refused as refused:
    print(*[one.code for one in refused.refusals], refused.exit_code)
"""


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_a_copy_that_cannot_be_written_leaves_nothing(tmp_path: Path, size: int) -> None:
    """The kernel cuts every file off at SIZE, as a full disk does."""
    cache(tmp_path / "fresh")
    done = child(FULL, os.fspath(tmp_path), str(size))
    assert done.stdout == b"NV911 1\n", done.stderr
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_staging_place_that_takes_nothing(world: tuple[TreeStore, Tree, Path], tmp_path: Path) -> None:
    store, tree, _ = world
    (tmp_path / "staging").write_bytes(b"")
    with pytest.raises(Refused) as refused:
        store.stage(tree, tmp_path / "staging", CURE)
    assert [one.code for one in refused.value.refusals] == ["NV911"]
