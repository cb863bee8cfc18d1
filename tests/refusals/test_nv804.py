"""NV804: a journal holds a line that nvllm did not write."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bisect import journal, replay_check
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.records import MODEL, Continued, End, JournalEntry, Tried
from nvllm.core.refusal import Refusal, Refused
from support.bisect_world import SimulatedBench, all_of, free, sometimes, start

Edit = Callable[[list[bytes]], list[bytes]]


def damaged(tmp_path: Path, edit: Edit) -> tuple[Refusal, ...]:
    path = tmp_path / "journal.jsonl"
    drive(journal.create(path, start(free(3))), SimulatedBench(all_of(frozenset({"p02"}))))
    data = b"".join(edit(path.read_bytes().splitlines(keepends=True)))
    path.write_bytes(data)
    with pytest.raises(Refused) as caught:
        journal.load(path)
    assert path.read_bytes() == data
    assert caught.value.exit_code == 3
    for one in caught.value.refusals:
        assert (one.code, one.expected) == ("NV804", "a record as nvllm writes it")
        assert "--discard" in one.cure
    return tuple(caught.value.refusals)


def test_a_line_that_is_not_json(tmp_path: Path) -> None:
    (found,) = damaged(tmp_path, lambda lines: [*lines[:2], b"{]\n", *lines[3:]])
    assert (found.where, found.found) == (f"{tmp_path}/journal.jsonl:3", "a line that is not JSON")


def test_a_line_that_is_missing_shows_at_every_line_after_it(tmp_path: Path) -> None:
    found = damaged(tmp_path, lambda lines: [*lines[:3], *lines[4:]])
    assert found[0].where == f"{tmp_path}/journal.jsonl:4"
    assert found[0].found == "record 4 in place of record 3"


def test_every_damaged_line_is_named(tmp_path: Path) -> None:
    def edit(lines: list[bytes]) -> list[bytes]:
        return [line.replace(b'"outcome":"bad"', b'"outcome":"worse"') for line in lines]

    found = damaged(tmp_path, edit)
    assert len(found) > 1
    assert "worse" in found[0].found


def test_an_outcome_that_does_not_go_with_its_stage(tmp_path: Path) -> None:
    def edit(lines: list[bytes]) -> list[bytes]:
        return [line.replace(b'"stage":null', b'"stage":"boot"') for line in lines]

    assert "stage" in damaged(tmp_path, edit)[0].found


def test_a_second_start(tmp_path: Path) -> None:
    found = damaged(tmp_path, lambda lines: [lines[0], lines[0].replace(b'"n":0', b'"n":1'), *lines[2:]])
    assert found[0].found == "the record start in line 2"


def test_a_journal_that_is_a_directory(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        journal.load(tmp_path)
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.found) == ("NV804", str(tmp_path), "a directory")


def test_patches_and_sets_that_the_search_has_nothing_to_do_with(tmp_path: Path) -> None:
    def renamed(old: bytes, new: bytes, *, number: int) -> Edit:
        return lambda lines: [line.replace(old, new) if at == number else line for at, line in enumerate(lines)]

    lacking = "patches that are not in its series: zzz"
    ends = "ends that are not closed, contain a conflict, or of which neither contains the other"
    for number, old, new, said in (
        (0, b'"high":["p01"', b'"high":["zzz"', lacking),
        (0, b'"requires":{}', b'"requires":{"p02":["zzz"]}', lacking),
        (0, b'"conflicts":{}', b'"conflicts":{"p02":["p01"]}', ends),
        (0, b'"high":["p01","p02","p03"]', b'"high":[]', ends),
        (0, b'"confidence":0.99', b'"confidence":1.0', "confidence: 1.0 (a number), not"),
        (2, b'"chosen":["p01"', b'"chosen":["zzz"', "not a set of the search: zzz, p02, p03"),
        (2, b'"chosen":["p01","p02","p03"]', b'"chosen":["p02","p01","p03"]', "not a set of the search: p02, p01, p03"),
        (-1, b'"culprits":["p02"]', b'"culprits":["zzz"]', "culprits that are not between the ends: zzz"),
    ):
        directory = tmp_path / new.hex()[:40] / str(number)
        directory.mkdir(parents=True)
        place = number
        if number < 0:
            drive(journal.create(directory / "count", start(free(3))), SimulatedBench(all_of(frozenset({"p02"}))))
            place = len((directory / "count").read_bytes().splitlines()) - 1
        (found,) = damaged(directory, renamed(old, new, number=place))
        assert found.where == f"{directory}/journal.jsonl:{place + 1}"
        assert said in found.found, found


def test_a_record_that_is_no_decision_of_the_search() -> None:
    log = Log.of(start(free(4), "ordered"))
    drive(log, SimulatedBench(all_of(frozenset({"p03"}))))
    entries = list(log.entries)
    assert isinstance(entries[-1].record, End)
    entries[-1] = JournalEntry(0.0, End(("p02",), exact=True, certified=True))
    with pytest.raises(Refused) as caught:
        replay_check.repeat(entries, "a.jsonl")
    (found,) = caught.value.refusals
    assert (found.code, found.where, caught.value.exit_code) == ("NV804", f"a.jsonl:{len(entries)}", 3)
    assert found.expected == "the end p03 (exact, certified)"
    assert found.found == "the end p02 (exact, certified)"
    assert found.cure.startswith("copy the journal again from where it was written, or ")


def older(path: Path, *, flaky: bool) -> None:
    """Write the journal of a search that model 1 decided."""
    begun = replace(start(free(4), "ordered", flaky=flaky, repeats=2), model=1)
    rng = random.Random(1)
    judge = sometimes(frozenset({"p02"}), rng, 0.6) if flaky else all_of(frozenset({"p02"}))
    log = Log.of(begun)
    drive(log, SimulatedBench(judge))
    chain, text = "0" * 64, b""
    for number, entry in enumerate(log.entries):
        line, chain = journal.line(number, entry, chain)
        text += line
    path.write_bytes(text)


def test_a_flaky_search_that_an_older_model_decided(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    older(path, flaky=True)
    with pytest.raises(Refused) as caught:
        journal.load(path)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV804", str(path))
    assert refusal.expected == f"a flaky search that was decided by model {MODEL}"
    assert refusal.found.startswith("model 1, of another version of nvllm")
    assert "the version of nvllm which wrote it" in refusal.cure
    assert "--discard" in refusal.cure


def test_a_steady_search_of_an_older_model_goes_on_by_the_new_one(tmp_path: Path) -> None:
    """It replays. Its set that then turns out to be flaky is decided by the new model, and that is loaded again."""
    path = tmp_path / "journal.jsonl"
    older(path, flaky=False)
    replay_check.repeat(journal.load(path).entries, "j")
    log = journal.load(path)
    log.append(Tried(("p01", "p02"), "good", "", None, "", 1.0, recalled=False, reason="", by_hand=True))
    assert log.entries[-2].record == Continued(MODEL)
    drive(log, SimulatedBench(sometimes(frozenset({"p02"}), random.Random(2), 0.6)))
    replay_check.repeat(journal.load(path).entries, "j")
    assert [entry.record for entry in log.entries].count(Continued(MODEL)) == 1
