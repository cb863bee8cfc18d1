"""Looking a blessing up: everything that speaks against it, and nothing that does not."""

from __future__ import annotations

import dataclasses
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.cache.blessings import BlessingQuery
from nvllm.cache.evaluation import Demand
from nvllm.core import clock
from nvllm.core.refusal import Refused
from support.blessings_world import NOW, TREE, bless, blessings, other_tree, query
from support.plansamples import PLAN

OTHER_PLAN = replace(PLAN, dev=True, serve_hash="")


def codes(caught: pytest.ExceptionInfo[Refused]) -> set[str]:
    return {one.code for one in caught.value.refusals}


def test_the_blessing_of_a_serve_hash_is_found(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    other = bless(other_tree(1), OTHER_PLAN, label="other")
    for one in (bless(TREE), other):
        promotion.promote(held, one)
    assert held.lookup(query()) == bless(TREE)
    assert held.lookup(query(OTHER_PLAN)) == other
    assert held.trees() == {TREE.hash, other.tree_hash}
    assert [one.manifest for one in held.all()] == [bless(TREE), other]


def test_everything_that_speaks_against_it_is_said_at_once(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    made = bless(TREE, trials=2, expires=clock.stamp(NOW - 1))
    promotion.promote(held, made)
    held.revocations.add(made.tree_hash, "wrong tokens", NOW)
    held.versions.saw(replace(made, version=7))
    with pytest.raises(Refused) as caught:
        held.lookup(query(signers=tmp_path / "none"))
    assert codes(caught) == {"NV903", "NV904", "NV905", "NV906", "NV909"}


def test_an_unsafe_bless_is_for_a_dev_profile(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE, trials=1))
    assert held.lookup(query(dev=True)).unsafe
    with pytest.raises(Refused):
        held.lookup(query())


def test_a_dev_profile_skips_nothing_else(tmp_path: Path) -> None:
    """A query is what is served, by which image, when, who must have signed, what was asked: nothing skips a check."""
    held = blessings(tmp_path)
    made = bless(TREE, trials=2, expires=clock.stamp(NOW - 1))
    promotion.promote(held, made)
    held.revocations.add(made.tree_hash, "wrong tokens", NOW)
    with pytest.raises(Refused) as caught:
        held.lookup(query(dev=True, signers=tmp_path / "none", evaluation=Demand("q.jsonl", "", "", "90%")))
    assert codes(caught) == {"NV903", "NV905", "NV909", "NV919"}
    names = {field.name for field in dataclasses.fields(BlessingQuery)}
    known = {"image", "profile", "serve_hash", "factors", "dev", "now", "signers", "valid_days", "image_id"}
    assert names == known | {"evaluation"}


def test_a_damaged_manifest_of_another_serve_hash_is_not_in_the_way(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE))
    (held.directory / "other_0000000.json").write_bytes(b"{")
    assert held.lookup(query()) == bless(TREE)
    with pytest.raises(Refused) as caught:
        held.trees()  # nobody knows what it names, so no tree may go
    assert codes(caught) == {"NV908"}


def test_a_damaged_manifest_keeps_the_logs_that_its_text_holds(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    (held.directory / "archive").mkdir(parents=True)
    (held.directory / "archive/old_0000000_v1.json").write_text(f"{{ {'1' * 64}")
    assert held.logs() == {"1" * 64}


@pytest.mark.parametrize("part", [".", "archive"])
def test_manifests_that_cannot_be_listed_are_not_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    held = blessings(tmp_path)
    closed = held.directory / part
    closed.mkdir(parents=True, exist_ok=True)
    real = os.listdir

    def listed(path: Path) -> list[str]:  # root, which may run these tests, can read every directory
        if path == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listed)
    for ask in (held.logs, held.trees) if part == "." else (held.logs,):
        with pytest.raises(Refused) as caught:
            ask()
        assert [(one.code, one.where) for one in caught.value.refusals] == [("NV908", str(closed))]
    if part == ".":
        with pytest.raises(Refused, match="Permission denied"):
            held.lookup(query())


def test_a_manifest_in_another_name_is_no_way_around(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE))
    place.rename(held.directory / "x_1234567.json")
    with pytest.raises(Refused) as caught:
        held.lookup(query())
    assert codes(caught) == {"NV908"}


def test_a_blessing_has_several_names(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE))
    promotion.promote(held, bless(other_tree(1), OTHER_PLAN, label="other"))
    for name in (place.name, place.stem, "demo-eager", PLAN.serve_hash, PLAN.serve_hash[:7]):
        assert held.named(name).manifest == bless(TREE)
    for name in (PLAN.serve_hash[:6], "none", ""):
        with pytest.raises(Refused) as caught:
            held.named(name)
        assert codes(caught) == {"NV107"}


def test_where_there_is_nothing_there_is_nothing(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    assert held.all() == ()
    assert held.trees() == frozenset()
    with pytest.raises(Refused, match="there is none"):
        held.named("demo-eager")


@pytest.mark.parametrize("directory", ["project", "memory"])
@pytest.mark.parametrize("text", [b"", b"{}", b'{"schema": "nvllm.revoked/1"}', None])
def test_a_damaged_revocation_revokes(tmp_path: Path, directory: str, text: bytes | None) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE))
    place = (held.revocations.project if directory == "project" else held.revocations.memory) / f"{TREE.hash}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        place.symlink_to("nowhere")
    else:
        place.write_bytes(text)
    with pytest.raises(Refused) as caught:
        held.lookup(query())
    assert codes(caught) == {"NV903"}


def test_a_revocation_outlives_what_becomes_of_the_project(tmp_path: Path) -> None:
    """Somebody takes the repository back to before the revocation: this host remembers."""
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE))
    record = held.revocations.add(TREE.hash, "wrong tokens", NOW)
    record.unlink()
    with pytest.raises(Refused, match="wrong tokens"):
        held.lookup(query())


def test_the_project_alone_revokes_on_a_host_that_knows_nothing(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE))
    held.revocations.add(TREE.hash, "wrong tokens", NOW)
    elsewhere = replace(held, memory=tmp_path / "another host")
    with pytest.raises(Refused, match="wrong tokens"):
        elsewhere.lookup(query())


def test_the_newest_version_is_remembered_and_no_older_one(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    for version in (3, 1, 2):
        held.versions.saw(bless(TREE, version=version))
    assert held.versions.newest(PLAN.serve_hash) == (3, held.signature(bless(TREE, version=3)).stem)


@pytest.mark.parametrize("text", [b"", b"{}", b'{"schema": "nvllm.seen/1", "version": "1", "sha256": ""}'])
def test_a_damaged_memory_is_no_memory_that_allows(tmp_path: Path, text: bytes) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE))
    (held.memory / f"{PLAN.serve_hash}.json").write_bytes(text)
    with pytest.raises(Refused) as caught:
        held.lookup(query())
    assert codes(caught) == {"NV906"}
