"""nvllm as a library: the page names what `nvllm.api` has, and its example runs without an engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from nvllm import api

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/library.md").read_text(encoding="utf-8")


def test_the_page_names_what_is_public() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == sorted(api.__all__)
    assert [name for name in api.__all__ if not vars(api)[name].__doc__] == []


def test_no_command_loads_all_that_is_public() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "launcher")}
    program = "import sys, nvllm.cli.main; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True)
    assert "nvllm.api" not in done.stdout.split()


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
    assert version.startswith("0.32.0 serves tiny-eager, ")
    assert re.fullmatch(r"build hash [0-9a-f]{64} fits its lock", hashed)
    assert any(line.startswith("NV510 ") for line in refusals)
