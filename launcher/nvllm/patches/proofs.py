"""Checking that the tests that a patch names exist, by pytest if it is installed.

Only pytest knows the parameters of a test, and whether its file can be imported.
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
"""Seconds. Only collecting a test imports what its module imports: torch alone takes a minute on a slow disk."""


def pytest_is_here() -> bool:
    """Return whether the Python that runs nvllm has pytest."""
    return importlib.util.find_spec("pytest") is not None


def refusals(root: Path, nodes: Sequence[str]) -> Iterator[Refusal]:
    """Yield NV108 for each of NODES that is not a test below ROOT.

    Without pytest, it is enough that the file defines the test; its parameters are not checked.
    """
    for node in nodes:
        problem = _wrong(root, node)
        if problem is not None:
            cure = f"write the test first; see it collected: python -m pytest --collect-only {shlex.quote(node)}"
            yield Refusal("NV108", f"--proved-by {node}", "a test that pytest collects", problem, cure)


def _wrong(root: Path, node: str) -> str | None:
    """Return why NODE is not a test below ROOT, None if it is."""
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
    output = (done.stdout + done.stderr).decode(errors="backslashreplace").splitlines()
    # An exception in an import is marked by E; a test that was not found is the last error.
    raised = [line.removeprefix("E").strip() for line in output if line.startswith("E  ")]
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    return (raised or errors or [f"pytest ends with exit status {done.returncode}"])[-1]
