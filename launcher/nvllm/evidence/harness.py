"""Whether a leg counts: the patches that it compares were on and off as planned, and the engine came to rest.

A leg whose harness fails is invalid, whatever its answers are. The log lines are those of the patch `sentinels`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nvllm.evidence.records import HarnessCheck
from nvllm.runtime import gate
from nvllm.trials.answers import Answered

_LINE = re.compile(r"nvllm\.sentinel name=(\S+) (?:enabled=(true|false)|(first_fire)\b)")

DRAINED = 1e-6
"""How much more of the KV cache may be in use after a leg than before it: it is a share, and rounded."""


@dataclass(frozen=True, slots=True)
class SentinelLog:
    """What an engine's log says of one sentinel: whether it is ENABLED, by each process that said it, and FIRED."""

    enabled: frozenset[bool] = frozenset()
    fired: bool = False


@dataclass(frozen=True, slots=True)
class LegObserved:
    """What was seen of one leg.

    LISTING are the names in the container's /run/nvllm, None if they could not be listed. BASELINE and REST are the
    shares of the KV cache in use before the first question and after the last one; None if the engine does not say it.
    """

    log: str
    listing: Collection[str] | None
    baseline: float | None
    rest: float | None
    artifact: HarnessCheck | None = None
    """Whether it loaded what it had to, and nothing else; None if it loads nothing."""


def sentinels(log: str) -> Mapping[str, SentinelLog]:
    """Return what LOG says of each sentinel."""
    logs: dict[str, SentinelLog] = {}
    for name, enabled, fired in _LINE.findall(log):
        before = logs.get(name, SentinelLog())
        states = before.enabled | ({enabled == "true"} if enabled else set())
        logs[name] = SentinelLog(states, before.fired or bool(fired))
    return logs


def checks(
    present: Collection[str], ablated: Collection[str], seen: LegObserved, answers: Sequence[Answered]
) -> tuple[HarnessCheck, ...]:
    """Return the checks of a leg whose sentinels are PRESENT; ABLATED are those that the arms differ in.

    A sentinel that is in every arm need not fire: no claim about it is made.
    """
    logs = sentinels(seen.log)
    unnamed = sorted(logs.keys() - {*ablated, *present})
    return (
        _directory(present, seen.listing),
        *(_fires(name, logs.get(name, SentinelLog())) for name in sorted(set(ablated) & set(present))),
        *(_stays_off(name, logs.get(name, SentinelLog())) for name in sorted(set(ablated) - set(present))),
        *(_stays_off(name, logs[name]) for name in unnamed),
        *([seen.artifact] if seen.artifact is not None else []),
        _rest(seen),
        _answered(answers),
    )


def broken(checks: Iterable[HarnessCheck]) -> str:
    """Return the names of those of CHECKS that do not hold, with what was found, the first time for each name."""
    reasons: dict[str, str] = {}
    for check in checks:
        if not check.holds:
            reasons.setdefault(check.name, " ".join(check.found.split())[:_FOUND])
    return "; ".join(f"{name} ({text})" for name, text in sorted(reasons.items()))


_FOUND = 300
"""Characters of what a check found that are said in a line; the leg's verdict has all."""


def _directory(present: Collection[str], listing: Collection[str] | None) -> HarnessCheck:
    expected = sorted([*present, gate.EXPECTATIONS])
    listed = "no listing" if listing is None else ", ".join(sorted(listing))
    return HarnessCheck("directory", listing is not None and sorted(listing) == expected, ", ".join(expected), listed)


def _fires(name: str, log: SentinelLog) -> HarnessCheck:
    holds = log.enabled == {True} and log.fired
    return HarnessCheck(f"sentinel {name}", holds, "enabled=true, first_fire", _text(log))


def _stays_off(name: str, log: SentinelLog) -> HarnessCheck:
    """A patch that never asks for its switch logs nothing: then nobody knows that it is off."""
    holds = log.enabled == {False} and not log.fired
    return HarnessCheck(f"sentinel {name}", holds, "enabled=false, no first_fire", _text(log))


def _text(log: SentinelLog) -> str:
    enabled = [f"enabled={str(value).lower()}" for value in sorted(log.enabled)] or ["no line about its switch"]
    return ", ".join([*enabled, "first_fire" if log.fired else "no first_fire"])


def _rest(seen: LegObserved) -> HarnessCheck:
    known = seen.baseline is not None and seen.rest is not None
    holds = seen.baseline is not None and seen.rest is not None and seen.rest <= seen.baseline + DRAINED
    expected = f"{seen.baseline:.4f} of the KV cache in use, as before" if known else "metrics of the KV cache"
    return HarnessCheck("KV cache drains", holds, expected, "no metrics" if seen.rest is None else f"{seen.rest:.4f}")


def _answered(answers: Sequence[Answered]) -> HarnessCheck:
    """A question that runs into its timeout is an answer, and a wrong one; a refused request is none."""
    problems = [answer for answer in answers if answer.problem and not answer.timed_out]
    counted = f"{len(problems)} of {len(answers)} were not: {problems[0].problem}" if problems else f"{len(answers)}"
    return HarnessCheck("answers", bool(answers) and not problems, "every question answered", counted)
