"""The store of blessed caches: immutable names, death at any trace point, two processes, a full disk, no root."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from nvllm.cache import cachetree
from nvllm.cache.store import TreeStore
from nvllm.core import durable
from nvllm.core.refusal import Refused
from support.blessings_world import CURE, FILES, LOCKS, cache, child, leftovers, read_tree, stored, writable


def test_what_is_adopted_is_sealed_and_found_by_its_hash(tmp_path: Path) -> None:
    store, tree = stored(tmp_path)
    assert store.list() == [tree.hash]
    assert store.has(tree.hash)
    assert store.path(tree.hash) == tmp_path / "trees" / tree.hash
    assert tree == read_tree(tmp_path / "fresh", CURE, left_out=cachetree.lock_files).sealed()
    assert read_tree(store.path(tree.hash), CURE) == tree
    for place in (store.path(tree.hash), *store.path(tree.hash).rglob("*")):
        # Something else is mounted on a directory that is written into, with the mode that this one has.
        assert stat.S_IMODE(place.stat().st_mode) & 0o222 == (0o200 if place.name in cachetree.WRITTEN else 0)
    assert list((store.path(tree.hash) / LOCKS).iterdir()) == []
    assert leftovers(store) == []


def test_the_source_stays_as_it_is(tmp_path: Path) -> None:
    stored(tmp_path)
    assert {path: (tmp_path / "fresh" / path).stat().st_mode & 0o777 for path in FILES} == {
        path: mode for path, (_, mode) in FILES.items()
    }


def test_the_same_cache_again_is_the_same_tree(tmp_path: Path) -> None:
    store, tree = stored(tmp_path)
    assert store.adopt(tmp_path / "fresh", CURE) == tree
    assert store.list() == [tree.hash]
    assert leftovers(store) == []


def test_a_damaged_tree_is_not_taken_for_the_same(tmp_path: Path) -> None:
    """The cure is for a user who is not root, whose home has a space: it removes that tree, which nobody may write."""
    home = tmp_path / "a home"
    home.mkdir()
    store, tree = stored(home)
    writable(store.path(tree.hash) / "modelinfos/Lfm2.json").write_bytes(b"[]")
    with pytest.raises(Refused) as refused:
        store.adopt(home / "fresh", CURE)
    (cure,) = {one.cure for one in refused.value.refusals}
    assert {one.code for one in refused.value.refusals} == {"NV907"}
    assert leftovers(store) == []
    as_nobody = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override")
    subprocess.run([*as_nobody, "bash", "-c", cure], check=True)
    assert not store.has(tree.hash)
    assert store.adopt(home / "fresh", CURE) == tree


def test_an_unfit_cache_does_not_enter(tmp_path: Path) -> None:
    root = cache(tmp_path / "fresh")
    (root / "link").symlink_to("/etc/passwd")
    store = TreeStore(tmp_path / "trees")
    with pytest.raises(Refused, match="symbolic link"):
        store.adopt(root, CURE)
    assert (store.list(), leftovers(store)) == ([], [])


@pytest.mark.parametrize("name", ["", "a" * 63, "A" * 64, "../" + "a" * 61, "a" * 64 + "\n"])
def test_what_is_no_hash_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a tree hash"):
        TreeStore(tmp_path).path(name)


def test_an_empty_store_lists_nothing(tmp_path: Path) -> None:
    store = TreeStore(tmp_path / "none")
    assert (store.list(), leftovers(store), store.has("a" * 64)) == ([], [], False)


def test_remove_says_what_it_freed(tmp_path: Path) -> None:
    store, tree = stored(tmp_path)
    assert store.remove(tree.hash) == tree.size
    assert store.remove(tree.hash) == 0
    assert (store.list(), leftovers(store)) == ([], [])


ADOPT = """
import os, signal, sys
from pathlib import Path
from support.blessings_world import CURE
from nvllm.core import durable; from nvllm.cache import store as treestore

left = int(sys.argv[3])
def die(point, path=""):
    global left
    if point == sys.argv[2]:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

