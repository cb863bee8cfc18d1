"""The page of a run: it needs nothing else, and every number of a plot is in a table."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree as ET

import pytest

from nvllm.evidence import comparison, conclusion, load, page, summary
from nvllm.evidence.arms import Arm
from nvllm.evidence.comparison import ArmLegs
from nvllm.pages import plots
from nvllm.serve import memoryseries
from nvllm.serve.memoryseries import MemorySample
from support.evidence_samples import benched, legs, manifest
from support.rows import each_row

ARMS: tuple[Arm, ...] = ((), ("a",), ("b",), ("a", "b"))


def says(arm: Arm, run: int, question: int) -> tuple[bool, int, float]:
    return "a" in arm, 10 + question % 3, 1.0 + 0.01 * (run * (1 + len(arm)) % 4 + (question * 3 + len(arm)) % 5)


def run(*outcomes: str) -> list[ArmLegs]:
    return [legs(arm, says, outcome="invalid" if arm == ("b",) and outcomes else "passed") for arm in ARMS]


def drawn(arms: list[ArmLegs]) -> str:
    return page.html(manifest(*ARMS), arms, comparison.compare(arms))


@cache
def with_plots() -> str:
    """Return the page of a run, which takes half a second; only for tests that are marked `drawn`."""
    return drawn(run())


def table(text: str, kind: str) -> list[list[str]]:
    (found,) = [one for one in ET.fromstring(text).iter("table") if kind in one.attrib.get("class", "").split()]
    return [["".join(cell.itertext()).strip() for cell in row] for row in found.iter("tr")]


@pytest.mark.drawn
def test_the_page_is_whole_and_loads_nothing() -> None:
    text = with_plots()
    assert not re.search(r"(src=|url\(|@import|<script|<link)", text)
    ET.fromstring(text)
    assert "prefers-color-scheme: dark" in text
    assert "Ablation of demo, eager" in text


def test_the_question_and_the_answer_come_first_and_are_coloured() -> None:
    first, *_ = [one for one in ET.fromstring(drawn(run())).iter("p") if one.attrib.get("class") == "headline"]
    text = " ".join("".join(first.itertext()).split())
    assert text.startswith(
        "What does the sentinel of each of these patches change: a, b? 4 arms: none, a, b, a+b. a is a"
    )
    assert [one.attrib["class"] for one in first.iter("strong")] == ["good", "open"]
    assert "b is not known yet: it would take about " in text


def test_the_arms_and_their_runs() -> None:
    text = drawn(run("invalid"))
    assert table(text, "runs") == [
        ["arm", "1", "2", "3"],
        ["none", "+", "+", "+"],
        ["a", "+", "+", "+"],
        ["b", "?", "?", "?"],
        ["a+b", "+", "+", "+"],
    ]
    assert table(text, "broken")[1] == ["b", "1", "sentinel a", "enabled=true, first_fire", "no line about its switch"]


def test_a_manifest_with_any_number_of_runs_has_a_page() -> None:
    arms = run()
    text = page.html(manifest(*ARMS, runs=2**53 - 1), arms, comparison.compare(arms))
    assert table(text, "runs")[0][-1] == "500"


@pytest.mark.drawn
def test_what_is_plotted_is_in_a_table() -> None:
    text = with_plots()
    for arm in run():
        (row,) = [row for row in table(text, "latencies") if row[0] == arm.name]
        one = page.latency(arm.name, sorted(said.seconds for _, answers in arm.valid for said in answers))
        assert row[1:] == ["60", *(f"{value:.3f}" for value in (one.least, one.p50, one.p95, one.p99, one.most))]
        assert f"<title>p50 {row[3]} s, p95 {row[4]} s, p99 {row[5]} s</title>" in text
    assert [row[6:9] for row in table(text, "legs")[1:]] == [["1.0", "12.0", "2.0"]] * 12
    effects = table(text, "effects")
    for plot in page.effect_plots(comparison.compare(run()).effects):
        assert {row.title for row in plot.rows} <= {f"{row[0]}: {row[1]}: {row[2]}, {row[3]}" for row in effects}
        assert all(f"<title>{row.title}</title>" in text for row in plot.rows)
    assert [row[0] for row in table(text, "arms")] == ["arm", "none", "a", "b", "a+b"]


def test_an_effect_stands_where_it_is() -> None:
    for plot in page.effect_plots(comparison.compare(run()).effects):
        (least, _), (none, _), (most, _) = plot.ticks
        assert none == (0.0 if plot.scale == "linear" else 1.0)
        assert (none / least if none else -least) == pytest.approx(most)
        for row in plot.rows:
            assert row.low is not None
            assert row.high is not None
            assert least <= row.low <= row.at <= row.high <= most


@each_row(("measure", "nothing", "edge"), [("correct", 0.0, "+5.0 points"), ("tokens per second", 1.0, "x1.050")])
def test_noise_does_not_fill_an_axis(measure: str, nothing: float, edge: str) -> None:
    some = comparison.compare(run()).effects[0]
    (plot,) = page.effect_plots([replace(some, measure=measure, estimate=nothing, low=None, high=None)])
    assert plot.ticks[-1][1] == edge


@pytest.mark.drawn
def test_a_load_has_the_percentiles_of_every_leg() -> None:
    named = [load.figure(share, metric) for metric in load.METRICS for share in load.PERCENTILES]
    found = [benched(name, [dict.fromkeys(named, 1.0 + run) for run in range(2)]) for name in ("A", "B")]
    wanted = replace(manifest(()), kind="bench")
    text = page.html(wanted, found, conclusion.of(wanted, found))
    tables = [one for one in ET.fromstring(text).iter("table") if one.attrib.get("class") == "loads"]
    assert len(tables) == len(load.METRICS)
    rows = [["".join(cell.itertext()) for cell in row] for row in tables[0].iter("tr")]
    assert rows[0] == ["arm", "run", "p50 ttft, ms", "p95 ttft, ms", "p99 ttft, ms"]
    assert rows[1:] == [[arm, run, *[f"{run}.00"] * 3] for arm in "AB" for run in "12"]
    assert text.count("<title>p50 2.000 ms, p95 2.000 ms, p99 2.000 ms</title>") == 2 * 2 * 3 * len(tables)
    assert "Seconds of an answer" not in text


@pytest.mark.thorough
@pytest.mark.drawn
@each_row(("arms", "runs"), [(1, 1), (21, 5)])
def test_a_run_of_any_size_has_a_page_of_bounded_size(arms: int, runs: int) -> None:
    names: list[Arm] = [(f"p{number}",) for number in range(arms)]
    drawn = [legs(arm, says, runs=runs) for arm in names]
    text = page.html(manifest(*names, runs=runs), drawn, comparison.compare(drawn))
    ET.fromstring(text)
    assert len(text) < 1_000_000
    assert ("(the first 100 of 105 are drawn)" in text) == (arms * runs > plots.MOST)


@pytest.mark.drawn
def test_a_run_without_a_valid_leg_has_a_page_without_effects() -> None:
    text = drawn([legs(arm, says, outcome="invalid") for arm in ARMS])
    assert "Seconds of an answer" not in text
    assert "Phases of every start" in text


def test_a_run_that_is_not_finished_is_shown() -> None:
    first = run()[0]
    text = drawn([replace(first, legs=first.legs[:1]), *(ArmLegs(one.name, one.on, ()) for one in run()[1:])])
    assert table(text, "runs")[1:3] == [["none", "+", "·", "·"], ["a", "·", "·", "·"]]
    ET.fromstring(drawn([ArmLegs("none", (), ())]))


@pytest.mark.drawn
def test_the_memory_of_each_engine_is_plotted_with_its_lowest_and_its_peaks() -> None:
    arms = [benched(name, [{}]) for name in "AB"]
    gib = 2**30
    series = {"A, 1": [MemorySample(at, {"available": (9 - at) * gib, "container": at * gib}) for at in range(3)]}
    memory = memoryseries.extremes(one.bytes for one in series["A, 1"])
    arms[0] = replace(arms[0], legs=tuple((replace(leg, memory=memory), answers) for leg, answers in arms[0].legs))
    begun = replace(manifest(()), kind="bench")
    text = page.html(begun, arms, conclusion.of(begun, arms), series)
    columns, *rows = table(text, "memory")
    assert columns == ["arm", "least available, GiB", "most, container, GiB", "most, engine, GiB", "most, GPUs, GiB"]
    assert rows == [["A", "7.00", "2.00", "", ""]]
    assert re.findall('aria-label="(Memory, [^"]*)"', text) == [*["Memory, available"] * 2, *["Memory, container"] * 2]
    assert "A, 1: 7.00 GiB after 2 s" in text
    assert "| A | 7.00 | 2.00 |  |  |" in summary.markdown(begun, conclusion.of(begun, arms))
