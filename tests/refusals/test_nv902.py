"""NV902, more than one blessing: a serve hash has more than one manifest, or already has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cache import manifest, promotion
from nvllm.core.refusal import Refused
from support.blessings_world import CURE, TREE, bless, blessings, other_tree, query


def test_two_manifests_for_a_serve_hash(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    one = promotion.promote(held, bless(TREE))
    other = held.directory / bless(TREE, label="copy").filename
    other.write_bytes(manifest.encode(bless(TREE, label="copy")))
    with pytest.raises(Refused) as caught:
        held.lookup(query())
    doubles = [refusal for refusal in caught.value.refusals if refusal.code == "NV902"]
    assert [refusal.where for refusal in doubles] == [str(other), str(one)]
    assert {refusal.expected for refusal in doubles} == {"one manifest for a serve hash"}
    assert {refusal.found for refusal in doubles} == {f"2: {other.name}, {one.name}"}
    assert doubles[0].cure.startswith("git rm")


def test_a_bless_over_a_bless(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE))
    with pytest.raises(Refused) as caught:
        promotion.promote(held, bless(other_tree(2), version=2))
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.found, one.cure) == ("NV902", str(place), place.name, CURE)
    assert one.expected == "no blessing of this serve hash, nor of this name"
