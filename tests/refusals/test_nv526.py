"""NV526, not readable by the engine: a file that is mounted belongs to a user whose files the engine may not read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.core.plan import Mount
from nvllm.core.refusal import Refusal
from nvllm.serve import readable

STRANGER = f"{os.geteuid() + 1}:{os.getegid() + 1}"
"""A user of whom no file of the test is."""


def refused(directory: Path, user: str = STRANGER) -> list[Refusal]:
    """Return what is said of the files below DIRECTORY, mounted as a model's, for an engine of USER."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return readable.refusals([Mount(str(path), f"/models/mine/{path.relative_to(directory)}") for path in files], user)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model/part").mkdir(parents=True)
    for name in ("config.json", "weights", "part/tokens"):
        (tmp_path / "model" / name).write_text("x")
        (tmp_path / "model" / name).chmod(0o644)
    return tmp_path / "model"


def _one_closed(model: Path) -> str:
    (model / "config.json").chmod(0o600)
    return f"chmod a+r {model / 'config.json'}"


def _all_closed(model: Path) -> str:
    """As they are written with umask 077."""
    for path in (model / "config.json", model / "weights", model / "part/tokens"):
        path.chmod(0o600)
    return f"chmod -R a+rX {model}"


def _of_a_group(model: Path) -> str:
    (model / "weights").chmod(0o640)
    return f"chmod a+r {model / 'weights'}"


@pytest.mark.parametrize("close", [_one_closed, _all_closed, _of_a_group])
def test_a_file_that_the_engine_cannot_read(model: Path, close: Callable[[Path], str]) -> None:
    assert refused(model) == []
    cure = close(model)
    (refusal,) = refused(model)
    assert (refusal.code, refusal.cure) == ("NV526", cure)
    assert refused(model, f"{os.geteuid()}:1") == []
    program, *arguments = cure.split()
    assert os.spawnvp(os.P_WAIT, program, [program, *arguments]) == 0
    assert refused(model) == []


def test_a_file_of_the_engines_group(model: Path) -> None:
    (model / "weights").chmod(0o640)
    assert refused(model, f"{os.geteuid() + 1}:{os.getegid()}") == []
    (model / "weights").chmod(0o604)  # the kernel asks the group of a file before everybody else
    assert [one.code for one in refused(model, f"{os.geteuid() + 1}:{os.getegid()}")] == ["NV526"]


def test_each_model_has_one_refusal(model: Path, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("x")
    template.chmod(0o600)
    (model / "config.json").chmod(0o600)
    mounts = [
        Mount(str(model / "config.json"), "/models/mine/config.json"),
        Mount(str(model / "config.json"), "/adapters/pirate/config.json"),
        Mount(str(template), "/templates/chat.jinja"),
    ]
    assert [one.where for one in readable.refusals(mounts, STRANGER)] == [
        str(model / "config.json"),
        str(model / "config.json"),
        str(template),
    ]


def test_what_nvllm_itself_mounts_is_not_looked_at(tmp_path: Path) -> None:
    """The run directory and the program in it belong to the engine's user when it starts; NV604 is about the key."""
    closed = tmp_path / "file"
    closed.touch(0o600)
    targets = ("/run/nvllm", "/access/nvllm_access.py", "/run/secrets/nvllm-api-key")
    assert readable.refusals([Mount(str(closed), target) for target in targets], STRANGER) == []


def test_a_file_that_is_gone_is_not_this_refusal(tmp_path: Path) -> None:
    assert readable.refusals([Mount(str(tmp_path / "gone"), "/models/mine/gone")], STRANGER) == []
