"""pip for another machine. That it resolves for it is tested in test_wheels.py, by running it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from nvllm.sources import pipfor
from nvllm.sources import wheels as wheelset
from nvllm.sources.wheels import Target


def started(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", pipfor.__file__, json.dumps(environment), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_it_is_pip() -> None:
    done = started(wheelset.environment(Target("3.12.0", "aarch64", 36)), "--version")
    assert done.stdout.startswith("pip ")
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["no_such_marker", "platform machine"])
def test_an_environment_that_pip_does_not_take_is_no_answer(name: str) -> None:
    """A later pip may keep its environment elsewhere; its answer for this host must not pass for the image's."""
    done = started({**wheelset.environment(Target("3.12.0", "aarch64", 36)), name: "x"}, "--version")
    assert done.returncode != 0
    assert done.stdout == ""
