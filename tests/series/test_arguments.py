"""The arguments of every profile, by the parser of the vLLM that serves it.

The parser needs the packages that vLLM imports and no device, so that of each version runs in the image cpu: the
image's own, that of 0.21.0 with the whole series, and that of the fork on a checkout of the pinned commit in
NVLLM_FORK_CHECKOUT. Of the fork the names of the arguments are recorded too, in ``fork_arguments.json``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.series_trees import Tree, carried
from support.serve_arguments import check, commands, locked, positive, spec

pytestmark = pytest.mark.series

FORK = "NVLLM_FORK_CHECKOUT"
RECORDED = Path(__file__).with_name("fork_arguments.json")
INSIDE = "/probe/tree"


def test_image_cpu(container: Callable[..., Any]) -> None:
    found = container("arguments.py", {}, {}, [json.dumps(commands("cpu"))]).result
    check("cpu", found)
    assert positive(found["names"]) == locked("cpu")


def test_image_sm120(container: Callable[..., Any], trees: Callable[..., Tree], interpreter: Path) -> None:
    tree = trees("0.21.0", *carried("0.21.0")).root
    found = on_tree(container, tree, interpreter, "sm120")
    check("sm120", found)
    assert positive(found["names"]) == locked("sm120")


@pytest.mark.skipif(not os.environ.get(FORK), reason=f"{FORK} names no checkout of the fork")
def test_image_gb10(container: Callable[..., Any], interpreter: Path) -> None:
    found = on_tree(container, Path(os.environ[FORK]), interpreter, "gb10")
    check("gb10", found)
    assert sorted(positive(found["names"])) == json.loads(RECORDED.read_text())


def test_the_names_that_gb10_uses_are_the_forks() -> None:
    known = set(json.loads(RECORDED.read_text()))
    for profile in spec("gb10").profiles.values():
        assert {name.partition(".")[0] for name in profile.arguments} <= known


def on_tree(container: Callable[..., Any], tree: Path, interpreter: Path, image: str) -> Mapping[str, Any]:
    """What the probe finds of the profiles of IMAGE with the vLLM in TREE."""
    mounts = {tree: INSIDE, interpreter: "/probe/interpreter"}
    env = {"PYTHONPATH": f"{INSIDE}:/probe/interpreter"}
    found: Mapping[str, Any] = container("arguments.py", mounts, env, [json.dumps(commands(image))]).result
    assert found["file"] == f"{INSIDE}/vllm/__init__.py"
    return found
