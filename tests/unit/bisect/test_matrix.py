"""The matrix of a bisect: every patch, every set and every trial, in text, in colour and as a drawing."""

from __future__ import annotations

import random
import re
from xml.etree import ElementTree as ET

from nvllm.bisect import journal
from nvllm.bisect import matrix as bisect_matrix
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import BisectState, Built, MemoryLog, Tried
from nvllm.bisect.verdict import Trial
from support.bisect_world import BAD, SimulatedBench, all_of, free, sometimes, start

GREEN, RED, GREY, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[90m", "\x1b[0m"


def searched(*, flaky: bool = False) -> BisectState:
    judge = sometimes(frozenset({"p03"}), random.Random(1), 0.5) if flaky else all_of(frozenset({"p03", "p06"}))
    log = MemoryLog.of(start(free(8), "ordered" if flaky else "set", flaky=flaky))
    drive(log, SimulatedBench(judge))
    return journal.fold(entry.record for entry in log.entries)


def tried(state: BisectState, *chosen: str, trial: Trial = BAD) -> BisectState:
    return state.after(Tried(chosen, trial.outcome, trial.kind, trial.stage, "", 1.5, recalled=False, reason="seen"))


def test_every_patch_and_every_set_has_its_place() -> None:
    rows = bisect_matrix.matrix_text(searched(), color=False).splitlines()
    assert [row.split()[0] for row in rows] == ["patch", *free(8).order, "trials"]
    assert set("".join(rows[-1].split()[1:])) == {"+", "x"}
    first, second = rows[1].split()[1:3]
    assert (first, second) == ("●", "·")  # the bad end, and the good one


def test_no_trial_is_left_out_however_many_a_set_has() -> None:
    state = searched(flaky=True)
    rows = bisect_matrix.matrix(state)[len(free(8).order) + 1 :]
    assert len(rows) > 1
    assert [row[0] for row in rows] == ["trials", *[""] * (len(rows) - 1)]
    for column, chosen in enumerate(bisect_matrix.tried_sets(state), start=1):
        marks = "".join(row[column] for row in rows)
        assert marks == "".join(bisect_matrix.MARKS[one.outcome] for one in state.trials[chosen])


def test_a_set_has_the_colour_of_its_verdict_and_each_trial_its_own() -> None:
    state = searched()
    plain, painted = (bisect_matrix.matrix_text(state, color=color).splitlines() for color in (False, True))
    assert [re.sub(r"\x1b\[\d+m", "", line).rstrip() for line in painted] == plain
    bad_end, good_end = painted[1].split()[1:3]
    assert (bad_end, good_end) == (f"{RED}●{PLAIN}", f"{GREEN}·{PLAIN}")
    assert painted[-1].split()[1:3] == [f"{RED}x{PLAIN}", f"{GREEN}+{PLAIN}"]


def test_what_is_open_has_no_colour_and_what_cannot_be_tested_is_grey() -> None:
    state = tried(journal.fold([start(free(2))]), "p01", "p02")
    assert bisect_matrix.verdicts(state) == (None,)  # the bad end, before the good one was tried
    assert bisect_matrix.matrix_text(state, color=True).splitlines()[1] == "p01     ●"
    state = tried(state, "p01", trial=Trial("untestable", stage="build"))
    assert bisect_matrix.verdicts(state) == (None, "untestable")
    assert f"{GREY}?{PLAIN}" in bisect_matrix.matrix_text(state, color=True)


def test_the_drawing_has_every_trial_with_what_it_was_for() -> None:
    for state in (searched(), searched(flaky=True)):
        drawn = ET.fromstring(bisect_matrix.matrix_svg(state))
        marks = [one for one in drawn.iter("text") if (one.text or "") in bisect_matrix.MARKS.values()]
        assert len(marks) == sum(len(one) for one in state.trials.values())
        assert all(" s: " in (mark.findtext("title") or "") for mark in marks)
        assert len(list(drawn.iter("rect"))) == 8 * len(state.trials)


def test_a_drawing_of_nothing_is_a_drawing() -> None:
    state = journal.fold([start(free(2)), Built(("p01",), "", "b", "i", 1.0)])
    ET.fromstring(bisect_matrix.matrix_svg(state))
    assert bisect_matrix.matrix(state)[-1] == ("trials",)
