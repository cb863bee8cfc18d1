"""Promotion: old or new at every instant, whoever dies, races, or runs out of disk; and what it refuses."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from nvllm.cache import manifest, promotion
from nvllm.cache.blessings import Blessings
from nvllm.core.refusal import Refused
from support.blessings_world import CURE, NOW, TREE, bless, blessings, child, other_tree, query
from support.plansamples import PLAN

OLD, NEW = bless(TREE), bless(other_tree(2), version=2)


def codes(caught: pytest.ExceptionInfo[Refused]) -> set[str]:
    return {one.code for one in caught.value.refusals}


def promoted(tmp_path: Path) -> Blessings:
    held = blessings(tmp_path)
    promotion.promote(held, OLD)
    return held


def test_a_rebless_archives_what_was_in_force(tmp_path: Path) -> None:
    held = promoted(tmp_path)
    place = promotion.promote(held, NEW, held.named("demo-eager"), b"signature")
    assert held.lookup(query()) == NEW
    assert place.read_bytes() == manifest.encode(NEW)
    assert [path.name for path in (held.directory / "archive").iterdir()] == [OLD.archived]
    assert manifest.read(held.directory / "archive" / OLD.archived, OLD.archived) == OLD
    assert held.signature(NEW).read_bytes() == b"signature"
    assert held.trees() == {NEW.tree_hash}
    assert promotion.next_version(held, PLAN.serve_hash) == 3


def test_the_next_version_is_above_all_that_is_known(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    assert promotion.next_version(held, PLAN.serve_hash) == 1
    held.versions.saw(bless(TREE, version=41))
    assert promotion.next_version(held, PLAN.serve_hash) == 42
    assert promotion.next_version(held, "0" * 64) == 1


def test_there_is_no_bless_over_a_bless(tmp_path: Path) -> None:
    held = promoted(tmp_path)
    for again in (NEW, replace(NEW, label="another")):
        with pytest.raises(Refused) as caught:
            promotion.promote(held, again)
        assert codes(caught) == {"NV902"}
    assert held.lookup(query()) == OLD


def test_a_rebless_keeps_the_label(tmp_path: Path) -> None:
    """Under another name it could not take the place of the old one by one rename."""
    held = promoted(tmp_path)
    with pytest.raises(Refused) as caught:
        promotion.promote(held, replace(NEW, label="another"), held.named("demo-eager"))
    assert codes(caught) == {"NV902"}


def test_a_rebless_replaces_what_it_has_read_and_nothing_else(tmp_path: Path) -> None:
    held = promoted(tmp_path)
    before = held.named("demo-eager")
    promotion.promote(held, NEW, before)
    with pytest.raises(Refused) as caught:
        promotion.promote(held, bless(other_tree(3), version=3), before)
    assert codes(caught) == {"NV902"}
    assert held.lookup(query()) == NEW


def test_a_damaged_manifest_can_be_blessed_over_and_is_kept(tmp_path: Path) -> None:
    held = promoted(tmp_path)
    place = held.directory / OLD.filename
    place.write_bytes(b"{")
    (damaged,) = held.of(PLAN.serve_hash)
    promotion.promote(held, NEW, damaged)
    assert held.lookup(query()) == NEW
    (kept,) = (held.directory / "archive").iterdir()
    assert kept.read_bytes() == b"{"
    assert "_damaged_" in kept.name


def test_a_revoked_tree_is_never_blessed_again(tmp_path: Path) -> None:
    held = promoted(tmp_path)
    held.revocations.add(OLD.tree_hash, "wrong tokens", NOW)
    with pytest.raises(Refused) as caught:
        promotion.promote(held, bless(TREE, version=2), held.named("demo-eager"))
    assert codes(caught) == {"NV903"}
    promotion.promote(held, NEW, held.named("demo-eager"))
    assert held.lookup(query()) == NEW, "another tree for the same serve hash is a new cache"


def test_a_manifest_that_does_not_hold_together_is_not_written(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    with pytest.raises(Refused) as caught:
        promotion.promote(held, replace(OLD, tree_hash="0" * 64))
    assert codes(caught) == {"NV908"}
    assert held.all() == ()


POINTS = [f"{what} {at}" for what in ("archive", "signature", "manifest", "seen") for at in ("written", "renamed")]

DIE = """
import os, signal, sys
from pathlib import Path
from support.blessings_world import blessings, bless, other_tree
from nvllm.cache import promotion; from nvllm.core import durable

