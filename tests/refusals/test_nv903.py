"""NV903, revoked: the cache of the manifest was revoked, and is never served again."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.cache.blessings import Blessings
from nvllm.core.refusal import Refused
from support.blessings_world import CURE, NOW, TREE, as_another_user, bless, blessings, other_tree, query


def refused(held: Blessings) -> None:
    with pytest.raises(Refused) as caught:
        held.lookup(query())
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
    promotion.promote(held, bless(other_tree(2), version=2), held.named("demo-eager"))
    held.lookup(query())
    place.write_bytes(before)
    refused(Blessings(held.directory, tmp_path / "another host"))


ASKED_BY_ANOTHER = """
import sys
from pathlib import Path
from nvllm.core.refusal import Refused
from support.blessings_world import TREE, become_another_user, bless, blessings, query

become_another_user()
for directory in sys.argv[1:]:
    try:
        print("served", blessings(Path(directory)).lookup(query()).label)
    except Refused as refused:
        for one in refused.refusals:
            print(one.code, one.where, one.expected, one.found, one.cure, sep="|")
"""


@pytest.mark.parametrize("whose", ["project", "memory"])
def test_revocations_that_this_user_cannot_look_into(whose: str) -> None:
    """A record that nobody can look for may be there. It was once taken for none, and the cache was served."""
    with as_another_user() as (directory, run):
        held = blessings(directory)
        promotion.promote(held, bless(TREE))
        held.revocations.add(TREE.hash, "wrong tokens", NOW)
        closed = held.revocations.project if whose == "project" else held.revocations.memory
        (held.revocations.memory if whose == "project" else held.revocations.project).joinpath(
            f"{TREE.hash}.json"
        ).unlink()
        closed.chmod(0)
        said = run(ASKED_BY_ANOTHER, str(directory))
        expected = "a real directory that no other user can write"
        assert said == f"NV903|{closed}|{expected}|Permission denied|chmod a+rx {closed}\n"


def test_a_blessing_is_not_replaced_where_nobody_knows_what_is_revoked() -> None:
    with as_another_user() as (directory, run):
        held = blessings(directory)
        held.revocations.add(TREE.hash, "wrong tokens", NOW)
        held.revocations.memory.chmod(0)
        said = run(
            """
import sys
from pathlib import Path
from nvllm.cache import promotion
from nvllm.core.refusal import Refused
from support.blessings_world import become_another_user, bless, blessings, other_tree

become_another_user()
try:
    promotion.promote(blessings(Path(sys.argv[1])), bless(other_tree(2)))
except Refused as refused:
    print(*(one.code for one in refused.refusals))
""",
            str(directory),
        )
        assert said == "NV903\n"
