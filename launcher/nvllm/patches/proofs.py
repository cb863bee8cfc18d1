"""Are the tests that a patch names there? pytest itself is asked, where it is installed.

Only pytest knows which parameters a test has, and whether its file can be imported at all.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvllm.core import proc
from nvllm.core.refusal import Refusal
from nvllm.patches import seriesfile

_TIMEOUT = 300


def pytest_is_here() -> bool:
    """Return whether the Python that runs nvllm has pytest."""
    return importlib.util.find_spec("pytest") is not None


def refusals(root: Path, nodes: Sequence[str]) -> Iterator[Refusal]:
    """Yield NV108 for each of NODES that is no test below ROOT.

    Without pytest a test counts as there if its file defines it, whatever its parameters.
    """
    for node in nodes:
        found = _wrong(root, node)
        if found is not None:
            cure = f"write the test first; see it collected: python -m pytest --collect-only {shlex.quote(node)}"
            yield Refusal("NV108", f"--proved-by {node}", "a test that pytest collects", found, cure)


def _wrong(root: Path, node: str) -> str | None:
    """Return why NODE is no test below ROOT, None if it is one."""
    file, _, names = node.partition("::")
    if file.startswith("-") or not names:
        return "not FILE::TEST"
    if not (root / file).is_file():
        return f"no file {file}"
    if pytest_is_here():
        return _uncollected(root, node)
    return None if seriesfile.defined(root, node) else f"no such test in {file}"


def _uncollected(root: Path, node: str) -> str | None:
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(root)]
    env = proc.environment({"PYTHONDONTWRITEBYTECODE": "1"})
    try:
        done = proc.run([*argv, node], env=env, cwd=root, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"pytest has not collected it within {_TIMEOUT} s"
    if done.returncode == 0:
        return None
    said = (done.stdout + done.stderr).decode(errors="backslashreplace").splitlines()
    # What an import raised stands after an E; what was not found, in the last error.
    raised = [line.removeprefix("E").strip() for line in said if line.startswith("E  ")]
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    return (raised or errors or [f"pytest ends with exit status {done.returncode}"])[-1]
