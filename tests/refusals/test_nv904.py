"""NV904, unsafe bless: the manifest was made with too few trials for production."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.core.refusal import Refused
from support.blessings_world import CURE, TREE, bless, blessings, query


def test_a_production_profile_does_not_serve_it(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    place = promotion.promote(held, bless(TREE, trials=2))
    with pytest.raises(Refused) as caught:
        held.lookup(query())
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.cure) == ("NV904", str(place), CURE)
    assert (one.expected, one.found) == ("at least 5 trials", "2 trials, marked unsafe")
