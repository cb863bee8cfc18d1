"""Plots are SVG of a page: the same bytes for the same values, the page's colours, and names that stay text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from nvllm.pages import plots
from nvllm.pages.plots import Interval, Spread, Start

pytestmark = pytest.mark.drawn

TICKS = ((0.5, "x0.500"), (1.0, "x1.000"), (2.0, "x2.000"))


def intervals(*names: str) -> str:
    rows = [Interval(name, 1.2, 1.0, 1.5, f"about {name}", name) for name in names]
    return plots.intervals("Effects", rows, TICKS, "log")


def spreads(*names: str) -> str:
    return plots.spreads("Seconds", [Spread(name, 1.0, 2.0, 3.0, 0.5, 4.0) for name in names], "s")


def timelines(*names: str) -> str:
    return plots.timelines("Starts", [Start(name, ((name, 1.0, 1.0), ("server", 2.0, 3.0))) for name in names])


def curves(*names: str) -> str:
    return plots.curves("Chances", [(name, (0.5, 0.25, 1.0)) for name in names], "trials", "probability")


def courses(*names: str) -> str:
    rows = [(name, [(0.0, 2.0), (1.0, 1.5), (2.0, 3.0)]) for name in names]
    return plots.courses("Memory", rows, "seconds", "GiB", "lowest")


KINDS = (intervals, spreads, timelines, curves, courses)


@cache
def two_rows(kind: Callable[..., str]) -> str:
    """Return a plot of KIND with two rows: drawing it takes a tenth of a second."""
    return kind("a", "b")


def narrow(plot: str) -> ET.Element:
    """Return the drawing of PLOT that a phone shows."""
    drawn, wide = ET.fromstring(plot)
    assert (drawn.attrib["class"], wide.attrib["class"]) == ("plot narrow", "plot wide")
    return drawn


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in narrow(svg).iter("text")]


def middle(group: ET.Element) -> float:
    """Return where the mark of GROUP stands across the plot."""
    (mark,) = group.iter("use")
    return float(mark.attrib["x"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_plot_has_no_size_no_font_no_colour_of_its_own_and_nothing_from_outside(kind: Callable[..., str]) -> None:
    text = two_rows(kind)
    root = narrow(text)
    assert [one.attrib["viewBox"].split()[2] for one in ET.fromstring(text)] == ["352", "960"]
    assert {*root.attrib} == {"class", "viewBox", "role", "aria-label"}
    assert not re.search(r"#[0-9a-f]{6}|font-family|url\(|http|<style|<script|<metadata|date", text)
    assert {*re.findall(r"var\(--(\w+)\)", text)} <= {"text", "soft", *(f"c{number}" for number in range(9))}
    used = {one.attrib["href"] for one in root.iter("use")}
    assert {f"#{one.attrib['id']}" for one in root.iter() if "id" in one.attrib} == used


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_values_give_the_same_text(kind: Callable[..., str]) -> None:
    assert kind("a", "b") == two_rows(kind)


def test_neither_a_file_of_settings_nor_a_home_that_cannot_be_written_changes_or_says_anything(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("svg.fonttype: path\nfont.size: 30\ntext.usetex: true\n")
    program = "from nvllm.pages import plots; print(plots.spreads('Seconds', [plots.Spread('a', 1.0, 2.0, 3.0)], 's'))"
    root = Path(__file__).parents[3] / "launcher"
    environment = {**os.environ, "PYTHONPATH": str(root), "HOME": "/proc"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == plots.spreads("Seconds", [Spread("a", 1.0, 2.0, 3.0)], "s")
    assert done.stderr == b""


def test_two_plots_share_no_id() -> None:
    found = [
        {one.attrib["id"] for one in ET.fromstring(text).iter() if "id" in one.attrib}
        for text in (
            plots.spreads("Seconds", [Spread("a", 1.0, 2.0, 3.0)], "s"),
            plots.spreads("Milliseconds", [Spread("a", 1.0, 2.0, 3.0)], "s"),
        )
    ]
    assert found[0]
    assert found[1]
    assert not found[0] & found[1]


NAMES = {
    "<script>alert(1)</script>": "<script>alert(1)<…/script>",
    "$x_1$ and \\frac{": "$x_1$ and \\frac{",
    "_hidden": "_hidden",
    "title:x url(#y) #000003 font-family: z": "title:x url(#y) #000003 font-family: z",
    "名前 اسم ü": "名前 اسم ü",
    "/home/somebody/a\0\n\x1b[31mb": "…/a? b",
}
"""Names, and what a plot says of each."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("error")
def test_a_name_is_text_whatever_it_is(kind: Callable[..., str]) -> None:
    assert set(NAMES.values()) - set(texts(kind("other", *NAMES))) == set()


@pytest.mark.thorough
@settings(max_examples=3, deadline=None)
@given(names=st.lists(st.text(max_size=300), min_size=8, max_size=8))
def test_any_name_has_a_plot_and_fits_it(names: list[str]) -> None:
    for text in texts(timelines(*names)):
        assert cell_len(text) <= 50


