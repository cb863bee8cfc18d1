"""Slow starts: how long the phases of a blessed start took, compared with its trials.

A start that is much slower than its trials is reported: a disk may be failing, a driver may be compiling. It is not
refused, because the host may only be busy: on a busy one, loads of one cache took from 8 to 37 s, where compiling had
taken 92.

Processor time does not depend on that. Compiling takes many times as much of it as loading, and both figures are
known, because the bootstrap compiled the same code. So a start that used as much as the bootstrap has compiled,
whatever its log says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvllm.cache import manifest
from nvllm.cache.manifest import StartCost
from nvllm.serve import timeline

SLOWER = 2.0
"""A phase is slow if it took this many times as long as in the slowest trial, and LEAST seconds longer. Five imports
on a busy host took 44 to 76 s, so twice the slowest trial leaves room for most of what a host does by itself."""

LEAST = 5.0
"""Seconds. Shorter differences are not reported: short phases double from one start to the next."""

COLD = 0.8
"""A start compiled if it used at least this part of the bootstrap's processor time,"""

MORE = 1.5
"""and more than this many times that of the slowest trial: two threads of one core slow each other down."""

ALIKE = 0.9
"""A trial compiled if it used at least this part of the bootstrap's processor time, and COLD of its compile time."""

APART = 10.0
"""Seconds by which the bootstrap must have taken longer than the trials; otherwise nothing is decided."""

_COMPILE = "compile"

Times: TypeAlias = Mapping[str, float]
"""Seconds by the name of a phase."""


@dataclass(frozen=True, slots=True)
class SlowPhase:
    """A PHASE that took SECONDS, and at most BLESSED seconds in the trials."""

    phase: str
    seconds: float
    blessed: float

    def __str__(self) -> str:
        return f"{self.phase} {self.seconds:.1f} s, in the trials at most {self.blessed:.1f} s"


def times(phases: Iterable[manifest.PhaseTime | timeline.Phase]) -> Times:
    """Return the seconds of PHASES by name."""
    return {phase.name: phase.seconds for phase in phases}


def slowest(boots: Sequence[Times]) -> Times:
    """Return for each phase the most seconds that it took in BOOTS."""
    names = {name for boot in boots for name in boot}
    return {name: max(boot.get(name, 0.0) for boot in boots) for name in names}


def slow(took: Times, boots: Sequence[Times]) -> tuple[SlowPhase, ...]:
    """Return the phases of TOOK, a start, that are slow compared with BOOTS, the trials; in the order of TOOK."""
    most = slowest(boots)
    return tuple(
        SlowPhase(name, seconds, most.get(name, 0.0))
        for name, seconds in took.items()
        if seconds > SLOWER * most.get(name, 0.0) and seconds > most.get(name, 0.0) + LEAST
    )


def compiled(processor: float, boots: Sequence[float], cold: float) -> tuple[str, str] | None:
    """Return, as expected and found, why a start that used PROCESSOR seconds has compiled; None if it need not have.

    BOOTS are the processor seconds of the trials, COLD those of the bootstrap, which compiled.
    """
    most = max(boots, default=0.0)
    if cold < most + APART or processor < COLD * cold or processor <= MORE * most:
        return None
    expected = f"a start that loads the cache: at most {most:.1f} processor seconds, as in the trials"
    return expected, _found(processor, cold)


def compiled_again(trial: StartCost, cold: StartCost) -> tuple[str, str] | None:
    """Return the same for a TRIAL, with which only the bootstrap, COLD, can be compared.

    How much of the bootstrap was spent on compiling is not known then, so processor time and clock must agree.
    """
    took, compiling = (times(cost.phases).get(_COMPILE, 0.0) for cost in (trial, cold))
    if compiling < APART or took < COLD * compiling or trial.processor < ALIKE * cold.processor:
        return None
    expected = "a start that loads the cache, in a fraction of the time of compiling"
    return expected, _found(trial.processor, cold.processor)


def _found(processor: float, cold: float) -> str:
    return f"{processor:.1f} processor seconds; the bootstrap, which compiled, took {cold:.1f}"
