"""Candidates through a registry: unpacked only as the tree of the task, and no blessing for anybody who pulls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nvllm.cache.blessings import Blessings
from nvllm.cache.cachetree import Tree
from nvllm.cache.pins import Pins
from nvllm.cache.store import TreeStore
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.fleet import blessings, candidates
from support import blessings_world, oci_registry
from support.oci_registry import Registry

CURE = "nvllm bless demo --profile eager"


@dataclass
class World:
    """A tree in the store here, a registry, and another host."""

    tree: Tree
    here: Places
    other: Places
    kept: Registry

    def push(self) -> str:
        repository = self.kept.repository()
        return candidates.push_candidate(self.tree, "demo-eager", CURE, "linux/amd64", self.here, repository, Silent())

    def pull(self, digest: str, tree: Tree | None = None) -> None:
        repository = self.kept.repository()
        with Pins(self.other.pins).pin() as pin:
            candidates.pull_candidate(
                repository, digest, tree or self.tree, "demo-eager", CURE, self.other, Silent(), pin
            )

    def refused(self, digest: str, tree: Tree | None = None) -> set[str]:
        """Return the codes that a pull is refused with. The store has no tree then."""
        with pytest.raises(Refused) as caught:
            self.pull(digest, tree)
        assert TreeStore(self.other.trees).list() == []
        return {one.code for one in caught.value.refusals}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    here, other = (Places(tmp_path / name / "cache", tmp_path / name / "state") for name in ("here", "other"))
    tree = TreeStore(here.trees).adopt(blessings_world.cache(tmp_path / "bench"), CURE)
    with oci_registry.running() as kept:
        yield World(tree, here, other, kept)


def test_a_candidate_arrives_as_it_was_sent(world: World) -> None:
    digest = world.push()
    world.pull(digest)
    TreeStore(world.other.trees).verify(world.tree, CURE)
    world.pull(digest)  # it is there, and is hashed again
    assert list(world.other.staged.iterdir()) == []
    assert world.push() == digest


def test_a_stored_tree_that_changed_is_refused(world: World) -> None:
    digest = world.push()
    world.pull(digest)
    path = TreeStore(world.other.trees).path(world.tree.hash) / world.tree.files[0].path
    path.chmod(0o644)
    path.write_bytes(b"x" * world.tree.files[0].size)
    path.chmod(int(world.tree.files[0].mode, 8))
    with pytest.raises(Refused, match="NV907"):
        world.pull(digest)


def test_another_tree_than_that_of_the_task_is_refused(world: World) -> None:
    files = world.tree.files
    other = replace(world.tree, files=(replace(files[0], sha256="0" * 64), *files[1:]))
    assert world.refused(world.push(), other) == {"NV907"}


def test_a_flipped_bit_in_the_layer_is_refused(world: World) -> None:
    digest = world.push()
    name, data = max(world.kept.blobs.items(), key=lambda one: len(one[1]))
    world.kept.blobs[name] = data[:2000] + bytes([data[2000] ^ 1]) + data[2001:]
    assert world.refused(digest) == {"NV205"}


def test_no_pull_takes_a_candidate_for_a_blessing(world: World, tmp_path: Path) -> None:
    """Not by its serve hash, nor if somebody gives it the tag of a blessing: no bless manifest refers to it."""
    world.push()
    repository, serve_hash = world.kept.repository(), "e" * 64
    held = Blessings.of_project(Project(tmp_path / "project"), world.other)

    def codes() -> set[str]:
        with pytest.raises(Refused) as caught:
            blessings.pull_blessing(repository, serve_hash, None, held, world.other, Silent())
        return {one.code for one in caught.value.refusals}

    assert codes() == {"NV331"}
    image = repository.manifest(candidates.tag_of(world.tree))
    repository.push_manifest(blessings.tag_of(serve_hash), image)
    assert codes() == {"NV332"}
    assert held.all() == ()
