"""The page of an evidence run: its plots, and a table of every number in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core.page import Start, phase_names, rendered
from nvllm.evidence import summary
from nvllm.evidence.comparison import CORRECT, LENGTH, ArmLegs
from nvllm.evidence.records import Comparison, Effect, LegVerdict, RunManifest

_TITLES = {CORRECT: "points of correct answers", LENGTH: "tokens of an answer"}
_RATIOS = "ratios"


_LEAST = {CORRECT: 0.05, LENGTH: 1.0}
_LEAST_RATIO = math.log(1.05)
"""How far an axis reaches at least to both sides: noise that fills a plot looks like an effect."""


_COLUMNS = 500
"""The most runs of an arm that the table of runs shows."""


@dataclass(frozen=True, slots=True)
class EffectBar:
    """One effect in a plot: its FACTOR and LABEL, and where its estimate and its interval stand, from 0 to 1.

    HEAD is written above it: the factor, where several measures of it follow one another.
    """

    factor: str
    label: str
    head: str
    at: float
    low: float | None
    high: float | None
    text: str
    interval: str


@dataclass(frozen=True, slots=True)
class EffectPlot:
    """The effects on one measure: where no effect stands, from 0 to 1, and the TICKS of the axis with their texts."""

    title: str
    zero: float
    ticks: tuple[tuple[float, str], ...]
    bars: tuple[EffectBar, ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """How many seconds the answers of an arm took: so many, and their percentiles."""

    arm: str
    answers: int
    least: float
    p50: float
    p95: float
    p99: float
    most: float


def html(manifest: RunManifest, arms: Sequence[ArmLegs], found: Comparison) -> str:
    """Return the run of MANIFEST, with its ARMS and what was FOUND, as one HTML page without external resources."""
    legs = [verdict for arm in arms for verdict, _ in arm.legs]
    started = [
        Start(f"{leg.arm}, {leg.run}", tuple((one.name, one.seconds, one.ended) for one in leg.phases)) for leg in legs
    ]
    times = [] if manifest.kind == "bench" else latencies(arms)
    return rendered(
        Path(__file__).with_name("page.html.jinja"),
        title=summary.title(manifest),
        facts=summary.facts(manifest),
        findings=found.findings,
        notes=found.notes,
        arm_columns=summary.arm_columns(manifest),
        arm_rows=summary.arm_rows(manifest, found),
        effect_columns=summary.EFFECT_COLUMNS,
        effect_rows=summary.effect_rows(found),
        figure_columns=("figure", *(one.name for one in found.arms)),
        figure_rows=summary.figure_rows(found),
        kernel_tables=[(summary.kernels_title(one), summary.kernel_rows(one)) for one in found.kernels],
        kernel_columns=summary.KERNEL_COLUMNS,
        common_columns=summary.COMMON_COLUMNS,
        common_rows=summary.common_rows(found),
        plots=effect_plots(found.effects),
        arms=[(arm.name, {verdict.run: verdict for verdict, _ in arm.legs}) for arm in arms],
        runs=range(1, min(manifest.runs, _COLUMNS) + 1),
        latencies=times,
        slowest=max((one.most for one in times), default=0.0),
        legs=legs,
        started=started,
        phases=phase_names(started),
        broken=[(leg, check) for leg in legs for check in leg.checks if not check.holds],
        marks={"passed": "+", "failed": "x", "invalid": "?"},
        classes={"passed": "good", "failed": "bad", "invalid": "untestable"},
        rate=rate,
    )


def rate(leg: LegVerdict) -> float:
    """Return the tokens per second of LEG."""
    return leg.tokens / leg.seconds if leg.seconds else 0.0


def effect_plots(effects: Sequence[Effect]) -> list[EffectPlot]:
    """Return a plot for each kind of EFFECTS: differences of one measure, and ratios, on a logarithmic axis."""
    kinds: dict[str, list[Effect]] = {}
    for one in effects:
        kinds.setdefault(_TITLES.get(one.measure, _RATIOS), []).append(one)
    return [_plot(title, of) for title, of in kinds.items()]


def _plot(title: str, effects: Sequence[Effect]) -> EffectPlot:
    neutral = 0.0 if effects[0].measure in _TITLES else 1.0

    def scaled(value: float) -> float:
        return math.log(value) if neutral else value

    values = [one for effect in effects for one in (effect.estimate, effect.low, effect.high) if one is not None]
    reach = 1.08 * max(_LEAST.get(effects[0].measure, _LEAST_RATIO), *(abs(scaled(one)) for one in values))

    def place(value: float) -> float:
        return (scaled(value) + reach) / (2 * reach)

    def optional(value: float | None) -> float | None:
        return None if value is None else place(value)

    named = [one.factor for one in effects]
    edges = [math.exp(one) if neutral else one for one in (-reach / 1.08, 0.0, reach / 1.08)]
    return EffectPlot(
        title,
        place(neutral),
        tuple((place(one), summary.effect_text(effects[0], one)) for one in edges),
        tuple(
            EffectBar(
                one.factor,
                one.measure if neutral else one.factor,
                one.factor if neutral and one.factor not in named[:number] else "",
                place(one.estimate),
                optional(one.low),
                optional(one.high),
                summary.effect_text(one, one.estimate),
                summary.interval_text(one),
            )
            for number, one in enumerate(effects)
        ),
    )


def latencies(arms: Sequence[ArmLegs]) -> list[Latency]:
    """Return how long the answers of each of ARMS took, over its valid legs."""
    found = []
    for arm in arms:
        seconds = sorted(one.seconds for _, answers in arm.valid for one in answers)
        if seconds:
            p50, p95, p99 = (percentile(seconds, share) for share in (0.5, 0.95, 0.99))
            found.append(Latency(arm.name, len(seconds), seconds[0], p50, p95, p99, seconds[-1]))
    return found


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that SHARE of the ORDERED values do not exceed, interpolated between its neighbours."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    pair = ordered[below : below + 2]
    return pair[0] + (pair[-1] - pair[0]) * (place - below)
