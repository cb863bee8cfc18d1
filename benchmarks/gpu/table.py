"""Medians, verdicts and how they are shown. Microseconds everywhere; no torch in here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OURS, ROW, MEMSET, FILL, UPSTREAM = "ours", "ours, ids in a row", "memset", "fill", "upstream 0.28"
FORK, EVERY = "fork", "fork, every tensor"
CONTENDERS: dict[str, str] = {
    OURS: "`vllm/nvllm/page_zeroer.py` of the series v0.21.0: one launch",
    ROW: "the same with ids that follow each other; the others get ids at random",
    MEMSET: "one `cuMemsetD8Async` of as many bytes in one piece, no ids",
    FILL: "torch's `zero_()` of as many bytes in one piece, as float32, no ids",
    FORK: "ids to the GPU and `index_fill_` for each Mamba state tensor of another address, then 0.21.0's own kernel",
    EVERY: "the same for every Mamba state tensor, also those that share an address",
    UPSTREAM: "`KVBlockZeroer` of vLLM 0.28.0; pages of buffers with an attention layer only",
}

FIGURES = {
    "alone": "GPU time of a call on an idle GPU, in us: with the time until the GPU gets the work",
    "queued": "GPU time of a call that is queued behind other work, in us: what a step pays when the host runs ahead",
    "host": "time of the host in a call, in us",
}

ONE_US, FORK_RATIO, HOST_US, LARGE = 45.0, 50.0, 50.0, 64
"""The targets: one block, against the fork, host time of a call, and from which count on memset's speed counts."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What repetitions of one call came to: median and the tenth and ninetieth percentile, in us."""

    median: float
    low: float
    high: float
    repetitions: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, what was measured for it, and whether that is enough."""

    target: str
    measured: str
    met: bool


STATES = "states of Mamba that are not zero"
"""What the end-to-end proof is about; how `recycling` calls it."""

Timings = Mapping[str, Mapping[int, Mapping[str, Figure]]]
"""Figures by contender, number of blocks, and kind: the keys of FIGURES."""


def figure(samples: Sequence[float]) -> Figure:
    """Return what SAMPLES, two or more of them, came to."""
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    return Figure(statistics.median(samples), tenths[0], tenths[-1], len(samples))


def verdicts(timings: Timings) -> list[Verdict]:
    """Return the verdict on each target for one shape."""
    own, memset = timings[OURS], timings[MEMSET]
    one_block = own[1]["alone"].median
    checked = [Verdict(f"one block in at most {ONE_US:g} us", f"{one_block:.1f} us", one_block <= ONE_US)]
    for name in (FORK, EVERY):
        ratio = timings[name][1]["alone"].median / one_block
        target = f"one block {FORK_RATIO:g} times faster than: {name}"
        checked.append(Verdict(target, f"{ratio:.1f} times", ratio >= FORK_RATIO))
    for count in (count for count in own if count >= LARGE):
        for kind in (kind for kind in ("alone", "queued") if kind in own[count] and kind in memset[count]):
            own_us, memset_us = own[count][kind].median, memset[count][kind].median
            checked.append(
                Verdict(
                    f"{count} blocks at memset's speed or above, {kind}",
                    f"{own_us:.0f} us against {memset_us:.0f} us",
                    own_us <= memset_us,
                )
            )
    worst = max(own, key=lambda count: own[count]["host"].median)
    host = own[worst]["host"].median
    checked.append(
        Verdict(
            f"host time of a call at most {HOST_US:g} us", f"{host:.1f} us at most, {worst} blocks", host <= HOST_US
        )
    )
    return checked


def figure_text(figure: Figure | None) -> str:
    """Return FIGURE as text: the median, and the percentiles in brackets; None was not measured."""
    if figure is None:
        return "not measured"
    return f"{number(figure.median)} ({number(figure.low)}-{number(figure.high)})"


def number(value: float) -> str:
    """Return VALUE with three digits that count."""
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def rows(timings: Timings, kind: str) -> list[list[str]]:
    """Return the lines of the table of KIND: a heading, then a line for each contender."""
    counts = list(next(iter(timings.values())))
    head = ["blocks", *(str(count) for count in counts)]
    return [head, *([name, *(figure_text(by[at].get(kind)) for at in counts)] for name, by in timings.items())]


def markdown(lines: Iterable[Sequence[str]]) -> str:
    """Return LINES, the first one of them a heading, as a table that is aligned in plain text as well."""
    cells = [list(line) for line in lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]

    def text(line: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"

    return "\n".join(
        [text(cells[0]), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(text, cells[1:])]
    )


def report(name: str, timings: Timings) -> list[str]:
    """Return the tables and verdicts of the shape NAME, in paragraphs."""
    parts = [f"### {name[:1].upper()}{name[1:]}"]
    for kind, title in FIGURES.items():
        parts += [f"{title}; median (10th-90th percentile):", markdown(rows(timings, kind))]
    checked = [["target", "measured", "verdict"]]
    checked += [[each.target, each.measured, "PASS" if each.met else "MISS"] for each in verdicts(timings)]
    return [*parts, "Targets:", markdown(checked)]


def from_json(timings: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> Timings:
    """Return the timings of one shape from their JSON, in which every key is a text."""
    return {
        name: {int(count): {kind: Figure(**figure) for kind, figure in kinds.items()} for count, kinds in by.items()}
        for name, by in timings.items()
    }


FIRST = "first launch"
"""The figures of first_fire.py, which are there only if they were asked for."""

MUST_DIFFER = ("stock", "fork")
"""The arms in which a recycled state must be stale, or the proof of the third one proves nothing."""


PARTS = ("recycling", "correctness", "timings")
"""What is measured every time; without one of them nothing is right."""


def failures(results: Mapping[str, Any]) -> list[str]:
    """Return which scripts failed or never ran, by RESULTS."""
    ran = {name: results[name] for name in (*PARTS, FIRST) if name in results}
    missing = [f"{name}: never ran" for name in PARTS if name not in ran]
    return [*missing, *(part["failed"] for part in ran.values() if "failed" in part)]


def shapes(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return of PART, the results of a script by shape, all but the word that the script failed."""
    return {name: result for name, result in part.items() if name != "failed"}


