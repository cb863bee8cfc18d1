"""NV853: a file of an evidence run is missing, or not as nvllm wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.evidence.directory import EvidenceDirectory
from support.evidence_samples import answer, manifest, verdict


def codes(directory: EvidenceDirectory) -> list[str]:
    with pytest.raises(Refused) as caught:
        directory.arms()
    return [one.code for one in caught.value.refusals]


@pytest.fixture
def directory(tmp_path: Path) -> EvidenceDirectory:
    made = EvidenceDirectory(tmp_path / "run")
    made.begin(manifest((), ("a",), runs=1), force=False)
    made.leg("none", 1).mkdir(parents=True)
    answers = (answer(1, 1),)
    made.finish(verdict("none", 1, answers), answers)
    return made


def test_a_directory_without_a_run(tmp_path: Path) -> None:
    assert codes(EvidenceDirectory(tmp_path)) == ["NV853"]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "nvllm.evidence-leg/1"}', "\0"])
def test_a_verdict_that_is_none(directory: EvidenceDirectory, text: str) -> None:
    (directory.leg("none", 1) / "verdict.json").write_text(text)
    assert set(codes(directory)) == {"NV853"}


def test_answers_that_are_gone_or_cut_off(directory: EvidenceDirectory) -> None:
    answers = directory.leg("none", 1) / "perq.jsonl"
    answers.write_bytes(answers.read_bytes()[:-20])
    assert codes(directory) == ["NV853"]
    answers.unlink()
    assert codes(directory) == ["NV853"]
