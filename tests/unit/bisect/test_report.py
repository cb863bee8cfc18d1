"""The report of a bisect: as text with its matrix, and as data."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from nvllm.bisect import page, records
from nvllm.bisect import report as bisect_report
from nvllm.bisect.answer import Done
from nvllm.bisect.combinations import set_hash
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.posterior import Count
from nvllm.bisect.problem import Mode, Tally, Verdict
from nvllm.bisect.records import BisectStart, BisectState, Tried
from nvllm.core import canonical
from nvllm.trials.trial import Built, Trial
from support.bisect_world import BAD, GOOD, SimulatedBench, all_of, free, sometimes, start
from support.rows import each_row


@pytest.fixture
def finished() -> tuple[Log, Done]:
    log = Log.of(start(free(8)))
    done = drive(log, SimulatedBench(all_of(frozenset({"p03", "p06"}))))
    assert isinstance(done, Done)
    return log, done


def test_the_text_has_the_matrix_the_ends_and_the_certificate(finished: tuple[Log, Done]) -> None:
    log, done = finished
    text = bisect_report.text(log.state, done, color=False)
    assert "p03, p06: together break it; 1-minimal, none of them can be left out." in text
    assert "the bad end: bad 1 of 1, failure rate 0.16 to 0.99 at 95 %" in text
    assert bisect_report.matrix_text(log.state, color=False) in text
    assert bisect_report.matrix_text(log.state, color=True) in bisect_report.text(log.state, done, color=True)
    assert "without p03: good [good 1 of 1], holds" in text


@each_row(("left", "said"), [("ab" * 32, 3), ("", 0), (hashlib.sha256(b"").hexdigest(), 0)])
def test_trials_that_left_the_same_bytes_are_said_to_be_one_sample(left: str, said: int) -> None:
    log = Log.of(start(free(2), repeats=3))
    done = drive(log, SimulatedBench(lambda chosen: Trial("bad" if "p02" in chosen else "good", evidence=left)))
    assert isinstance(done, Done)
    text = bisect_report.ends_text(log.state)
    assert text.count("3 trials wrote the same bytes: one sample") == (2 if said else 0)
    data: Any = bisect_report.data(log.state, done)
    replicas = {one["verdict"]: one["replicas"] for one in data["sets"]}
    assert replicas["bad 3 of 3"] == replicas["good 3 of 3"] == said


def test_trials_that_left_different_bytes_are_samples() -> None:
    numbers = itertools.count()
    log = Log.of(start(free(2), repeats=3))
    drive(
        log, SimulatedBench(lambda chosen: Trial("bad" if "p02" in chosen else "good", evidence=f"{next(numbers):064}"))
    )
    assert "wrote the same bytes" not in bisect_report.ends_text(log.state)


@each_row("mode", ["ordered", "set"])
def test_the_posterior_is_shown_while_the_search_goes_on_and_at_its_end(mode: Mode) -> None:
    log = Log.of(start(free(8), mode))
    done = drive(log, SimulatedBench(all_of(frozenset({"p03"}))))
    assert isinstance(done, Done)
    said = "probability of each patch to be a culprit:"
    assert f"{said}\n  p03  1.000\n  7 others: less than 0.001\n" in bisect_report.text(log.state, done, color=False)
    seen = 1 + next(
        at for at, one in enumerate(log.entries) if isinstance(one.record, Tried) and len(one.record.chosen) == 4
    )
    part = bisect_report.text(Log(log.entries[:seen]).state, None, color=False)
    assert f"{said}\n  p01  0.{'250' if mode == 'ordered' else '344'}\n" in part
    assert "\n  4 others: less than 0.001\n" in part
    data = json.loads(canonical.pretty(bisect_report.data(Log(log.entries[:seen]).state, None)))
    assert data["posterior"]["p03"] >= 0.25


def test_a_posterior_without_doubt_about_anybody_else_names_no_others() -> None:
    assert bisect_report.posterior_text([("one", 0.25), ("other", 0.75)]).splitlines()[1:] == [
        "  other  0.750",
        "  one    0.250",
    ]


def test_the_data_is_json(finished: tuple[Log, Done]) -> None:
    log, done = finished
    data = json.loads(canonical.pretty(bisect_report.data(log.state, done)))
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
        "said": "",
        "by_hand": False,
        "task": "",
        "artifact": "",
    }
    assert bisect_report.data(Log(log.entries[:3]).state, None)


def test_the_data_says_why_a_set_has_no_image() -> None:
    broken = frozenset({"p01", "p02"})
    log = Log.of(start(free(4), "ordered"))
    done = drive(log, SimulatedBench(all_of(frozenset({"p04"})), frozenset({broken})))
    data = bisect_report.data(log.state, done if isinstance(done, Done) else None)
    (found,) = [one for one in json.loads(canonical.pretty(data))["sets"] if one["patches"] == ["p01", "p02"]]
    assert (found["outcome"], found["build"], found["trials"][0]["stage"]) == ("untestable", None, "build")


def test_what_is_not_certified_is_not_said_to_be_proved() -> None:
    log = Log.of(start(free(4), "ordered", flaky=True))
    done = drive(log, SimulatedBench(sometimes(frozenset({"p02"}), random.Random(1), 0.6)))
    assert isinstance(done, Done)
    assert done.certified
    assert done.spread is not None
    first = log.entries[0].record
    assert isinstance(first, BisectStart)
    doubtful = replace(done, certified=False)
    assert "certified" not in bisect_report.conclusion(first, done)
    assert "; not certified." in bisect_report.conclusion(first, doubtful)
    assert "in at most" in bisect_report.conclusion(first, done)
    assert "as monotone" in bisect_report.assumptions(done)
    assert not bisect_report.assumptions(doubtful)
    assert bisect_report.spread_text(done).startswith(f"{done.spread.artifacts} builds in {done.spread.trials} trials")
    differing = replace(done, spread=replace(done.spread, chance=0.9), certified=False)
    assert "This differs from build to build" in bisect_report.conclusion(first, differing)
    doubted = replace(done, spread=replace(done.spread, chance=0.3), certified=False)
    assert "This may differ from build to build" in bisect_report.conclusion(first, doubted)
    compiles = "nvllm ablate cpu --profile tiny-eager --artifacts 5 --probe FILE"
    assert bisect_report.conclusion(first, differing).endswith(compiles)
    assert bisect_report.conclusion(first, doubted).endswith(compiles)
    never = replace(done, spread=replace(done.spread, mixed=False), certified=False)
    assert "No build was both good and bad" in bisect_report.conclusion(first, never)
    assert "not proved that all are needed" in bisect_report.conclusion(replace(first, mode="set"), doubtful)


def test_artifacts_are_named_with_their_trials() -> None:
    """Of each set that has the patch, the first of two artifacts fails and the other never does."""
    tried = Counter[frozenset[str]]()

    def judge(chosen: frozenset[str]) -> Trial:
        number = tried[chosen] % 2
        tried[chosen] += 1
        return replace(BAD if "p01" in chosen and not number else GOOD, artifact=f"{len(chosen)}{number}" * 32)

    log = Log.of(start(free(2), "ordered", flaky=True))
    done = drive(log, SimulatedBench(judge))
    assert isinstance(done, Done)
    assert (done.stopped, done.certified, done.culprits) == ("this differs from build to build", False, ("p01",))
    state = log.state
    text = bisect_report.text(state, done, color=False)
    assert "an artifact is to blame, not a patch alone. Artifacts that should fail equally often do not" in text
    assert "nvllm ablate cpu --profile tiny-eager --artifacts 5 --probe FILE" in text
    both = state.tallies[frozenset({"p01", "p02"})]
    names = f"202020202020 bad {both.bad} of {both.bad}; 212121212121 good {both.good} of {both.good}"
    assert f"artifacts of {set_hash(['p01', 'p02'])}: {names}" in text
    assert "6 artifacts of 3 builds in" in text
    data = bisect_report.data(state, done)
    assert data["found"]["builds"] | {"artifacts": 6, "builds": 3, "differ": True} == data["found"]["builds"]  # type: ignore[index,call-overload,operator]  # JSON
    assert data["sets"][0]["artifacts"][0] == {"tree": "20" * 32, "bad": both.bad, "good": 0}  # type: ignore[index,call-overload]  # JSON
    assert names in page.markdown(log.entries, done)
    assert names in bisect_report.text(state, None, color=False)


def test_the_rest_is_not_called_unbroken_where_it_fails_less_often() -> None:
    log = Log.of(start(free(4), "ordered", flaky=True))
    done = drive(log, SimulatedBench(sometimes(frozenset({"p02"}), random.Random(1), 0.6)))
    assert isinstance(done, Done)
    first = log.entries[0].record
    assert isinstance(first, BisectStart)
    assert done.rest is not None
    weaker = replace(done.rest, verdict=Verdict("good", Tally(bad=11, good=13), 0.99))
    text = bisect_report.conclusion(first, replace(done, rest=weaker))
    assert "not broken" not in text
    assert "Everything without it fails less often, but not never: bad 11 of 24, at most 65 % of boots, 95 %." in text
    never = replace(done.rest, verdict=Verdict("good", Tally(good=17), 0.99))
    text = bisect_report.conclusion(first, replace(done, rest=never))
    assert "Everything without it fails in at most 17 % of boots, 95 % (good 17 of 17)." in text
    often = replace(done.rest, verdict=Verdict("good", Tally(good=40), 0.99))
    text = bisect_report.conclusion(first, replace(done, rest=often))
    assert "Everything without it is not broken: it fails in at most 8 % of boots, 95 % (good 40 of 40)." in text


def test_a_series_that_fails_more_rarely_before_the_culprit_is_said_to() -> None:
    log = Log.of(start(free(4), "ordered", flaky=True))
    done = drive(log, SimulatedBench(sometimes(frozenset({"p02"}), random.Random(1), 0.6)))
    assert isinstance(done, Done)
    first = log.state.start
    assert "The series before it" not in bisect_report.conclusion(first, done)
    above, below = done.certificate
    weaker = replace(below, verdict=Verdict("good", Tally(bad=9, good=31), 0.99))
    text = bisect_report.conclusion(first, replace(done, certificate=(above, weaker), lacking=Tally(bad=1, good=39)))
    assert "The series before it fails less often, but not never: bad 9 of 40, at most 36 % of boots, 95 %." in text
    usual = replace(done, certificate=(above, weaker), lacking=Tally(bad=8, good=32))
    assert "The series before it" not in bisect_report.conclusion(first, usual)


def test_a_further_cause_that_shows_more_rarely_is_named() -> None:
    log = Log.of(start(free(4), "ordered", flaky=True))
    done = drive(log, SimulatedBench(sometimes(frozenset({"p02"}), random.Random(1), 0.6)))
    assert isinstance(done, Done)
    assert done.rest is not None
    rest = replace(done.rest, holds=False, verdict=Verdict("good", Tally(bad=24, good=36), 0.8))
    both = replace(done, rest=rest, further=(replace(done, culprits=("p04",)),))
    text = bisect_report.conclusion(log.state.start, both)
    assert (
        "Everything without it fails too, in at most 52 % of boots, 95 % (bad 24 of 60). Further causes: p04." in text
    )
    assert "Everything without any of these causes " in text


def test_boots_of_the_same_bytes_are_said_to_be() -> None:
    begun = replace(start(free(4), "ordered", flaky=True), same_bytes=True)
    done = drive(log := Log.of(begun), SimulatedBench(sometimes(frozenset({"p02"}), random.Random(1), 0.6)))
    assert isinstance(done, Done)
    assert done.certified
    assert done.spread is not None
    sentence = "all boots of a set run the same bytes (enforce-eager, on the CPU), so builds cannot differ"
    assert sentence in bisect_report.spread_text(done)
    assert bisect_report.varies_text(begun) == sentence
    assert not bisect_report.varies_text(replace(begun, flaky=False))
    assert "takes boots as independent" in bisect_report.assumptions(done)
    assert bisect_report.data(log.state, done)["found"]["builds"]["same_bytes"] is True  # type: ignore[index,call-overload]  # JSON
    groups = ((Count(19, 1), Count(2, 18)),)
    uneven = replace(done, spread=replace(done.spread, groups=groups), certified=False)
    assert "another patch changes how often it fails." in bisect_report.conclusion(begun, uneven)
    assert "an artifact is to blame" not in bisect_report.conclusion(begun, uneven)


def test_what_is_left_is_never_called_unbroken_without_a_bound() -> None:
    log = Log.of(start(free(4), "ordered", repeats=3))
    done = drive(log, SimulatedBench(all_of(frozenset({"p02"}))))
    assert isinstance(done, Done)
    text = bisect_report.conclusion(log.state.start, done)
    assert (
        "Everything without it is not broken if the failure is steady, and fails in at most 64 % of boots, 95 %"
        " (good 3 of 3)." in text
    )


# The matrix of patches, sets and trials

GREEN, RED, GREY, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[90m", "\x1b[0m"


def searched_log(*, flaky: bool = False) -> Log:
    judge = sometimes(frozenset({"p03"}), random.Random(1), 0.5) if flaky else all_of(frozenset({"p03", "p06"}))
    log = Log.of(start(free(8), "ordered" if flaky else "set", flaky=flaky))
    drive(log, SimulatedBench(judge))
    return log


def searched(*, flaky: bool = False) -> BisectState:
    return searched_log(flaky=flaky).state


def tried(state: BisectState, *chosen: str, trial: Trial = BAD) -> BisectState:
    return state.after(Tried(chosen, trial.outcome, trial.kind, trial.stage, "", 1.5, recalled=False, reason="seen"))


def test_every_patch_and_every_set_has_its_place() -> None:
    rows = bisect_report.matrix_text(searched(), color=False).splitlines()
    assert [row.split()[0] for row in rows] == ["patch", *free(8).order, "trials"]
    assert set("".join(rows[-1].split()[1:])) == {"+", "x"}
    first, second = rows[1].split()[1:3]
    assert (first, second) == ("●", "·")  # the bad end, and the good one


@each_row("width", [1, 40, 80, 1000])
def test_a_narrow_terminal_has_every_set_once_and_no_line_that_is_too_long(width: int) -> None:
    state = searched()
    whole = bisect_report.matrix_text(state, color=False)
    blocks = bisect_report.matrix_text(state, color=False, width=width).split("\n\n")
    assert [name for block in blocks for name in block.splitlines()[0].split()[1:]] == whole.splitlines()[0].split()[1:]
    assert {tuple(line.split()[0] for line in block.splitlines()) for block in blocks} == {
        tuple(line.split()[0] for line in whole.splitlines())
    }
    assert width < 20 or all(len(line) <= width for block in blocks for line in block.splitlines())


def test_no_trial_is_left_out_however_many_a_set_has() -> None:
    state = searched(flaky=True)
    rows = bisect_report.matrix(state)[len(free(8).order) + 1 :]
    assert len(rows) > 1
    assert [row[0] for row in rows] == ["trials", *[""] * (len(rows) - 1)]
    for column, chosen in enumerate(state.trials, start=1):
        marks = "".join(row[column] for row in rows)
        assert marks == "".join(bisect_report.MARKS[one.outcome] for one in state.trials[chosen])


def test_a_set_has_the_colour_of_its_verdict_and_each_trial_its_own() -> None:
    state = searched()
    plain, painted = (bisect_report.matrix_text(state, color=color).splitlines() for color in (False, True))
    assert [re.sub(r"\x1b\[\d+m", "", line).rstrip() for line in painted] == plain
    bad_end, good_end = painted[1].split()[1:3]
    assert (bad_end, good_end) == (f"{RED}●{PLAIN}", f"{GREEN}·{PLAIN}")
    assert painted[-1].split()[1:3] == [f"{RED}x{PLAIN}", f"{GREEN}+{PLAIN}"]


def test_what_is_open_has_no_colour_and_what_cannot_be_tested_is_grey() -> None:
    state = tried(records.fold([start(free(2))]), "p01", "p02")
    assert bisect_report.verdicts(state) == (None,)  # the bad end, before the good one was tried
    assert bisect_report.matrix_text(state, color=True).splitlines()[1] == "p01     ●"
    state = tried(state, "p01", trial=Trial("untestable", stage="build"))
    assert bisect_report.verdicts(state) == (None, "untestable")
    assert f"{GREY}?{PLAIN}" in bisect_report.matrix_text(state, color=True)


def test_a_matrix_of_nothing_is_a_matrix() -> None:
    log = Log.of(start(free(2)), Built(("p01",), "", "b", "i", 1.0))
    assert bisect_report.matrix(log.state)[-1] == ("trials",)
