"""Models that a command makes: what `nvllm model make NAME` runs inside the image's container.

A recipe is data. The container is started by the engine, without a network, with the image's own Python and
with an empty directory of the operator at `OUTPUT`; what then lies there is pinned by its tree hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nvllm.refusal import Refusal, Refused

SCRIPT = "/opt/nvllm/lib/tiny_models.py"
"""Where the script of all recipes lies inside an image."""

OUTPUT = "/out"
"""Inside the container: the directory that receives the model."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one model is made: SCRIPT_ARGS are the arguments of the image's Python."""

    name: str
    script_args: tuple[str, ...]
    description: str


def _tiny(name: str, description: str) -> Recipe:
    return Recipe(name, (SCRIPT, name, OUTPUT), description)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            _tiny("tiny-lfm2", "LFM2, convolution and attention layers, 144,256 random weights from a fixed seed"),
            _tiny("tiny-falconh1", "Falcon-H1, Mamba2 and attention, 178,584 random weights from a fixed seed"),
            _tiny("tiny-llama", "Llama, attention only, 123,200 random weights from a fixed seed"),
        )
    }
)


def recipe(name: str) -> Recipe:
    """Return the recipe NAME. Raises Refused NV107, with the names there are."""
    if name not in RECIPES:
        raise Refused(
            [
                Refusal(
                    "NV107",
                    f"recipe {name}",
                    f"one of {', '.join(sorted(RECIPES))}",
                    "no such recipe",
                    f"nvllm model make {min(RECIPES)}",
                )
            ]
        )
    return RECIPES[name]


def source() -> Path:
    """Return the file of nvllm that an image holds at `SCRIPT`."""
    return Path(__file__).parent / "runtime" / "tiny_models.py"
