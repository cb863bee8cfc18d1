"""Legs of an ablation that never ran: verdicts and answers for what compares and shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nvllm.evidence.arms import Arm, name
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.records import (
    LEG_SCHEMA,
    RUN_SCHEMA,
    ArmState,
    HarnessCheck,
    HostState,
    LegPhase,
    LegVerdict,
    Outcome,
    RunManifest,
)
from nvllm.trials import probing
from nvllm.trials.answers import Answered, ProbeState

Says = Callable[[Arm, int, int], tuple[bool, int, float]]
"""What an arm answers in a run to a question: whether it is correct, its tokens, its seconds."""

HELD = HarnessCheck("directory", holds=True, expected="launch.json", found="launch.json")
BROKEN = HarnessCheck("sentinel a", holds=False, expected="enabled=true, first_fire", found="no line about its switch")


def answer(run: int, question: int, *, correct: bool = True, tokens: int = 10, seconds: float = 1.0) -> Answered:
    return Answered(
        run, question, correct, "7", "7" if correct else "8", seconds, tokens, ("x" if correct else "y") * tokens
    )


def verdict(arm: str, run: int, answers: Sequence[Answered], outcome: Outcome = "passed") -> LegVerdict:
    return LegVerdict(
        schema=LEG_SCHEMA,
        arm=arm,
        run=run,
        outcome=outcome,
        reason="" if outcome == "passed" else "the harness failed: sentinel a",
        checks=(HELD if outcome != "invalid" else BROKEN,),
        correct=sum(one.correct for one in answers),
        asked=len(answers),
        tokens=sum(one.tokens for one in answers),
        seconds=sum(one.seconds for one in answers),
        output=probing.output_hash(answers),
        container="4f" * 32,
        serve_hash="5e" * 32,
        dev=True,
        started="2026-11-22T12:00:00Z",
        phases=(LegPhase("gate", 1.0, 1.0), LegPhase("import", 12.0, 13.0), LegPhase("first token", 2.0, 15.0)),
        kv_tokens=52428,
        peak_memory=1 << 30,
    )


def legs(arm: Arm, says: Says, runs: int = 3, questions: int = 20, outcome: Outcome = "passed") -> ArmLegs:
    """Return the legs of ARM, which SAYS what it says."""
    found = []
    for run in range(1, runs + 1):
        said = [says(arm, run, question) for question in range(1, questions + 1)]
        answers = tuple(
            answer(run, number, correct=correct, tokens=tokens, seconds=seconds)
            for number, (correct, tokens, seconds) in enumerate(said, 1)
        )
        found.append((verdict(name(arm), run, answers, outcome), answers))
    return ArmLegs(name(arm), arm, tuple(found))


def benched(profile: str, figures: Sequence[Mapping[str, float]]) -> ArmLegs:
    """Return the legs of a bench of PROFILE, one run for each of FIGURES."""
    found = []
    for run, one in enumerate(figures, 1):
        answers = (answer(run, 0),)
        found.append((replace(verdict(profile, run, answers), figures=one), answers))
    return ArmLegs(profile, (), tuple(found))


def manifest(*arms: Arm, runs: int = 3, questions: int = 20) -> RunManifest:
    """Return the manifest of an ablation with ARMS."""
    return RunManifest(
        schema=RUN_SCHEMA,
        kind="ablate",
        image="demo",
        image_id="sha256:" + "1" * 64,
        build_hash="2b" * 32,
        patches=("sentinels", "a", "b"),
        ablated=tuple(sorted({one for arm in arms for one in arm})),
        arms=tuple(ArmState(name(arm), "eager", arm, arm) for arm in arms),
        runs=runs,
        probe=ProbeState("gsm8k", "3c" * 32, questions, 42, 64, 60.0, 1, None),
        host=HostState(
            "x86_64", "6.1.0", "GenuineIntel 6 143, 8 processors", 16 << 30, (), "Docker 27", "ab" * 20, dirty=False
        ),
        created="2026-11-22T12:00:00Z",
    )
