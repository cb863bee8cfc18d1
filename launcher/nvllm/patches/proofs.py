"""Checking that the tests that a patch names exist, by pytest if it is installed, and what they need.

Only pytest knows the parameters of a test, and whether its file can be imported. A proof may import what the image has
and this host lacks, such as torch and vLLM; its names are then read from its syntax tree.
"""

from __future__ import annotations

import ast
import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nvllm.core import proc, reading
from nvllm.core.refusal import Refusal
from nvllm.patches import seriesfile

_TIMEOUT = 300
"""Seconds. Only collecting a test imports what its module imports: torch alone takes a minute on a slow disk."""

ENGINE, GPU, HOST = "nvllm_engine", "nvllm_gpu", "nvllm_host"
"""The markers of a test that needs a served engine, that needs a GPU, and that runs on the host."""

_LACKS = "ModuleNotFoundError: "


def pytest_is_here() -> bool:
    """Return whether the Python that runs nvllm has pytest."""
    return importlib.util.find_spec("pytest") is not None


def absent(root: Path, nodes: Iterable[str]) -> frozenset[str]:
    """Return those of NODES whose file is not below ROOT, such as the proofs of nvllm's patches in another project."""
    return frozenset(node for node in nodes if not (root / node.partition("::")[0]).is_file())


def refusals(root: Path, nodes: Sequence[str]) -> Iterator[Refusal]:
    """Yield NV108 for each of NODES that is not a test below ROOT.

    Without pytest, it is enough that the file defines the test; its parameters are not checked.
    """
    problems = {node: _unusable(root, node) for node in nodes}
    asked = [node for node, problem in problems.items() if problem is None]
    # pytest takes seconds to begin: it collects all at once, and each alone only to say which is none.
    collected = len(asked) > 1 and pytest_is_here() and _uncollected(root, asked) is None
    for node, unusable in problems.items():
        problem = _undefined(root, node) if unusable is None and not collected else unusable
        if problem is not None:
            cure = f"write the test first; see it collected: python -m pytest --collect-only {shlex.quote(node)}"
            yield Refusal("NV108", f"--proved-by {node}", "a test that pytest collects", problem, cure)


def _unusable(root: Path, node: str) -> str | None:
    """Return why NODE names no test of a file below ROOT, None if it does."""
    file, _, names = node.partition("::")
    if file.startswith("-") or not names:
        return "not FILE::TEST"
    return None if (root / file).is_file() else f"no file {file}"


def _undefined(root: Path, node: str) -> str | None:
    """Return why the file of NODE has no such test, None if it has."""
    defined = seriesfile.defined(root, node)
    if not pytest_is_here():
        return None if defined else f"no such test in {node.partition('::')[0]}"
    problem = _uncollected(root, [node])
    return None if problem is not None and problem.startswith(_LACKS) and defined else problem


def _uncollected(root: Path, nodes: Sequence[str]) -> str | None:
    """Return why pytest does not collect NODES below ROOT, None if it does."""
    # Nothing is left in the project: no cache of pytest, no bytecode.
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(root)]
    env = proc.environment({"PYTHONDONTWRITEBYTECODE": "1"})
    try:
        done = proc.run([*argv, *nodes], env=env, cwd=root, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"pytest has not collected it within {_TIMEOUT} s"
    if done.returncode == 0:
        return None
    output = (done.stdout + done.stderr).decode(errors="backslashreplace").splitlines()
    # An exception in an import is marked by E; a test that was not found is the last error.
    raised = [line.removeprefix("E").strip() for line in output if line.startswith("E  ")]
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    return (raised or errors or [f"pytest ends with exit status {done.returncode}"])[-1]


def needs(root: Path, node: str) -> frozenset[str]:
    """Return which of `ENGINE`, `GPU` and `HOST` the test NODE below ROOT is marked with.

    That is ``pytest.mark.NAME`` in ``pytestmark`` of its module or class, or as a decorator of either or of itself.
    """
    file, *names = node.split("::")
    try:
        body = ast.parse(reading.content(root / file, reading.SOURCE)).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()
    marked: list[ast.expr] = []
    for name in [*names, ""]:
        marked += [
            statement.value
            for statement in body
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"
        ]
        plain = name.partition("[")[0]
        for statement in body:
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and statement.name == plain:
                marked += statement.decorator_list
                body = statement.body if isinstance(statement, ast.ClassDef) else []
    attributes = (inner for mark in marked for inner in ast.walk(mark) if isinstance(inner, ast.Attribute))
    words = {inner.attr for inner in attributes if ast.unparse(inner.value) == "pytest.mark"}
    return frozenset(words & {ENGINE, GPU, HOST})
