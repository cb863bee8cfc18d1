"""nvllm as a library: the page names what the rooms export, and its example runs without an engine."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nvllm

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/library.md").read_text(encoding="utf-8")
ROOMS = sorted(room.name for room in pkgutil.iter_modules(nvllm.__path__) if room.ispkg)
EXPORTING = [room for room in ROOMS if hasattr(importlib.import_module(f"nvllm.{room}"), "__all__")]


def test_every_room_that_exports_has_its_table() -> None:
    assert sorted(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)) == EXPORTING


@pytest.mark.parametrize("room", EXPORTING)
def test_the_table_names_what_the_room_exports(room: str) -> None:
    module = importlib.import_module(f"nvllm.{room}")
    table = PAGE[PAGE.index(f"\n## {room}\n") :].split("\n## ")[1]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(module.__all__)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert modules.isdisjoint(module.__all__), "a module of that name would hide what is exported"
    assert all(getattr(module, name).__doc__ for name in module.__all__)
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        module.nothing_of_that_name  # noqa: B018


def test_a_room_imports_nothing_before_it_is_asked() -> None:
    program = f"import sys, {', '.join('nvllm.' + room for room in EXPORTING)}; print(*sorted(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "launcher")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
    loaded = {name for name in done.stdout.split() if name.startswith("nvllm.")}
    assert loaded == {*(f"nvllm.{room}" for room in EXPORTING), "nvllm.core", "nvllm.core.exports"}


def test_the_example_runs_without_an_engine(tmp_path: Path) -> None:
    (example,) = re.findall(r"^<!-- run -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "launcher"),
        "NVLLM_HOME": str(tmp_path),
        "DOCKER_HOST": f"unix://{tmp_path}/no-engine",
    }
    done = subprocess.run(
        [sys.executable, "-c", example], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    version, hashed, *refusals = done.stdout.splitlines()
    assert version.startswith("0.28.0 serves tiny-eager, ")
    assert re.fullmatch(r"build hash [0-9a-f]{64} fits its lock", hashed)
    assert any(line.startswith("NV510 ") for line in refusals)
