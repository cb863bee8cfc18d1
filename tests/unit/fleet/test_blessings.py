"""Blessings through a registry: in force on the other host only as they were here, byte for byte."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nvllm.cache import manifest as bless_manifest
from nvllm.cache import promotion
from nvllm.cache.blessings import Blessings
from nvllm.cache.manifest import Manifest
from nvllm.cache.store import TreeStore
from nvllm.core.paths import Places
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.fleet import blessings as fleet_blessings
from nvllm.fleet import registry
from nvllm.fleet.blessings import PulledBlessing, PushedBlessing
from support import blessings_world, oci_registry
from support.blessings_world import NOW
from support.oci_registry import Registry


@dataclass
class World:
    """A blessing here, a registry, and another host with a project of its own."""

    found: Manifest
    held: Blessings
    places: Places
    kept: Registry
    there: Blessings
    other: Places

    def push(self) -> PushedBlessing:
        (one,) = fleet_blessings.of_build(self.held, self.found.image, self.found.profile, self.found.build_hash, NOW)
        repository = self.kept.repository()
        return fleet_blessings.push_blessing(one, self.held, "linux/amd64", self.places, repository, Silent())

    def pull(self, signers: Path | None = None) -> PulledBlessing:
        repository = self.kept.repository()
        return fleet_blessings.pull_blessing(
            repository, self.found.serve_hash, signers, self.there, self.other, Silent()
        )

    def refused(self) -> set[str]:
        """Return the codes that a pull is refused with. Nothing may have come into force."""
        with pytest.raises(Refused) as caught:
            self.pull()
        assert self.there.all() == ()
        assert TreeStore(self.other.trees).list() == []
        return {one.code for one in caught.value.refusals}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(registry, "BACKOFF", 0.001)
    places = Places(tmp_path / "cache", tmp_path / "state")
    tree = TreeStore(places.trees).adopt(blessings_world.cache(tmp_path / "fresh"), "cure")
    held = blessings_world.blessings(tmp_path / "here")
    found = blessings_world.bless(tree)
    promotion.promote(held, found)
    other = Places(tmp_path / "other/cache", tmp_path / "other/state")
    with oci_registry.running() as kept:
        yield World(found, held, places, kept, blessings_world.blessings(tmp_path / "there"), other)


def test_a_blessing_comes_into_force_elsewhere_as_it_was(world: World) -> None:
    pushed = world.push()
    assert pushed.tag == f"blessing-{world.found.serve_hash}"
    done = world.pull()
    assert done.new
    assert done.path.read_bytes() == bless_manifest.encode(world.found)
    TreeStore(world.other.trees).verify(world.found.tree, "cure")
    assert world.there.lookup(blessings_world.query()) == world.found
    assert not world.pull().new
    assert list(world.other.staged.iterdir()) == list(world.places.staged.iterdir()) == []
    assert world.push().sent == 0


def test_a_host_with_the_manifest_from_git_gets_the_cache(world: World) -> None:
    world.push()
    promotion.promote(world.there, world.found)
    assert not world.pull().new
    TreeStore(world.other.trees).verify(world.found.tree, "cure")


def test_the_layer_has_the_modes_that_the_gate_compares(world: World) -> None:
    world.push()
    (layer,) = (data for data in world.kept.blobs.values() if data[257:262] == b"ustar")
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        modes = {one.name: f"{one.mode:04o}" for one in tar}
    tree = world.found.tree
    expected = {one.path: one.mode for one in tree.files} | {one.path: one.mode for one in tree.directories}
    assert modes == expected  # of the top too, which every engine would give another mode


def test_the_digest_is_known_before_a_push(world: World) -> None:
    known = fleet_blessings.digest_of(world.found, "linux/amd64", world.places, Silent())
    assert world.push().digest == known


def test_what_is_revoked_here_stays_out(world: World) -> None:
    world.push()
    world.there.revocations.add(world.found.tree_hash, "wrong tokens", NOW)
    assert world.refused() == {"NV903"}


def test_an_older_version_than_this_host_has_seen_stays_out(world: World) -> None:
    world.push()
    world.there.versions.saw(replace(world.found, version=2))
    with pytest.raises(Refused) as caught:
        world.pull()
    assert [one.code for one in caught.value.refusals] == ["NV906"]
    assert world.there.all() == ()


def test_nothing_is_there_to_push_or_to_pull(world: World) -> None:
    assert world.refused() == {"NV331"}
    with pytest.raises(Refused) as caught:
        fleet_blessings.of_build(world.held, world.found.image, "another", world.found.build_hash, NOW)
    assert [one.code for one in caught.value.refusals] == ["NV901"]


def test_a_revoked_blessing_is_not_pushed(world: World) -> None:
    world.held.revocations.add(world.found.tree_hash, "wrong tokens", NOW)
    with pytest.raises(Refused) as caught:
        world.push()
    assert [one.code for one in caught.value.refusals] == ["NV903"]
    assert world.kept.blobs == {}


def test_a_cache_that_changed_is_not_pushed(world: World) -> None:
    place = TreeStore(world.places.trees).path(world.found.tree_hash) / world.found.tree.files[0].path
    blessings_world.writable(place).write_bytes(b"other bytes")
    with pytest.raises(Refused) as caught:
        world.push()
    assert {one.code for one in caught.value.refusals} == {"NV907"}
    assert world.kept.manifests == {}


def test_the_blessing_of_another_serve_hash_is_refused(world: World) -> None:
    """Somebody gives the tag of our serve hash to another blessing, whole and sound."""
    pushed = world.push()
    mine = replace(world.found, serve_hash="0" * 64)
    world.kept.manifests[fleet_blessings.tag_of(mine.serve_hash)] = world.kept.manifests[pushed.tag]
    world.found = mine
    assert world.refused() == {"NV332"}


def no_referrers(kept: Registry) -> None:
    for name in [one for one in kept.manifests if one.startswith("sha256-")]:
        del kept.manifests[name]


def flipped_manifest(kept: Registry) -> None:
    for digest, data in kept.blobs.items():
        kept.blobs[digest] = data.replace(b'"unsafe": false', b'"unsafe": true ')


def flipped_layer(kept: Registry) -> None:
    for digest, data in kept.blobs.items():
        kept.blobs[digest] = data.replace(b"a pickle", b"A pickle", 1)


@pytest.mark.parametrize(
    ("tamper", "codes"), [(no_referrers, {"NV332"}), (flipped_manifest, {"NV205"}), (flipped_layer, {"NV205"})]
)
def test_each_tampering_is_refused(world: World, tamper: Callable[[Registry], None], codes: set[str]) -> None:
    world.push()
    tamper(world.kept)
    assert world.refused() == codes


def packed(*members: tuple[str, bytes, bytes]) -> bytes:
    """Return a tar of MEMBERS: name, type, and content or link target."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, data in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, data.decode() if kind == tarfile.SYMTYPE else ""
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize(
    "member",
    [
        ("../outside", tarfile.REGTYPE, b"x"),
        ("/etc/outside", tarfile.REGTYPE, b"x"),
        ("modelinfos/Lfm2.json", tarfile.SYMTYPE, b"/etc/passwd"),
        ("modelinfos/Lfm2.json", tarfile.REGTYPE, b"[]"),
        ("modelinfos/Lfm2.json", tarfile.REGTYPE, b"{} "),
        ("modelinfos/Lfm2.json", tarfile.FIFOTYPE, b""),
        ("extra", tarfile.REGTYPE, b""),
    ],
)
def test_no_layer_writes_what_the_tree_does_not_list(
    world: World, tmp_path: Path, member: tuple[str, bytes, bytes]
) -> None:
    layer, target = tmp_path / "layer.tar", tmp_path / "target"
    layer.write_bytes(packed(member))
    with pytest.raises(Refused) as caught:
        fleet_blessings.unpack(layer, world.found.tree, target, "cure")
    assert {one.code for one in caught.value.refusals} == {"NV907"}
    assert not (tmp_path / "outside").exists()
    assert not (target / "extra").exists()