def wrong_cases(results: Mapping[str, Any]) -> list[str]:
    """Return what is not as it must be in RESULTS, what the scripts printed."""
    correctness = results.get("correctness", {})
    wrong = failures(results)
    wrong += [f"{name}: {count} wrong bytes" for name, count in correctness.get("cases", {}).items() if count]
    for name, count in correctness.get("comparison", {}).items():
        if (count == 0) != (name == "nothing"):
            wrong.append(f"the comparison finds {count} wrong bytes: {name}")
    for shape, arms in shapes(results.get("recycling", {})).items():
        for arm, kinds in arms.items():
            for what, counts in kinds.items():
                stale = arm in MUST_DIFFER and what == STATES
                if (counts["wrong"] > 0) != stale:
                    wrong.append(f"{shape}, {arm}: {counts['wrong']} of {counts['bytes']} bytes {what}")
    if FIRST in results and not results[FIRST].get("ok", True):
        wrong.append("the first launch from the layer compiled something, or cleared the wrong bytes")
    return wrong


def right(results: Mapping[str, Any]) -> bool:
    """Return whether every byte is what it must be; what a call costs is another matter."""
    return not wrong_cases(results)


ENVIRONMENT = ("gpu", "driver", "torch", "triton", "python", "date")


def document(results: Mapping[str, Any]) -> str:
    """Return all of RESULTS as text: what it ran on, correctness, the proof with vLLM's scheduler, and the timings."""
    environment = results.get("environment", dict.fromkeys(ENVIRONMENT, "?"))
    cases = results.get("correctness", {}).get("cases", {})
    wrong = wrong_cases(results)
    recycling = shapes(results.get("recycling", {}))
    arms = [["cache", "arm", *(next(iter(next(iter(recycling.values())).values())) if recycling else ())]]
    arms += [
        [shape, arm, *(f"{counts['wrong']:,} of {counts['bytes']:,} bytes" for counts in kinds.values())]
        for shape, by in recycling.items()
        for arm, kinds in by.items()
    ]
    return "\n\n".join(
        [
            "{gpu}, driver {driver}, torch {torch}, Triton {triton}, Python {python}, {date}".format(**environment),
            f"Commit: {environment.get('commit', 'not recorded')}.",
            "### Correctness",
            f"{len(cases)} cases, {sum(1 for count in cases.values() if count)} with a wrong byte.",
            *([] if not wrong else ["\n".join(f"WRONG: {line}" for line in wrong)]),
            "### A recycled block, from the scheduler to memory",
            markdown(arms),
            *(["### First launch in a process", f"```\n{results[FIRST]['printed']}\n```"] if FIRST in results else []),
            "### Contenders",
            markdown([["name", "what it does"], *CONTENDERS.items()]),
            *(
                part
                for name, timings in shapes(results.get("timings", {})).items()
                for part in report(name, from_json(timings))
            ),
        ]
    )
