"""What a proof proves: its run without the patch beside its run with the set. Pure.

Without its patch a test must fail by an assertion, by an error that it names (``pytest.mark.nvllm_error("KeyError")``),
or because it imports what only the patch adds. Any other error, such as a missing library or a fixture that fails, says
nothing about the patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvllm.core import canonical
from nvllm.patches.proved import Answer, Verdict
from nvllm.patches.unified import Diff
from nvllm.runtime.proving import MARK

_COUNTS = frozenset({"AssertionError", "Failed"})
"""Exceptions by which a test fails: an assertion, and that of `pytest.fail`."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """What one test did: NODE as pytest names it, and pytest's OUTCOME of the step WHEN.

    RAISED are the names of the exception's class and of those above it. MODULE is what could not be imported, or from
    which; NAMED are the exceptions by which the test may fail. TEXT is the exception as text.
    """

    __test__ = False  # not a test of ours, whatever pytest makes of the name

    node: str
    outcome: str
    when: str
    raised: tuple[str, ...] = ()
    module: str | None = None
    named: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """What all tests of one node did in one run: the OUTCOME, and the TEXT of what decided it."""

    outcome: Answer
    text: str = ""


def results(output: str) -> Iterator[TestResult]:
    """Yield what `runtime/proving.py` printed into OUTPUT, the output of one run of pytest."""
    for line in output.splitlines():
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        try:
            document = canonical.decode(text.encode())
        except ValueError:
            continue  # the test itself prints such a line
        match document:
            case {"node": str(node), "outcome": str(outcome), "when": str(when), **rest}:
                module = rest.get("module")
                yield TestResult(
                    node,
                    outcome,
                    when,
                    _words(rest.get("raised")),
                    str(module) if module is not None else None,
                    _words(rest.get("named")),
                    str(rest.get("text", "")),
                )


def _words(value: object) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list) else ()


def of_node(listed: Sequence[TestResult], node: str) -> tuple[TestResult, ...]:
    """Return those of LISTED that are of NODE: its parameters, the tests in it, its module if that was not imported."""
    return tuple(
        result
        for result in listed
        if result.node == node
        or result.node.startswith((f"{node}[", f"{node}::"))
        or (result.when == "collect" and node.startswith(f"{result.node}::"))
    )


def ran(same: Sequence[TestResult], diff: Diff) -> Ran:
    """Return what SAME, the results of all tests of one node, amount to; DIFF is the patch that they are to prove.

    An error that does not count outweighs a failure, and a failure a test that passes or was skipped.
    """
    bad = [result for result in same if result.outcome == "failed"]
    errors = [result for result in bad if not _counts(result, diff)]
    if errors:
        return Ran("error", errors[0].text)
    if bad:
        return Ran("failed", bad[0].text)
    if any(result.outcome == "skipped" for result in same):
        return Ran("none", "a test of it was skipped")
    return Ran("passed") if same else Ran("none", "pytest has run no test of this name")


def _counts(result: TestResult, diff: Diff) -> bool:
    """Return whether RESULT, a failure, is one by which a test says that its patch is not there."""
    if "ImportError" in result.raised:
        return result.module is not None and _brought(result, result.module, diff)
    return result.when == "call" and bool({*result.raised} & (_COUNTS | {*result.named}))


def _brought(result: TestResult, module: str, diff: Diff) -> bool:
    """Return whether DIFF brings MODULE, or what RESULT would import from it."""
    path = module.replace(".", "/")
    own = {f"{path}.py", f"{path}/__init__.py"}
    if "ModuleNotFoundError" not in result.raised:
        return any(file.new in own for file in diff.files)
    added = [file.new for file in diff.files if file.old is None and file.new is not None]
    # Never the package itself: an image without vLLM lacks every patch.
    return "/" in path and any(new in own or new.startswith(f"{path}/") for new in added)


def verdict(without: Ran, whole: Ran) -> Verdict:
    """Return what a test proves that did WITHOUT its patch the one, and with the WHOLE set the other."""
    if "none" in (without.outcome, whole.outcome):
        return "not-run"
    if whole.outcome != "passed":
        return "fails-with"
    if without.outcome == "passed":
        return "passes-without"
    return "proved" if without.outcome == "failed" else "other-error"
