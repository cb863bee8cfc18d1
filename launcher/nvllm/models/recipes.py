"""Recipes of models: `nvllm model make NAME` writes them, and `nvllm lock` pins them without writing them.

A recipe is data for `runtime/tiny_models.py`, which makes the same bytes on any machine. The image spec pins them by
their tree hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from nvllm.core.lock import ModelFile
from nvllm.core.refusal import Refusal, refuse
from nvllm.runtime import tiny_models


@cache  # 30 ms for each of three recipes, and a lock asks for each platform
def _contents(name: str) -> Mapping[str, bytes]:
    return MappingProxyType(tiny_models.files(tiny_models.ARCHITECTURES[name]))


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of the model NAME, with a description for people."""

    name: str
    description: str

    def contents(self) -> Mapping[str, bytes]:
        """Return the files of the model, by path."""
        return _contents(self.name)

    def files(self) -> tuple[ModelFile, ...]:
        """Return the files as a lock lists them, sorted by path."""
        contents = sorted(self.contents().items())
        return tuple(ModelFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in contents)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("tiny-lfm2", "LFM2, convolution and attention layers, 144,256 random weights from a fixed seed"),
            Recipe("tiny-falconh1", "Falcon-H1, Mamba2 and attention, 178,584 random weights from a fixed seed"),
            Recipe("tiny-llama", "Llama, attention only, 123,200 random weights from a fixed seed"),
        )
    }
)


def recipe(name: str) -> Recipe:
    """Return the recipe NAME. Raises Refused NV107 for an unknown name."""
    if name not in RECIPES:
        cure = f"write one of them: {min(RECIPES)}"
        raise refuse("NV107", f"recipe {name}", f"one of {', '.join(sorted(RECIPES))}", "no such recipe", cure)
    return RECIPES[name]


def other_tree(spec: str, model: str, pinned: str, tree: str) -> Refusal:
    """Return NV403: the files of MODEL in the spec at SPEC have the tree hash TREE instead of PINNED."""
    cure = f"if that is the model you mean, write its tree there and lock again: nvllm lock {Path(spec).stem}"
    return Refusal("NV403", f"{spec}: .models.{model}.tree", pinned, tree, cure)
