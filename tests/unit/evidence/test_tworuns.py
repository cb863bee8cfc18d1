"""Two runs side by side: arms of one name are compared, and what else differs is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from nvllm.core.refusal import Refused
from nvllm.evidence import analysis, page, summary, tworuns
from nvllm.evidence.arms import Arm
from nvllm.evidence.comparison import Leg
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import ArmState, Margins
from nvllm.evidence.tworuns import Run
from support.evidence_samples import benched, legs, manifest

ARMS: tuple[Arm, ...] = ((), ("a",))


def ablated(slower: float, right: Callable[[int], bool] = lambda _: True) -> Run:
    def says(_arm: Arm, run: int, question: int) -> tuple[bool, int, float]:
        return right(question), 10, slower * (1 + 0.01 * (run % 3))

    return Run(manifest(*ARMS, runs=6), [legs(arm, says, 6) for arm in ARMS])


def test_arms_of_one_name_are_compared() -> None:
    joined, compared = tworuns.joined(ablated(1.0), ablated(1.25 + 1e-3, lambda question: question > 10))
    assert [arm.name for arm in joined.arms] == ["A none", "A a", "B none", "B a"]
    assert [one.factor for one in compared.findings] == ["B none / A none", "B a / A a"]
    assert {one.measure for one in compared.effects} == {"correct", "tokens per second"}
    assert len(compared.flipped) == 20
    assert "A and B did not take turns: what the host did between them counts as a difference" in compared.notes
    assert analysis.question(joined.manifest, compared) == "How does the run B compare with the run A in none, a?"
    assert "| B none / A none | correct | -50.0 points |" in summary.markdown(joined.manifest, compared)
    ET.fromstring(page.html(joined.manifest, joined.arms, compared))


def test_answers_to_other_questions_are_not_compared() -> None:
    first, other = ablated(1.0), ablated(1.0)
    changed = replace(other.manifest, probe=replace(other.manifest.probe, sha256="9f" * 32), margins=Margins(0.1))
    _, compared = tworuns.joined(first, Run(changed, other.arms))
    assert {one.measure for one in compared.effects} == {"tokens per second"}
    notes = "; ".join(compared.notes)
    assert "different questions, prompt or load: 3c3c3c3c3c3c and 9f9f9f9f9f9f" in notes
    assert "different margins; those of A count" in notes


def test_one_answer_that_is_graded_in_two_ways_is_named() -> None:
    def wrong(leg: Leg) -> Leg:
        """Return LEG as a grader leaves it that takes the questions 3 and 5 for wrong."""
        return leg[0], tuple(replace(one, correct=one.correct and one.id not in {3, 5}) for one in leg[1])

    first = ablated(1.0)
    _, compared = tworuns.joined(first, ablated(1.0, lambda question: question > 10))
    assert not any("a grader is wrong" in note for note in compared.notes)  # other answers, not other grades
    lied = [replace(arm, legs=tuple(wrong(leg) for leg in arm.legs)) for arm in first.arms]
    _, compared = tworuns.joined(first, Run(first.manifest, lied))
    note = "a grader is wrong: the same answer was graded as right and as wrong, to the questions 3, 5"
    assert note in compared.notes


def test_two_benches() -> None:
    runs = []
    for slower in (1.0, 1.1):
        figures = [{name: 100 / slower if more else 100 * slower for name, more in PRIMARY.items()} for _ in range(6)]
        noisy = [
            {name: value * (1 + 0.002 * (run * len(name) % 5)) for name, value in each.items()}
            for run, each in enumerate(figures, 3 if slower > 1 else 0)
        ]
        state = ArmState("eager", "eager", (), ())
        runs.append(Run(replace(manifest(()), kind="bench", arms=(state,), ablated=()), [benched("eager", noisy)]))
    joined, compared = tworuns.joined(*runs)
    assert [one.finding for one in compared.findings] == ["loss"]
    assert summary.title(joined.manifest) == "Bench of demo, eager"


def test_runs_that_cannot_be_compared_are_refused() -> None:
    bench = Run(replace(manifest(("x",)), kind="bench"), [benched("x", [{}])])
    with pytest.raises(Refused) as caught:
        tworuns.joined(ablated(1.0), bench)
    assert [(one.code, one.expected) for one in caught.value.refusals] == [
        ("NV108", "two runs of one kind"),
        ("NV108", "two runs with an arm of one name"),
    ]
