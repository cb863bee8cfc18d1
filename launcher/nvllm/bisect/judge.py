"""Proving the two ends, and watching that the failure rate stays what it was.

A steady failure is proved by a few trials that all agree. If one end is both good and bad, or the failure is declared
flaky, the bad end is tried until it has failed a few times, and both ends until it is proved that the bad one fails
more often. That test looks at the data after each trial. An ordinary test that does so proves a difference too often
where there is none; this one is a test martingale, which exceeds 1/a with probability a at most, however often one
looks (Ville's inequality). Each pair of trials, one of each end, multiplies it; see `difference`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from nvllm.bisect.posterior import Beta, Count
from nvllm.bisect.problem import EndName, Settings, Tally
from nvllm.core.refusal import Refusal, Refused, refuse_any

ENOUGH = 3
"""Failures from which a rate is estimated; with fewer, its interval spans almost everything."""

_RARER = 4
"""The good end is not to blame if it fails so many times more rarely than the bad one."""

_AGAIN = "start again with `nvllm bisect start --discard` and"
_OR_FLAKY = ", or with --flaky if it fails only sometimes"


@dataclass(frozen=True, slots=True)
class EndTrial:
    """One more trial of the END, and the REASON for it."""

    end: EndName
    reason: str


def failure_rate(tally: Tally) -> Beta:
    """Return the belief about the failure rate after TALLY, from a uniform prior."""
    return Beta().plus(Count(tally.bad, tally.good))


def rate_text(tally: Tally) -> str:
    """Return TALLY for people, with the interval of its failure rate."""
    low, high = failure_rate(tally).interval()
    return f"{tally}, failure rate {low:.2f} to {high:.2f} at 95 %"


@dataclass(frozen=True, slots=True)
class Difference:
    """How strongly the trials of the ends say that the bad end fails more often.

    VALUE exceeds 1/a with probability a at most if it does not. PAIRS is the number of trials of each end after which
    it reached what was asked of it; None: not yet.
    """

    value: float
    pairs: int | None


_BAD_RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98)
_GOOD_RATES = (0.01, 0.01, 0.01, 0.03, 0.06, 0.12, 0.2, 0.3, 0.45, 0.6)
"""The pairs of rates that are betted on. Those that are listed more than once are the usual ones."""

_BETS = tuple(
    (
        math.log(bad / (middle := (bad + good) / 2)),
        math.log((1 - bad) / (1 - middle)),
        math.log(good / middle),
        math.log((1 - good) / (1 - middle)),
    )
    for bad in _BAD_RATES
    for good in _GOOD_RATES
    if bad > good
)
"""For each pair of rates, the logarithms by which a failure and a pass of each end multiply its bet."""


@functools.lru_cache(maxsize=1024)
def difference(bad: str, good: str, enough: float, failures: int) -> Difference:
    """Return how strongly BAD and GOOD, the trials of the ends in order, say that the bad end fails more often.

    It is proved at the value ENOUGH, with at least FAILURES failures of the bad end among the pairs.

    For rates a > b with the mean m, a pair multiplies the bet by P(bad | a)/P(bad | m) * P(good | b)/P(good | m). With
    the true rates x <= y its expectation is (1 + u(x - m))(1 - u(y - m)) <= 1 - (u(y - m))^2 <= 1, for u = (a - b) /
    2m(1 - m). So each bet, and the mean of all, is a test martingale. This is the E-variable of Turner, Ly and
    Gruenwald, "Generic E-variables for exact sequential k-sample tests" (2024), section 3, for blocks of one and one.
    """
    logs = [0.0] * len(_BETS)
    failed, value = 0, 1.0
    for number, (bad_mark, good_mark) in enumerate(zip(bad, good, strict=False), 1):
        failed += bad_mark == "x"
        first, second = (0 if bad_mark == "x" else 1), (2 if good_mark == "x" else 3)
        logs = [log + bet[first] + bet[second] for log, bet in zip(logs, _BETS, strict=True)]
        value = sum(map(math.exp, logs)) / len(logs)
        if value >= enough and failed >= failures:
            return Difference(value, number)
    return Difference(value, None)


_NEAR = 8
"""Trials from one of a pair to the other, at most: a failure rate that changes with time is the same for both."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The trials of two sets that were tried in turn: BAD those of the one that should fail more often, GOOD those of
    the other. WAITING is the one that the last trial waits for, if that was not long ago."""

    bad: str
    good: str
    waiting: EndName | None


def in_turn(marks: Sequence[tuple[EndName | None, str]]) -> Turns:
    """Return the pairs of neighbouring trials among MARKS: the trials of all sets, in their order.

    Each has the one of the two sets that it tried, or None for any other set. What the marks are has no part in which
    trials are paired. So `difference` of the pairs is a test martingale even if the rates of both change with time:
    each pair multiplies a bet by 1 at most on average, whatever the rates at its time are, if the first is no higher.
    """
    pairs: list[dict[EndName, str]] = []
    last: tuple[int, EndName, str] | None = None
    for number, (end, mark) in enumerate(marks):
        if end is None:
            continue
        if last is not None and last[1] != end and number - last[0] <= _NEAR:
            pairs.append({last[1]: last[2], end: mark})
            last = None
        else:
            last = (number, end, mark)
    waiting: EndName | None = None
    if last is not None and len(marks) - last[0] <= _NEAR:
        waiting = "good" if last[1] == "bad" else "bad"
    return Turns("".join(pair["bad"] for pair in pairs), "".join(pair["good"] for pair in pairs), waiting)


_FALLEN = 4.0
"""The watch tells the failure rate of the proof from one that is so many times smaller."""

_HELD, _MOST_HELD = math.log(20), math.log(100)
"""The odds at which the watch is content, and the most that it can save up."""

_DOUBTFUL, _LOST = -math.log(20), -math.log(2000)
"""The odds at which the watch asks at once for more trials, and those at which the rate has fallen.

