"""The test files that would be sent to vLLM: they fail on the stock tree of v0.28.0, and pass with their patch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import _pytest
import iniconfig
import pluggy
import pytest

from support.series_trees import SWITCHED, Printed, Tree, carried

pytestmark = pytest.mark.series

UPSTREAM = Path(__file__).parent / "upstream"
FILES = {"mamba-block-ids": "v1/core/test_mamba_block_ids.py", "page-zeroer": "v1/worker/test_zero_mamba_pages.py"}

FAIL_ON_STOCK = {
    "mamba-block-ids": {
        "test_new_state_blocks_are_to_be_zeroed[none-0]": "state blocks that the worker will not zero",
        "test_new_state_blocks_are_to_be_zeroed[none-2]": "state blocks that the worker will not zero",
        "test_new_state_blocks_are_to_be_zeroed[align-0]": "state blocks that the worker will not zero",
        "test_new_state_blocks_are_to_be_zeroed[align-2]": "state blocks that the worker will not zero",
        "test_recycled_state_block_is_to_be_zeroed[none]": "the state of request a",
        "test_recycled_state_block_is_to_be_zeroed[align]": "the state of request a",
        "test_state_block_of_a_later_step_is_to_be_zeroed": "the block of the second step",
    },
    "page-zeroer": {
        "test_page_of_a_buffer_without_attention_is_zeroed": "a state of the last owner of a block",
        "test_page_without_any_attention_layer_is_zeroed": "a state of the last owner of a block",
        "test_state_behind_a_smaller_attention_page_is_zeroed": "a state of the last owner of a block",
    },
}
PASS_ON_STOCK = {
    "mamba-block-ids": {
        "test_state_block_that_a_connector_fills_is_not_zeroed[none]",
        "test_state_block_that_a_connector_fills_is_not_zeroed[align]",
        "test_nothing_is_to_be_zeroed_without_mamba_layers",
    },
    "page-zeroer": {"test_page_that_attention_shares_is_zeroed"},
}

Outcomes = Mapping[str, str]


@pytest.fixture(scope="module")
def outcomes(
    trees: Callable[..., Tree],
    container: Callable[..., Printed],
    interpreter: Path,
    sentinel_directory: Callable[..., Path],
) -> Callable[..., dict[str, Outcomes]]:
    """What becomes of the tests of each patch's file on the tree with the given patches, by patch and test."""
    # The image has no pytest; all of it is Python.
    packages = [Path(module.__path__[0]) for module in (pytest, _pytest, pluggy, iniconfig)]
    packages.append(packages[0].with_name("py.py"))  # comes with pytest

    @cache
    def found(*patches: str) -> dict[str, Outcomes]:
        tree = trees("0.28.0", *patches)
        inside = "/nvllm-test"
        printed = container(
            "sent_tests.py",
            {
                tree.root: f"{inside}/tree",
                interpreter: f"{inside}/interpreter",
                UPSTREAM: f"{inside}/upstream",
                sentinel_directory(*SWITCHED): "/run/nvllm",
                **{package: f"{inside}/pytest/{package.name}" for package in packages},
            },
            {
                "PYTHONPATH": f"{inside}/tree:{inside}/interpreter:{inside}/pytest",
                "TRITON_INTERPRET": "1",
                "CUDA_VISIBLE_DEVICES": "",
            },
            [f"--rootdir={inside}/upstream", f"{inside}/upstream"],
        )
        assert printed.result["file"] == f"{inside}/tree/vllm/__init__.py"
        by_file: dict[str, dict[str, str]] = {file: {} for file in FILES.values()}
        for node, outcome in printed.result["outcomes"].items():
            file, _, name = node.partition("::")
            by_file[file][name] = outcome
        return {patch: by_file[file] for patch, file in FILES.items()}

    return found


@pytest.mark.long
@pytest.mark.parametrize("patch", FILES)
def test_each_file_fails_on_the_stock_tree(patch: str, outcomes: Callable[..., dict[str, Outcomes]]) -> None:
    stock = outcomes()[patch]
    assert _passed(stock) == PASS_ON_STOCK[patch]
    failed = {name: outcome for name, outcome in stock.items() if outcome != "passed"}
    assert set(failed) == set(FAIL_ON_STOCK[patch])
    for name, why in FAIL_ON_STOCK[patch].items():
        assert f"AssertionError: {why}" in failed[name], failed[name]


@pytest.mark.long
@pytest.mark.parametrize("patch", FILES)
def test_each_file_passes_on_the_whole_series(patch: str, outcomes: Callable[..., dict[str, Outcomes]]) -> None:
    assert _passed(outcomes(*carried("0.28.0"))[patch]) == FAIL_ON_STOCK[patch].keys() | PASS_ON_STOCK[patch]


@pytest.mark.long
@pytest.mark.parametrize("patch", FILES)
def test_each_file_needs_its_own_patch_and_no_other(patch: str, outcomes: Callable[..., dict[str, Outcomes]]) -> None:
    found = outcomes("switches", patch)
    for other, file in found.items():
        expected = PASS_ON_STOCK[other] | (FAIL_ON_STOCK[patch].keys() if other == patch else set())
        assert _passed(file) == expected


def _passed(file: Outcomes) -> set[str]:
    return {name for name, outcome in file.items() if outcome == "passed"}


def test_the_files_import_nothing_but_what_vllm_has() -> None:
    for file in FILES.values():
        lines = (UPSTREAM / file).read_text(encoding="utf-8").splitlines()
        imported = {line.split()[1].partition(".")[0] for line in lines if line.startswith(("import ", "from "))}
        assert imported <= {"pytest", "torch", "types", "typing", "vllm"}
        assert max(map(len, lines)) <= 88
