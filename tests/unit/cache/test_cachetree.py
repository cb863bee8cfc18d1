"""The exact tree of a cache: what is in its hash, what is no part of it, and what no tree may hold."""

from __future__ import annotations

import os
import random
import socket
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.cache import cachetree
from nvllm.cache.cachetree import Tree, TreeDirectory, TreeFile
from nvllm.core.refusal import Refused
from support.blessings_world import AOT, CURE, FILES, LOCKS, cache, read_tree


def found(root: Path) -> dict[str, str]:
    """Return where and what is refused about ROOT."""
    with pytest.raises(Refused) as refused:
        read_tree(root, CURE)
    assert {(one.code, one.cure) for one in refused.value.refusals} == {("NV907", CURE)}
    return {os.path.relpath(one.where, root): one.found for one in refused.value.refusals}


def test_a_tree_is_its_files_and_all_of_its_directories(tmp_path: Path) -> None:
    tree = read_tree(cache(tmp_path / "c"), CURE, left_out=cachetree.lock_files)
    assert {one.path: (one.size, one.mode) for one in tree.files} == {
        path: (len(data), f"{mode:04o}") for path, (data, mode) in FILES.items()
    }
    assert {LOCKS, ".", f"{AOT}/rank_0_0", "modelinfos"} <= {one.path for one in tree.directories}
    assert tree.sealed().seeds == (LOCKS.rpartition("/")[0],)
    assert tree.size == sum(len(data) for data, _ in FILES.values())
    assert list(cachetree.problems(tree)) == []


def test_a_hash_that_is_written_down() -> None:
    """A change here makes every blessed cache another one: raise the domain's version."""
    tree = cachetree.of(
        [TreeFile("a/b", 1, "0444", "0" * 64)], [TreeDirectory("a", "0555"), TreeDirectory(".", "0555")]
    )
    assert cachetree.DOMAIN == "nvllm.cachetree/1"
    assert tree.hash == "c7ac6c618e979424232c0735085a62cfe59a8360ac9da0486f575f84826741df"


NAMES = st.lists(st.sampled_from("abcdé"), min_size=1, max_size=3).map("/".join)


