"""A plugin of pytest that prints what became of each test, for `nvllm patch prove`: one line of JSON a test.

It is loaded beside the proof, in the image or on the host. Standard library only.
"""

import json
import os
import sys
from typing import Any

MARK = "nvllm-proof "
"""What a line begins with; other output may stand between the lines."""

NAMED = "nvllm_error"
"""The marker with the names of exceptions by which a test may fail without the patch, besides AssertionError."""

NODES = "NVLLM_NODES"
"""The variable with the nodes to run, as a JSON list. pytest is given their files alone: it would run none of them if
the module of one cannot be imported."""

KINDS = {
    "nvllm_engine": "needs a served engine, whose address is in NVLLM_ADDRESS; runs on the host",
    "nvllm_gpu": "needs a GPU",
    "nvllm_host": "runs on the host, and drives containers of the image NVLLM_IMAGE itself",
    NAMED: "the names of exceptions by which the test may fail without the patch",
}

_TEXT = 600
"""Characters of an exception's text that are printed: an engine cuts a line of a log at 16 KiB."""

_raised: dict[str, dict[str, Any]] = {}
_steps: list[tuple[str, str, str]] = []


def pytest_configure(config: Any) -> None:
    """Make the markers known, so that --strict-markers lets them pass."""
    for name, meaning in KINDS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave those of ITEMS that are of a node of `NODES`."""
    nodes = json.loads(os.environ["NVLLM_NODES"])
    items[:] = [
        item
        for item in items
        if item.nodeid in nodes
        or item.nodeid.startswith(tuple(f"{node}{mark}" for node in nodes for mark in ("[", "::")))
    ]


def pytest_exception_interact(node: Any, call: Any, report: Any) -> None:
    """Keep what the test or module of NODE raised: the names of its class and of those above it, and its text."""
    error = call.excinfo.value
    if not hasattr(node, "runtest") and isinstance(error.__cause__, ImportError):
        error = error.__cause__  # pytest hides it: a module of tests could not be imported
    _raised[report.nodeid] = {
        "raised": [cls.__name__ for cls in type(error).__mro__],
        "module": error.name if isinstance(error, ImportError) else None,
        "named": [str(word) for marker in node.iter_markers(NAMED) for word in marker.args],
        "text": (f"{type(error).__name__}: {error}").strip()[:_TEXT],
    }


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the outcome of a test, or of its setup or teardown if that did not pass: what it raised comes later."""
    if report.when == "call" or not report.passed:
        _steps.append((report.nodeid, report.outcome, report.when))


def pytest_runtest_logfinish() -> None:
    """Print what became of the test that has ended."""
    while _steps:
        _print(*_steps.pop(0))


def pytest_collectreport(report: Any) -> None:
    """Print the outcome of a module that could not be imported."""
    if not report.passed:
        _print(report.nodeid, report.outcome, "collect")


def pytest_sessionfinish() -> None:
    """Print that pytest has come to its end, whatever it has run."""
    _print("", "passed", "session")


def _print(node: str, outcome: str, when: str) -> None:
    line = {"node": node, "outcome": outcome, "when": when, **_raised.get(node, {})}
    sys.__stdout__.write(f"\n{MARK}{json.dumps(line)}\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