def test_a_long_name_keeps_its_end() -> None:
    (found,) = [one for one in texts(spreads("a" * 60 + "-2, 17")) if one.startswith("aaaa")]
    assert found.endswith("a-2, 17")
    assert "…" in found


@pytest.mark.parametrize("kind", KINDS)
def test_of_many_rows_the_first_are_drawn_and_the_plot_says_so(
    kind: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "MOST", 2)
    text = kind("a", "b", "name 2")
    assert any("(the first 2 of 3 are drawn)" in one for one in texts(text))
    assert "name 2" not in text
    assert "first" not in two_rows(kind)


@pytest.mark.thorough
def test_a_plot_of_as_many_rows_as_it_may_have_fits_into_a_page() -> None:
    text = timelines(*(f"name {number}" for number in range(plots.MOST)))
    assert len(text) < 200_000
    assert "are drawn" not in text


@pytest.mark.parametrize("kind", [intervals, spreads, curves])
def test_a_plot_of_nothing_is_a_plot(kind: Callable[..., str]) -> None:
    assert narrow(kind()).attrib["role"] == "img"


def test_an_effect_stands_where_its_value_is_on_an_axis_of_ratios() -> None:
    rows = [Interval(str(at), at, None, None, str(at)) for at in (0.5, 1.0, 2.0)]
    groups = {one.findtext("title"): one for one in narrow(plots.intervals("E", rows, TICKS, "log")).iter("g")}
    low, none, high = (middle(groups[name]) for name in ("0.5", "1.0", "2.0"))
    assert none - low == pytest.approx(high - none, abs=0.02)
    assert high > none


def test_an_estimate_without_an_interval_is_a_dot_alone() -> None:
    def marks(low: float | None) -> int:
        return plots.intervals("E", [Interval("a", 1.0, low, 2.0, "here")], TICKS, "log").count("<title>here</title>")

    assert (marks(None), marks(0.5)) == (2, 4)


def test_a_course_of_many_points_keeps_its_lowest_or_highest_one() -> None:
    points = [(float(at), 5.0 - 4.0 * (at == 777) + 4.0 * (at == 555)) for at in range(2000)]
    marks: tuple[tuple[plots.Mark, str], ...]
    marks = (("lowest", "a: 1.00 GiB after 777 s"), ("highest", "a: 9.00 GiB after 555 s"))
    for mark, extreme in marks:
        drawn = plots.courses("Memory", [("a", points)], "seconds", "GiB", mark)
        assert drawn.count(f"<title>{extreme}</title>") == 2
        assert len(drawn) < 20_000


def test_the_groups_of_effects_have_heads() -> None:
    rows = [Interval("ttft", 1.0, None, None, "1", "A"), Interval("itl", 1.0, None, None, "2")]
    found = narrow(plots.intervals("E", rows, TICKS, "log"))
    assert [one.text for one in found.iter("text") if "font-weight" in one.attrib["style"]] == ["A"]


def test_a_phase_is_as_long_as_it_took() -> None:
    found = narrow(plots.timelines("S", [Start("a", (("first", 1.0, 1.0), ("second", 3.0, 4.0)))]))
    widths = {}
    for group in found.iter("g"):
        if group.find("title") is not None:
            edges = [float(one.split()[0]) for one in re.findall("[ML] ([^MLz]+)", group[1].attrib["d"])]
            widths[group.findtext("title")] = max(edges) - min(edges)
    assert widths["second: 3.0 s"] == pytest.approx(3 * widths["first: 1.0 s"], rel=0.01)
    assert [one for one in (one.text for one in found.iter("text")) if one in ("first", "second")] == [
        "first",
        "second",
    ]


@pytest.mark.filterwarnings("error")
def test_a_key_of_many_phases_has_room() -> None:
    names = [f"phase {number}" for number in range(60)]
    text = plots.timelines("S", [Start("a", tuple((name, 1.0, 1.0 + at) for at, name in enumerate(names)))])
    assert {*names} <= {*texts(text)}


def test_a_phase_whose_name_is_long_has_its_part_of_a_key() -> None:
    text = plots.timelines("S", [Start("a", (("_" + 60 * "x", 1.0, 1.0), ("b", 1.0, 2.0)))])
    assert [cell_len(one) for one in texts(text) if "…" in one] == [25]


def test_starts_that_took_no_time_have_no_plot() -> None:
    assert plots.timelines("S", []) == ""
    assert plots.timelines("S", [Start("a", (("first", 0.0, 0.0),))]) == ""


def test_the_phases_of_starts_are_named_once_in_their_order() -> None:
    starts = [Start("a", (("x", 1.0, 1.0),)), Start("b", (("x", 1.0, 1.0), ("y", 1.0, 2.0)))]
    assert plots.phase_names(starts) == ["x", "y"]
