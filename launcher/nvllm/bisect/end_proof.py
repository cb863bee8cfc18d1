"""Proving the two ends: enough trials to know that each behaves as declared, and how often the failure shows.

A steady failure is proved by a few trials that all agree. If one end is both good and bad, or the failure is declared
flaky, the failure rate has to be measured: the bad end is tried until it has failed a few times, and both ends until
their rates differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvllm.bisect import posterior
from nvllm.bisect.posterior import Beta, Count
from nvllm.bisect.problem import EndName, Find, Settings
from nvllm.bisect.verdict import Tally
from nvllm.core.refusal import Refusal, Refused, refuse_any

ENOUGH = 3
"""Failures from which a rate is estimated; with fewer, its interval spans almost everything."""

_AGAIN = "nvllm bisect start --discard with"
_OR_FLAKY = ", or with --flaky if it fails only sometimes"


@dataclass(frozen=True, slots=True)
class EndTrial:
    """One more trial of the END, and the REASON for it."""

    end: EndName
    reason: str


def priors(find: Find) -> tuple[Beta, Beta]:
    """Return the prior beliefs about the rate of hits: of a set with the culprit, and of a set without it.

    How often a failure shows is unknown. The declared failure seldom shows where its cause is absent: 2 times in 100,
    weighted as ten trials.
    """
    shows, stray = Beta(1.0, 1.0), Beta(0.2, 9.8)
    return (shows, stray) if find == "break" else (Beta(stray.b, stray.a), Beta(shows.b, shows.a))


def failure_rate(tally: Tally) -> Beta:
    """Return the belief about the failure rate after TALLY, from a uniform prior."""
    return Beta().plus(Count(tally.bad, tally.good))


def rate_text(tally: Tally) -> str:
    """Return TALLY for people, with the interval of its failure rate."""
    low, high = failure_rate(tally).interval()
    return f"{tally}, failure rate {low:.2f} to {high:.2f} at 95 %"


def next_end(bad: Tally, good: Tally, settings: Settings) -> EndTrial | None:
    """Return which end needs one more trial, or None when both are proved.

    BAD and GOOD are the tallies of the ends. With SETTINGS.flaky the failure rate is measured. Raises Refused NV801
    for each end that does not behave as declared.
    """
    ends: tuple[tuple[EndName, Tally], ...] = (("bad", bad), ("good", good))
    refuse_any(_untestable(name, tally) for name, tally in ends if tally.blocked)
    for name, tally in ends:
        if not tally.conclusive:
            return EndTrial(name, f"the {name} end, trial 1")
    return _next_flaky(bad, good, settings) if settings.flaky else _next_steady(ends, settings.repeats)


def _next_steady(ends: tuple[tuple[EndName, Tally], ...], repeats: int) -> EndTrial | None:
    for name, tally in ends:
        if tally.conclusive < repeats:
            return EndTrial(name, f"the {name} end, trial {tally.conclusive + 1} of {repeats}")
    refuse_any(
        _refusal(name, f"{name} in each of {repeats} trials", tally, _OR_FLAKY if name == "bad" else "")
        for name, tally in ends
        if (tally.bad == 0) == (name == "bad")
    )
    return None


def _next_flaky(bad: Tally, good: Tally, settings: Settings) -> EndTrial | None:
    enough = min(ENOUGH, settings.patience)
    if bad.bad < enough and bad.conclusive < settings.patience:
        return EndTrial("bad", f"the bad end: {bad.bad} of {enough} failures")
    if bad.bad < enough:
        expected = f"bad at least {enough} times in {settings.patience} trials"
        raise Refused([_refusal("bad", expected, bad, ", or a higher --patience")])
    sure = posterior.higher(Count(bad.bad, bad.good), Count(good.bad, good.good))
    if good.conclusive >= settings.repeats and sure >= settings.confidence:
        return None
    if min(good.conclusive, bad.conclusive) < settings.patience:
        shorter: EndName = "good" if good.conclusive <= bad.conclusive else "bad"
        return EndTrial(shorter, f"the ends differ with probability {sure:.3f}")
    expected = f"bad less often than the bad end ({bad}), at confidence {settings.confidence:g}"
    raise Refused([_refusal("good", expected, good, ", or a higher --patience")])


def _untestable(name: EndName, tally: Tally) -> Refusal:
    cure = (
        f"make the {name} end testable (it stopped at: {tally.stage}), then withdraw its trials with "
        f"nvllm bisect back; or: {_AGAIN} another --{name}"
    )
    return Refusal("NV801", f"the {name} end", f"{name}, in any number of trials", str(tally), cure)


def _refusal(name: EndName, expected: str, tally: Tally, otherwise: str) -> Refusal:
    return Refusal("NV801", f"the {name} end", expected, rate_text(tally), f"{_AGAIN} another --{name}{otherwise}")
