"""NV804: a journal holds a line that nvllm did not write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bisect_world import SimulatedBench, all_of, free, start
from nvllm import journal
from nvllm.drive import drive
from nvllm.refusal import Refusal, Refused

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
    assert found[0].found == "record 4 in the place of record 3"


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
    assert (found.code, found.where, found.found) == ("NV804", str(tmp_path), "Is a directory")
