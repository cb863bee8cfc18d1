"""Patch gdn-first-chunk in the real engine of the default image: a small Qwen3-Next, whose layers are gated delta nets.

The same prompt of one token is asked on fresh blocks and on blocks that others have used; the answer must not change.
Answers are compared within one engine only: a prefill and a decode are different kernels, and may round differently.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.series_trees import Printed

pytestmark = [
    pytest.mark.series,
    pytest.mark.nvllm_host,
    pytest.mark.nvllm_error("LookupError", "TypeError", "FileNotFoundError"),
]


def sentinels(log: tuple[str, ...], name: str) -> list[str]:
    """What LOG says of the switch NAME."""
    told = f"nvllm.sentinel name={name} "
    return [line.partition(told)[2] for line in log if told in line]


def test_the_stock_engine_answers_a_one_token_prompt_from_the_state_of_another(gdn: Callable[..., Printed]) -> None:
    stock = gdn("stock").result
    assert all(answer != stock["fresh"] for answer in stock["after others"])


def test_a_one_token_prompt_gets_its_own_answer(gdn: Callable[..., Printed]) -> None:
    """Nothing clears the blocks here: the other two switches are off, so this patch alone does it."""
    patched = gdn("patched", "gdn-first-chunk")
    assert patched.result["after others"] == [patched.result["fresh"]] * 2
    assert sentinels(patched.log, "gdn-first-chunk") == ["enabled=true", "first_fire"]
    assert sentinels(patched.log, "mamba-block-ids") == ["enabled=false"]


def test_a_cleared_block_closes_the_same_hole(gdn: Callable[..., Printed]) -> None:
    """A decode goes on from the state in the block, and that is zero: what mamba-block-ids is for."""
    cleared = gdn("patched", "page-zeroer", "mamba-block-ids")
    assert cleared.result["after others"] == [cleared.result["fresh"]] * 2
    assert sentinels(cleared.log, "gdn-first-chunk") == ["enabled=false"]
    assert sentinels(cleared.log, "mamba-block-ids")[:2] == ["enabled=true", "first_fire"]
