"""NV802: the probe of a bisect is no file that can be run."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm import probe
from nvllm.refusal import Refusal, Refused


def refusal(path: Path) -> Refusal:
    with pytest.raises(Refused) as caught:
        probe.program(path, (), "", build_only=False)
    (found,) = caught.value.refusals
    assert (found.code, found.where, caught.value.exit_code) == ("NV802", str(path), 2)
    assert found.expected == "a program that this user may run"
    return found


def test_a_file_without_the_right_to_execute_it(tmp_path: Path) -> None:
    path = tmp_path / "probe.sh"
    path.write_text("#!/bin/sh\n")
    found = refusal(path)
    assert (found.found, found.cure) == ("a file without the right to execute it", f"chmod +x {path}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(tmp_path / "probe.sh").found == "nothing of that name"


def test_a_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path).found == "no plain file"


def test_a_golden_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        probe.builtin("golden", (str(tmp_path / "answer"),))
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.found) == ("NV802", str(tmp_path / "answer"), "No such file or directory")
    assert found.cure == "name a file"
