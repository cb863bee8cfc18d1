"""Trees of vLLM's source with and without a series, what a probe script prints, and the series' patches by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm.patches import seriesfile
from nvllm.spec import specfile

ROOT = Path(__file__).parents[2]
ENGINE = specfile.load(ROOT / "images/cpu.yaml", "images/cpu.yaml").vllm.version
"""The version of the default image. Its files can be replaced by those of a tree of the same version alone."""
SWITCHED = ("page-zeroer", "mamba-block-ids", "gdn-first-chunk")
"""The patches that do their work unless they are off; `poison` is for looking at them."""

CONVOLUTIONS = "conv-weight-layout"


@dataclass(frozen=True, slots=True)
class Tree:
    """A source tree below ROOT, and the paths in it that the patch set changed."""

    root: Path
    changed: tuple[str, ...]

    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Printed:
    """What a probe script printed: its RESULT, and the LOG lines before it."""

    result: dict[str, Any]
    log: tuple[str, ...]


def carried(version: str) -> tuple[str, ...]:
    """The ids of all carried patches of a series; of those, what `nvllm patch prove` asks for while it runs."""
    asked = os.environ.get("NVLLM_PATCHES")
    series = seriesfile.load(ROOT / "patches" / f"v{version}", f"patches/v{version}")
    every = tuple(patch.id for patch in series.patches if patch.status == "carried")
    return every if asked is None else tuple(name for name in every if name in asked.split(","))
