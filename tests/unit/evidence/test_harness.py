"""The harness: what makes a leg count, and what a planted mistake looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nvllm.evidence import harness
from nvllm.evidence.harness import LegObserved, SentinelLog
from nvllm.evidence.records import HarnessCheck
from nvllm.trials.answers import Answered
from support.evidence_samples import answer
from support.rows import each_row


def line(text: str) -> str:
    return f"2026-11-22T12:00:00.0Z (Worker pid=34) INFO 11-22 [switches.py:20] nvllm.sentinel {text}\n"


A_FIRES = line("name=a enabled=true") + line("name=a first_fire") + line("name=a count=100")
B_OFF = line("name=b enabled=false")
ANSWERS = (answer(1, 1), answer(1, 2))
SOUND = LegObserved(A_FIRES + B_OFF, ("launch.json", "a"), 0.0, 0.0)


def broken(seen: LegObserved, answers: Sequence[Answered] = ANSWERS) -> list[str]:
    return [one.name for one in harness.checks(("a",), ("a", "b"), seen, answers) if not one.holds]


def test_a_sound_leg() -> None:
    assert broken(SOUND) == []
    assert harness.sentinels(SOUND.log)["a"] == SentinelLog(frozenset({True}), fired=True)


@pytest.mark.parametrize(
    "log",
    [
        line("name=a enabled=true") + B_OFF,
        B_OFF,
        line("name=a enabled=true") + line("name=a enabled=false") + line("name=a first_fire") + B_OFF,
    ],
    ids=["never fires", "no switch", "off in one process"],
)
def test_a_dead_sentinel_is_found(log: str) -> None:
    assert broken(replace(SOUND, log=log)) == ["sentinel a"]


@pytest.mark.parametrize(
    "log",
    [
        A_FIRES,
        A_FIRES + B_OFF + line("name=b first_fire"),
        A_FIRES + line("name=b enabled=true"),
    ],
    ids=["asks no switch", "fires all the same", "on"],
)
def test_a_patch_that_is_always_on_is_found(log: str) -> None:
    assert broken(replace(SOUND, log=log)) == ["sentinel b"]


def test_another_patch_that_fires_unasked_is_found() -> None:
    assert broken(replace(SOUND, log=SOUND.log + line("name=c enabled=true"))) == ["sentinel c"]


def test_what_is_on_in_every_arm_need_not_fire() -> None:
    seen = replace(SOUND, log=SOUND.log + line("name=c enabled=true"), listing=("launch.json", "a", "c"))
    assert [one.name for one in harness.checks(("a", "c"), ("a", "b"), seen, ANSWERS) if not one.holds] == []


@each_row("listing", [None, (), ("launch.json",), ("launch.json", "a", "b")])
def test_another_directory_is_found(listing: Sequence[str] | None) -> None:
    assert broken(replace(SOUND, listing=listing)) == ["directory"]


@each_row(("baseline", "rest"), [(0.0, 0.25), (None, None), (0.0, None)])
def test_a_cache_that_does_not_drain_is_found(baseline: float | None, rest: float | None) -> None:
    assert broken(replace(SOUND, baseline=baseline, rest=rest)) == ["KV cache drains"]


def test_a_timeout_is_an_answer_and_a_refused_request_is_none() -> None:
    slow = replace(ANSWERS[0], problem="no answer within 1 s", timed_out=True)
    assert broken(SOUND, (slow, ANSWERS[1])) == []
    assert broken(SOUND, (replace(ANSWERS[0], problem="HTTP 400: too long"),)) == ["answers"]
    assert broken(SOUND, ()) == ["answers"]


def test_what_is_broken_is_said_with_what_was_found_once_for_each_check() -> None:
    held = HarnessCheck("directory", holds=True, expected="launch.json", found="launch.json")
    first, again = (
        HarnessCheck("answers", holds=False, expected="all", found=text) for text in ("HTTP\n400", "HTTP 500")
    )
    other = HarnessCheck("KV cache drains", holds=False, expected="0", found="x" * 1000)
    said = harness.broken([held, first, other, again])
    assert said == f"KV cache drains ({'x' * 300}); answers (HTTP 400)"
    assert harness.broken([held]) == ""
