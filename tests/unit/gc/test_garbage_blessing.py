"""`gc` in the middle of a bless, also of one whose trials run on other machines, and of a pull."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bless import rejected
from nvllm.bless.preflight import BlessRequest
from nvllm.cache.pins import Pins
from nvllm.core.paths import Places
from nvllm.core.refusal import Refused
from nvllm.gc import garbage
from support import bless_world
from support.bless_world import World
from support.plansamples import FrontEnd


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd) -> Iterator[World]:
    with bless_world.world(tmp_path, front) as found:
        yield found


def collect(places: Places) -> list[str]:
    """Remove all garbage, however young it is, and return its kinds."""
    referred = garbage.referred([], places)
    pieces = list(garbage.files(places, referred, (), time.time() + 60))
    for piece in pieces:
        garbage.remove(piece, places)
    return [piece.kind for piece in pieces]


def test_the_tree_of_a_bless_stays_while_its_trials_run_on_other_machines(made: World) -> None:
    """`bless --on` frees its locks after the first trial, because this host may be one of the machines."""
    compiled, trials = made.work.begin(1, 2)
    made.work.held_locks.release()
    made.work.evidence.parent.joinpath("9").mkdir()  # the evidence of a later bless of the same profile
    assert collect(made.places) == ["staged cache"]
    result = made.work.result(compiled, (*trials, *trials))
    assert result.tree == compiled.tree
    assert made.work.log(1).is_file()


def test_a_tree_whose_bless_has_ended_goes(made: World) -> None:
    made.work.begin(1, 1)
    made.work.held_locks.release()
    with Pins(made.places.pins).still() as pinned:
        assert pinned
    made.pin.path.unlink()  # as its process does at the end
    assert "blessed cache" in collect(made.places)


@pytest.mark.parametrize("days", [0, 3])
def test_a_rejected_tree_stays_for_the_days_that_were_asked_for(made: World, front: FrontEnd, days: int) -> None:
    made.work.keep_days = days
    made.engine.warm = tuple(line for line in made.engine.warm if line != bless_world.LOADED)  # it loads nothing
    with pytest.raises(Refused):
        made.work.run(BlessRequest(boots=1))
    (tree,) = made.work.store.list()
    made.pin.path.unlink()
    made.work.held_locks.release()
    made.work.evidence.parent.joinpath("9").mkdir()  # the evidence of a later bless of the same profile
    for later, stays in ((0.0, days > 0), ((days + 1) * 86400.0, False)):
        referred = garbage.referred([], made.places)
        kept = tuple(rejected.kept(made.places.blessing, time.time() + later))
        assert [record.tree for _, record in kept] == [tree] * stays
        pieces = garbage.files(made.places, replace(referred, rejected=kept), (), time.time() + 60)
        gone = {piece.name for piece in pieces}
        assert {tree, f"{made.work.evidence.parent.name}/{made.work.evidence.name}"} & gone == (
            set() if stays else {tree, f"{made.work.evidence.parent.name}/{made.work.evidence.name}"}
        )


def test_a_tree_that_is_pinned_after_it_was_listed_stays(made: World) -> None:
    """A pull finds it in the store, and `gc` has listed it before."""
    compiled, _ = made.work.begin(1, 1)
    made.pin.path.unlink()
    made.work.held_locks.release()
    pieces = list(garbage.files(made.places, garbage.referred([], made.places), (), time.time() + 60))
    assert "blessed cache" in {piece.kind for piece in pieces}
    with Pins(made.places.pins).pin() as pin:
        pin.keep(compiled.tree.hash)
        for piece in pieces:
            garbage.remove(piece, made.places)
        assert made.work.store.has(compiled.tree.hash)


def test_nothing_of_a_tree_that_is_being_adopted_goes(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every point of the bootstrap that a kill can hit."""
    points: list[str] = []

    def look(point: str, path: str = "") -> None:
        points.append(point)
        assert "blessed cache" not in collect(made.places), point

    monkeypatch.setattr("nvllm.core.durable.reached", look)
    made.work.begin(0, 1)
    assert {"copied", "renamed"} <= set(points)