durable.reached = die
flush = os.fsync
os.fsync = lambda descriptor: (die("fsync"), flush(descriptor))
store = treestore.TreeStore(Path(sys.argv[1], "trees"))
tree = store.adopt(Path(sys.argv[1], "fresh"), CURE)
store.remove(tree.hash)
"""


@pytest.mark.parametrize(
    ("point", "number"),
    [("staged copied", 0), ("fsync", 0), ("fsync", 6), ("copied", 0), ("renamed", 0), ("unnamed", 0)],
)
def test_killed_at_any_point_no_name_stands_for_another_tree(tmp_path: Path, point: str, number: int) -> None:
    cache(tmp_path / "fresh")
    done = child(ADOPT, os.fspath(tmp_path), point, str(number))
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = TreeStore(tmp_path / "trees")
    for name in store.list():
        assert read_tree(store.path(name), CURE).hash == name
    assert (store.list() != []) == (point == "renamed")
    # The next run goes on, and what is left lies where everybody can see that it is nothing.
    tree = store.adopt(tmp_path / "fresh", CURE)
    store.verify(tree, CURE)
    assert len(leftovers(store)) == (0 if point == "renamed" else 1)


FORKED = multiprocessing.get_context("fork")


def bringing(place: Path, copied: Barrier, said: Connection) -> None:
    """Adopt the tree, wait with the copy until the other one has one too, and say its hash."""

    def wait(point: str, path: str = "") -> None:
        if point == "copied":
            copied.wait(timeout=60)

    durable.reached = wait
    said.send(TreeStore(place / "trees").adopt(place / "fresh", CURE).hash)


def test_two_processes_that_bring_the_same_tree_at_once(tmp_path: Path) -> None:
    cache(tmp_path / "fresh")
    copied, (heard, to) = FORKED.Barrier(2), FORKED.Pipe(duplex=False)
    racers = [FORKED.Process(target=bringing, args=(tmp_path, copied, to)) for _ in range(2)]
    for one in racers:
        one.start()
    for one in racers:
        one.join()
    assert [one.exitcode for one in racers] == [0, 0]
    store = TreeStore(tmp_path / "trees")
    assert [heard.recv(), heard.recv()] == [store.list()[0]] * 2
    assert leftovers(store) == []
    assert read_tree(store.path(store.list()[0]), CURE).hash == store.list()[0]


FULL = """
import resource, signal, sys
from pathlib import Path
from support.blessings_world import CURE
from nvllm.core.refusal import Refused
from nvllm.cache.store import TreeStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    TreeStore(Path(sys.argv[1], "trees")).adopt(Path(sys.argv[1], "fresh"), CURE)
except Refused as refused:
    print(*[one.code for one in refused.refusals], refused.exit_code)
"""


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_a_full_disk_leaves_nothing(tmp_path: Path, size: int) -> None:
    """The kernel cuts every file off at SIZE, as a full disk does."""
    cache(tmp_path / "fresh")
    done = child(FULL, os.fspath(tmp_path), str(size))
    assert done.stdout == b"NV911 1\n", done.stderr
    store = TreeStore(tmp_path / "trees")
    assert (store.list(), leftovers(store)) == ([], [])


UNPRIVILEGED = """
import os, random, sys, tempfile
from pathlib import Path
from support.blessings_world import CURE, cache, leftovers, read_tree
from nvllm.cache import staging
from nvllm.cache.store import TreeStore

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(4242)
    os.setuid(4242)
with tempfile.TemporaryDirectory() as directory:
    store = TreeStore(Path(directory, "trees"))
    tree = store.adopt(cache(Path(directory, "fresh")), CURE)
    try:
        (store.path(tree.hash) / "modelinfos/new").touch()
    except PermissionError:
        print("read-only")
    staged = store.stage(tree, Path(directory, "staging"), CURE)
    print(staging.recheck(staged, CURE), read_tree(staged.path, CURE) == tree)
    staging.discard(staged.path.parent)
    print(store.remove(tree.hash) == tree.size, store.list(), leftovers(store))
"""


def test_everything_works_without_root(tmp_path: Path) -> None:
    """Root ignores modes, so a child that is nobody in particular adopts, stages, discards and removes."""
    done = child(UNPRIVILEGED)
    assert done.stdout == b"read-only\n[] True\nTrue [] []\n", done.stderr


def test_what_a_container_of_another_user_wrote_becomes_ours(tmp_path: Path) -> None:
    """Only root can stand for the container's user here; for others the owner is simply named."""
    root = cache(tmp_path / "fresh")
    owner = 1000 if os.geteuid() == 0 else os.geteuid()
    for place in (root, *root.rglob("*")):
        os.chown(place, owner, -1)
    store = TreeStore(tmp_path / "trees")
    tree = store.adopt(root, CURE, owner=owner)
    assert {place.stat().st_uid for place in store.path(tree.hash).rglob("*")} == {os.geteuid()}