The watch looks after every trial of a search. Where the rate is constant, a search reaches odds of a to 1 with a
probability of about 1/a, so the second are high; trials at once, from the first on, make up for that.
"""


@dataclass(frozen=True, slots=True)
class Watch:
    """What the later trials of the bad end say about its failure rate.

    BEFORE are the trials that proved the end, SINCE those after it. STEADY: the rate is not much smaller than it was.
    DOUBTFUL: it seems to be, and more trials would tell. FALLEN: it is.
    """

    before: Tally
    since: Tally
    steady: bool
    doubtful: bool
    fallen: bool

    def __str__(self) -> str:
        return f"the bad end failed {_of(self.before)} before the search and {_of(self.since)} since"


def _of(tally: Tally) -> str:
    return f"{tally.bad} of {tally.conclusive} times"


def watch(order: str, proof: int) -> Watch:
    """Return what the trials of the bad end in ORDER after the first PROOF say.

    Each multiplies the odds between the rate so far and a quarter of it. The proof ends early where failures come in a
    row by chance, so the rate is the mean from a uniform prior, which a few failures do not bring near 1. The odds
    saved up by many failures are limited, so that a rate that falls late is noticed as soon as one that falls early.
    """
    odds, fallen = 0.0, False
    for number in range(proof, len(order)):
        rate = failure_rate(Tally(order[:number].count("x"), order[:number].count("+"))).mean
        small = rate / _FALLEN
        odds += math.log(rate / small) if order[number] == "x" else math.log((1 - rate) / (1 - small))
        odds = min(odds, _MOST_HELD)
        fallen = fallen or odds <= _LOST
    before, since = (Tally(part.count("x"), part.count("+"), order=part) for part in (order[:proof], order[proof:]))
    return Watch(before, since, odds >= _HELD, odds <= _DOUBTFUL, fallen)


def next_end(bad: Tally, good: Tally, settings: Settings) -> EndTrial | None:
    """Return which end needs one more trial, or None when both are proved.

    BAD and GOOD are the tallies of the ends. With SETTINGS.flaky the failure rate is measured. Raises Refused NV801
    for each end that does not behave as declared.
    """
    ends: tuple[tuple[EndName, Tally], ...] = (("bad", bad), ("good", good))
    refuse_any(_untestable(name, tally) for name, tally in ends if given_up(tally, settings))
    for name, tally in ends:
        if not tally.conclusive:
            again = f", again after {tally.stage}" if tally.untestable else ""
            return EndTrial(name, f"the {name} end, trial 1{again}")
    return _next_flaky(bad, good, settings) if settings.flaky else _next_steady(ends, settings.repeats)


def given_up(tally: Tally, settings: Settings) -> bool:
    """Return whether the end with TALLY is given up: a probe that gave up may be tried as often as any set."""
    patient = tally.stage == "harness" and not tally.final and tally.untestable < settings.patience
    return tally.unknown and not patient


def _next_steady(ends: tuple[tuple[EndName, Tally], ...], repeats: int) -> EndTrial | None:
    for name, tally in ends:
        if tally.conclusive < repeats and not tally.blocked:
            return EndTrial(name, f"the {name} end, trial {tally.conclusive + 1} of {repeats}")
    refuse_any(
        _refusal(name, f"{name} in each of {repeats} trials", tally, _OR_FLAKY if name == "bad" else "")
        for name, tally in ends
        if (tally.bad == 0) == (name == "bad")
    )
    return None


def proof(bad: Tally, good: Tally, settings: Settings) -> Difference:
    """Return how strongly the tallies BAD and GOOD of the ends prove that the bad end fails more often."""
    pairs = min(bad.conclusive, good.conclusive)
    enough = 1 / (1 - settings.confidence)
    measured = difference(bad.order[:pairs], good.order[:pairs], enough, min(ENOUGH, settings.patience))
    if measured.pairs is not None and pairs < settings.repeats:
        return Difference(measured.value, None)
    return measured


def _next_flaky(bad: Tally, good: Tally, settings: Settings) -> EndTrial | None:
    enough = min(ENOUGH, settings.patience)
    if bad.bad < enough and bad.conclusive < settings.patience and not bad.blocked:
        return EndTrial("bad", f"the bad end: {bad.bad} of {enough} failures")
    if bad.bad < enough:
        expected = f"bad at least {enough} times in {settings.patience} trials"
        raise Refused([_refusal("bad", expected, bad, ", or a higher --patience")])
    measured = proof(bad, good, settings)
    if measured.pairs is not None:
        return None
    shorter: EndName = "good" if good.conclusive <= bad.conclusive else "bad"
    tally = good if shorter == "good" else bad
    if tally.conclusive < settings.patience and not tally.blocked:
        odds = f"{measured.value:.3g} of {1 / (1 - settings.confidence):.3g}"
        return EndTrial(shorter, f"the ends differ: evidence {odds}")
    if _RARER * good.bad * bad.conclusive <= bad.bad * good.conclusive:
        raise Refused([_too_rare(bad, settings)])
    expected = f"bad less often than the bad end ({bad}), at confidence {settings.confidence:g}"
    raise Refused([_refusal("good", expected, good, ", or a higher --patience")])


def _too_rare(bad: Tally, settings: Settings) -> Refusal:
    expected = f"bad often enough to prove it at confidence {settings.confidence:g}"
    actual = f"too rare for --patience {settings.patience}: it was seen in {bad.bad} of {bad.conclusive}"
    return Refusal("NV801", "the bad end", expected, actual, f"{_AGAIN} a higher --patience")


def _untestable(name: EndName, tally: Tally) -> Refusal:
    cure = (
        f"make the {name} end testable (it stopped at: {tally.stage}), then withdraw its trials: "
        f"nvllm bisect back && nvllm bisect run"
    )
    return Refusal("NV801", f"the {name} end", f"{name}, in any number of trials", str(tally), cure)


def _refusal(name: EndName, expected: str, tally: Tally, otherwise: str) -> Refusal:
    return Refusal("NV801", f"the {name} end", expected, rate_text(tally), f"{_AGAIN} another --{name}{otherwise}")
