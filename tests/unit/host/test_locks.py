"""Hard locks, with real processes: exclusion, death of the holder, many contenders, hostile lock files."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.refusal import Refused
from nvllm.host.locks import KINDS, Holder, Key, Kind, LocksLost, LockStatus, acquire_all, probe, status

# A fork, because it starts at once; none of these tests holds a lock while it forks.
_FORK = multiprocessing.get_context("fork")

PORT = Key("port", "8000")
SERVE = Key("serve", "ab12")


def _holder(pid: int = 0) -> Holder:
    return Holder(
        pid or os.getpid(), "2026-11-20T10:00:00Z", "nvllm serve cpu --profile tiny-eager", "nvllm-cpu-tiny-eager"
    )


def _hold_until_killed(directory: Path, keys: list[Key], ready: Connection) -> None:
    acquire_all(directory, keys, _holder())
    ready.send(os.getpid())
    signal.pause()


def _start_holder(directory: Path, keys: list[Key]) -> BaseProcess:
    ours, theirs = _FORK.Pipe()
    child = _FORK.Process(target=_hold_until_killed, args=(directory, keys, theirs))
    child.start()
    assert ours.poll(30)
    ours.recv()
    return child


def _kill(child: BaseProcess) -> None:
    child.kill()
    child.join(30)


def test_a_lock_that_another_process_holds_is_refused_and_says_whose_it_is(tmp_path: Path) -> None:
    child = _start_holder(tmp_path / "locks", [PORT, SERVE])
    try:
        with pytest.raises(LocksLost) as caught:
            acquire_all(tmp_path / "locks", [PORT, SERVE, Key("gpu", "0")], _holder())
        assert caught.value.keys == {PORT, SERVE}
        assert [refusal.code for refusal in caught.value.refusals] == ["NV508", "NV508"]
        expected = f"pid {child.pid} (nvllm serve cpu --profile tiny-eager) since 2026-11-20T10:00:00Z"
        assert {refusal.found for refusal in caught.value.refusals} == {expected}
        # None of the others was kept.
        assert {held.key for held in status(tmp_path / "locks")} == {PORT, SERVE}
        acquire_all(tmp_path / "locks", [Key("gpu", "0")], _holder()).release()
    finally:
        _kill(child)


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    child = _start_holder(tmp_path, [PORT])
    _kill(child)
    assert (tmp_path / PORT.filename).read_text(), "the text of the dead stays, and means nothing"
    assert status(tmp_path) == ()
    with acquire_all(tmp_path, [PORT], _holder()):
        assert status(tmp_path) == (LockStatus(PORT, _holder()),)


def _contend(directory: Path, keys: list[Key], start: float, result: Connection) -> None:
    time.sleep(max(0.0, start - time.monotonic()))
    try:
        acquire_all(directory, keys, _holder(), patience=30)
    except Refused as refused:
        result.send(sorted({refusal.code for refusal in refused.refusals}))
        return
    result.send("won")
    result.poll(60)  # hold until the test says otherwise


def test_of_12_contenders_exactly_one_wins(tmp_path: Path) -> None:
    """Each names the same keys in another order; a winner keeps them until all have answered."""
    keys = [PORT, SERVE, Key("gpu", "GPU-6f1c"), Key("store", "main")]
    start = time.monotonic() + 0.3
    contenders = []
    for turn in range(12):
        ours, theirs = _FORK.Pipe()
        mixed = keys[turn % 4 :] + keys[: turn % 4]
        child = _FORK.Process(target=_contend, args=(tmp_path / "locks", mixed, start, theirs))
        child.start()
        contenders.append((child, ours))
    answers = []
    for _, ours in contenders:
        assert ours.poll(60)
        answers.append(ours.recv())
    for (child, ours), answer in zip(contenders, answers, strict=True):
        if answer == "won":  # the others have ended by themselves
            ours.send("go")
        child.join(30)
    assert answers.count("won") == 1
    assert answers.count(["NV508"]) == 11


def test_looking_never_makes_a_taker_be_refused(tmp_path: Path) -> None:
    """To look is to take for a moment; the guard keeps takers out of that moment."""
    child = _FORK.Process(target=_look_for_ever, args=(tmp_path,))
    acquire_all(tmp_path, [PORT], _holder()).release()
    child.start()
    try:
        for _ in range(300):
            acquire_all(tmp_path, [PORT, SERVE], _holder(), patience=30).release()
    finally:
        _kill(child)


def _look_for_ever(directory: Path) -> None:
    while True:
        status(directory, patience=30)


def test_one_process_cannot_take_a_lock_twice(tmp_path: Path) -> None:
    with acquire_all(tmp_path, [PORT], _holder()), pytest.raises(Refused):
        acquire_all(tmp_path, [PORT], _holder())


def test_release_frees_and_may_be_repeated(tmp_path: Path) -> None:
    holds = acquire_all(tmp_path, [PORT, SERVE], _holder())
    holds.release()
    holds.release()
    assert status(tmp_path) == ()
    acquire_all(tmp_path, [PORT, SERVE], _holder()).release()


def test_a_program_that_is_started_does_not_inherit_the_lock(tmp_path: Path) -> None:
    holds = acquire_all(tmp_path, [PORT], _holder())
    with subprocess.Popen(["sleep", "60"]) as child:
        # Not released, only closed: what would still hold the lock is the program.
        del holds
        try:
            for descriptor in _descriptors_of(tmp_path / PORT.filename):
                os.close(descriptor)
            assert status(tmp_path) == ()
        finally:
            child.kill()


def _descriptors_of(path: Path) -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd") if _target(name) == str(path)]


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""  # the descriptor that listed the directory


def test_closing_another_descriptor_of_the_file_does_not_free_the_lock(tmp_path: Path) -> None:
    """The lock belongs to the open file, not to the process as POSIX record locks do."""
    with acquire_all(tmp_path, [PORT], _holder()):
        with (tmp_path / PORT.filename).open("r+") as stream:
            stream.read()
        assert [held.key for held in status(tmp_path)] == [PORT]


def test_the_container_is_added_to_the_text(tmp_path: Path) -> None:
    with acquire_all(tmp_path, [PORT, SERVE], _holder()) as holds:
        holds.annotate("c" * 64)
        holders = [held.holder for held in status(tmp_path)]
        assert [holder and holder.container for holder in holders] == ["c" * 64, "c" * 64]
        assert str(holders[0]).endswith("since 2026-11-20T10:00:00Z, container cccccccccccc")


def test_stale_text_is_overwritten_whole(tmp_path: Path) -> None:
    path = tmp_path / PORT.filename
    path.touch(0o600)
    path.write_text(json.dumps({"pid": 1, "command": "old " * 500}) + "\nmore\n")
    with acquire_all(tmp_path, [PORT], _holder()):
        lines = path.read_text().splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["pid"] == os.getpid()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"pid": 1, "started": "x", "command": "no end of line", "instance": null, "container": null}',
        "[1]\n",
        "\udcff\n",
        '{"pid": 1, "started": "x", "command": "\\u001b[2J", "instance": null, "container": null}\n',
        "[" * 5000 + "\n",
    ],
)
def test_a_holders_text_that_cannot_be_read_changes_nothing_but_the_text(tmp_path: Path, text: str) -> None:
    with acquire_all(tmp_path, [PORT], _holder()):
        (tmp_path / PORT.filename).write_bytes(text.encode(errors="surrogateescape"))
        assert status(tmp_path) == (LockStatus(PORT, None),)
        with pytest.raises(Refused) as caught:
            acquire_all(tmp_path, [PORT], _holder())
    (refusal,) = caught.value.refusals
    assert refusal.found == "a process that the file does not name"
    assert "fuser" in refusal.cure


def test_what_holds_a_build_is_waited_for_not_stopped_as_an_instance(tmp_path: Path) -> None:
    holder = Holder(4711, "2026-11-20T10:00:00Z", "nvllm build cpu")
    with acquire_all(tmp_path, [Key("build", "cpu")], holder), pytest.raises(Refused) as caught:
        acquire_all(tmp_path, [Key("build", "cpu")], holder)
    assert caught.value.refusals[0].cure == "tail --pid=4711 -f /dev/null"


def test_lock_files_are_private_and_stay(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        acquire_all(tmp_path / "new/locks", [PORT], _holder()).release()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new/locks").iterdir()}
    assert modes == {"guard.lock": 0o600, PORT.filename: 0o600}
    assert (tmp_path / "new/locks").stat().st_mode & 0o777 == 0o700


def test_the_same_file_is_locked_again_and_again(tmp_path: Path) -> None:
    acquire_all(tmp_path, [PORT], _holder()).release()
    inode = (tmp_path / PORT.filename).stat().st_ino
    acquire_all(tmp_path, [PORT], _holder()).release()
    assert (tmp_path / PORT.filename).stat().st_ino == inode


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    locks = tmp_path / "locks"
    locks.mkdir(mode=0o700)
    (locks / PORT.filename).symlink_to(victim)
    with pytest.raises(Refused) as caught:
        acquire_all(locks, [PORT], _holder())
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == ("NV513", str(locks / PORT.filename), "a symbolic link")
    assert victim.read_text() == "precious"


def test_a_fifo_a_second_name_and_an_open_mode_are_all_refused_at_once(tmp_path: Path) -> None:
    names = ("1", "2", "3", "4")
    keys = [Key("port", name) for name in names]
    os.mkfifo(tmp_path / keys[0].filename, 0o600)
    (tmp_path / "other").touch(0o600)
    (tmp_path / keys[1].filename).hardlink_to(tmp_path / "other")
    (tmp_path / keys[2].filename).touch()
    (tmp_path / keys[2].filename).chmod(0o644)
    (tmp_path / keys[3].filename).mkdir()
    with pytest.raises(Refused) as caught:
        acquire_all(tmp_path, [PORT, *keys], _holder())
    found = [refusal.found for refusal in caught.value.refusals]
    assert found == ["not a regular file", "a file with 2 names", "a file with mode 0644", "Is a directory"]
    (tmp_path / keys[0].filename).unlink()
    acquire_all(tmp_path, [PORT], _holder()).release()


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks").chmod(0o777)
    with pytest.raises(Refused) as caught:
        acquire_all(tmp_path / "locks", [PORT], _holder())
    assert caught.value.refusals[0].code == "NV513"
    assert caught.value.refusals[0].found == f"a directory of user {os.geteuid()} with mode 0777"


def test_a_guard_that_is_not_let_go_is_refused_after_a_while(tmp_path: Path) -> None:
    acquire_all(tmp_path, [PORT], _holder()).release()
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "guard.lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            with pytest.raises(Refused) as caught:
                acquire_all(tmp_path, [PORT], _holder(), patience=0.1)
        finally:
            child.kill()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV508", str(tmp_path / "guard.lock"))
    assert refusal.found == "a process that has held it for more than 0.1 s"
    acquire_all(tmp_path, [PORT], _holder()).release()


def test_status_of_no_directory_is_empty_and_makes_none(tmp_path: Path) -> None:
    assert status(tmp_path / "locks") == ()
    assert not (tmp_path / "locks").exists()


def test_status_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "unknown-1.lock").touch()
    (tmp_path / "port-.lock").touch()
    with acquire_all(tmp_path, [PORT], _holder()):
        assert [held.key for held in status(tmp_path)] == [PORT]


def test_probe_says_that_locks_work_here(tmp_path: Path) -> None:
    assert probe(tmp_path / "locks").problem is None
    (tmp_path / "file").touch()
    assert probe(tmp_path / "file/locks").problem == "Not a directory"


@pytest.mark.parametrize("name", ["", ".", "../up", "a/b", "-x", "a b", "a\n", "é"])
def test_names_that_could_leave_the_directory_are_no_keys(name: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        Key("port", name)


@given(
    st.sampled_from(KINDS),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True),
)
def test_keys_of_different_names_never_share_a_file(kind: Kind, name: str) -> None:
    filename = Key(kind, name).filename
    assert filename.removesuffix(".lock").split("-", 1) == [kind, name]
