"""Findings by simulation: how often they are wrong, and how often intervals hold what is true.

`make test` draws them so often that what is grossly wrong is seen, and `make test-long` each row a thousand times, for
minutes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from nvllm.evidence import conclusion, deciding, intervals, looks, sidebyside
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import ArmState, Margins
from support.evidence_samples import benched, manifest
from support.rows import longer

pytestmark = pytest.mark.thorough

_EFFECTS, _RUNS, _NOISES = (0.0, 0.02, 0.05, 0.1, 0.2), (2, 3, 5, 8, 20), (0.01, 0.02, 0.05, 0.1)
_RATES = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)


def benched_legs(effect: float, runs: int, noise: float, drawn: random.Random) -> list[ArmLegs]:
    """Return two profiles, the second one slower by EFFECT, with the NOISE of the ratio of a run."""
    legs: list[list[dict[str, float]]] = [[], []]
    for place, slower in [(0, 1.0), (1, 1 + effect)] * runs:
        factors = {name: slower * math.exp(drawn.gauss(0, noise / 2**0.5)) for name in PRIMARY}
        legs[place].append(
            {name: 100 / factors[name] if more else 100 * factors[name] for name, more in PRIMARY.items()}
        )
    return [benched(name, figures) for name, figures in zip("AB", legs, strict=True)]


def bench(effect: float, runs: int, noise: float, drawn: random.Random, margin: float) -> str:
    """Return what is found of such profiles after so many RUNS."""
    arms = benched_legs(effect, runs, noise, drawn)
    return sidebyside.compare(arms, Margins(speed=margin)).findings[0].finding


def until_decided(effect: float, noise: float, drawn: random.Random) -> tuple[str, int]:
    """Return what is found of such profiles by looks at up to 40 runs, and after how many."""
    arms = benched_legs(effect, 40, noise, drawn)
    run = replace(manifest(()), kind="bench", ablated=(), runs=40, until_decided=True)
    run = replace(run, arms=tuple(ArmState(arm.name, arm.name, (), ()) for arm in arms))
    for ended in looks.after(40):
        compared = conclusion.of(run, [replace(arm, legs=arm.legs[:ended]) for arm in arms])
        if looks.settled(compared):
            break
    return compared.findings[0].finding, ended


def most(chance: float, count: int) -> int:
    """Return how many of COUNT a CHANCE exceeds once in a million series."""
    total, tail = 0, 0.0
    for total in range(count, -1, -1):
        tail += math.comb(count, total) * chance**total * (1 - chance) ** (count - total)
        if tail > 1e-6:
            break
    return total


def wrong_findings(
    rows: Sequence[tuple[float, int, float]], count: int, margin: float = 0.03
) -> list[tuple[object, ...]]:
    """Return each of ROWS, effect, runs and noise, of whose COUNT findings too many are wrong."""
    failures: list[tuple[object, ...]] = []
    for effect, runs, noise in rows:
        drawn = random.Random(f"{effect} {runs} {noise}")
        findings = [bench(effect, runs, noise, drawn, margin) for _ in range(count)]
        false = sum(each in ("win", "mixed", *(() if effect else ("loss",))) for each in findings)
        neutral = findings.count("neutral") if effect > margin else 0
        if false > most(0.05, count) or neutral > most(0.05, count):
            failures.append((effect, runs, noise, false, neutral))
    return failures


def coverage(count: int, level: float) -> list[tuple[float, float, float]]:
    """Return each pair of rates of COUNT questions, better and worse, whose interval holds their difference too rarely.

    It is no simulation: the chance of every table is added up.
    """
    tables = [(better, worse) for better in range(count + 1) for worse in range(count + 1 - better)]
    limits = [
        (estimate.low, estimate.high)
        for better, worse in tables
        if (
            estimate := intervals.paired_shares(
                [1.0] * better + [-1.0] * worse + [0.0] * (count - better - worse), level, 1.0
            )
        )
    ]
    failures = []
    for first, second in itertools.product(_RATES, _RATES):
        if second > first or first + second > 1:
            continue  # the other half is the same with the signs exchanged
        rates = (first, second, max(0.0, 1 - first - second))
        logs = [math.log(rate) if rate > 1e-12 else -math.inf for rate in rates]
        chance = 0.0
        for (better, worse), (low, high) in zip(tables, limits, strict=True):
            assert low is not None
            assert high is not None
            if low - 1e-9 <= first - second <= high + 1e-9:
                cells = (better, worse, count - better - worse)
                terms = [cell * log for cell, log in zip(cells, logs, strict=True) if cell]
                ways = math.lgamma(count + 1) - sum(math.lgamma(cell + 1) for cell in cells)
                chance += math.exp(ways + sum(terms))
        if chance < level - 0.01:
            failures.append((first, second, chance))
    return failures


def test_some_findings_are_as_rarely_wrong_as_they_say() -> None:
    rows = [(0.0, 3, 0.02), (0.0, 8, 0.01), (0.05, 3, 0.02), (0.05, 8, 0.02), (0.2, 2, 0.1)]
    assert wrong_findings(rows, 120) == []


@longer("count", [20], [1000])
def test_all_findings_are_as_rarely_wrong_as_they_say(count: int) -> None:
    assert wrong_findings([*itertools.product(_EFFECTS, _RUNS, _NOISES)], count) == []


def test_looks_until_it_is_decided_are_wrong_as_rarely_and_end_early() -> None:
    drawn = random.Random(1)
    count = 60
    null = [until_decided(0.0, 0.02, drawn) for _ in range(count)]
    assert sum(finding not in ("neutral", "unknown") for finding, _ in null) <= most(0.05, count)
    five = [until_decided(0.05, 0.01, drawn) for _ in range(count)]
    assert {finding for finding, _ in five} == {"loss"}
    assert sum(runs for _, runs in five) / count < 10
    assert [*looks.after(40)] == [3, 4, 6, 9, 13, 19, 28, 40]
    assert [*looks.after(2)] == [2]


@longer("count", [15], [400])
def test_looks_are_as_rarely_wrong_at_any_noise(count: int) -> None:
    drawn = random.Random(2)
    for noise in (0.01, 0.02, 0.05):
        null = [until_decided(0.0, noise, drawn)[0] for _ in range(count)]
        beyond = [until_decided(0.0301, noise, drawn)[0] for _ in range(count)]
        assert sum(finding not in ("neutral", "unknown") for finding in null) <= most(0.05, count), noise
        assert beyond.count("neutral") <= most(0.05, count), noise


@longer("count", [40], [1000])
def test_an_effect_just_beyond_the_margin_is_rarely_called_neutral(count: int) -> None:
    assert wrong_findings([*itertools.product((0.0301,), _RUNS, _NOISES)], count) == []


def test_findings_are_made_where_there_is_power() -> None:
    """Else "unknown" for everything would be never wrong."""
    drawn = random.Random(1)
    assert [bench(0.05, 8, 0.01, drawn, 0.03) for _ in range(40)].count("loss") >= 39
    assert [bench(0.0, 20, 0.01, drawn, 0.03) for _ in range(40)].count("neutral") >= 36


def test_intervals_of_paired_shares_hold_what_is_true() -> None:
    assert [
        (count, level, row) for count in (5, 9, 20) for level in (0.95, 0.99) for row in coverage(count, level)
    ] == []


@longer("largest", [30], [200])
def test_intervals_of_paired_shares_hold_what_is_true_for_any_number_of_questions(largest: int) -> None:
    counts = [count for count in (5, 6, 7, 8, 10, 12, 15, 25, 30, 50, 100, 200) if count <= largest]
    assert [(count, row) for count in counts for row in coverage(count, deciding.LEVEL)] == []


def test_parts_of_a_question_are_held_too() -> None:
    """Five runs of each arm, every question with a chance of its own: differences are fifths."""
    drawn = random.Random(1)
    missed = 0
    for _ in range(150):
        chances = [(drawn.random() ** 0.3, drawn.random() ** 0.3) for _ in range(30)]
        differences = [
            (sum(drawn.random() < second for _ in range(5)) - sum(drawn.random() < first for _ in range(5))) / 5
            for first, second in chances
        ]
        estimate = intervals.paired_shares(differences, 0.95, 1.0)
        assert estimate.low is not None
        assert estimate.high is not None
        missed += not estimate.low <= 0 <= estimate.high  # both kinds of chances are drawn alike
    assert missed <= 7
