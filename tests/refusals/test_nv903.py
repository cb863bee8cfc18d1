"""NV903, revoked: the cache of the manifest was revoked, and is never served again."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.cache.blessings import Blessings
from nvllm.core.refusal import Refused
from support.blessings_world import CURE, NOW, TREE, bless, blessings, demand, other_tree


def refused(held: Blessings) -> None:
    with pytest.raises(Refused) as caught:
        held.lookup(demand())
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV903", str(held.directory / bless(TREE).filename))
    assert (one.expected, one.found) == ("a cache that is not revoked", f"tree {TREE.hash[:12]}: wrong tokens")
    assert one.cure == CURE


def test_a_revoked_cache_is_not_served(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE))
    held.revocations.add(TREE.hash, "wrong tokens", NOW)
    refused(held)


def test_neither_a_rebless_nor_the_old_manifest_lifts_a_revocation(tmp_path: Path) -> None:
    """The revoked one is blessed over; then somebody puts it back, on a host that has not seen the newer one."""
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE))
    before = place.read_bytes()
    held.revocations.add(TREE.hash, "wrong tokens", NOW)
    promotion.replace(held, bless(other_tree(2), version=2), held.named("demo-eager"))
    held.lookup(demand())
    place.write_bytes(before)
    refused(Blessings(held.directory, tmp_path / "another host"))
