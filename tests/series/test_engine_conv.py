"""Patch conv-weight-layout in the real engine of the default image: convolutions where a processor packs weights.

0.28.0 packs where AMX is, 0.32.0 where avx512_bf16 is, and nothing that is not 4 wide. What the probe tells the
dispatch, and what a processor that has neither can then run, stands in `probes/convs.py`. Each case is set beside the
same series without this patch. Answers are compared within one processor only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support import processors
from support.series_trees import ENGINE

pytestmark = [
    pytest.mark.series,
    pytest.mark.nvllm_host,
    pytest.mark.nvllm_error("LookupError", "TypeError", "FileNotFoundError"),
]

READS_PACKED = ("amx", "avx512_bf16")
"""The classes of processors that can run the kernel for packed weights: vLLM builds it for avx512_bf16."""

SHORT = ("lfm2", "lfm2, width 4")
OLDER = ENGINE == "0.28.0"
PACKABLE = SHORT if OLDER else SHORT[1:]
"""The short convolutions that would be packed without the patch."""


@pytest.fixture(scope="module")
def patched(convs: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    told = [(name, True) for name in (*SHORT, "falcon-h1", "qwen3-next")]
    return convs("patched", *told, *((name, False) for name in (*SHORT, "qwen3-next")))


@pytest.fixture(scope="module")
def without(convs: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return convs("without", *((name, True) for name in (*SHORT, "falcon-h1", "qwen3-next")))


def found(result: dict[str, Any], model: str, *, amx: bool) -> Any:
    (only,) = [one for one in result["cases"] if (one["model"], one["amx"]) == (model, amx)]
    return only


def raised(result: dict[str, Any], model: str) -> str:
    """What ended the engine of MODEL where AMX is, one line an exception."""
    return "\n".join(line for line in found(result, model, amx=True)["failed"].splitlines() if "Error: " in line)


def test_the_processor_is_of_the_class_that_the_run_says(patched: dict[str, Any]) -> None:
    assert patched["processor"] == processors.here()
    assert (patched["kernel"] is not None) == (patched["processor"] in READS_PACKED)


def test_without_it_no_short_convolution_runs_where_weights_are_packed(without: dict[str, Any]) -> None:
    if without["processor"] in READS_PACKED:
        if OLDER:
            assert "causal_conv1d_weight_pack: support only width of 4" in raised(without, "lfm2")
        assert "IndexError: Dimension out of range" in raised(without, "lfm2, width 4")
        # Mamba 2 has kept a view of the plain weight, and lives.
        assert len(found(without, "falcon-h1", amx=True)["layouts"]) == 2
    else:  # what would pack is not built either
        assert all("causal_conv1d_weight_pack" in raised(without, model) for model in PACKABLE)


def test_only_the_layer_that_reads_it_packed_gets_a_packed_weight(patched: dict[str, Any]) -> None:
    for model in (*SHORT, "falcon-h1"):
        assert found(patched, model, amx=True)["layouts"] == ["as stored"] * 2, model
    assert found(patched, "qwen3-next", amx=False)["layouts"] == ["as stored"] * 3
    if patched["processor"] in READS_PACKED:
        assert found(patched, "qwen3-next", amx=True)["layouts"] == ["packed"] * 3
    else:
        assert "causal_conv1d_weight_pack" in raised(patched, "qwen3-next")


def test_an_amx_host_answers_as_any_other(patched: dict[str, Any], without: dict[str, Any]) -> None:
    for model in SHORT:
        answers = found(patched, model, amx=True)["answers"]
        assert answers == found(patched, model, amx=False)["answers"]
        assert len({tuple(answer) for answer in answers}) == 3
    if patched["processor"] in READS_PACKED:
        # What the packing is for, and what never read it, answer as they did.
        for model in ("falcon-h1", "qwen3-next"):
            assert found(patched, model, amx=True)["answers"] == found(without, model, amx=True)["answers"]


def test_the_kernel_for_packed_weights_is_the_torch_path_but_for_the_last_bit(patched: dict[str, Any]) -> None:
    """The kernel rounds once, torch after each step: a near-tie of a random model may fall the other way."""
    if patched["processor"] in READS_PACKED:
        assert patched["kernel"]["same states"]
        assert patched["kernel"]["apart"] < 0.01  # a bfloat16 has 8 bits: the last is 1/128 of the first
