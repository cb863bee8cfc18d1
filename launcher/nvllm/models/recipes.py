"""Recipes of models: `nvllm model make NAME` writes them, and `nvllm lock` pins them without writing them.

A recipe is data for `runtime/tiny_models.py`, which makes the same bytes on any machine. The image spec pins them by
their tree hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from nvllm.core.lock import ModelFile
from nvllm.core.refusal import Refusal, refuse
from nvllm.runtime import tiny_models


@cache  # 30 ms for each of three recipes, and a lock asks for each platform
def contents(name: str) -> Mapping[str, bytes]:
    """Return the files that the recipe NAME makes, by path. Raises Refused NV107 for an unknown name."""
    known = tiny_models.ARCHITECTURES
    if name not in known:
        cure = f"write one of them: {min(known)}"
        raise refuse("NV107", f"recipe {name}", f"one of {', '.join(sorted(known))}", "no such recipe", cure)
    return MappingProxyType(tiny_models.files(known[name]))


def files(name: str) -> tuple[ModelFile, ...]:
    """Return the files of the recipe NAME as a lock lists them, sorted by path. Raises as `contents` does."""
    made = sorted(contents(name).items())
    return tuple(ModelFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in made)


def other_tree(spec: str, model: str, pinned: str, tree: str) -> Refusal:
    """Return NV403: the files of MODEL in the spec at SPEC have the tree hash TREE instead of PINNED."""
    cure = f"if that is the model you mean, write its tree there and lock again: nvllm lock {Path(spec).stem}"
    return Refusal("NV403", f"{spec}: .models.{model}.tree", pinned, tree, cure)
