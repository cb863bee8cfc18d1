"""The one way to run a program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nvllm import proc


def test_output_and_status_come_back_as_they_are() -> None:
    done = proc.run(["sh", "-c", "cat; printf oops >&2; exit 3"], env=proc.environment({}), timeout=10, stdin=b"\x00in")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"\x00in", b"oops")


def test_a_directory_to_run_in(tmp_path: Path) -> None:
    done = proc.run(["pwd"], env=proc.environment({}), timeout=10, cwd=tmp_path)
    assert done.stdout.decode().strip() == str(tmp_path)


def test_arguments_are_never_read_by_a_shell() -> None:
    done = proc.run(["printf", "%s|", "$HOME", "a b", "; exit"], env=proc.environment({}), timeout=10)
    assert done.stdout == b"$HOME|a b|; exit|"
    assert done.copy_paste == "printf '%s|' '$HOME' 'a b' '; exit'"


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
