"""NV916, bless of another image: the serve hash is the same, the image that was blessed is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.cache import promotion
from nvllm.core.refusal import Refused
from support.blessings_world import CURE, TREE, bless, blessings, query

OWN, OTHER = f"sha256:{64 * 'a'}", f"sha256:{64 * 'b'}"


def test_a_blessing_of_one_image_is_none_of_another(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    path = promotion.promote(held, bless(TREE, image_id=OTHER))
    with pytest.raises(Refused) as caught:
        held.lookup(query(image_id=OWN))
    (one,) = caught.value.refusals
    assert (one.code, one.where, one.cure) == ("NV916", str(path), CURE)
    assert (one.expected, one.found) == (f"a bless of image {OWN}", OTHER)
    assert held.lookup(query(image_id=OTHER)).image_id == OTHER


def test_a_blessing_of_before_names_no_image_and_stays_in_force(tmp_path: Path) -> None:
    held = blessings(tmp_path)
    path = promotion.promote(held, bless(TREE))
    assert b"image_id" not in path.read_bytes()
    assert held.lookup(query(image_id=OWN)).image_id is None
