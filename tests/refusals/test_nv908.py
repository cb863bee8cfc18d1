"""NV908, manifest damaged: a bless manifest is not what nvllm wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.core.refusal import Refused
from support.blessings_world import TREE, bless, blessings, query


@pytest.mark.parametrize(
    ("old", "new", "where", "found"),
    [
        (b'"unsafe": false', b'"unsafe": true ', "", "the same content in another layout, first in line 241"),
        (b'"version": 1', b'"version": 2, "mode": "rw"', ": .mode", 'the unknown name "mode"'),
        (TREE.hash.encode(), b"0" * 64, ": .tree_hash", "0" * 64),
    ],
)
def test_a_changed_manifest_is_not_served(tmp_path: Path, old: bytes, new: bytes, where: str, found: str) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE))
    assert old in place.read_bytes()
    place.write_bytes(place.read_bytes().replace(old, new))
    with pytest.raises(Refused) as caught:
        held.lookup(query())
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.found) == ("NV908", f"{place}{where}", found)
    assert one.expected
    assert one.cure == "restore the file from git, or bless again"
