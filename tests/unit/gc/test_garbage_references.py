"""What projects refer to: each for itself, together, and none if one cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.cache.blessings import Blessings
from nvllm.cache.pins import Pins
from nvllm.core.paths import Places, Project, packaged
from nvllm.gc import garbage
from nvllm.gc.garbage import References
from nvllm.host.gates import GateName
from nvllm.host.locks import Holder, Key, acquire_all
from nvllm.image import identity
from support import blessings_world
from support.plansamples import edit, places, project


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return places(tmp_path)


def blessed(found: Project, where: Places, number: int) -> str:
    """Bless another tree in FOUND and return its hash."""
    tree = blessings_world.other_tree(number)
    held = Blessings.of_project(found, where)
    promotion.promote(held, blessings_world.bless(tree, version=number))
    return tree.hash


OF_GB10: frozenset[tuple[GateName, int]] = frozenset({("memory", 30)})
"""What the packaged project requires of a host."""


def test_no_project_refers_to_nothing(where: Places) -> None:
    found = garbage.referred([], where)
    nothing: frozenset[str] = frozenset()
    assert found == References(nothing, nothing, nothing, frozenset(), gate_days=OF_GB10)


def test_a_project_refers_to_its_locks_its_builds_and_its_blessings(tmp_path: Path, where: Places) -> None:
    one = project(tmp_path)
    tree = blessed(one, where, 1)
    made, _ = identity.load_build(one, "demo", None)
    found = garbage.referred([one], where)
    assert found.builds == {made.build_hash}
    assert found.files == {file.sha256 for file in made.lock.files}
    assert found.blessed == {tree}
    assert found.logs == {"e" * 64}
    assert len(found.trees) == 1


def test_of_the_archived_manifests_the_newest_with_another_tree_keeps_its_own(tmp_path: Path, where: Places) -> None:
    one = project(tmp_path)
    old = blessed(one, where, 1)
    held = Blessings(one.blessed, where.blessings)
    (before,) = held.all()
    trials = tuple(blessings_world.trial(number, log=f"{number:064x}") for number in range(1, 6))
    new = blessings_world.bless(blessings_world.other_tree(2), version=2, trials=5)
    promotion.promote(held, replace(new, trials=trials), before)
    found = garbage.referred([one], where)
    assert (found.blessed, found.restorable) == (frozenset({new.tree_hash, old}), frozenset({old}))
    assert found.logs == {"e" * 64, *(trial.log for trial in trials)}
    (second,) = held.all()
    third = blessings_world.bless(blessings_world.other_tree(3), version=3)
    promotion.promote(held, third, second)
    found = garbage.referred([one], where)
    assert found.blessed == {third.tree_hash, new.tree_hash}
    assert found.restorable == {new.tree_hash}
    assert found.archived == {old, new.tree_hash}
    held.revocations.add(new.tree_hash, "wrong tokens", blessings_world.NOW)
    assert garbage.referred([one], where).restorable == {old}, "a revoked one cannot come back"


def test_what_was_blessed_of_the_project_that_nvllm_came_with_stays(tmp_path: Path, where: Places) -> None:
    tree = blessed(packaged(), where, 1)
    assert garbage.referred([project(tmp_path)], where).blessed == {tree}
    assert not packaged().blessed.is_dir()


def test_a_lock_of_no_image_refers_to_nothing(tmp_path: Path, where: Places) -> None:
    one = project(tmp_path)
    one.spec("demo").unlink()
    found = garbage.referred([one], where)
    assert not found.files
    assert not found.trees


def test_two_projects_keep_what_either_needs(tmp_path: Path, where: Places) -> None:
    """A second checkout with a blessing that the first one does not have: each alone would lose the other's."""
    one, other = project(tmp_path / "one"), project(tmp_path / "other")
    trees = {blessed(one, where, 1), blessed(other, where, 2)}
    assert garbage.referred([one, other], where).blessed == trees
    assert len(garbage.referred([one], where).blessed) == 1


def test_all_that_cannot_be_read_is_said_with_its_project(tmp_path: Path, where: Places) -> None:
    one, other = project(tmp_path / "one"), project(tmp_path / "other")
    one.lock("demo").write_bytes(b"{")
    other.blessed.mkdir(parents=True)
    (other.blessed / "a_0000000.json").write_bytes(b"{")
    found = garbage.referred([one, other], where)
    said = [(refusal.code, refusal.where.partition(": ")[0]) for refusal in found.unknown]
    assert said == [("NV210", str(one.root)), ("NV908", str(other.root))]
    assert found.projects == frozenset()


def test_what_a_process_has_pinned_stays_and_a_lock_alone_keeps_no_tree(tmp_path: Path, where: Places) -> None:
    holder = Holder(1, "2026-11-20T10:00:00Z", "nvllm bless demo --profile eager", "nvllm-demo-eager")
    with acquire_all(where.locks, [Key("serve", "0" * 64)], holder), Pins(where.pins).pin() as pin:
        pin.keep("a tree")
        found = garbage.referred([], where)
    assert (found.pinned, found.instances) == (frozenset({"a tree"}), frozenset({"nvllm-demo-eager"}))
    assert garbage.referred([], where).pinned == frozenset()


def test_profiles_say_how_long_a_record_of_a_gate_is_needed(tmp_path: Path, where: Places) -> None:
    one = project(tmp_path)
    needed = "    gates: {memory: {max-age: 90, band: 1GiB}, disk: {max-age: 2}}\n"
    edit(one.spec("demo"), "    port: 8000\n", f"    port: 8000\n{needed}")
    assert garbage.referred([one], where).gate_days == {("memory", 90), ("disk", 2)} | OF_GB10


def test_nothing_is_collected_if_nobody_knows_what_a_spec_requires(tmp_path: Path, where: Places) -> None:
    one = project(tmp_path)
    one.spec("other").write_text("profiles: [")  # it has no lock
    unknown = garbage.referred([one], where).unknown
    assert unknown
    assert all(str(one.root) in found.where for found in unknown)
