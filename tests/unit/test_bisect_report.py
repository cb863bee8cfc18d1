"""The report of a bisect: as text, as a page that needs nothing from elsewhere, for upstream, as data."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
import subprocess
from xml.etree import ElementTree as ET

import pytest

from bisect_world import SimulatedBench, all_of, free, sometimes, start
from nvllm import bisect_report, canonical
from nvllm.drive import drive
from nvllm.history import Back, Skip
from nvllm.journal import MemoryLog
from nvllm.problem import Mode
from nvllm.search import Done
from nvllm.verdict import Trial


@pytest.fixture
def finished() -> tuple[MemoryLog, Done]:
    log = MemoryLog.of(start(free(8)))
    done = drive(log, SimulatedBench(all_of(frozenset({"p03", "p06"}))))
    assert isinstance(done, Done)
    return log, done


def test_the_matrix_holds_every_patch_and_every_set(finished: tuple[MemoryLog, Done]) -> None:
    log, done = finished
    text = bisect_report.text(log.entries, done)
    assert "p03, p06: together break it; nothing can be left out." in text
    assert "the bad end: bad 1 of 1, failure rate 0.16 to 0.99 at 95 %" in text
    rows = bisect_report.matrix_text(_state(log)).splitlines()
    assert [row.split()[0] for row in rows] == ["patch", *free(8).order, "trials"]
    assert set("".join(rows[-1].split()[1:])) == {"+", "x"}
    assert "without p03: good [good 1 of 1], holds" in text


def _state(log: MemoryLog) -> bisect_report.State:
    from nvllm import history

    return history.fold(entry.record for entry in log.entries)


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


def test_the_page_of_a_flaky_ordered_search_plots_the_posterior() -> None:
    log = MemoryLog.of(start(free(6), "ordered", flaky=True))
    done = drive(log, SimulatedBench(sometimes(frozenset({"p04"}), random.Random(1), 0.6)))
    assert isinstance(done, Done)
    page = bisect_report.page(log.entries, done)
    assert page.count("<polyline") == 6
    beliefs = bisect_report.belief_history(log.entries)
    assert dict(beliefs[0]) == pytest.approx(dict.fromkeys(free(6).order, 1 / 6))
    assert dict(beliefs[-1])["p04"] > 0.99
    assert "p04 breaks it, with probability 0.99" in bisect_report.text(log.entries, done)


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
    assert bisect_report.data(log.entries[:3], None)


def test_the_log_is_a_script_that_a_shell_can_read(finished: tuple[MemoryLog, Done]) -> None:
    log, _ = finished
    log.append(Skip(("p01",)))
    log.append(Back(("p01",)))
    script = bisect_report.shell_log(log.entries)
    subprocess.run(["sh", "-n"], input=script.encode(), check=True)
    assert "nvllm build cpu --patches p03,p06\n" in script
    assert "nvllm bisect back --image cpu p01\n" in script
