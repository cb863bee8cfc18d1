"""The page of a run: it needs nothing else, and every number of a plot is in a table."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from nvllm.evidence import comparison, page
from nvllm.evidence.arms import Arm
from nvllm.evidence.comparison import ArmLegs
from support.evidence_samples import legs, manifest

ARMS: tuple[Arm, ...] = ((), ("a",), ("b",), ("a", "b"))


def says(arm: Arm, run: int, question: int) -> tuple[bool, int, float]:
    return "a" in arm, 10 + question % 3, 1.0 + 0.01 * ((run * 7 + question * 3 + len(arm)) % 5)


def run(*outcomes: str) -> list[ArmLegs]:
    return [legs(arm, says, outcome="invalid" if arm == ("b",) and outcomes else "passed") for arm in ARMS]


def drawn(arms: list[ArmLegs]) -> str:
    return page.html(manifest(*ARMS), arms, comparison.compare(arms))


def table(text: str, kind: str) -> list[list[str]]:
    (found,) = [one for one in ET.fromstring(text).iter("table") if kind in one.attrib.get("class", "").split()]
    return [["".join(cell.itertext()).strip() for cell in row] for row in found.iter("tr")]


def test_the_page_is_whole_and_loads_nothing() -> None:
    text = drawn(run())
    assert not re.search(r"(src=|url\(|@import|<script|<link)", text)
    ET.fromstring(text)
    assert "prefers-color-scheme: dark" in text
    assert "Ablation of demo, eager" in text


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


def test_what_is_plotted_is_in_a_table() -> None:
    text = drawn(run())
    for one in page.latencies(run()):
        row = next(row for row in table(text, "latencies") if row[0] == one.arm)
        assert row[2:] == [f"{value:.3f}" for value in (one.least, one.p50, one.p95, one.p99, one.most)]
    assert [row[6:9] for row in table(text, "legs")[1:]] == [["1.0", "12.0", "2.0"]] * 12
    effects = table(text, "effects")
    for plot in page.effect_plots(comparison.compare(run()).effects):
        for bar in plot.bars:
            assert [bar.factor, bar.text, bar.interval] in [[row[0], row[2], row[3]] for row in effects]
    assert [row[0] for row in table(text, "arms")] == ["arm", "none", "a", "b", "a+b"]


def test_an_effect_stands_where_it_is() -> None:
    for plot in page.effect_plots(comparison.compare(run()).effects):
        assert plot.zero == pytest.approx(0.5)
        for bar in plot.bars:
            assert bar.low is not None
            assert bar.high is not None
            assert 0 <= bar.low <= bar.at <= bar.high <= 1


def test_a_run_that_is_not_finished_is_shown() -> None:
    first = run()[0]
    text = drawn([replace(first, legs=first.legs[:1]), *(ArmLegs(one.name, one.on, ()) for one in run()[1:])])
    assert table(text, "runs")[1:3] == [["none", "+", "·", "·"], ["a", "·", "·", "·"]]
    ET.fromstring(drawn([ArmLegs("none", (), ())]))


@pytest.mark.parametrize(("share", "value"), [(0.5, 3.0), (0.95, 4.8), (0.0, 1.0), (1.0, 5.0)])
def test_a_percentile(share: float, value: float) -> None:
    assert page.percentile([1.0, 2.0, 3.0, 4.0, 5.0], share) == pytest.approx(value)
    assert page.percentile([7.0], share) == 7.0
