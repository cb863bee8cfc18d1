"""The probe: what an exit status says, which failure counts, and what makes it another probe."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.trials import probe
from nvllm.trials.trial import TrialOutcome
from support.rows import each_row


@each_row(
    ("status", "regress", "outcome", "kind"),
    [
        (0, "", "good", ""),
        (1, "", "bad", "exit 1"),
        (127, "", "bad", "exit 127"),
        (125, "", "untestable", "exit 125"),
        (3, "exit=3", "bad", "exit=3"),
        (4, "exit=3", "untestable", "exit 4"),
        (0, "exit=3", "good", ""),
        (1, "log=out of .*ry", "bad", "log=out of .*ry"),
        (1, "log=segfault", "untestable", "exit 1"),
    ],
)
def test_what_an_exit_status_says(status: int, regress: str, outcome: TrialOutcome, kind: str) -> None:
    trial = probe.judge(status, "engine: out of memory\n", regress, seconds=2.0)
    assert (trial.outcome, trial.kind, trial.seconds) == (outcome, kind, 2.0)
    assert trial.stage == ("harness" if outcome == "untestable" else None)


_FORM = "exit=N with N from 1 to 127, or log=REGEX"


@each_row(
    ("regress", "expected", "actual"),
    [
        *((regress, _FORM, regress) for regress in ("exit=0", "exit=128", "exit=129", "exit=", "log=", "3")),
        ("log=(", "a Python regular expression", "(: missing ), unterminated subpattern at position 0"),
    ],
)
def test_a_failure_that_cannot_be_declared(tmp_path: Path, regress: str, expected: str, actual: str) -> None:
    path = tmp_path / "probe"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    with pytest.raises(Refused) as caught:
        probe.program(path, (), regress, build_only=False)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV108", "--regress")
    assert (refusal.expected, refusal.found) == (expected, actual)


def test_every_exit_status_of_a_program_can_be_declared(tmp_path: Path) -> None:
    path = tmp_path / "probe"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    for regress in ("exit=1", "exit=127"):
        assert probe.program(path, (), regress, build_only=False).regress == regress


def test_golden_takes_one_file(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text("fox")
    for arguments in ((), (str(tmp_path / "answer"),) * 2):
        with pytest.raises(Refused, match="golden with a FILE"):
            probe.builtin("golden", arguments)


def test_a_probe_is_known_by_its_bytes_and_by_how_it_is_used(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    first = probe.program(one, (), "", build_only=False)
    assert probe.program(other, (), "", build_only=False).sha256 == first.sha256
    assert probe.program(one, (), "exit=3", build_only=False).sha256 != first.sha256
    assert probe.program(one, ("x",), "", build_only=False).sha256 != first.sha256
    assert probe.unchanged(first) == first
    one.write_text("#!/bin/sh\nexit 1\n")
    assert probe.unchanged(first).sha256 != first.sha256


def test_the_tests_that_nvllm_brings(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    answer.write_text("hello")
    golden = probe.builtin("golden", (str(answer),))
    assert probe.unchanged(golden) == golden
    assert golden.sha256 != probe.builtin("boots").sha256 != probe.builtin("coherent").sha256
    answer.write_text("hallo")
    assert probe.unchanged(golden) != golden
    with pytest.raises(Refused) as caught:
        probe.builtin("boot")
    assert caught.value.refusals[0].code == "NV108"
