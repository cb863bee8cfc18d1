"""NV801: an end of a bisect does not behave as declared."""

from __future__ import annotations

import random

import pytest

from nvllm.bisect.problem import Settings
from nvllm.core.refusal import Refusal, Refused
from support.bisect_world import BAD, GOOD, UNTESTABLE, Judge, World, free, problem


def refusal(judge: Judge, *, flaky: bool = False, patience: int = 40) -> Refusal:
    with pytest.raises(Refused) as caught:
        World(judge).solve(problem(free(4), settings=Settings(repeats=3, patience=patience, flaky=flaky)))
    (found,) = caught.value.refusals
    assert (found.code, caught.value.exit_code) == ("NV801", 3)
    return found


def test_a_bad_end_that_never_fails() -> None:
    found = refusal(lambda _: GOOD)
    assert (found.where, found.expected) == ("the bad end", "bad in each of 3 trials")
    assert found.found == "good 3 of 3, failure rate 0.01 to 0.60 at 95 %"
    assert found.cure.startswith("start again with `nvllm bisect start --discard` and another --bad, or with --flaky")


def test_a_good_end_that_fails() -> None:
    found = refusal(lambda _: BAD)
    assert (found.where, found.expected) == ("the good end", "good in each of 3 trials")
    assert found.found == "bad 3 of 3, failure rate 0.40 to 0.99 at 95 %"
    assert found.cure == "start again with `nvllm bisect start --discard` and another --good"


def test_a_flaky_end_that_fails_too_seldom() -> None:
    found = refusal(lambda _: GOOD, flaky=True, patience=12)
    assert (found.where, found.expected) == ("the bad end", "bad at least 3 times in 12 trials")
    assert found.found.startswith("good 12 of 12")


def test_ends_that_fail_equally_often() -> None:
    rng = random.Random(3)
    found = refusal(lambda _: BAD if rng.random() < 0.5 else GOOD, flaky=True, patience=20)
    assert found.where == "the good end"
    assert "less often than the bad end" in found.expected


def test_a_failure_that_is_too_rare_does_not_blame_the_good_end() -> None:
    tried = iter(range(200))
    found = refusal(lambda chosen: BAD if chosen and next(tried) % 8 == 7 else GOOD, flaky=True, patience=32)
    assert found.where == "the bad end"
    assert found.found == "too rare for --patience 32: it was seen in 4 of 32"
    assert found.cure == "start again with `nvllm bisect start --discard` and a higher --patience"


def test_an_end_that_cannot_be_tested() -> None:
    found = refusal(lambda chosen: UNTESTABLE if chosen else GOOD)
    assert (found.where, found.found) == ("the bad end", "untestable (build)")
    assert found.cure == (
        "make the bad end testable (it stopped at: build), then withdraw its trials: "
        "nvllm bisect back && nvllm bisect run"
    )
