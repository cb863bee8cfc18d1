"""Where the cache manager finds the requests that a compile kept waiting, against the sources of all series."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from support.series_trees import Tree

pytestmark = pytest.mark.series

STEPS = {
    "execute_model": "vllm/v1/worker/gpu_worker.py",
    "sample_tokens": "vllm/v1/worker/gpu_model_runner.py",
    "step": "vllm/v1/engine/core.py",
    "step_with_batch_queue": "vllm/v1/engine/core.py",
}
"""What launches kernels for requests, or calls what does, in one process with it."""


@pytest.mark.parametrize("version", ["0.21.0", "0.28.0", "0.32.0", "0.33.0"])
def test_each_function_of_a_step_has_the_variable_that_the_manager_reads(
    trees: Callable[..., Tree], version: str
) -> None:
    tree = trees(version)
    for name, path in STEPS.items():
        functions = [
            node
            for node in ast.walk(ast.parse(tree.text(path)))
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        assert functions, (path, name)
        for function in functions:
            parameters = {parameter.arg for parameter in function.args.args}
            stored = {
                node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            assert "scheduler_output" in parameters | stored, (path, name)
    text = tree.text("vllm/v1/core/sched/output.py")
    (output,) = [
        node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == "SchedulerOutput"
    ]
    assert "num_scheduled_tokens: dict[str, int]" in [ast.unparse(node) for node in output.body]
