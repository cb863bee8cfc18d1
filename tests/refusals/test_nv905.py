"""NV905, bless expired: the manifest has expired, or is from the future."""

from __future__ import annotations

from pathlib import Path

import pytest

from blessings_world import CURE, NOW, TREE, bless, blessings, demand
from nvllm import manifest, promotion
from nvllm.refusal import Refused


@pytest.mark.parametrize("ago", [0, 1, 86_400])
def test_hole_8_an_expired_one_is_not_served(tmp_path: Path, ago: int) -> None:
    held = blessings(tmp_path)
    made = bless(TREE, created=manifest.stamp(NOW - 90_000), expires=manifest.stamp(NOW - ago))
    place = promotion.promote(held, made)
    with pytest.raises(Refused) as caught:
        held.lookup(demand())
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.cure) == ("NV905", str(place), CURE)
    assert (one.expected, one.found) == (f"a time before {made.expires}", manifest.stamp(NOW))


def test_the_last_second_is_still_good(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    promotion.promote(held, bless(TREE, expires=manifest.stamp(NOW + 1)))
    held.lookup(demand())


def test_a_clock_that_was_set_back_does_not_help(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE, expires=manifest.stamp(NOW + 1)))
    with pytest.raises(Refused) as caught:
        held.lookup(demand(now=NOW - 86_400))
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV905", str(place))
    assert one.expected == f"a time after {bless(TREE).created}, when it was made"
    assert one.cure == "set the clock of this host (timedatectl)"
