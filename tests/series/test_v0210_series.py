"""What the series of vLLM v0.21.0 alone does: its kernel, and the drain that later versions have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvllm.patches import patchcheck, seriesfile
from nvllm.patches.source import DirectoryTree
from support.series_trees import Tree
from support.serve_arguments import spec

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.series,
    pytest.mark.nvllm_host,
    pytest.mark.nvllm_error("TypeError"),  # of a probe of what the patch adds, which finds None
]


@pytest.fixture(scope="module")
def version() -> str:
    return "0.21.0"


def test_one_variant_of_the_kernel_serves_every_model(patched: dict[str, Any]) -> None:
    kernel = patched["kernel"]
    assert kernel["arguments"] == ["addresses_ptr", "strides_ptr", "pages_ptr", "block_ids_ptr", "CHUNK"]
    launches = kernel["launches"]
    assert len(launches) == 9 + 3  # one for each call, and one for each zeroer when it is made
    assert {(tuple(each["types"]), tuple(each["constants"].items())) for each in launches} == {
        (("torch.uint64", "torch.int64", "torch.int64", "torch.int64"), (("CHUNK", 1024),))
    }
    # chunks, block ids, segments: what differs from model to model and from step to step is the grid
    assert {tuple(each["grid"]) for each in launches} == {(1, 1, 1), (1, 1, 5), (1, 2, 12), (1, 3, 4)}


def test_the_first_launch_is_before_any_request_and_clears_nothing(patched: dict[str, Any]) -> None:
    """It loads Triton and the kernel; otherwise the first step that takes up a block would wait for that."""
    launches = patched["kernel"]["launches"]
    assert [tuple(each["grid"]) for each in launches[::4]] == 3 * [(1, 1, 1)]
    assert patched["kernel"]["a new zeroer clears nothing"]


def test_the_id_buffers_stay_where_they_are(patched: dict[str, Any]) -> None:
    kernel = patched["kernel"]
    assert kernel["buffers"] == kernel["zeroers"] == 3  # of nine calls
    assert kernel["grown"]
    assert kernel["cleared after growth"]


def test_the_scheduler_holds_no_ids_after_a_step(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    before, after = stock["ids_held_by_the_scheduler"], patched["ids_held_by_the_scheduler"]
    assert before["attention"] == {"held": 80, "carried": 0}  # 20 requests of 64 tokens, 16 to a block
    assert after["attention"] == {"held": 0, "carried": 0}
    assert before["hybrid"] == {"held": 0, "carried": 80}
    assert after["hybrid"] == {"held": 0, "carried": 100}  # and the 20 blocks of Mamba


def test_the_second_runner_clears_nothing(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    """So image sm120 says that the first one is taken, and no profile says otherwise."""
    assert stock["cleared_by_the_second_runner"] is None
    assert patched["cleared_by_the_second_runner"] is None
    image = spec("sm120")
    assert image.runtime.environment["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert all("VLLM_USE_V2_MODEL_RUNNER" not in profile.environment for profile in image.profiles.values())


@pytest.mark.parametrize(
    ("release", "upstream"),
    [
        ("0.28.0", {"scheduler-drain", "grammar-failure-fails-request", "messages-errors"}),
        (
            "0.33.0",
            {
                *("scheduler-drain", "grammar-failure-fails-request", "messages-errors", "gdn-first-chunk"),
                *("api-key-out-of-compile-key", "token-ids-in-vocabulary", "blank-bad-words", "allowed-token-rows"),
            },
        ),
    ],
)
def test_a_later_source_has_what_upstream_fixed(release: str, upstream: set[str], trees: Callable[..., Tree]) -> None:
    directory, shown = ROOT / "patches/v0.21.0", "patches/v0.21.0"
    series = seriesfile.load(directory, shown)
    diffs = seriesfile.diffs(directory, series.patches, shown)
    report = patchcheck.report(series, diffs, sorted(upstream), DirectoryTree(trees(release).root), release)
    assert report.ok
    known = {outcome.id for outcome in report.outcomes if outcome.outcome == "already-upstream"}
    assert known == upstream | {"stale-block-table"}


def test_a_grammar_that_is_not_compiled_fails_its_request(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    before, after = stock["grammars_that_fail"], patched["grammars_that_fail"]
    assert set(map(tuple, before.values())) == {("RuntimeError",)}  # in the engine's step: it ends the engine
    assert after["in a thread"] == after["at once"] == ["error", "stop", True]
    assert after["aborted meanwhile"] == ["stop", True]
    # The scheduler asks for the failure first, and for the grammar then: an error is never taken for a grammar.
    assert (stock["grammar_that_fails_late"], patched["grammar_that_fails_late"]) == ("RuntimeError", "None, then None")


def test_a_message_that_is_at_fault_is_refused(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    assert stock["messages_at_fault"] == {"create_messages": 500, "count_tokens": 500, "no message": "accepted"}
    assert patched["messages_at_fault"] == {"create_messages": 400, "count_tokens": 400, "no message": "refused"}


def test_allowed_tokens_stay_with_their_request(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    before, after = stock["rows_of_allowed_tokens"], patched["rows_of_allowed_tokens"]
    assert before["swapped"] == {"any": [0, 3], "two": [0, 3]}  # with other requests, both would be of "any"
    assert before["condensed"] == {"next": [0, 3], "two": [0, 3]}
    assert after["swapped"] == {"any": [], "two": [0, 3]}
    assert after["condensed"] == {"next": [], "two": [0, 3]}
