"""Of the newer series the drain, which is upstream, and the second model runner. The engine is in test_engine.py."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.series


@pytest.fixture(scope="module", params=[pytest.param("0.28.0", marks=pytest.mark.long), "0.32.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_scheduler_holds_no_ids_after_a_step(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    before, after = stock["ids_held_by_the_scheduler"], patched["ids_held_by_the_scheduler"]
    assert before["attention"] == after["attention"] == {"held": 0, "carried": 0}
    assert before["hybrid"] == {"held": 0, "carried": 80}
    assert after["hybrid"] == {"held": 0, "carried": 100}  # and the 20 blocks of Mamba


def test_the_second_runner_clears_what_the_first_one_does(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    """It zeroes through the same class, so that the patch is in it too; no image of ours chooses it."""
    for arm in (stock, patched):
        first = {
            shape: {"zeros": one["zeros"], "untouched": one["untouched"]} for shape, one in arm["cleared_pages"].items()
        }
        assert arm["cleared_by_the_second_runner"] == first
    assert [one["states"] for one in stock["cleared_by_the_second_runner"]["10+12"]["zeros"]] == [False, False]
    assert [one["states"] for one in patched["cleared_by_the_second_runner"]["10+12"]["zeros"]] == [True, True]
