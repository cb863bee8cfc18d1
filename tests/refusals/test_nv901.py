"""NV901, not blessed: no bless manifest is in force for the serve hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.cache.blessings import Blessings
from nvllm.core.plan import LaunchPlan
from nvllm.core.refusal import Refused
from support.blessings_world import TREE, bless, blessings, query
from support.plansamples import PLAN


def refused(held: Blessings, plan: LaunchPlan = PLAN) -> None:
    with pytest.raises(Refused) as caught:
        held.lookup(query(plan))
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV901", str(held.directory))
    assert one.expected == f"a blessing of serve hash {query(plan).serve_hash[:12]}"
    assert one.found.endswith("of other serve hashes")
    assert one.cure == f"nvllm bless {plan.image} --profile {plan.profile}"


def test_nothing_was_ever_blessed(tmp_path: Path) -> None:
    refused(blessings(tmp_path))


def test_only_another_profile_was_blessed(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE))
    refused(held, replace(PLAN, profile="other", dev=True))


def test_an_archived_manifest_is_not_in_force(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE))
    (held.directory / "archive").mkdir()
    place.rename(held.directory / "archive" / bless(TREE).archived)
    refused(held)
