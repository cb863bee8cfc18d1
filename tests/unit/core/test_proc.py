"""The one way to run a program."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core import proc


def test_output_and_status_come_back_as_they_are() -> None:
    done = proc.run(["sh", "-c", "cat; printf oops >&2; exit 3"], env=proc.environment({}), timeout=10, stdin=b"\x00in")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"\x00in", b"oops")


def test_a_directory_to_run_in(tmp_path: Path) -> None:
    done = proc.run(["pwd"], env=proc.environment({}), timeout=10, cwd=tmp_path)
    assert done.stdout.decode().strip() == str(tmp_path)


def test_arguments_are_never_read_by_a_shell() -> None:
    done = proc.run(["printf", "%s|", "$HOME", "a b", "; exit"], env=proc.environment({}), timeout=10)
    assert done.stdout == b"$HOME|a b|; exit|"


def test_the_environment_is_made_and_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HF_TOKEN": "s", "LANG": "tr_TR.UTF-8", "PYTHONPATH": "x", "TZ": "Asia/Tokyo"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DOCKER_HOST", "unix:///there")
    done = proc.run(["env"], env=proc.environment({"A": "1"}, passed=["DOCKER_HOST"]), timeout=10)
    seen = dict(line.split("=", 1) for line in done.stdout.decode().splitlines())
    assert seen["LC_ALL"] == "C.UTF-8"
    assert (seen["TZ"], seen["A"], seen["DOCKER_HOST"]) == ("UTC", "1", "unix:///there")
    assert not {"HF_TOKEN", "LANG", "PYTHONPATH"} & set(seen)


def test_a_program_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        proc.run(["sleep", "30"], env=proc.environment({}), timeout=0.2)


def test_a_program_that_is_there() -> None:
    assert Path(proc.require("sh", "dash")).is_absolute()


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(path: Path) -> list[int]:
    """Return the processes that SCRIPT wrote down, once all are there."""
    until(lambda: path.exists() and path.read_text().endswith("\n\n"))
    return [int(one) for one in path.read_text().split()]


SCRIPT = (
    "sleep 30 & echo $! > {0}; sh -c 'trap \"\" TERM; echo $$ >> {0}; exec sleep 30' & "
    "{1} until [ $(wc -l < {0}) = 2 ]; do sleep 0.01; done; echo >> {0}; wait; wait"
)
"""Writes the process ids of its children to a file, and an empty line when all traps are set."""


@pytest.mark.parametrize("trap", ["", "trap '' TERM;"])
def test_another_thread_ends_a_program_with_all_its_children(tmp_path: Path, trap: str) -> None:
    """Neither a child that outlives the program nor one that will not be asked holds its output open."""
    programs, done = proc.Programs(), []
    script = SCRIPT.format(tmp_path / "pids", trap)

    def run() -> None:
        done.append(programs.run(["sh", "-c", script], env=proc.environment({}), timeout=60))

    thread = threading.Thread(target=run)
    thread.start()
    pids = children(tmp_path / "pids")
    programs.end()
    thread.join(0.5)
    programs.end()
    thread.join(10)
    assert not thread.is_alive()
    assert [one.returncode for one in done] == [-signal.SIGKILL if trap else -signal.SIGTERM]
    until(lambda: all(ended(pid) for pid in pids))
    programs.end()  # nothing runs any more


def test_what_takes_too_long_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    for timeout in (0.3, 3, 30):  # on a busy machine the children are not there at once
        with pytest.raises(subprocess.TimeoutExpired):
            proc.Programs().run(["sh", "-c", SCRIPT.format(path, "")], env=proc.environment({}), timeout=timeout)
        if path.exists() and path.read_text().endswith("\n\n"):
            break
    until(lambda: all(ended(pid) for pid in children(path)))


def test_a_program_whose_start_is_interrupted_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have said its first word before it is in the ledger."""
    pids = tmp_path / "pids"

    def interrupted() -> str:
        until(lambda: pids.exists() and pids.read_text().endswith("\n"))
        raise KeyboardInterrupt

    monkeypatch.setattr(proc, "boot_id", interrupted)
    programs, script = proc.Programs(tmp_path / "ledger"), f"echo $$ > {pids}; exec sleep 60"
    with pytest.raises(KeyboardInterrupt):
        programs.run(["sh", "-c", script], env=proc.environment({}), timeout=60)
    until(lambda: ended(int(pids.read_text())))
    assert list((tmp_path / "ledger").iterdir()) == []


def test_a_program_that_ends_by_itself_is_as_any_other() -> None:
    done = proc.Programs().run(["sh", "-c", "cat; printf oops >&2; exit 3"], env=proc.environment({}), timeout=10)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"oops")
    with pytest.raises(OSError, match="nothing-of-that-name"):
        proc.Programs().run(["/nothing-of-that-name"], env=proc.environment({}), timeout=10)


def test_what_a_killed_process_left_is_ended_by_the_next_one(tmp_path: Path) -> None:
    """The program's child is in a session of its own, and the program itself ignores SIGTERM."""
    pids = tmp_path / "pids"
    script = f"trap '' TERM; setsid sleep 60 & echo $! > {pids}; echo $$ >> {pids}; wait"
    parent = os.fork()
    if parent == 0:
        try:
            proc.Programs(tmp_path / "ledger").run(["sh", "-c", script], env=proc.environment({}), timeout=60)
        finally:
            os._exit(0)
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    until(lambda: all(path.read_text() for path in (tmp_path / "ledger").iterdir()))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    left = [int(one) for one in pids.read_text().split()]
    assert not any(ended(pid) for pid in left)
    programs = proc.Programs(tmp_path / "ledger")
    assert programs.end_left() >= 2
    until(lambda: all(ended(pid) for pid in left))
    assert programs.end_left() == 0
    assert list((tmp_path / "ledger").iterdir()) == []


def test_a_process_that_got_the_number_of_one_that_was_left_is_spared(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    (tmp_path / "ab").write_text(f"{other.pid} 1 another-boot\n")
    assert proc.Programs(tmp_path).end_left() == 0
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_child_that_left_the_group_does_not_keep_its_program_from_ending(tmp_path: Path) -> None:
    """It holds the program's output open."""
    programs, pids = proc.Programs(), tmp_path / "pids"
    script = f"setsid sleep 60 & echo $! > {pids}; wait"
    thread = threading.Thread(target=lambda: programs.run(["sh", "-c", script], env=proc.environment({}), timeout=60))
    thread.start()
    until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    for _ in range(2):
        programs.end()
    thread.join(10)
    assert not thread.is_alive()
    until(lambda: ended(int(pids.read_text())))
