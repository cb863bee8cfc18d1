"""The page of an evidence run: its plots, and a table of every number in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from nvllm.core.statistics import percentile
from nvllm.evidence import analysis, load, summary
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.deciding import CORRECT, LENGTH, effect_text, interval_text
from nvllm.evidence.records import Comparison, Effect, Finding, LegVerdict, Outcome, RunManifest
from nvllm.pages import plots
from nvllm.pages.page import rendered
from nvllm.pages.plots import Interval, Spread, Start
from nvllm.serve.memoryseries import AVAILABLE, FIGURES, MemorySample

_TITLES = {CORRECT: "points of correct answers", LENGTH: "tokens of an answer"}
_RATIOS = "ratios"


_LEAST = {CORRECT: 0.05, LENGTH: 1.0}
_LEAST_RATIO = math.log(1.05)
"""How far an axis reaches at least to both sides: noise that fills a plot looks like an effect."""


_COLOURS: Mapping[Finding | Outcome, str] = MappingProxyType(
    {
        **dict.fromkeys(("win", "above the floor", "passed"), "good"),
        **dict.fromkeys(("loss", "mixed", "below the floor", "failed"), "bad"),
        **dict.fromkeys(("neutral", "shorter generations", "longer generations"), "same"),
        **dict.fromkeys(("unknown", "invalid"), "open"),
    }
)
"""The class of each finding, and of each outcome where nothing is compared."""
_COLUMNS = 500
"""The most runs of an arm that the table of runs shows."""


@dataclass(frozen=True, slots=True)
class EffectPlot:
    """The effects on one measure: ROWS, and the TICKS of the axis with their texts, no effect in the middle."""

    title: str
    ticks: tuple[tuple[float, str], ...]
    scale: Literal["linear", "log"]
    rows: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class PlottedTable:
    """A PLOT, as SVG, and the table of what is in it."""

    plot: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Memory = Mapping[str, Sequence[MemorySample]]
"""The series of memory of engines, by the names that plots give them."""


def html(manifest: RunManifest, arms: Sequence[ArmLegs], comparison: Comparison, memory: Memory | None = None) -> str:
    """Return the run of MANIFEST with its ARMS and their COMPARISON, as one HTML page without external resources.

    MEMORY has the series of its engines.
    """
    legs = [verdict for arm in arms for verdict, _ in arm.legs]
    started = [
        Start(f"{leg.arm}, {leg.run}", tuple((phase.name, phase.seconds, phase.ended) for phase in leg.phases))
        for leg in legs
        if leg.turn == 1
    ]
    return rendered(
        Path(__file__).with_name("page.html.jinja"),
        title=summary.title(manifest),
        summary=summary,
        manifest=manifest,
        comparison=comparison,
        question=analysis.question(manifest, comparison),
        headline=analysis.answer(comparison),
        colours=_COLOURS,
        engine_plot=_by_run(comparison) if comparison.engines else "",
        memory_plots=[*_memory(memory or {})],
        plots=[
            (plot.title, plots.intervals(f"Effects: {plot.title}", plot.rows, plot.ticks, plot.scale))
            for plot in effect_plots(comparison.effects)
        ],
        arms=[(arm.name, {verdict.run: verdict for verdict, _ in arm.legs}) for arm in arms],
        runs=range(1, min(manifest.runs, _COLUMNS) + 1),
        answers=None if manifest.kind == "bench" else _answers(arms),
        loads=loads(legs),
        legs=legs,
        timelines=plots.timelines("Phases of every start", started),
        phases=plots.phase_names(started),
        broken=[(leg, check) for leg in legs for check in leg.checks if not check.holds],
        marks={"passed": "+", "failed": "x", "invalid": "?"},
        classes={"passed": "good", "failed": "bad", "invalid": "untestable"},
    )


def _by_run(comparison: Comparison) -> str:
    """Return the plot of the right answers of each engine of COMPARISON, run after run."""
    rows = [
        (f"{engine.arm}, engine {engine.engine}", [run.correct / max(1, run.asked) for run in engine.runs])
        for engine in comparison.engines
    ]
    return plots.curves("Right answers, run after run in one engine", rows, "run of the engine", "right", 1)


def _memory(memory: Memory) -> Iterator[tuple[str, str]]:
    """Yield for each figure of MEMORY what it is, and its plot."""
    for name, what in FIGURES.items():
        rows = {
            engine: [(sample.at, sample.bytes[name] / 2**30) for sample in series if name in sample.bytes]
            for engine, series in memory.items()
        }
        if drawn := [(engine, points) for engine, points in rows.items() if points]:
            marked: plots.Mark = "lowest" if name == AVAILABLE else "highest"
            yield f"{name}: {what}", plots.courses(f"Memory, {name}", drawn, "seconds since the start", "GiB", marked)


def effect_plots(effects: Sequence[Effect]) -> list[EffectPlot]:
    """Return a plot for each kind of EFFECTS: differences of one measure, and ratios, on a logarithmic axis."""
    kinds: dict[str, list[Effect]] = {}
    for effect in effects:
        kinds.setdefault(_TITLES.get(effect.measure, _RATIOS), []).append(effect)
    return [_plot(title, of) for title, of in kinds.items()]


def _plot(title: str, effects: Sequence[Effect]) -> EffectPlot:
    differ = effects[0].measure in _TITLES

    def scaled(value: float) -> float:
        return value if differ else math.log(value)

    values = [value for effect in effects for value in (effect.estimate, effect.low, effect.high) if value is not None]
    reach = max(_LEAST.get(effects[0].measure, _LEAST_RATIO), *(abs(scaled(value)) for value in values))
    ticks = [tick if differ else math.exp(tick) for tick in (-reach, 0.0, reach)]
    named = [effect.factor for effect in effects]
    return EffectPlot(
        title,
        tuple((tick, effect_text(effects[0], tick)) for tick in ticks),
        "linear" if differ else "log",
        tuple(
            Interval(
                effect.factor if differ else effect.measure,
                effect.estimate,
                effect.low,
                effect.high,
                f"{effect.factor}: {effect.measure}: {effect_text(effect, effect.estimate)}, {interval_text(effect)}",
                "" if differ or effect.factor in named[:number] else effect.factor,
            )
            for number, effect in enumerate(effects)
        ),
    )


def _answers(arms: Sequence[ArmLegs]) -> PlottedTable | None:
    times = {arm.name: sorted(answer.seconds for _, answers in arm.valid for answer in answers) for arm in arms}
    latencies = [(latency(arm, seconds), len(seconds)) for arm, seconds in times.items() if seconds]
    if not latencies:
        return None
    return PlottedTable(
        plots.spreads("Seconds of an answer in each arm", [spread for spread, _ in latencies], "s"),
        ("arm", "answers", "least, s", "p50, s", "p95, s", "p99, s", "most, s"),
        tuple(
            (
                spread.label,
                str(count),
                *(f"{value:.3f}" for value in (spread.least, spread.p50, spread.p95, spread.p99, spread.most)),
            )
            for spread, count in latencies
        ),
    )


def latency(arm: str, seconds: Sequence[float]) -> Spread:
    """Return how long the answers of ARM took: their percentiles, of SECONDS in ascending order."""
    p50, p95, p99 = (percentile(seconds, share) for share in load.PERCENTILES)
    return Spread(arm, p50, p95, p99, seconds[0], seconds[-1])


def loads(legs: Sequence[LegVerdict]) -> list[tuple[str, PlottedTable]]:
    """Return the percentiles of each latency in those of LEGS that had a load: what it is, its plot and its table."""
    tables = []
    for metric, what in load.METRICS.items():
        names = [load.figure(share, metric) for share in load.PERCENTILES]
        measured = [(leg, [leg.figures[name] for name in names]) for leg in legs if leg.figures.keys() >= {*names}]
        if measured:
            spreads = [Spread(f"{leg.arm}, {leg.run}", *values) for leg, values in measured]
            table = PlottedTable(
                plots.spreads(f"Milliseconds {what}, {metric}, in each leg", spreads, "ms"),
                ("arm", "run", *names),
                tuple((leg.arm, str(leg.run), *(f"{value:.2f}" for value in values)) for leg, values in measured),
            )
            tables.append((f"{metric}: milliseconds {what}", table))
    return tables