def die(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

durable.reached = die
held = blessings(Path(sys.argv[1]))
promotion.promote(held, bless(other_tree(2), version=2), held.named("demo-eager"), b"signature")
"""


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_the_old_or_the_new_is_in_force(tmp_path: Path, point: str) -> None:
    held = promoted(tmp_path)
    done = child(DIE, os.fspath(tmp_path), point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    after = POINTS.index(point) >= POINTS.index("manifest renamed")
    found = held.lookup(query())
    assert found == (NEW if after else OLD)
    if after:
        assert held.signature(NEW).read_bytes() == b"signature"
        assert manifest.read(held.directory / "archive" / OLD.archived, OLD.archived) == OLD
    # The next bless goes on: the dead holder's lock is free.
    version = promotion.next_version(held, PLAN.serve_hash)
    third = bless(other_tree(3), version=version)
    promotion.promote(held, third, held.named("demo-eager"))
    assert held.lookup(query()) == third


REVOKE = """
import os, signal, sys
from pathlib import Path
from support.blessings_world import NOW, TREE, blessings, bless
from nvllm.core import durable

def die(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

durable.reached = die
blessings(Path(sys.argv[1])).revocations.add(TREE.hash, "wrong tokens", NOW)
"""


@pytest.mark.parametrize("point", ["memory written", "memory renamed", "project written", "project renamed"])
def test_killed_at_any_point_a_tree_is_revoked_or_it_is_not(tmp_path: Path, point: str) -> None:
    held = promoted(tmp_path)
    done = child(REVOKE, os.fspath(tmp_path), point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if point == "memory written":
        assert held.lookup(query()) == OLD
    else:
        with pytest.raises(Refused, match="wrong tokens"):
            held.lookup(query())


FORKED = multiprocessing.get_context("fork")


def racer(place: Path, number: int, how: str, start: Barrier, said: Connection) -> None:
    """Promote what NUMBER says when START lets both go, and say how it ended."""
    held = blessings(place)
    old = held.named("demo-eager") if how == "replace" else None
    start.wait(timeout=60)
    try:
        new = bless(other_tree(number), version=2)
        promotion.promote(held, new, old)
        said.send("won")
    except Refused as refused:
        said.send(" ".join(sorted({one.code for one in refused.refusals})))


@pytest.mark.parametrize("how", ["promote", "replace"])
def test_of_two_that_promote_at_once_one_wins(tmp_path: Path, how: str) -> None:
    held = promoted(tmp_path) if how == "replace" else blessings(tmp_path)
    start, ends = FORKED.Barrier(2), [FORKED.Pipe(duplex=False) for _ in range(2)]
    racers = [
        FORKED.Process(target=racer, args=(tmp_path, number, how, start, to))
        for number, (_, to) in zip((10, 11), ends, strict=True)
    ]
    for one in racers:
        one.start()
    assert all(heard.poll(60) for heard, _ in ends)
    said = [heard.recv() for heard, _ in ends]
    for one in racers:
        one.join()
    assert [one.exitcode for one in racers] == [0, 0]
    assert sorted(said) == ["NV902 NV906", "won"]
    assert held.lookup(query()).tree_hash == other_tree(10 + said.index("won")).hash
    assert len(held.all()) == 1


FULL = """
import os, resource, signal, sys
from pathlib import Path
from support.blessings_world import NOW, TREE, blessings, bless, other_tree
from nvllm.cache import promotion
from nvllm.core.refusal import Refused

held = blessings(Path(sys.argv[1]))
old = held.named("demo-eager")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    if sys.argv[3] == "revoke":
        held.revocations.add(TREE.hash, "wrong tokens", NOW)
    else:
        promotion.promote(held, bless(other_tree(2), version=2), old, b"signature" * 2000)
except Refused as refused:
    print(*[one.code for one in refused.refusals], refused.exit_code)
"""


@pytest.mark.parametrize("size", [0, 100, 9000])
def test_on_a_full_disk_the_old_one_stays_in_force(tmp_path: Path, size: int) -> None:
    """Nothing is written; the archive stops half-way; the archive is whole and the signature stops half-way."""
    held = promoted(tmp_path)
    assert 100 < len(manifest.encode(OLD)) < 9000 < 18000
    done = child(FULL, os.fspath(tmp_path), str(size), "replace")
    assert done.stdout == b"NV911 1\n", done.stderr
    assert held.lookup(query()) == OLD
    assert list(held.directory.rglob(".*")) == []
    promotion.promote(held, NEW, held.named("demo-eager"))
    assert held.lookup(query()) == NEW


def test_on_a_full_disk_nothing_is_half_revoked(tmp_path: Path) -> None:
    held = promoted(tmp_path)
    done = child(FULL, os.fspath(tmp_path), "10", "revoke")
    assert done.stdout == b"NV911 1\n", done.stderr
    assert held.lookup(query()) == OLD


@pytest.mark.parametrize("call", range(6))
def test_whichever_sync_fails_the_old_or_the_new_is_in_force(
    tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a lost write at fsync, and cannot be made to here: the call answers as it would."""
    held = promoted(tmp_path)
    real, count = os.fsync, iter(range(100))

    def fsync(descriptor: int) -> None:
        if next(count) == call:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(Refused) as caught:
        promotion.promote(held, NEW, held.named("demo-eager"), b"signature")
    monkeypatch.undo()
    assert codes(caught) == {"NV911"}
    assert held.lookup(query()) == (OLD if call < 5 else NEW)


def test_the_words_of_the_cure_are_the_command(tmp_path: Path) -> None:
    held = promoted(tmp_path)
    with pytest.raises(Refused) as caught:
        promotion.promote(held, NEW)
    assert {one.cure for one in caught.value.refusals} == {CURE}