@settings(max_examples=25)
@given(paths=st.sets(NAMES, min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_the_hash_does_not_depend_on_the_order_of_creation(
    tmp_path_factory: pytest.TempPathFactory, paths: set[str], seed: int
) -> None:
    files = [path for path in paths if not any(other.startswith(f"{path}/") for other in paths)]
    trees = []
    for shuffled in (sorted(files), random.Random(seed).sample(files, len(files))):
        root = tmp_path_factory.mktemp("tree")
        root.chmod(0o700)
        for path in shuffled:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(path)
        trees.append(read_tree(root, CURE))
    assert trees[0] == trees[1]
    assert trees[0].hash == trees[1].hash


BASE = cachetree.of(
    [TreeFile("a/b", 1, "0444", "0" * 64), TreeFile("c", 1, "0444", "0" * 64)],
    [TreeDirectory(".", "0555"), TreeDirectory("a", "0555"), TreeDirectory("locks", "0555")],
)
OTHERS = {
    "path": cachetree.of([replace(BASE.files[0], path="a/x"), BASE.files[1]], BASE.directories),
    "size": cachetree.of([replace(BASE.files[0], size=2), BASE.files[1]], BASE.directories),
    "mode": cachetree.of([replace(BASE.files[0], mode="0555"), BASE.files[1]], BASE.directories),
    "bytes": cachetree.of([replace(BASE.files[0], sha256="1" * 64), BASE.files[1]], BASE.directories),
    "a file less": cachetree.of(BASE.files[:1], BASE.directories),
    "an empty directory less": cachetree.of(BASE.files, BASE.directories[:2]),
    "the mode of a directory": cachetree.of(BASE.files, [*BASE.directories[:2], TreeDirectory("locks", "0755")]),
}


@pytest.mark.parametrize("what", OTHERS)
def test_everything_in_a_tree_changes_its_hash_and_is_named(what: str) -> None:
    assert OTHERS[what].hash != BASE.hash
    refusals = cachetree.differences(BASE, OTHERS[what], Path("/cache"), CURE)
    assert refusals
    assert {one.code for one in refusals} == {"NV907"}


def test_equal_trees_have_no_difference() -> None:
    assert cachetree.differences(BASE, BASE, Path("/cache"), CURE) == []


def test_only_empty_lock_files_in_locks_are_left_out(tmp_path: Path) -> None:
    root = cache(tmp_path / "c")
    (root / LOCKS / "code.lock").write_bytes(b"not empty")
    (root / "modelinfos/x.lock").touch()
    (root / LOCKS / "empty").touch()
    paths = {one.path for one in read_tree(root, CURE, left_out=cachetree.lock_files).files}
    assert paths - FILES.keys() == {f"{LOCKS}/code.lock", "modelinfos/x.lock", f"{LOCKS}/empty"}
    everything = {one.path for one in read_tree(root, CURE).files}
    assert everything - paths == {f"{LOCKS}/c45.lock"}


def test_a_link_that_looks_like_a_lock_file_is_refused(tmp_path: Path) -> None:
    root = cache(tmp_path / "c")
    (root / LOCKS / "x.lock").symlink_to("c45.lock")
    with pytest.raises(Refused, match="symbolic link"):
        read_tree(root, CURE, left_out=cachetree.lock_files)


def test_everything_unfit_is_found_at_once(tmp_path: Path) -> None:
    root = cache(tmp_path / "c")
    (tmp_path / "outside").write_bytes(b"x")
    (root / "link").symlink_to("/etc/passwd")
    (root / "directory-link").symlink_to("modelinfos")
    os.mkfifo(root / "fifo")
    os.link(tmp_path / "outside", root / "hard")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(os.fspath(root / "socket"))
    (root / "writable").write_bytes(b"")
    (root / "writable").chmod(0o664)
    (root / "open").mkdir()
    (root / "open").chmod(0o757)
    (root / "set-id").write_bytes(b"")
    (root / "set-id").chmod(0o4755)
    (root / os.fsdecode(b"\xff")).touch()
    assert found(root) == {
        "link": "a symbolic link",
        "directory-link": "a symbolic link",
        "fifo": "a FIFO",
        "hard": "a file with 2 names (hard links)",
        "socket": "a socket",
        "writable": "mode 0664",
        "open": "mode 0757",
        "set-id": "mode 4755",
        "\\xff": "a name that is not UTF-8",
    }


def test_a_foreign_owner_is_refused(tmp_path: Path) -> None:
    """Nobody but root can give files away, so the question is turned: whose must they be?"""
    root = cache(tmp_path / "c")
    with pytest.raises(Refused) as refused:
        read_tree(root, CURE, owner=os.geteuid() + 1)
    assert {one.found for one in refused.value.refusals} == {f"a directory of user {os.geteuid()}"}


@pytest.mark.parametrize("kind", ["link", "file", "nothing"])
def test_the_top_must_be_a_directory_itself(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "c"
    if kind == "link":
        root.symlink_to(cache(tmp_path / "real"))
    elif kind == "file":
        root.write_bytes(b"")
    assert list(found(root)) == ["."]


def test_a_bottomless_tree_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "c"
    (root / "/".join(["d"] * 70)).mkdir(parents=True)
    assert set(found(root).values()) == {f"directories more than {cachetree.DEEPEST} deep"}


def test_sealed_takes_every_right_to_write() -> None:
    tree = cachetree.of(
        [TreeFile("a", 1, "0600", "0" * 64), TreeFile("b", 1, "0755", "0" * 64)], [TreeDirectory(".", "0700")]
    )
    sealed = tree.sealed()
    assert [file.mode for file in sealed.files] == ["0444", "0555"]
    assert [directory.mode for directory in sealed.directories] == ["0555"]
    assert sealed.sealed() == sealed


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("../x", "no path below the top"),
        ("/etc/passwd", "no path below the top"),
        ("a/../../x", "no path below the top"),
        ("a//x", "no path below the top"),
        ("a/./x", "no path below the top"),
        ("b/x", "in a directory that is not among the directories"),
        ("a", "named more than once"),
    ],
)
def test_a_path_that_leaves_the_tree_is_none(path: str, problem: str) -> None:
    tree = cachetree.of([TreeFile(path, 1, "0444", "0" * 64)], [TreeDirectory(".", "0555"), TreeDirectory("a", "0555")])
    assert (path, problem) in set(cachetree.problems(tree))


def test_a_tree_that_is_not_sorted_or_has_no_top_is_none() -> None:
    assert list(cachetree.problems(Tree(BASE.files[::-1], BASE.directories))) == [(".", "not sorted by path")]
    assert (".", "not among the directories") in set(cachetree.problems(Tree((), BASE.directories[1:])))


@pytest.mark.parametrize(
    ("name", "value"),
    [("user.note", b"x"), ("security.capability", struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))],
)
def test_attributes_and_capabilities_are_refused(tmp_path: Path, name: str, value: bytes) -> None:
    """No hash covers them, and no copy takes them along."""
    root = cache(tmp_path / "c")
    path = root / "modelinfos/Lfm2.json"
    try:
        os.setxattr(path, name, value)
    except OSError:
        pytest.skip(f"this user, or this file system, cannot set {name}")
    assert found(root) == {"modelinfos/Lfm2.json": f"a file with {name}"}


def test_inductors_directory_is_written_into_but_not_in_trees_of_earlier_versions(tmp_path: Path) -> None:
    tree = read_tree(cache(tmp_path / "cache"), CURE)
    inductor = LOCKS.rpartition("/")[0]
    earlier, now = tree.sealed({cachetree.LOCKS}), tree.sealed()
    assert (earlier.lock_directories, earlier.seeds, earlier.written) == ((LOCKS,), (), {"locks"})
    assert (now.lock_directories, now.seeds, now.written) == ((), (inductor,), {"locks", "inductor_cache"})
    assert {one.path for one in now.below(inductor)} == {"c4/c45.so", "c4/c45.cpp", "locks/c45.lock"}
    assert now.hash != earlier.hash
    assert [one.is_sealed for one in (earlier, now, tree)] == [True, True, False]
