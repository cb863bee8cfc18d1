"""The one way to run a program."""

from __future__ import annotations

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


def test_a_program_that_ends_by_itself_is_as_any_other() -> None:
    done = proc.Programs().run(["sh", "-c", "cat; printf oops >&2; exit 3"], env=proc.environment({}), timeout=10)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"oops")
    with pytest.raises(OSError, match="nothing-of-that-name"):
        proc.Programs().run(["/nothing-of-that-name"], env=proc.environment({}), timeout=10)
