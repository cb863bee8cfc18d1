"""The report for other people: a page that needs nothing else, Markdown for an issue, and no path of this machine."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree as ET

import pytest

from nvllm.bisect import page, report
from nvllm.bisect.answer import Done
from nvllm.bisect.combinations import PatchSet, set_hash
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.problem import Mode
from nvllm.bisect.records import BisectStart, JournalEntry, PatchSummary, Tried
from nvllm.core.refusal import refuse
from nvllm.trials.trial import BisectProbe, Built, Trial
from support.bisect_world import Judge, SimulatedBench, all_of, free, sometimes, start
from support.rows import each_row

HOUR = 3600.0
MORNING = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC
COMMIT = "0123456789" * 4
SECRET = "/home/somebody"


def searched(first: BisectStart, judge: Judge) -> tuple[list[JournalEntry], Done]:
    """Return the journal of a search from FIRST, one record a minute, and what was found."""
    log = Log.of(first)
    done = drive(log, SimulatedBench(judge))
    assert isinstance(done, Done)
    return [JournalEntry(MORNING + 60 * number, entry.record) for number, entry in enumerate(log.entries)], done


def told(mode: Mode = "set") -> BisectStart:
    """Return a start as the command line writes it, with a probe in somebody's home."""
    command = (f"{SECRET}/probes/probe one.sh", f"--golden={SECRET}/golden.txt", f"{SECRET}/data")
    summaries = {
        "p03": PatchSummary("Clear a | b of <page>", "vllm-project/vllm#123"),
        "p06": PatchSummary("Another patch"),
    }
    probe = BisectProbe(command, "cd" * 32, f"log={SECRET}/x")
    return replace(start(free(8), mode), probe=probe, version="0.28.0", commit=COMMIT, summaries=summaries)


def talking(chosen: PatchSet) -> Trial:
    if {"p03", "p06"} <= chosen:
        return Trial(
            "bad", f"log={SECRET}/x", said=f'File "{SECRET}/probe.py", line 3\n```\nhttp://localhost:80/v1/x <differs>'
        )
    return Trial("good", said=f"4 of 4 as wanted, log in {SECRET}/run.log")


@cache
def wavering(mode: Mode) -> tuple[Sequence[JournalEntry], Done]:
    """Return the journal of a search for a failure that shows in six of ten trials: it takes a second."""
    return searched(start(free(6), mode, flaky=True), sometimes(frozenset({"p04"}), random.Random(1), 0.6))


@pytest.fixture(scope="module")
def finished() -> tuple[list[JournalEntry], Done]:
    return searched(told(), talking)


def table(drawn: ET.Element, kind: str) -> list[list[str]]:
    """Return the texts of the table of class KIND."""
    (found,) = [one for one in drawn.iter("table") if kind in one.attrib.get("class", "").split()]
    return [["".join(cell.itertext()).strip() for cell in row] for row in found.iter("tr")]


@pytest.mark.drawn
def test_the_page_is_whole_and_loads_nothing(finished: tuple[list[JournalEntry], Done]) -> None:
    text = page.html(*finished)
    assert not re.search(r"(src=|url\(|@import|<script|<link)", text)
    drawn = ET.fromstring(text)
    assert {one.attrib["href"] for one in drawn.iter("a")} == {"https://github.com/vllm-project/vllm/issues/123"}
    assert "together break it" in text
    assert "prefers-color-scheme: dark" in text
    assert [one.attrib["content"] for one in drawn.iter("meta") if one.attrib.get("name") == "viewport"] == [
        "width=device-width, initial-scale=1"
    ]


