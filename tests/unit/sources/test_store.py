"""The content store: verified names, damage, two processes, and death at any trace point."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvllm.core.refusal import Refused
from nvllm.sources.store import Store


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: Store, data: bytes) -> str:
    name = sha(data)
    store.partial(name).write_bytes(data)
    store.adopt(store.partial(name), name)
    return name


@settings(max_examples=20)  # each example waits for the disk
@given(data=st.binary(max_size=300))
def test_what_is_adopted_is_found_by_its_hash(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    name = put(store, data)
    assert store.has(name)
    assert store.path(name).read_bytes() == data
    assert store.list() == [name]
    assert not store.partial(name).exists()
    store.verify(name)


def test_the_place_is_named_by_the_hash_and_read_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    name = put(store, b"bytes")
    assert store.path(name) == tmp_path / "sha256" / name[:2] / name
    assert stat.S_IMODE(store.path(name).stat().st_mode) == 0o444


@pytest.mark.parametrize("name", ["", "ab", "A" * 64, "../" + "a" * 61, "a" * 64 + "\n", "a" * 65])
def test_what_is_no_sha256_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    with pytest.raises(ValueError, match="not a sha256"):
        store.path(name)
    with pytest.raises(ValueError, match="not a sha256"):
        store.partial(name)


def test_an_empty_store_lists_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "not yet")
    assert store.list() == []
    assert not store.has(sha(b""))


def test_remove_says_what_it_freed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    name = put(store, b"12345")
    assert store.remove(name) == 5
    assert store.remove(name) == 0
    assert not store.has(name)


def test_a_damaged_file_is_refused_once_and_then_gone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    name = put(store, b"bytes")
    store.path(name).chmod(0o644)
    store.path(name).write_bytes(b"other")
    with pytest.raises(Refused):
        store.verify(name)
    assert not store.has(name)
    put(store, b"bytes")
    store.verify(name)


def test_who_waits_for_a_lock_can_give_up(tmp_path: Path) -> None:
    store = Store(tmp_path)
    name = sha(b"x")

    def take() -> bool:
        try:
            with store.locked(name, lambda: True):
                return True
        except filelock.Timeout:
            return False

    with ThreadPoolExecutor(1) as other:
        with store.locked(name):
            assert not other.submit(take).result()
        assert other.submit(take).result()


def test_a_file_system_without_hard_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such file system is at hand, so the system call answers as one."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(Refused) as refused, Store(tmp_path).locked(sha(b"x")):
        pytest.fail("locked without a lock")
    assert [refusal.code for refusal in refused.value.refusals] == ["NV513"]


CHILD = """
import os, signal, sys
from pathlib import Path
from nvllm.core import durable; from nvllm.sources import store

def die(point):
    if point == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

durable.reached = die
place = store.Store(Path(sys.argv[1]))
with place.locked(sys.argv[2]):
    place.adopt(place.partial(sys.argv[2]), sys.argv[2])
"""


@pytest.mark.parametrize("point", ["hashed", "synced", "renamed"])
@pytest.mark.parametrize("data", [b"the locked bytes", b"other bytes"])
def test_killed_at_any_point_no_name_stands_for_other_bytes(tmp_path: Path, point: str, data: bytes) -> None:
    store = Store(tmp_path)
    name = sha(b"the locked bytes")
    store.partial(name).write_bytes(data)
    package = os.fspath(Path(sys.modules[Store.__module__].__file__ or "").parents[2])
    child = subprocess.run(
        [sys.executable, "-c", CHILD, os.fspath(tmp_path), name, point],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        check=False,
    )
    reached = data == b"the locked bytes" or point == "hashed"
    assert (child.returncode == -signal.SIGKILL) == reached, child.stderr
    for present in store.list():
        assert sha(store.path(present).read_bytes()) == present
    # The next run goes on: the dead holder's lock is free, and the right bytes enter.
    with store.locked(name):
        if not store.has(name):
            store.partial(name).write_bytes(b"the locked bytes")
            store.adopt(store.partial(name), name)
    store.verify(name)
