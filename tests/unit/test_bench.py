"""The benchmarks: what needs no engine. `make bench` measures the rest."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import bench

from nvllm.image import dockerfiles

ROOT = Path(__file__).parents[2]


def test_the_applier_runs_with_nothing_but_what_lies_beside_it(tmp_path: Path) -> None:
    """In the image there is no nvllm: an import that is missing there fails only in the middle of `make bench`."""
    for path, module in dockerfiles.module_files(bench.APPLIER).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, tmp_path / path)
    shutil.copy(ROOT / "benchmarks/apply_patches.py", tmp_path)
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.py").write_text("one\n")
    patch = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-one\n+two\n"
    (tmp_path / "a.patch").write_text(patch)
    argv = [sys.executable, "-S", "-E", str(tmp_path / "apply_patches.py"), str(site), str(tmp_path / "a.patch")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (site / "a.py").read_text() == "two\n"


def test_what_failed_is_said_although_a_client_warns() -> None:
    with pytest.raises(bench.CannotRunError, match="it failed DEPRECATED"):
        bench.run(["sh", "-c", "echo it failed; echo DEPRECATED >&2; exit 1"])


@pytest.mark.parametrize(
    ("version", "plugin", "has"), [("20.10.24", 1, True), ("28.2.2", 1, False), ("28.2.2", 0, True)]
)
def test_buildkit_is_of_the_first_client_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, plugin: int, has: bool
) -> None:
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\ncase "$1" in version) echo {version};; buildx) exit {plugin};; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = bench._buildkit()
    assert (found.client if found is not None else None) == (str(program) if has else None)
