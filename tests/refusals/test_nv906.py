"""NV906, older manifest: the manifest is not the newest that this host has seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cache import manifest, promotion
from nvllm.core.refusal import Refusal, Refused
from support.blessings_world import CURE, TREE, as_another_user, bless, blessings, other_tree, query


def only(caught: pytest.ExceptionInfo[Refused]) -> Refusal:
    (one,) = caught.value.refusals
    assert one.code == "NV906"
    return one


def test_an_old_manifest_that_comes_back(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE))
    before = place.read_bytes()
    promotion.promote(held, bless(other_tree(2), version=2), held.named("demo-eager"))
    place.write_bytes(before)
    with pytest.raises(Refused) as caught:
        held.lookup(query())
    one = only(caught)
    assert (one.where, one.cure) == (str(place), CURE)
    assert (one.expected, one.found) == ("version 2 or later, which this host has seen", "version 1")


def test_another_manifest_of_the_same_version(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE))
    place.write_bytes(manifest.encode(bless(other_tree(2))))
    with pytest.raises(Refused) as caught:
        held.lookup(query())
    assert only(caught).found.startswith("another one, sha256 ")


def test_a_bless_without_a_new_version(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE, version=4))
    with pytest.raises(Refused) as caught:
        promotion.promote(held, bless(other_tree(2), version=4), held.named("demo-eager"))
    one = only(caught)
    assert (one.expected, one.found) == ("version 5 or later", "version 4")


def test_a_memory_that_this_user_cannot_look_into() -> None:
    """What was seen may be written there: a closed directory was once taken for a host that has seen nothing."""
    with as_another_user() as (directory, run):
        held = blessings(directory)
        promotion.promote(held, bless(TREE))
        held.memory.chmod(0)
        said = run(
            """
import sys
from pathlib import Path
from nvllm.core.refusal import Refused
from support.blessings_world import become_another_user, blessings, query

become_another_user()
try:
    blessings(Path(sys.argv[1])).lookup(query())
except Refused as refused:
    for one in refused.refusals:
        print(one.code, one.where, one.found, one.cure, sep="|")
""",
            str(directory),
        )
        revoked, old = (line.split("|") for line in said.splitlines())
        assert revoked[0] == "NV903"
        assert old == ["NV906", str(held.memory), "Permission denied", f"chmod a+rx {held.memory}"]
