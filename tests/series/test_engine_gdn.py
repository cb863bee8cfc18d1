"""A small Qwen3-Next, whose layers are gated delta nets, in the real engine of the default image.

The same prompt of one token is asked on fresh blocks and on blocks that others have used; the answer must not change.
Answers are compared within one engine only: a prefill and a decode are different kernels, and may round differently.
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

FIRST_CHUNK = "gdn-first-chunk"


def sentinels(log: tuple[str, ...], name: str) -> list[str]:
    """What LOG says of the switch NAME."""
    told = f"nvllm.sentinel name={name} "
    return [line.partition(told)[2] for line in log if told in line]


def test_a_one_token_prompt_gets_its_own_answer(gdn: Callable[..., Printed]) -> None:
    """Nothing clears the blocks here: the other two switches are off. vLLM does it by itself from 0.31.0 on."""
    carries = FIRST_CHUNK in carried(ENGINE)
    patched = gdn("patched", FIRST_CHUNK)
    assert patched.result["after others"] == [patched.result["fresh"]] * 2
    assert sentinels(patched.log, FIRST_CHUNK) == (["enabled=true", "first_fire"] if carries else [])
    assert sentinels(patched.log, "mamba-block-ids") == ["enabled=false"]
