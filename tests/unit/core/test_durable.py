"""Writing whole or not at all, and the lock of a directory."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from nvllm.core import durable
from nvllm.core.refusal import Refused
from support.blessings_world import child


def test_a_file_is_replaced_whole_and_has_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[str] = []
    place = tmp_path / "file"
    place.write_bytes(b"old")
    monkeypatch.setattr(durable, "reached", points.append)
    durable.replace(place, b"new", 0o640, "one")
    assert (place.read_bytes(), stat.S_IMODE(place.stat().st_mode)) == (b"new", 0o640)
    assert points == ["one written", "one renamed"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "fchmod"])
def test_whatever_fails_the_old_file_stays(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel cannot be made to fail each of them, so each is made to answer as if the disk were full."""
    place = tmp_path / "file"
    place.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "write":
        monkeypatch.setattr(os, "fdopen", full)
    else:
        monkeypatch.setattr(os, call, full)
    with pytest.raises(Refused) as caught:
        durable.replace(place, b"new", 0o644)
    monkeypatch.undo()
    assert [(one.code, one.found) for one in caught.value.refusals] == [("NV911", "No space left on device")]
    assert place.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


HELD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
except BlockingIOError:
    print("held")
"""


def test_a_locked_directory_is_locked_for_others(tmp_path: Path) -> None:
    with durable.locked(tmp_path):
        assert child(HELD, os.fspath(tmp_path)).stdout == b"held\n"
    assert child(HELD, os.fspath(tmp_path)).stdout == b"free\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such file system is at hand, so the system call answers as one."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(Refused, match="NV513"), durable.locked(tmp_path):
        pytest.fail("locked without a lock")


def test_a_directory_appears_when_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "new/one"
    with durable.appearing(place, "--layout") as partial:
        (partial / "file").write_bytes(b"data")
        assert not place.exists()
    assert (place / "file").read_bytes() == b"data"
    assert [path.name for path in place.parent.iterdir()] == ["one"]


@pytest.mark.parametrize("there", ["directory", "file", "dangling link"])
def test_what_is_there_already_is_left_alone(tmp_path: Path, there: str) -> None:
    place = tmp_path / "one"
    if there == "directory":
        place.mkdir()
    elif there == "file":
        place.touch()
    else:
        place.symlink_to("nowhere")
    with pytest.raises(Refused) as caught, durable.appearing(place, "--layout"):
        raise AssertionError("never entered")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == ("NV108", "--layout", str(place))
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_directory_that_cannot_be_filled_never_appears(tmp_path: Path) -> None:
    def fill(partial: Path) -> None:
        (partial / "file").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(Refused) as caught, durable.appearing(tmp_path / "one", "--layout") as partial:
        fill(partial)
    assert [one.code for one in caught.value.refusals] == ["NV920"]
    assert list(tmp_path.iterdir()) == []
