"""The page of a blessing: it needs nothing else, and every number of its plot is in a table."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree as ET

import pytest

from nvllm.bless import page
from nvllm.cache.manifest import Coverage, KernelVariants, Manifest
from support.blessings_world import TREE, bless, trial


def table(text: str, kind: str) -> list[list[str]]:
    (found,) = [one for one in ET.fromstring(text).iter("table") if kind in one.attrib.get("class", "").split()]
    return [["".join(cell.itertext()).strip() for cell in row] for row in found.iter("tr")]


def drawn(found: Manifest) -> str:
    return page.html(found, "in force")


@cache
def with_plot() -> str:
    """Return the page of a blessing; only for tests that are marked `drawn`."""
    return drawn(bless(TREE))


@pytest.mark.drawn
def test_the_page_is_whole_and_loads_nothing() -> None:
    text = with_plot()
    assert not re.search(r"(src=|url\(|@import|<script|<link)", text)
    assert "Blessing of demo, eager" in text
    assert "5 of 5 fresh boots were good: at least 54 % of boots are, at 95 % confidence." in text
    assert "UNSAFE" not in text
    assert "UNSAFE" in drawn(bless(TREE, trials=2))


def test_the_checks_of_every_trial() -> None:
    found = bless(TREE)
    broken = replace(found, trials=(*found.trials[:4], trial(5, saved=True, unchanged=False, compiles=2)))
    rows = table(drawn(broken), "runs")
    assert rows[0] == ["check", "1", "2", "3", "4", "5"]
    assert {row[0]: row[5] for row in rows[1:]} == {
        **dict.fromkeys(page.CHECKS, "+"),
        **dict.fromkeys(("nothing saved", "tree kept", "nothing compiled"), "x"),
    }
    assert all(row[1:5] == ["+"] * 4 for row in rows[1:])
    assert "4 of 5 fresh boots were good" in drawn(broken)


@pytest.mark.drawn
def test_what_is_plotted_is_in_a_table() -> None:
    text = with_plot()
    plotted = re.findall(r"<title>(\w+): ([0-9.]+) s</title>", text)
    rows = table(text, "starts")
    assert rows[0] == ["start", "compile, s", "server, s", "processor, s"]
    assert rows[1] == ["bootstrap", "30.5", "20.5", "80.0"]
    assert rows[2:] == [[f"trial {number}", "", "20.5", "25.0"] for number in range(1, 6)]
    once = [("compile", "30.5"), ("server", "20.5"), *[("server", "20.5")] * 5]
    assert plotted == once * 2  # for a phone, and for a desktop


def test_the_kernels_of_a_gpu() -> None:
    covered = Coverage((3, 1, 0), 24, (KernelVariants("zero_pages", 4),))
    text = drawn(bless(TREE, coverage=covered))
    assert "24 requests in 3 rounds; newly compiled in each round: 3, 1, 0." in text
    assert table(text, "kernels")[1] == ["zero_pages", "4"]
