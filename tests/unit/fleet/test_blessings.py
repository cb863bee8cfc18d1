"""Blessings through a registry: in force on the other host only as they were here, byte for byte."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from nvllm.cache import manifest as bless_manifest
from nvllm.cache import promotion, signature
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
    key: Path
    signers: Path

    def sign(self) -> None:
        """Sign the blessing here, as `bless --sign` does."""
        data = bless_manifest.encode(self.found)
        path = self.held.signature(self.found)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(signature.sign(data, self.key, self.found.filename))

    def push(self) -> PushedBlessing:
        (one,) = fleet_blessings.of_build(self.held, self.found.image, self.found.profile, self.found.build_hash, NOW)
        repository = self.kept.repository()
        return fleet_blessings.push_blessing(one, self.held, "linux/amd64", self.places, repository, Silent())

    def pull(self) -> PulledBlessing:
        """Pull with the signers that the profile names."""
        return self.pull_by(self.signers)

    def pull_by(self, signers: Path | None) -> PulledBlessing:
        repository = self.kept.repository()
        return fleet_blessings.pull_blessing(
            repository, self.found.serve_hash, signers, self.there, self.other, Silent()
        )

    def refused(self) -> set[str]:
        """Return the codes that a pull is refused with. Nothing may have come into force."""
        with pytest.raises(Refused) as caught:
            self.pull()
        assert (self.there.all(), self.there.candidates()) == ((), ())
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
    key, signers = tmp_path / "key", tmp_path / "allowed_signers"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ops", "-f", str(key)], check=True)
    signers.write_text(f"ops@example.org {key.with_suffix('.pub').read_text()}")
    signers.chmod(0o644)
    other = Places(tmp_path / "other/cache", tmp_path / "other/state")
    with oci_registry.running() as kept:
        made = World(found, held, places, kept, blessings_world.blessings(tmp_path / "there"), other, key, signers)
        made.sign()
        yield made


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


# Without a signature by whom the profile names


def altered(world: World, tmp_path: Path, **changes: Any) -> Manifest:
    """Push what somebody made of the blessing: another byte in a library, all hashes computed again, CHANGES besides.

    Return its manifest, which is sound in itself; its trials never ran.
    """
    fresh = blessings_world.cache(tmp_path / "altered")
    library = next(path for path in blessings_world.FILES if path.endswith(".so"))
    (fresh / library).write_bytes(b"\x7fELF evil")
    tree = TreeStore(world.places.trees).adopt(fresh, "cure")
    return pushed_of(world, replace(world.found, tree=tree, tree_hash=tree.hash, **changes))


def pushed_of(world: World, manifest: Manifest, *, signed: bool = False) -> Manifest:
    """Push MANIFEST from a host that has seen no other one, and let the world ask for it."""
    world.found, world.held = manifest, blessings_world.blessings(Path(tempfile.mkdtemp(dir=world.key.parent)))
    promotion.promote(world.held, manifest)
    if signed:
        world.sign()
    world.push()
    return manifest


def test_what_nobody_signed_is_a_candidate_and_not_served(world: World, tmp_path: Path) -> None:
    claimed = altered(world, tmp_path)
    done = world.pull_by(None)
    assert (done.candidate, done.new, done.manifest) == (True, True, claimed)
    assert world.there.all() == ()
    assert world.there.candidates() == (claimed,)
    with pytest.raises(Refused) as caught:
        world.there.lookup(blessings_world.query())
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.cure) == (
        "NV901",
        f"nvllm bless demo --profile eager --candidate {claimed.tree_hash[:12]}",
    )
    assert not world.pull_by(None).new
    assert world.there.trees() == {claimed.tree_hash}, "gc keeps what waits for its trials"
    assert world.there.candidate(claimed.tree_hash[:7], claimed.serve_hash, "cure") == claimed
    for name, serve_hash in [(claimed.tree_hash[:6], claimed.serve_hash), (claimed.tree_hash, "0" * 64)]:
        with pytest.raises(Refused) as caught:
            world.there.candidate(name, serve_hash, "cure")
        assert [one.code for one in caught.value.refusals] == ["NV107"]
    promotion.settle(world.there, claimed)
    assert world.there.candidates() == ()


def test_where_a_signature_is_demanded_nothing_unsigned_comes(world: World, tmp_path: Path) -> None:
    altered(world, tmp_path)
    assert world.refused() == {"NV909"}


def test_a_candidate_that_is_revoked_is_none(world: World, tmp_path: Path) -> None:
    claimed = altered(world, tmp_path)
    world.pull_by(None)
    world.there.revocations.add(world.there.tree(claimed.tree_hash[:12]), "wrong tokens", NOW)
    assert world.there.candidates() == ()
    assert world.there.trees() == frozenset()
    with pytest.raises(Refused) as caught:
        world.pull_by(None)
    assert {one.code for one in caught.value.refusals} == {"NV903"}


def test_what_an_older_nvllm_pulled_stays_in_force(world: World) -> None:
    """It believed registries; and what is in force for this cache by trials here stays too, whatever is offered."""
    world.push()
    own = replace(world.found, version=3)
    promotion.promote(world.there, own)
    done = world.pull_by(None)
    assert (done.candidate, done.new, done.manifest) == (False, False, own)
    assert world.there.lookup(blessings_world.query()) == own


def test_the_version_of_a_candidate_outruns_nothing(world: World, tmp_path: Path) -> None:
    altered(world, tmp_path, version=10**9)
    world.pull_by(None)
    assert promotion.next_version(world.there, world.found.serve_hash) == 1
    assert world.there.versions.newest(world.found.serve_hash) is None


def test_a_signed_version_is_believed_within_reach(world: World) -> None:
    pushed_of(world, replace(world.found, version=1001), signed=True)
    assert world.pull().new
    codes = []
    for version in (10**9, 1000):  # out of reach, and older
        world.kept.manifests.clear()
        pushed_of(world, replace(world.found, version=version), signed=True)
        with pytest.raises(Refused) as caught:
            world.pull()
        codes += [one.code for one in caught.value.refusals]
    assert codes == ["NV917", "NV906"]


def test_what_others_say_of_a_cache_does_not_hide_what_a_signer_says(world: World) -> None:
    """Whoever may push can let more manifests refer to the same image; the newest of the signers' is taken."""
    pushed_of(world, replace(world.found, version=7))
    for version in (2, 1):
        pushed_of(world, replace(world.found, version=version), signed=True)
    pushed_of(world, replace(world.found, version=10**9))
    assert world.pull().manifest.version == 2


# Tampering


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
