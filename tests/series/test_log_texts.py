"""What `timeline` looks for in an engine's log, against the sources of all series that print it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nvllm.serve.timeline import Timeline
from support.series_trees import Tree

pytestmark = pytest.mark.series

COMPILED = {
    "Compiling model again due to a load failure from %s, reason: %s": "vllm/compilation/decorators.py",
    "Start compiling function %s": "vllm/compilation/decorators.py",
    "Compiling a graph for compile range %s takes %.2f s": "vllm/compilation/backends.py",
    "Dynamo bytecode transform time: %.2f s": "vllm/compilation/backends.py",
}
SAVED = {"saved AOT compiled function to %s": "vllm/compilation/decorators.py"}
LOADED = {"Directly load AOT compilation from path %s": "vllm/compilation/decorators.py"}


@pytest.mark.parametrize("version", ["0.21.0", "0.28.0", "0.32.0", "0.33.0"])
def test_the_texts_of_a_compile_are_those_of_the_source(trees: Callable[..., Tree], version: str) -> None:
    tree, said = trees(version), Timeline(0.0)
    # A load drops the line of a trace before it, which vLLM 0.21.0 also writes when it only loads.
    for text, path in {**LOADED, **COMPILED, **SAVED}.items():
        # From 0.32.0 on most have the name of the model's part before them.
        assert f'"{text}"' in tree.text(path) or f'"%s{text}"' in tree.text(path), text
        said.feed(1.0, text.replace("%.2f", "3.21"))
    assert said.compiled == [text.replace("%.2f", "3.21") for text in COMPILED]
    assert said.saved == list(SAVED)
    assert said.loaded == ["%s"]
