"""Pace: how long the phases of a blessed start took, against those of the boots that blessed it.

A start that is much slower than its trials is reported: a disk that fails, a driver that compiles, a host that
does too much. It is no reason to refuse, for a host may be busy: on one that was, loads of one cache took from 8 to
37 s, where compiling had taken 92.

Processor time is another matter. Who waits for a processor does not use it, so a busy host takes the same. Compiling
takes many times what loading takes, and both are known, because the bootstrap compiled the same code. A start that
used as much as the bootstrap compiled, whatever its log says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvllm.cache import manifest
from nvllm.cache.manifest import StartCost
from nvllm.serve import timeline

SLOWER = 2.0
"""A phase is slow if it took this many times as long as in the slowest trial, and LEAST seconds longer. A choice:
five imports on a busy host took 44 to 76 s, so the slowest trial holds most of what a host does by itself."""

LEAST = 5.0
"""Seconds. Below that a phase is not worth a word: the short ones double from one boot to the next."""

COLD = 0.8
"""The part of what the bootstrap took from which on a start is taken for one that compiled."""

MORE = 1.5
"""And it used so many times what the trial that used most did: two threads of one core slow each other down."""

ALIKE = 0.9
"""The part of the bootstrap's processor time from which on a trial is taken for one, if its clock says so as well."""

APART = 10.0
"""Seconds by which the bootstrap took longer than the trials; below that, nothing can be told."""

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
    return {one.name: one.seconds for one in phases}


def slowest(boots: Sequence[Times]) -> Times:
    """Return for each phase the most seconds that it took in BOOTS."""
    names = {name for boot in boots for name in boot}
    return {name: max(boot.get(name, 0.0) for boot in boots) for name in names}


def slow(took: Times, boots: Sequence[Times]) -> tuple[SlowPhase, ...]:
    """Return the phases of a start that TOOK so long which are slow against BOOTS, in their order."""
    most = slowest(boots)
    return tuple(
        SlowPhase(name, seconds, most.get(name, 0.0))
        for name, seconds in took.items()
        if seconds > SLOWER * most.get(name, 0.0) and seconds > most.get(name, 0.0) + LEAST
    )


def compiled(processor: float, boots: Sequence[float], cold: float) -> tuple[str, str] | None:
    """Return, as expected and found, why a start that took PROCESSOR seconds compiled, or None if they do not prove it.

    BOOTS are those of the trials, COLD is that of the bootstrap, which compiled.
    """
    most = max(boots, default=0.0)
    if cold < most + APART or processor < COLD * cold or processor <= MORE * most:
        return None
    return f"a load, which took at most {most:.1f} processor seconds in the trials", _found(processor, cold)


def compiled_again(trial: StartCost, cold: StartCost) -> tuple[str, str] | None:
    """Return the same of a TRIAL: nothing but the bootstrap, which is COLD, was there before it.

    How much of the bootstrap was not compiling is not known then, so processor and clock have to agree.
    """
    took, compiling = (times(one.phases).get(_COMPILE, 0.0) for one in (trial, cold))
    if compiling < APART or took < COLD * compiling or trial.processor < ALIKE * cold.processor:
        return None
    return "a load, in a part of the time that compiling takes", _found(trial.processor, cold.processor)


def _found(processor: float, cold: float) -> str:
    return f"{processor:.1f} processor seconds; the bootstrap, which compiled, took {cold:.1f}"
