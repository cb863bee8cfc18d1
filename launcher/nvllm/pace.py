"""Pace: how long the phases of a blessed start took, against those of the boots that blessed it.

A start that is much slower than its trials is reported: a disk that fails, a driver that compiles, a host that
does too much. It is no reason to refuse, for a host may be busy.

One thing about times is a reason. Code that is loaded is there in a fraction of the time that compiling it takes;
both times are known, because the bootstrap compiled on the same kind of host. A load that took as long as the
compile, in a start that was not slow otherwise, was none, whatever the log says.

The figures are chosen so that a host which is merely slow never looks like a compiler: it is slow in every phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvllm import manifest, timeline

SLOWER = 2.0
"""A phase is slow if it took this many times as long as in the slowest trial, and LEAST seconds longer. The
slowest of five boots is seldom exceeded by half on an idle host; twice that is not chance."""

LEAST = 5.0
"""Seconds. Below that a phase is not worth a word: the short ones double from one boot to the next."""

COLD = 0.8
"""The part of the bootstrap's compile from which on a load is taken for a compile."""

APART = 10.0
"""Seconds by which the bootstrap's compile was longer than the slowest load; below that, times tell nothing."""

_COMPILE = "compile"

Times: TypeAlias = Mapping[str, float]
"""Seconds by the name of a phase."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A PHASE that took SECONDS, and at most BLESSED seconds in the trials."""

    phase: str
    seconds: float
    blessed: float

    def __str__(self) -> str:
        return f"{self.phase} {self.seconds:.1f} s, in the trials at most {self.blessed:.1f} s"


def times(phases: Iterable[manifest.Phase | timeline.Phase]) -> Times:
    """Return the seconds of PHASES by name."""
    return {one.name: one.seconds for one in phases}


def slowest(boots: Sequence[Times]) -> Times:
    """Return for each phase the most seconds that it took in BOOTS."""
    names = {name for boot in boots for name in boot}
    return {name: max(boot.get(name, 0.0) for boot in boots) for name in names}


def slow(took: Times, boots: Sequence[Times]) -> tuple[Slow, ...]:
    """Return the phases of a start that TOOK so long which are slow against BOOTS, in their order."""
    most = slowest(boots)
    return tuple(
        Slow(name, seconds, most.get(name, 0.0))
        for name, seconds in took.items()
        if seconds > SLOWER * most.get(name, 0.0) and seconds > most.get(name, 0.0) + LEAST
    )


def compiled(took: Times, boots: Sequence[Times], cold: Times) -> tuple[str, str] | None:
    """Return, as expected and found, why a start that TOOK so long compiled, or None if its times do not prove it.

    BOOTS are the trials, COLD is the bootstrap, which compiled.
    """
    load = slowest(boots).get(_COMPILE, 0.0)
    if not _as_long_as(took, cold, load) or any(one.phase != _COMPILE for one in slow(took, boots)):
        return None
    return f"blessed code that loads within {load:.1f} s, as in the trials", _found(took, cold)


def compiled_again(took: Times, cold: Times) -> tuple[str, str] | None:
    """Return the same of a trial that TOOK so long: nothing but the bootstrap, which is COLD, was there before it."""
    if not _as_long_as(took, cold, 0.0) or any(one.phase != _COMPILE for one in slow(took, [cold])):
        return None
    return "compiled code that loads in a part of the time that compiling takes", _found(took, cold)


def _as_long_as(took: Times, cold: Times, load: float) -> bool:
    """Say whether the load of a start took as long as the compile, where a load of LOAD seconds is far from it."""
    seconds, compiling = took.get(_COMPILE, 0.0), cold.get(_COMPILE, 0.0)
    return compiling >= load + APART and seconds >= COLD * compiling and seconds > SLOWER * load


def _found(took: Times, cold: Times) -> str:
    seconds, compiling = took[_COMPILE], cold[_COMPILE]
    return f"{seconds:.1f} s, in a start that was not slow otherwise; compiling took {compiling:.1f} s"
