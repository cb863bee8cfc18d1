"""The report of a bisect: as text, as a page that needs nothing from elsewhere, for upstream, as data."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from nvllm.bisect import report as bisect_report
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import BisectStart, MemoryLog, Tried
from nvllm.bisect.matrix import matrix_text
from nvllm.bisect.problem import Mode
from nvllm.bisect.search import Done
from nvllm.bisect.verdict import Trial
from nvllm.core import canonical
from support.bisect_world import SimulatedBench, all_of, free, sometimes, start


@pytest.fixture
def finished() -> tuple[MemoryLog, Done]:
    log = MemoryLog.of(start(free(8)))
    done = drive(log, SimulatedBench(all_of(frozenset({"p03", "p06"}))))
    assert isinstance(done, Done)
    return log, done


def test_the_text_has_the_matrix_the_ends_and_the_certificate(finished: tuple[MemoryLog, Done]) -> None:
    log, done = finished
    text = bisect_report.text(log.entries, done, color=False)
    assert "p03, p06: together break it; nothing can be left out." in text
    assert "the bad end: bad 1 of 1, failure rate 0.16 to 0.99 at 95 %" in text
    assert matrix_text(_state(log), color=False) in text
    assert matrix_text(_state(log), color=True) in bisect_report.text(log.entries, done, color=True)
    assert "without p03: good [good 1 of 1], holds" in text


def _state(log: MemoryLog) -> bisect_report.BisectState:
    from nvllm.bisect import journal

    return journal.fold(entry.record for entry in log.entries)


@pytest.mark.parametrize(("left", "said"), [("ab" * 32, 3), ("", 0), (hashlib.sha256(b"").hexdigest(), 0)])
def test_trials_that_left_the_same_bytes_are_said_to_be_one_sample(left: str, said: int) -> None:
    log = MemoryLog.of(start(free(2), repeats=3))
    done = drive(log, SimulatedBench(lambda chosen: Trial("bad" if "p02" in chosen else "good", evidence=left)))
    assert isinstance(done, Done)
    text = bisect_report.ends_text(_state(log))
    assert text.count("3 trials left the same bytes: one sample") == (2 if said else 0)
    replicas = {one["verdict"]: one["replicas"] for one in bisect_report.data(log.entries, done)["sets"]}
    assert replicas["bad 3 of 3"] == replicas["good 3 of 3"] == said


def test_trials_that_left_different_bytes_are_samples() -> None:
    numbers = itertools.count()
    log = MemoryLog.of(start(free(2), repeats=3))
    drive(
        log, SimulatedBench(lambda chosen: Trial("bad" if "p02" in chosen else "good", evidence=f"{next(numbers):064}"))
    )
    assert "left the same bytes" not in bisect_report.ends_text(_state(log))


def test_the_page_is_whole_and_refers_to_nothing(finished: tuple[MemoryLog, Done]) -> None:
    log, done = finished
    page = bisect_report.page(log.entries, done)
    assert not re.search(r"(src|href|url|@import|<script)", page)
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)
    assert "together break it" in page


@pytest.mark.parametrize("mode", ["ordered", "set"])
def test_the_posterior_is_shown_while_the_search_goes_on_and_at_its_end(mode: Mode) -> None:
    log = MemoryLog.of(start(free(8), mode))
    done = drive(log, SimulatedBench(all_of(frozenset({"p03"}))))
    assert isinstance(done, Done)
    said = "probability of each patch to be a culprit:"
    assert f"{said}\n  p03  1.000\n  7 others: less than 0.001\n" in bisect_report.text(log.entries, done, color=False)
    seen = 1 + next(
        at for at, one in enumerate(log.entries) if isinstance(one.record, Tried) and len(one.record.chosen) == 4
    )
    part = bisect_report.text(log.entries[:seen], None, color=False)
    assert f"{said}\n  p01  0.{'250' if mode == 'ordered' else '344'}\n" in part
    assert "\n  4 others: less than 0.001\n" in part
    data = json.loads(canonical.pretty(bisect_report.data(log.entries[:seen], None)))
    assert data["posterior"]["p03"] >= 0.25
    page = bisect_report.page(log.entries, done)
    assert page.count("<polyline") == 8


def test_a_posterior_without_doubt_about_anybody_else_names_no_others() -> None:
    assert bisect_report.posterior_text([("one", 0.25), ("other", 0.75)]).splitlines()[1:] == [
        "  other  0.750",
        "  one    0.250",
    ]


def test_the_page_of_a_flaky_ordered_search_plots_the_posterior() -> None:
    log = MemoryLog.of(start(free(6), "ordered", flaky=True))
    done = drive(log, SimulatedBench(sometimes(frozenset({"p04"}), random.Random(1), 0.6)))
    assert isinstance(done, Done)
    page = bisect_report.page(log.entries, done)
    assert page.count("<polyline") == 6
    beliefs = bisect_report.belief_history(log.entries)
    assert dict(beliefs[0]) == pytest.approx(dict.fromkeys(free(6).order, 1 / 6))
    assert dict(beliefs[-1])["p04"] > 0.99
    assert "p04 breaks it, with probability 0.99" in bisect_report.text(log.entries, done, color=False)


@pytest.mark.parametrize("mode", ["ordered", "set"])
@pytest.mark.parametrize("flaky", [True, False])
def test_the_plot_ends_at_what_was_found(mode: Mode, flaky: bool) -> None:
    log = MemoryLog.of(start(free(6), mode, flaky=flaky))
    judge = sometimes(frozenset({"p04"}), random.Random(1), 0.6) if flaky else all_of(frozenset({"p04"}))
    done = drive(log, SimulatedBench(judge))
    assert isinstance(done, Done)
    assert bisect_report.belief_history(log.entries)[-1] == done.posterior


def test_the_paragraph_for_upstream_says_how_it_was_found(finished: tuple[MemoryLog, Done]) -> None:
    log, done = finished
    said = bisect_report.upstream(log.entries, done)
    assert said.startswith("p03, p06: together break it; nothing can be left out.\n")
    assert "Bisected by rebuilding:" in said
    assert said.count("\n- ") == len(done.certificate)


def test_the_data_is_json(finished: tuple[MemoryLog, Done]) -> None:
    log, done = finished
    data = json.loads(canonical.pretty(bisect_report.data(log.entries, done)))
    assert data["found"]["culprits"] == ["p03", "p06"]
    assert data["found"]["certified"] is True
    bad, good = data["ends"]
    assert (bad["end"], bad["patches"], bad["bad"], bad["good"]) == ("bad", list(free(8).order), 1, 0)
    assert bad["failure_rate"] == pytest.approx({"low": 0.158, "high": 0.987, "level": 0.95}, abs=1e-3)
    assert (good["end"], good["patches"], good["failure_rate"]["low"]) == ("good", [], pytest.approx(0.0126, abs=1e-4))
    first = data["sets"][0]
    assert (first["outcome"], first["confidence"], first["build"]["seconds"]) == ("bad", None, 1.0)
    assert first["build"]["build_hash"] == f"build-{first['set']}"
    (trial,) = first["trials"]
    assert trial == {
        "outcome": "bad",
        "kind": "exit 1",
        "stage": None,
        "seconds": 0.0,
        "evidence": "",
        "recalled": False,
        "reason": "the bad end, trial 1",
    }
    assert bisect_report.data(log.entries[:3], None)


def test_the_data_says_why_a_set_has_no_image() -> None:
    broken = frozenset({"p01", "p02"})
    log = MemoryLog.of(start(free(4), "ordered"))
    done = drive(log, SimulatedBench(all_of(frozenset({"p04"})), frozenset({broken})))
    data = bisect_report.data(log.entries, done if isinstance(done, Done) else None)
    (found,) = [one for one in json.loads(canonical.pretty(data))["sets"] if one["patches"] == ["p01", "p02"]]
    assert (found["outcome"], found["build"], found["trials"][0]["stage"]) == ("untestable", None, "build")


def test_what_is_not_certified_is_not_said_to_be_proved() -> None:
    log = MemoryLog.of(start(free(1), "ordered", flaky=True))
    done = drive(log, SimulatedBench(sometimes(frozenset({"p01"}), random.Random(1), 0.9)))
    assert isinstance(done, Done)
    first = log.entries[0].record
    assert isinstance(first, BisectStart)
    doubtful = replace(done, certified=False)
    assert "certified" not in bisect_report.conclusion(first, done)
    assert bisect_report.conclusion(first, doubtful).endswith("; not certified.")
    assert "not proved that nothing can be left out" in bisect_report.conclusion(replace(first, mode="set"), doubtful)
