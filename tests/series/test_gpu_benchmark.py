"""The scripts of benchmarks/gpu on the CPU: small caches, Triton's interpreter. What they cost is another matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import table

from support.series_trees import Printed, Tree, carried

pytestmark = [pytest.mark.series, pytest.mark.long]

ROOT = Path(__file__).parents[2]
INSIDE = "/nvllm-test"

ALONE = """
import sys

if "vllm.model_executor.models.registry" in sys.orig_argv:
    raise SystemExit("vLLM asks in a process of its own, which may be on another platform")
"""
"""Python's `sitecustomize`: what a model is may be asked in the script's own process only."""


@pytest.fixture(scope="module")
def script(
    trees: Callable[..., Tree],
    container: Callable[..., Printed],
    interpreter: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str], Any]:
    """What a script of benchmarks/gpu prints on the tree of 0.21.0, ``stock`` or ``patched``."""

    alone = tmp_path_factory.mktemp("alone")
    (alone / "sitecustomize.py").write_text(ALONE)

    def run(name: str, arm: str) -> Any:
        tree = trees("0.21.0", *(carried("0.21.0") if arm == "patched" else ()))
        mounts = {
            tree.root: f"{INSIDE}/tree",
            interpreter: f"{INSIDE}/interpreter",
            alone: f"{INSIDE}/alone",
            ROOT / "benchmarks": f"{INSIDE}/repository/benchmarks",
            ROOT / "tests": f"{INSIDE}/repository/tests",
        }
        path = f"{INSIDE}/alone:{INSIDE}/tree:{INSIDE}/interpreter:{INSIDE}/repository"
        env = {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        return container(f"../repository/benchmarks/gpu/{name}.py", mounts, env, ["cpu"]).result

    return run


def test_the_scripts_that_judge_bytes_find_what_they_must(script: Callable[[str, str], Any]) -> None:
    correctness = script("correctness", "patched")
    stock, patched = script("recycling", "stock"), script("recycling", "patched")
    recycling = {shape: stock[shape] | patched[shape] for shape in stock}
    found = {"correctness": correctness, "recycling": recycling, "timings": {}}
    assert table.wrong_cases(found) == []
    assert len(correctness["cases"]) == 36
    assert set(stock) == set(patched) == {"tiny hybrid", "tiny 10+12"}
    assert {arm for arms in found["recycling"].values() for arm in arms} == {"stock", "fork", "patched"}
