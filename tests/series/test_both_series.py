"""What the series of all versions do to the real source: each test fails on the stock tree, and says how.

The images of v0.21.0 need a GPU; here the same classes run on the CPU and Triton's interpreter. What is upstream
in a version already is shown on its stock tree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvllm.patches import patchcheck, seriesfile
from nvllm.patches.source import DirectoryTree
from support import series_samples
from support.series_trees import Tree, carried

pytestmark = [
    pytest.mark.series,
    pytest.mark.nvllm_host,
    pytest.mark.nvllm_error("LookupError", "TypeError", "FileNotFoundError"),
]

ROOT = Path(__file__).parents[2]


BETWEEN = pytest.param("0.28.0", marks=pytest.mark.long)
"""No image enables its series any more, and its patches are those of one beside it."""
NEXT = pytest.param("0.33.0", marks=pytest.mark.long)
"""No image enables its series yet. That it applies is tested in tests/e2e/test_series_source.py, in every run."""


@pytest.fixture(scope="module", params=["0.21.0", BETWEEN, "0.32.0", NEXT])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


carried_up_to_0_28 = pytest.mark.parametrize("version", ["0.21.0", BETWEEN], indirect=True, scope="module")
"""For a test of a patch that 0.32.0 has."""
OLDER = ("0.21.0", "0.28.0")
"""Before 0.32.0, which refuses some requests by itself, and has mended its back end for outlines."""


# switches and sentinels


def test_without_the_sentinels_every_patch_is_on(version: str, trees: Callable[..., Tree]) -> None:
    scope: dict[str, Any] = {}
    alone = [name for name in carried(version) if name == "switches"]  # sentinels puts another file in its place
    exec(trees(version, *alone).text("vllm/nvllm/switches.py"), scope)
    switch = scope["switch"]("page-zeroer")
    assert switch.on
    switch.fired()
    assert scope["switch"]("page-zeroer") is switch


def test_a_sentinel_is_read_once_and_the_log_proves_what_ran(patched: dict[str, Any]) -> None:
    found = patched["sentinels"]
    assert found["directory"] == "/run/nvllm"
    assert found["on"] == [True, False]
    assert not found["read again"]
    assert found["log"] == [
        "nvllm.sentinel name=there enabled=true",
        "nvllm.sentinel name=absent enabled=false",
        "nvllm.sentinel name=there first_fire",
        "nvllm.sentinel name=there count=100",
        "nvllm.sentinel name=there count=200",
    ]


# page-zeroer


def test_every_state_of_a_named_block_is_cleared(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    for shape, alone in (("5+15", 0), ("10+12", 2), ("4+9", 0)):
        before, after = stock["cleared_pages"][shape], patched["cleared_pages"][shape]
        assert before["alone"] == after["alone"] == alone
        # A buffer that no attention layer shares is not in the stock table.
        assert [each["states"] for each in before["zeros"]] == [alone == 0] * 2
        assert [each["bytes"].count(0) for each in before["zeros"]] == [alone] * 2
        assert [each["states"] for each in after["zeros"]] == [True, True]
        # 3936 bytes of states; up to the next page there is only padding.
        assert [sorted(set(each["bytes"])) for each in after["zeros"]] == [[3936, 4096] if alone else [4096]] * 2
        assert before["untouched"]
        assert after["untouched"]


def test_the_table_merges_what_shares_a_buffer(patched: dict[str, Any]) -> None:
    found = patched["odd_segments"]
    assert found["merged"] == [[64, 4096, 4000], [8, 4096, 4]]
    assert found["unequal strides"].startswith("layers that share a buffer in different pages")
    assert found["odd address"].startswith("not made of whole words")


def test_with_the_zeroer_off_the_start_is_that_of_stock(patched: Any) -> None:
    found = patched["indescribable"]
    assert found["off"] == "KVBlockZeroer"
    assert found["on"].startswith("states of one layer in pages of different strides")


# mamba-block-ids


def test_the_ids_of_mamba_blocks_are_recorded(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    for mode, mamba in (("none", [1]), ("align", [0, 0, 1])):
        before, after = stock["recorded_ids"][mode], patched["recorded_ids"][mode]
        assert before["mamba"] == after["mamba"] == mamba
        assert before["attention"] == after["attention"] == [2, 3, 4]
        assert before["recorded"] == [2, 3, 4]
        assert after["recorded"] == [1, 2, 3, 4]  # never block 0, the null block


def test_blocks_that_a_connector_fills_are_not_recorded(patched: dict[str, Any]) -> None:
    for mode, mamba in (("none", [1]), ("align", [0, 1])):
        found = patched["recorded_ids_of_a_connector"][mode]
        assert found["mamba"] == mamba
        assert 1 not in found["recorded"]


def test_a_recycled_state_is_cleared(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    shapes = ("5+15 none", "10+12 none", "5+15 align")
    # Clearing Mamba's tensors by the recorded ids, as the fork does, changes nothing: the ids are attention's.
    assert stock["recycled_state"] == {shape: {"worker": False, "fork": False} for shape in shapes}
    assert [patched["recycled_state"][shape]["worker"] for shape in shapes] == [True] * 3


# gdn-first-chunk

_DECODES = {"decodes": 2, "prefills": 0, "decode tokens": 2, "prefill tokens": 0, "initial": None}


@carried_up_to_0_28
def test_a_first_chunk_of_one_token_is_a_prefill(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    before, after = stock["first_chunks"], patched["first_chunks"]
    assert before["one first chunk"]["prefills"] == 0  # a decode, which reads what the block held before
    assert after["one first chunk"] == {
        "decodes": 0,
        "prefills": 1,
        "decode tokens": 0,
        "prefill tokens": 1,
        "initial": [False],
    }
    assert before["decode and first chunk"] == _DECODES
    assert after["decode and first chunk"] == {
        "decodes": 1,
        "prefills": 1,
        "decode tokens": 1,
        "prefill tokens": 1,
        "initial": [True, False],
    }
    for name in ("decodes", "chunk of one that goes on"):
        assert before[name] == after[name] == _DECODES
    assert before["decode and long first chunk"] == after["decode and long first chunk"]


@carried_up_to_0_28
def test_the_runner_keeps_a_first_chunk_out_of_full_graphs(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    determine, build = "_determine_batch_execution_and_padding", "_build_attention_metadata"
    before, after = stock["calls_around_the_batch"], patched["calls_around_the_batch"]
    # Only a uniform batch of decodes is replayed as a whole.
    assert after[f"execute_model: {determine}"] == {"force_uniform_decode": "None if starts_request is None else False"}
    assert after[f"execute_model: {build}"] == {"starts_request": "starts_request"}
    assert before[f"execute_model: {determine}"] == before[f"execute_model: {build}"] == {}
    # A dummy run has rows of requests that are gone, or of none: it starts nothing.
    assert before[f"_dummy_run: {build}"] == after[f"_dummy_run: {build}"] == {}
    assert patched["padded_rows_that_start"] == [False, True, False, False]


# stale-block-table and null-block-padding: nothing is carried


def test_a_row_of_the_block_table_is_cleared(stock: dict[str, Any]) -> None:
    assert stock["cleared_row"] == {
        "before": [5, 6, 7, 0],
        "after": [0, 0, 0, 0],
        "removing clears": True,
        "dummy run commits": True,
    }


def test_padding_is_block_0_and_minus_1_is_written_out_of_bounds(stock: dict[str, Any]) -> None:
    # Rows are counted from the start of the state tensor; row -1 is the memory before it.
    assert stock["padding_id"] == {"NULL_BLOCK_ID": 0, "0": [], "-1": [-1], "2": [2]}


# api-key-out-of-compile-key


@carried_up_to_0_28
def test_the_api_key_is_no_compile_factor(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    assert stock["compile_factors"] == {"in the clear": True, "same key": False}
    assert patched["compile_factors"] == {"in the clear": False, "same key": True}


# token-ids-in-vocabulary


@carried_up_to_0_28
def test_token_ids_outside_the_vocabulary_are_refused(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    before, after = stock["token_ids_of_a_request"], patched["token_ids_of_a_request"]
    within = {name for name in before if name.endswith(" last")}
    assert {name for name, answer in after.items() if answer != "refused"} == within
    # These end the engine's step: an error there ends the engine.
    assert before["stop_token_ids first"] == before["stop_token_ids far"] == "IndexError"
    assert before["allowed_token_ids placeholder"] == "IndexError"
    assert {before[name] for name in within} == {after[name] for name in within} == {"accepted"}


# request-bounds


def test_what_a_request_asks_for_has_bounds(version: str, stock: dict[str, Any], patched: dict[str, Any]) -> None:
    before, after = stock["bounds_of_a_request"], patched["bounds_of_a_request"]
    assert {name for name, answer in before["beyond"].items() if answer.startswith("structured_outputs: ")} == set()
    assert before["beyond"]["minItems"] == "accepted"  # the tenthousandfold ends the engine
    for name, answer in after["beyond"].items():
        bound = "bounds up to maxItems 60000" if name == "in all" else "bound "
        assert answer.startswith(f"structured_outputs: the {bound}"), (name, answer)
        if name.startswith(("min", "max")):
            assert f"the bound {name} 100000 is beyond 65536" in answer
    # 0.21.0's xgrammar ends the process at a regex that begins with NUL; the image here has 0.28.0's.
    nul = "structured_outputs has a NUL character in a regex or a grammar"
    assert nul not in before["nul"].values()
    assert set(after["nul"].values()) == {nul}
    # These cannot be sent to the engine's core, and the client had no word of why. 0.32.0 looks into extra_args.
    found = {} if version in OLDER else {"extra_args": "extra_args integers must be between -2**63 and 2**64 - 1."}
    assert before["integers"] == dict.fromkeys(before["integers"], "OverflowError") | found
    assert after["integers"] == {name: f"{name} has an integer beyond 64 bits" for name in before["integers"]} | found
    assert after["in a schema"]["minimum"] == "structured_outputs has an integer beyond 64 bits"
    # Sent from the core to its worker by recursion: 300 levels can end the engine. 0.32.0 has a bound for schemas.
    within, beyond = (each.partition(":")[0] for each in (before["deep"]["within"], before["deep"]["beyond"]))
    assert within == beyond == ("accepted" if version in OLDER else "The JSON schema is nested too deeply")
    assert after["deep"]["within"].partition(":")[0] == within
    assert after["deep"]["beyond"] == "structured_outputs is nested deeper than 128"
    for kind in ("within", "the largest"):
        assert set(before[kind].values()) == set(after[kind].values()) == {"accepted"}, kind
    # Each request waits for the check: what cannot break a limit is not looked into.
    assert patched["values_of_plain_requests_looked_into"] == [["RequestOutputKind"]] * 4


# blank-bad-words


@carried_up_to_0_28
def test_a_blank_bad_word_is_refused(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    assert stock["blank_bad_words"] == {
        "blank": "IndexError",
        "one of two": "IndexError",
        "sound": "accepted",
    }
    assert patched["blank_bad_words"] == {
        "blank": "refused",
        "one of two": "refused",
        "sound": "accepted",
    }


# request-shapes


def test_what_a_request_should_be_is_checked_before_it_is_read(
    version: str, stock: dict[str, Any], patched: dict[str, Any]
) -> None:
    before, after = stock["shapes_of_a_request"], patched["shapes_of_a_request"]
    bodies = {name for name in before["unsound"] if name.startswith(("body", "chat"))}
    failed = {name for name, answer in before["unsound"].items() if answer in {"AttributeError", "KeyError"}}
    assert len(failed - bodies) > 12
    assert bool(failed & bodies) == (version == "0.21.0")
    assert {name for name, answer in after["unsound"].items() if answer != "refused"} == set()
    assert set(before["sound"].values()) == set(after["sound"].values()) == {"accepted"}
    assert before["max_tokens"] == (None if version == "0.21.0" else 16)  # None fails an assertion of 0.21.0's later
    assert after["max_tokens"] == 16


# grammar-backends


def test_each_grammar_is_compiled_by_the_backend_that_checked_it(
    version: str, stock: dict[str, Any], patched: dict[str, Any]
) -> None:
    before, after = stock["backends_of_grammars"], patched["backends_of_grammars"]
    # 0.21.0 ends with it, 0.28.0 and 0.32.0 answer 500; 0.33.0 refuses the request.
    refuses = version == "0.33.0"
    assert before["xgrammar first"] == ["XgrammarGrammar", "VLLMValidationError" if refuses else "RuntimeError"]
    assert after["xgrammar first"] == ["XgrammarGrammar", "GuidanceGrammar"]
    assert after["guidance first"] == ["GuidanceGrammar", "XgrammarGrammar"]
    # One bitmask has rows of one width.
    assert before["of another width"][1] == ("VLLMValidationError" if refuses else "GuidanceGrammar")
    assert after["of another width"] == ["GuidanceGrammar", "GuidanceGrammar"]
    assert patched["masks_of_two_backends"] == {"xgrammar": ["n", "y"], "guidance": ["Y", "n", "y"]}


# grammar-end


def test_a_grammar_that_comes_to_its_end_ends_its_request(
    version: str, stock: dict[str, Any], patched: dict[str, Any]
) -> None:
    before, after = stock["ends_of_grammars"], patched["ends_of_grammars"]
    outlines = {
        **{key: ['"no"', "error"] for key in ("outlines", "outlines, ignore_eos", "outlines, min_tokens")},
        "outlines, beyond its first end": ["99", "error"],
    }
    newer = version not in OLDER
    if newer:  # its back end for outlines knows an end; end tokens without a grammar follow one
        outlines |= {"outlines": ['"no"', "stop"], "outlines, ignore_eos": ['"no"', "length"]}
        outlines["outlines, beyond its first end"] = ["99999999", "length"]
    assert before == {
        "plain": ["no", "stop"],
        "ignore_eos": ["no", "length" if newer else "error"],
        "ignore_eos, guidance": ["YES", "length"],  # end tokens without a grammar
        "min_tokens": ["no", "error"],
        "allowed_token_ids": ["", "error"],
        "a sampler that errs": ["", "error"],
        **outlines,
    }
    assert after == {
        **before,
        "ignore_eos": ["no", "stop"],
        "ignore_eos, guidance": ["YES", "stop"],
        "min_tokens": ["no", "stop"],
        "allowed_token_ids": ["", "abort"],
        **{key: ['"no"', "stop"] for key in ("outlines", "outlines, ignore_eos", "outlines, min_tokens")},
        "outlines, beyond its first end": ["99999999", "length"],
    }


@carried_up_to_0_28
def test_an_end_of_outlines_can_be_taken_back(patched: dict[str, Any]) -> None:
    assert patched["end_of_outlines_taken_back"] == {
        "at first": [True, True],
        "too early": [False, False],
        "again": [True, True],
        "after it": [False, True],
    }


# grammar-refusal


def test_a_grammar_that_cannot_be_followed_is_the_requests_fault(
    version: str, stock: dict[str, Any], patched: dict[str, Any]
) -> None:
    before, after = stock["what_a_client_is_told"], patched["what_a_client_is_told"]
    # The server answers an error with HTTP 500. One of 0.21.0's step ends the engine; 0.33.0 tells the client of it.
    told = {"0.21.0": "RuntimeError", "0.33.0": "Invalid structured outputs: "}.get(version, "error, 0 left")
    assert before["not compiled"].startswith(told)
    assert before["allows nothing"] == before["comes to nothing"] == "error, 0 left"
    nothing = "Invalid structured outputs: the grammar allows no token here, 0 left"
    assert after["allows nothing"] == after["comes to nothing"] == nothing
    assert after["not compiled"].startswith("Invalid structured outputs: ")
    assert "regex" in after["not compiled"]


# poison


def test_poison_is_what_nobody_owns_any_more(patched: dict[str, Any]) -> None:
    found = patched["poisoned"]
    assert found["off"]  # no sentinel, no poison
    assert found["allocated"]
    assert found["freed"]
    assert found["hit later is kept"]
    assert found["step carries"]
    assert found["untouched"]


def test_poison_is_nan_in_every_format_of_a_cache(patched: dict[str, Any]) -> None:
    found = patched["poisoned"]
    assert found["nan"]
    assert found["kernel"]
    for name in ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"):
        assert found[f"torch.{name}"], name


# the whole series

NOT_CARRIED = {
    "0.21.0": {"stale-block-table": "already-upstream", "null-block-padding": "rejected"},
    "0.28.0": {
        "scheduler-drain": "already-upstream",
        "stale-block-table": "already-upstream",
        "null-block-padding": "rejected",
    },
    "0.32.0": {
        "scheduler-drain": "already-upstream",
        "stale-block-table": "already-upstream",
        "null-block-padding": "rejected",
        "api-key-out-of-compile-key": "already-upstream",
        "gdn-first-chunk": "already-upstream",
        "eager-sampler": "already-upstream",
        "token-ids-in-vocabulary": "already-upstream",
        "blank-bad-words": "already-upstream",
    },
}
NOT_CARRIED["0.33.0"] = {
    **NOT_CARRIED["0.32.0"],
    "grammar-failure-fails-request": "already-upstream",
    "messages-errors": "already-upstream",
    "allowed-token-rows": "already-upstream",
}


def test_every_patch_applies_and_every_claim_is_proved(version: str, trees: Callable[..., Tree]) -> None:
    directory, shown = ROOT / "patches" / f"v{version}", f"patches/v{version}"
    series = seriesfile.load(directory, shown)
    assert series_samples.unproved(series, ROOT) == ()
    enabled = [patch.id for patch in series.patches if patch.status == "carried"]
    diffs = seriesfile.diffs(directory, series.patches, shown)
    report = patchcheck.report(series, diffs, enabled, DirectoryTree(trees(version).root), version)
    assert report.ok
    found = {outcome.id: outcome.outcome for outcome in report.outcomes if outcome.outcome != "applies"}
    assert found == NOT_CARRIED[version]
