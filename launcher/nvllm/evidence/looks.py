"""Looks at a run that goes on until it is decided, and what each of them may cost.

To look again and again at growing evidence, and to stop at the first finding, finds noise. So each look has a part of
the error of 5 %: half of it the first one, a sixth the second, 1 / (k (k + 1)) the one with number k. All parts
together are 1 however many looks there are, so the error of the whole run is at most 5 %, by Bonferroni's inequality:
for differences that are none, and for effects beyond the margin that are called neutral.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.deciding import within
from nvllm.evidence.records import Comparison, RunManifest

_FIRST = 3
"""Runs of each arm before the first look: with two, noise cannot be told from an effect."""


def after(runs: int) -> Iterator[int]:
    """Yield after which runs there is a look, of so many RUNS at most: 3, 4, 6, 9, 13 and so on, and the last one."""
    run = _FIRST
    while run < runs:
        yield run
        run = max(run + 1, run * 3 // 2)
    yield runs


def error_share(manifest: RunManifest, arms: Sequence[ArmLegs]) -> float:
    """Return the part of the error that the comparison of ARMS may have; 1 if the run has a fixed number of runs."""
    if not manifest.until_decided:
        return 1.0
    complete = min((len({verdict.in_engine for verdict, _ in arm.legs}) for arm in arms), default=0)
    number = 1 + sum(engine < complete for engine in after(manifest.engines))
    return 1 / (number * (number + 1))


def settled(comparison: Comparison) -> bool:
    """Return whether COMPARISON has found all that runs can find: at most more questions would find the rest."""
    if all(finding.finding != "unknown" for finding in comparison.findings):
        return True
    open_factors = {finding.factor for finding in comparison.findings if finding.finding == "unknown"}
    open_effects = [effect for effect in comparison.effects if effect.factor in open_factors and not within(effect)]
    return all(effect.low is not None and effect.needed_unit == "question" for effect in open_effects)
