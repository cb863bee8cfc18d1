"""What the tests of exports start from: a blessed serve of the sample plan, and one without a cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from nvllm.cache import cachetree
from nvllm.cache.cachetree import TreeDirectory, TreeFile
from nvllm.core.spec import Waiver
from nvllm.export.export import ExportSource
from nvllm.serve import planner
from support.plansamples import MODEL, PLAN

REPOSITORY = "registry.example/team/nvllm"
BLESSING = "sha256:" + "b" * 64
TREE = cachetree.of(
    [
        TreeFile("a/inductor_cache/x.so", 4, "0555", "d" * 64),
        TreeFile("a/model", 8, "0444", "c" * 64),
    ],
    [
        TreeDirectory(".", "0555"),
        TreeDirectory("a", "0555"),
        TreeDirectory("a/inductor_cache", "0555"),
        TreeDirectory("a/inductor_cache/locks", "0755"),
    ],
)
UNBLESSED = ExportSource(PLAN, (MODEL,), "linux/amd64", repository=REPOSITORY, models_at="/var/lib/nvllm/models")
BLESSED = dataclasses.replace(
    UNBLESSED,
    plan=planner.mounting(planner.loading(PLAN, TREE), Path("/host/staged/cache")),
    tree=TREE,
    label="demo-eager v1",
    blessing=BLESSING,
)


def blessed(**changes: Any) -> ExportSource:
    """Return the blessed serve with CHANGES to the fields of its plan."""
    return dataclasses.replace(BLESSED, plan=dataclasses.replace(BLESSED.plan, **changes))


def waived(*names: str) -> ExportSource:
    """Return the blessed serve of a profile with waivers of these NAMES."""
    return blessed(waivers=tuple(Waiver(name, "the test wants it") for name in names))
