"""Proving the two ends: enough trials to know that each behaves as declared, and how often the failure shows.

A failure that always shows is proved by a few trials that all agree. As soon as one end is good and bad, or where
the failure is declared flaky, the rate of failures has to be measured: the failing end is tried until it has
failed a few times, and both until the rates differ for sure.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvllm.bisect import posterior
from nvllm.bisect.posterior import Beta, Count
from nvllm.bisect.problem import Find, Settings
from nvllm.bisect.verdict import Tally
from nvllm.core.refusal import Refusal, Refused

ENOUGH = 3
"""Failures that make a rate: below that its interval spans almost everything."""

_AGAIN = "nvllm bisect start --discard with"


@dataclass(frozen=True, slots=True)
class EndTrial:
    """One more trial of an end: of the HIGH one, or else of the low one."""

    high: bool
    reason: str


def priors(find: Find) -> tuple[Beta, Beta]:
    """Return what is believed of the rate of hits, with the culprit and without, before any trial.

    Nothing is known of how often a failure shows. That the declared kind of failure comes up where its cause is
    absent is rare: 2 in 100, with the weight of ten trials.
    """
    shows, stray = Beta(1.0, 1.0), Beta(0.2, 9.8)
    return (shows, stray) if find == "break" else (Beta(stray.b, stray.a), Beta(shows.b, shows.a))


def failure_rate(tally: Tally) -> Beta:
    """Return the rate of failures behind TALLY, of which nothing was known before."""
    return Beta().plus(Count(tally.bad, tally.good))


def rate_text(tally: Tally) -> str:
    """Return TALLY with the interval of its rate of failures, as people read it."""
    low, high = failure_rate(tally).interval()
    return f"{tally}, failure rate {low:.2f} to {high:.2f} at 95 %"


def next_end(find: Find, low: Tally, high: Tally, settings: Settings) -> EndTrial | None:
    """Return which end needs one more trial, or None when both are proved.

    LOW and HIGH are the tallies of the ends without and with the effect. Raises Refused NV801 with each end that
    is not as declared.
    """
    bad, good = (high, low) if find == "break" else (low, high)
    refusals = [*_blocked("bad", bad), *_blocked("good", good)]
    if refusals:
        raise Refused(refusals)
    for tally, name in ((bad, "bad"), (good, "good")):
        if not tally.conclusive:
            return _want(find, name, f"the {name} end, trial 1")
    if not settings.flaky:
        return _steady(find, bad, good, settings)
    return _flaky(find, bad, good, settings)


def _want(find: Find, name: str, reason: str) -> EndTrial:
    return EndTrial((name == "bad") == (find == "break"), reason)


def _steady(find: Find, bad: Tally, good: Tally, settings: Settings) -> EndTrial | None:
    for tally, name in ((bad, "bad"), (good, "good")):
        if tally.conclusive < settings.repeats:
            return _want(find, name, f"the {name} end, trial {tally.conclusive + 1} of {settings.repeats}")
    refusals = []
    if not bad.bad:
        cure = f"{_AGAIN} another --bad, or with --flaky if it fails now and then only"
        refusals.append(_refusal("bad", f"bad in each of {settings.repeats} trials", bad, cure))
    if good.bad:
        refusals.append(
            _refusal("good", f"good in each of {settings.repeats} trials", good, f"{_AGAIN} another --good")
        )
    if refusals:
        raise Refused(refusals)
    return None


def _flaky(find: Find, bad: Tally, good: Tally, settings: Settings) -> EndTrial | None:
    enough = min(ENOUGH, settings.patience)
    if bad.bad < enough and bad.conclusive < settings.patience:
        return _want(find, "bad", f"the bad end: {bad.bad} of {enough} failures")
    if bad.bad < enough:
        expected = f"bad at least {enough} times in {settings.patience} trials"
        raise Refused([_refusal("bad", expected, bad, f"{_AGAIN} another --bad, or a higher --patience")])
    sure = posterior.higher(Count(bad.bad, bad.good), Count(good.bad, good.good))
    if good.conclusive >= settings.repeats and sure >= settings.confidence:
        return None
    short, name = (good, "good") if good.conclusive <= bad.conclusive else (bad, "bad")
    if short.conclusive < settings.patience:
        return _want(find, name, f"the ends differ with probability {sure:.3f}")
    expected = f"bad less often than the bad end ({bad}), at confidence {settings.confidence:g}"
    raise Refused([_refusal("good", expected, good, f"{_AGAIN} another --good, or a higher --patience")])


def _blocked(name: str, tally: Tally) -> list[Refusal]:
    if not tally.blocked:
        return []
    cure = (
        f"make the {name} end testable (it stopped at: {tally.stage}) and take it back: nvllm bisect back; or: "
        f"{_AGAIN} another --{name}"
    )
    return [Refusal("NV801", f"the {name} end", f"{name}, in any number of trials", str(tally), cure)]


def _refusal(name: str, expected: str, tally: Tally, cure: str) -> Refusal:
    return Refusal("NV801", f"the {name} end", expected, rate_text(tally), cure)
