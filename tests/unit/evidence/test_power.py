"""No finding without power: what an ablation or a sweep that has seen too little must not say."""

from __future__ import annotations

import random
from dataclasses import replace

from nvllm.evidence import conclusion
from nvllm.evidence.arms import Arm
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import ArmState, Comparison, RunManifest
from support.evidence_samples import answer, benched, legs, manifest, verdict

BOTH: tuple[Arm, ...] = ((), ("a",))
RUN = replace(manifest(*BOTH, questions=12), ablated=("a",))


def ablated(slower: float, noise: float, runs: int, seed: int, questions: int = 12) -> Comparison:
    """Return the ablation of a sentinel whose arm is SLOWER by that factor, with the NOISE of a run."""
    drawn = random.Random(seed)
    factors = {(arm, run): 1 + drawn.gauss(0, noise) for arm in BOTH for run in range(1, runs + 1)}

    def says(arm: Arm, run: int, _question: int) -> tuple[bool, int, float]:
        return True, 10, (slower if arm else 1.0) * factors[arm, run]

    return conclusion.of(RUN, [legs(arm, says, runs, questions) for arm in BOTH])


def benches(ratios: list[float]) -> tuple[RunManifest, list[ArmLegs]]:
    """Return a bench of two profiles: each figure of the second one is that of the first times one of RATIOS."""
    arms = [
        benched(name, [dict.fromkeys(PRIMARY, 100 * each) for each in of])
        for name, of in (("A", [1.0] * len(ratios)), ("B", ratios))
    ]
    states = tuple(ArmState(arm.name, arm.name, (), ()) for arm in arms)
    return replace(RUN, kind="bench", arms=states, ablated=(), runs=len(ratios)), arms


def test_an_interval_without_bounds_is_not_neutral() -> None:
    """Two runs, one of them ten times as slow: tokens per second change by any factor."""
    compared = ablated(1.0, 0.9, 2, 3)
    (speed,) = [one for one in compared.effects if one.measure == "tokens per second"]
    assert speed.low is not None
    assert speed.high is not None
    assert speed.low < 0.01
    assert speed.high > 100
    assert compared.findings[0].finding == "unknown"


def test_a_fifth_that_is_lost_is_never_called_neutral() -> None:
    for runs in (1, 2):
        findings = [ablated(1.25, 0.02, runs, seed).findings[0].finding for seed in range(40)]
        assert "neutral" not in "".join(findings), (runs, findings)


def test_right_answers_that_are_lost_are_not_called_neutral() -> None:
    """Of 12 questions, 2 that were right are wrong: nobody knows whether that is chance."""
    arms = [legs(arm, lambda on, _run, question: (not on or question > 2, 10, 1.0), 5, 12) for arm in BOTH]
    (finding,) = conclusion.of(RUN, arms).findings
    assert finding.finding == "unknown"
    assert "questions, if more are like these" in finding.text


def test_runs_that_agree_show_no_noise() -> None:
    """Two runs gave the same ratio to the last digit. That is no proof of anything, and no p-value of 0."""
    compared = conclusion.of(*benches([1.01, 1.01]))
    assert all(one.p is not None and one.p > 0.49 and one.low is None for one in compared.effects)
    assert compared.findings[0].finding == "unknown"
    arms = [legs(arm, lambda on, *_: (True, 11 if on else 10, 1.0), 1, 3) for arm in BOTH]
    (length,) = [one for one in conclusion.of(RUN, arms).effects if one.measure == "tokens per answer"]
    assert length.p is not None
    assert length.p > 0.25  # three answers, each longer by a token: the sign test says so too


def test_ten_percent_are_not_called_equal() -> None:
    compared = conclusion.of(*benches([1.0, 1.2, 0.95, 1.22, 0.97, 1.15, 1.0, 1.18]))
    assert compared.findings[0].finding in ("loss", "unknown")


def test_a_collapse_in_one_run_is_no_finding_over_questions() -> None:
    """47, 47, 47, 11, 35 of 50, and 47 in each run: 36 questions differ, by one bad run."""
    right = {1: 47, 2: 47, 3: 47, 4: 11, 5: 35}
    arms = []
    for arm in BOTH:
        made = []
        for run, most in right.items():
            answers = tuple(
                replace(answer(run, question, correct=question <= (most if arm else 47)), text=f"{run}")
                for question in range(1, 51)
            )
            made.append((verdict("a" if arm else "none", run, answers), answers))
        arms.append(ArmLegs("a" if arm else "none", arm, tuple(made)))
    compared = conclusion.of(replace(RUN, runs=5), arms)
    (correct,) = [one for one in compared.effects if one.measure == "correct"]
    assert correct.p is not None
    assert correct.p > 0.05
    assert correct.needed_unit == "run"
    assert compared.findings[0].finding == "unknown"


def test_timeouts_are_counted_and_named() -> None:
    arms = []
    for arm in BOTH:
        sound = legs(arm, lambda *_: (True, 10, 1.0), 1, 12).legs[0]
        late = replace(sound[1][0], correct=False, found="", text="", timed_out=True, problem="no answer in 120 s")
        answers = (late, *sound[1][1:]) if arm else sound[1]
        arms.append(ArmLegs("a" if arm else "none", arm, ((replace(sound[0], output=str(arm)), answers),)))
    compared = conclusion.of(RUN, arms)
    assert [(one.timeouts, one.asked) for one in compared.arms] == [(0, 12), (1, 12)]
    assert "a: 1 of 12 answers ran into the timeout; they count as wrong" in compared.notes
    assert compared.flipped[0].replies == ("7", "timeout")


def test_an_evaluation_says_whether_it_knows_that_the_floor_is_reached() -> None:
    run = replace(RUN, kind="eval", ablated=(), arms=RUN.arms[:1])
    for questions, right, floor, called in (
        (50, 47, 90.0, "unknown"),
        (50, 50, 90.0, "above the floor"),
        (50, 20, 90.0, "below the floor"),
    ):
        asked = replace(run, probe=replace(run.probe, questions=questions, floor=floor))

        def says(_arm: Arm, _run: int, question: int, most: int = right) -> tuple[bool, int, float]:
            return question <= most, 10, 1.0

        arm = legs((), says, 1, questions)
        (finding,) = conclusion.of(asked, [arm]).findings
        assert finding.finding == called, (right, finding)
        assert ("it would take about" in finding.text) == (called == "unknown")
