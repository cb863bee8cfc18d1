"""The series of the default image in its real engine, on a real hybrid model: short convolutions.

Four prompts are answered one after the other, so each finds the blocks of the one before it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.series_trees import ENGINE, Printed, carried

pytestmark = [
    pytest.mark.series,
    pytest.mark.nvllm_host,
    pytest.mark.nvllm_error("LookupError", "TypeError", "FileNotFoundError"),
]


@pytest.fixture(scope="module")
def stock(engine: Callable[[str], Printed]) -> Printed:
    return engine("stock")


@pytest.fixture(scope="module")
def patched(engine: Callable[[str], Printed]) -> Printed:
    return engine("patched")


def test_a_recycled_state_is_clear_before_the_model_runs(stock: Printed, patched: Printed) -> None:
    # The pool hands out fresh blocks to the first prompt only.
    assert [each["after"] for each in stock.result["seen"]] == ["zero", "stale", "stale", "stale"]
    assert [each["after"] for each in patched.result["seen"]] == ["zero"] * 4
    # What was cleared had really been somebody's; poison reaches it in the same step, before it is cleared.
    assert [each["before"] for each in patched.result["seen"]][1:] == ["stale"] * 3


def test_poison_shows_a_state_that_was_not_cleared(patched: Printed) -> None:
    # Mamba's ids are not recorded from here on: clearing goes on for attention's blocks alone.
    assert {each["after"] for each in patched.result["without ids"]["seen"]} == {"nan"}


def test_the_answers_are_those_of_the_stock_engine(stock: Printed, patched: Printed) -> None:
    # This model masks what a block held when a prompt begins, so clearing changes no answer, and neither does
    # the poison.
    assert patched.result["answers"] == stock.result["answers"]
    assert patched.result["without ids"]["answers"] == stock.result["answers"]
    assert len({tuple(answer) for answer in stock.result["answers"]}) == 3


def test_the_log_of_the_engine_proves_what_ran(patched: Printed) -> None:
    lines = [line[line.index("nvllm.sentinel") :] for line in patched.log if "nvllm.sentinel" in line]
    here = [name for name in ("poison",) if name in carried(ENGINE)]  # no image enables it
    for name in ("page-zeroer", "mamba-block-ids", *here):
        assert lines.count(f"nvllm.sentinel name={name} enabled=true") == 1
        assert lines.count(f"nvllm.sentinel name={name} first_fire") == 1
    chunk = ["gdn-first-chunk"] if "gdn-first-chunk" in carried(ENGINE) else []
    assert [name for name in chunk if lines.count(f"nvllm.sentinel name={name} enabled=true") != 1] == []
    assert not any("enabled=false" in line for line in lines)
