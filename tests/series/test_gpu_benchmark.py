"""The scripts of benchmarks/gpu on the CPU: small caches, Triton's interpreter. What they cost is another matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import table

from support.series_trees import Printed, Tree, carried

pytestmark = pytest.mark.series

ROOT = Path(__file__).parents[2]
INSIDE = "/nvllm-test"


@pytest.fixture(scope="module")
def script(
    trees: Callable[..., Tree], container: Callable[..., Printed], interpreter: Path
) -> Callable[[str, str], Any]:
    """What a script of benchmarks/gpu prints on the tree of 0.21.0, ``stock`` or ``patched``."""

    def run(name: str, arm: str) -> Any:
        tree = trees("0.21.0", *(carried("0.21.0") if arm == "patched" else ()))
        mounts = {
            tree.root: f"{INSIDE}/tree",
            interpreter: f"{INSIDE}/interpreter",
            ROOT / "benchmarks": f"{INSIDE}/repository/benchmarks",
            ROOT / "tests": f"{INSIDE}/repository/tests",
        }
        path = f"{INSIDE}/tree:{INSIDE}/interpreter:{INSIDE}/repository"
        env = {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        return container(f"../repository/benchmarks/gpu/{name}.py", mounts, env, ["cpu"]).result

    return run


def test_the_scripts_that_judge_bytes_find_what_they_must(script: Callable[[str, str], Any]) -> None:
    correctness = script("correctness", "patched")
    stock, patched = script("recycling", "stock"), script("recycling", "patched")
    found = {"correctness": correctness, "recycling": {shape: stock[shape] | patched[shape] for shape in stock}}
    assert table.wrong_cases(found) == []
    assert len(correctness["cases"]) == 36
    assert set(stock) == set(patched) == {"tiny hybrid", "tiny 10+12"}
    assert {arm for arms in found["recycling"].values() for arm in arms} == {"stock", "fork", "patched"}