def test_every_colour_of_the_page_stands_out_from_it_in_both_schemes(
    finished: tuple[list[JournalEntry], Done],
) -> None:
    style = ET.fromstring(page.html(*finished)).findtext("head/style") or ""
    for scheme in style.split("prefers-color-scheme: dark"):
        colours = {name: _luminance(digits) for name, digits in re.findall(r"--(\w+): #(\w+)", scheme)}
        ground = colours["page"]
        for name in {*colours} - {"page", "box", "rule"}:
            low, high = sorted((colours[name], ground))
            least = 3.0 if name == "c8" else 4.5  # what WCAG asks of lines, and of text
            assert (high + 0.05) / (low + 0.05) >= least, name


def _luminance(digits: str) -> float:
    whole = "".join(2 * one for one in digits) if len(digits) == 3 else digits
    parts = [int(whole[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_both_say_what_was_searched_where_and_when(finished: tuple[list[JournalEntry], Done]) -> None:
    entries, _ = finished
    last = (len(entries) - 1) * 60
    found = dict(table(ET.fromstring(page.html(*finished)), "facts"))
    assert found["vLLM"] == f"0.28.0, commit {COMMIT}"
    assert found["started"] == "2026-09-21 14:13 UTC"
    assert found["duration"].startswith(f"{last // 60} min to the last record; ")
    assert found["probe"].startswith("…/'probe one.sh' --golden=…/golden.txt …/data, sha256 cdcdcdcdcdcd, ")
    text = page.markdown(*finished)
    for name, said in page.facts(entries):
        assert f"| {name} | {said.replace('_', chr(92) + '_')} |" in text


@each_row(("seconds", "said"), [(41, "41 s"), (90, "2 min"), (3599, "1 h 0 min"), (9000, "2 h 30 min")])
def test_a_duration_is_said_in_hours_and_minutes(seconds: float, said: str) -> None:
    first = start(free(2))
    entries = [
        JournalEntry(MORNING, first),
        JournalEntry(MORNING + seconds, Built(first.high, "", "b", "i", 1.0)),
    ]
    assert dict(page.facts(entries))["duration"].startswith(f"{said} to the last record; 1 s of ")


def test_a_journal_without_version_and_summaries_has_a_report_too() -> None:
    entries, done = searched(start(free(4)), all_of(frozenset({"p03"})))
    assert "vLLM" not in dict(page.facts(entries))
    ET.fromstring(page.html(entries, done))
    assert "| `p03` | cause |  |  |" in page.markdown(entries, done)


def test_no_report_has_a_path_of_this_machine(finished: tuple[list[JournalEntry], Done]) -> None:
    entries, done = finished
    refused = refuse("NV801", f"{SECRET}/journal", "bad", "good", f"nvllm bisect replay {SECRET}/journal")
    for text in (page.html(entries, done), page.markdown(entries, done), page.html(entries, None, refused)):
        assert "somebody" not in text
        assert "…/probe.py" in text
        assert "http://localhost:80/v1/x" in text


def test_nothing_of_a_journal_becomes_markup(finished: tuple[list[JournalEntry], Done]) -> None:
    (first, *others), done = finished
    assert isinstance(first.record, BisectStart)
    evil = replace(first, record=replace(first.record, series="<script>'\"&", image="a|b\n# c"))
    text = page.html([evil, *others], done)
    assert "<script" not in text
    assert (ET.fromstring(text).findtext("head/title") or "").endswith("series <script>'\"&")
    assert "| image | a\\|b \\# c, profile tiny-eager |" in page.markdown([evil, *others], done)


@each_row("flaky", [True, False])
def test_the_page_has_every_trial_with_what_it_was_for(flaky: bool) -> None:
    judge = sometimes(frozenset({"p03"}), random.Random(1), 0.5) if flaky else all_of(frozenset({"p03", "p06"}))
    entries, done = searched(start(free(8), "ordered" if flaky else "set", flaky=flaky), judge)
    tried = [entry.record for entry in entries if isinstance(entry.record, Tried)]
    drawn = ET.fromstring(page.html(entries, done))
    marks = [one for one in drawn.iter("i") if (one.text or "") in report.MARKS.values()]
    assert len(marks) == len(tried)
    assert all(" s: " in one.attrib["title"] for one in marks)
    cells = [one.text for one in drawn.iter("td") if (one.text or "") in "●·" and one.text]
    sets = {frozenset(one.chosen) for one in tried}
    assert len(cells) == 8 * len(sets)
    assert cells.count("●") == sum(map(len, sets))
    rows = table(drawn, "trials")[1:]
    assert [(row[2], row[3].split()[0]) for row in rows] == [(set_hash(one.chosen), one.outcome) for one in tried]


@pytest.mark.drawn
@each_row("flaky", [True, False])
def test_every_number_of_the_plot_is_in_a_table(flaky: bool) -> None:
    entries, done = wavering("ordered") if flaky else searched(start(free(6), "ordered"), all_of(frozenset({"p04"})))
    curves = page.belief_curves(entries)
    drawn = ET.fromstring(page.html(entries, done))
    (_, *names), *rows = table(drawn, "chances")
    plot = next(drawn.iter("svg"))
    lines = {group.findtext("title"): group.find("path") for group in plot.iter("g")}
    assert len(names) == 6
    (top, bottom) = (float(one.attrib["y"]) for text in ("1.0", "0.0") for one in plot.iter("text") if one.text == text)
    for name, chances in curves:
        assert [row[1 + names.index(name)] for row in rows] == [f"{one:.3f}" for one in chances]
        line = lines[name]
        assert line is not None
        heights = [float(one.split()[1]) for one in re.findall("[ML] ([^MLz]+)", line.attrib["d"])]
        steps = [(one - heights[0]) / (top - bottom) for one in heights]
        assert steps == pytest.approx([one - chances[0] for one in chances], abs=0.001)
    labels = [one.text for one in drawn.iter("text")]
    assert {"trials", "probability", "0.0", "1.0", "0", *names} <= {*labels}


def test_the_page_of_a_flaky_ordered_search_plots_the_posterior() -> None:
    entries, done = wavering("ordered")
    curves = dict(page.belief_curves(entries))
    assert {name: chances[0] for name, chances in curves.items()} == pytest.approx(dict.fromkeys(free(6).order, 1 / 6))
    assert curves["p04"][-1] > 0.99
    assert f"p04 breaks it, with probability {curves['p04'][-1]:.3f}" in page.html(entries, done)


def test_a_trial_that_watches_the_failure_rate_hides_nothing_that_is_known() -> None:
    entries, _ = wavering("ordered")
    watching = [
        number
        for number, one in enumerate([one.record for one in entries if isinstance(one.record, Tried)])
        if "still the same" in one.reason
    ]
    assert watching
    curves = page.belief_curves(entries)
    for number in watching:  # the probabilities before that trial
        assert len({chances[number] for _, chances in curves}) > 1


@pytest.mark.parametrize("mode", ["ordered", "set"])
@pytest.mark.parametrize("flaky", [True, False])
def test_the_plot_ends_at_what_was_found(mode: Mode, flaky: bool) -> None:
    entries, done = wavering(mode) if flaky else searched(start(free(6), mode), all_of(frozenset({"p04"})))
    assert tuple((name, chances[-1]) for name, chances in page.belief_curves(entries)) == done.posterior


def test_a_page_of_nothing_is_a_page() -> None:
    log = Log.of(start(free(2)), Built(("p01",), "", "b", "i", 1.0))
    drawn = ET.fromstring(page.html(log.entries, None))
    assert [row[:1] for row in table(drawn, "proofs")] == [["tried"], ["the bad end"], ["the good end"]]


def test_the_answer_stands_with_what_the_probe_wrote_last(finished: tuple[list[JournalEntry], Done]) -> None:
    entries, done = finished
    state = Log(entries).state
    found = {one.role: one for one in page.proofs(state, done)}
    assert [*found] == [*(line.role for line in done.certificate), "everything without it"]
    assert found["the set"].output.startswith('File "…/probe.py", line 3')
    assert found["without p03"].output == "4 of 4 as wanted, log in …/run.log"
    drawn = ET.fromstring(page.html(entries, done))
    assert len(list(drawn.iter("pre"))) == len(found)


def test_of_several_trials_the_last_with_the_outcome_is_the_one_whose_output_is_shown() -> None:
    first = start(free(1), repeats=2)
    failed = Tried(("p01",), "bad", "", None, "", 1.0, recalled=False, reason="", said="failed")
    trials = [failed, replace(failed, said="failed again"), replace(failed, outcome="good", said="worked")]
    trials += [replace(failed, chosen=(), outcome="good", said=said) for said in ("worked", "worked again")]
    steady = Log.of(first, *trials[:2], *trials[3:]).state
    assert [one.output for one in page.proofs(steady, None)] == ["failed again", "worked again"]
    done = drive(Log.of(first, *trials[:2], *trials[3:]), SimulatedBench(all_of(frozenset({"p01"}))))
    assert isinstance(done, Done)
    mixed = Log.of(first, *trials).state
    assert page.proofs(mixed, done)[0].output == "failed again"  # and not what the good trial after it wrote


def test_each_patch_has_its_part_its_summary_and_its_place_upstream(finished: tuple[list[JournalEntry], Done]) -> None:
    entries, done = finished
    (_, *rows) = table(ET.fromstring(page.html(entries, done)), "patches")
    assert [row[0] for row in rows] == [*free(8).order]
    assert rows[2] == ["p03", "cause", "1.000", "Clear a | b of <page>", "vllm-project/vllm#123"]
    along = replace(done, along=(("p01", ("p03",)),), further=(replace(done, culprits=("p08",)),))
    parts = {one.name: one.part for one in page.patches(Log(entries).state, along) if one.part}
    assert parts == {
        "p01": "comes along, required by p03",
        "p03": "cause",
        "p06": "cause",
        "p08": "another cause",
    }
    assert {one.part for one in page.patches(Log(entries).state, replace(done, stopped="a limit"))} == {"", "candidate"}


def test_the_markdown_is_short_and_whole(finished: tuple[list[JournalEntry], Done]) -> None:
    entries, done = finished
    text = page.markdown(entries, replace(done, notes=("a note",)))
    assert text.startswith("**p03, p06: together break it; 1-minimal, none of them can be left out.")
    assert "[vllm-project/vllm#123](https://github.com/vllm-project/vllm/issues/123) |" in text
    assert "| Clear a \\| b of \\<page\\> |" in text
    assert "| without p03 | " in text
    assert "\n- a note\n" in text
    assert text.count("<details>") == text.count("</details>") == 2
    assert '\n````text\nFile "…/probe.py", line 3\n```\n' in text  # a fence that the output does not end
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_the_markdown_of_any_search_fits_an_issue() -> None:
    first = start(free(200))
    entries = [JournalEntry(MORNING, first)]
    for size in range(len(first.order)):
        chosen = first.order[size:]
        entries.append(JournalEntry(MORNING, Tried(chosen, "bad", "", None, "", 1.0, recalled=False, reason="")))
    log = Log.of(replace(first, mode="ordered", max_trials=1))
    done = drive(log, SimulatedBench(all_of(frozenset({"p03"}))))
    assert isinstance(done, Done)
    text = page.markdown(entries, done)
    assert len(text) < 65536
    assert re.search(r"\d+ further sets are not listed\.", text)


def test_a_search_that_goes_on_says_so_and_its_matrix_has_the_patches_that_can_be_in_a_set() -> None:
    first = replace(told("ordered"), high=("p01", "p02", "p03"))
    entries, done = searched(first, all_of(frozenset({"p02"})))
    assert "The search is not finished." not in page.html(entries, done)
    drawn = ET.fromstring(page.html(entries[:4], None))
    assert "The search is not finished." in "".join(drawn.itertext())
    assert [row[0] for row in table(drawn, "matrix")] == ["p01", "p02", "p03", "set", "trials"]
