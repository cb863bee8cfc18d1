"""Runs inside a container, on one source tree of vLLM: the test files that would be sent upstream, with pytest.

Its arguments are pytest's. It prints one line of JSON: where vLLM is, and the outcome of each test.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import vllm


class Outcomes:
    """Of each test, by file and name: `passed`, `skipped`, or the text of its failure."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found[report.nodeid] = report.longreprtext

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.found[report.nodeid] = report.longreprtext if report.failed else report.outcome


def main() -> None:
    outcomes = Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", "--import-mode=importlib", *sys.argv[1:]], plugins=[outcomes])
    results: dict[str, Any] = {"file": vllm.__file__, "outcomes": outcomes.found}
    sys.stdout.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
