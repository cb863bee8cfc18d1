"""What follows from the legs of a run: effects of sentinels, or two profiles against each other."""

from __future__ import annotations

from collections.abc import Sequence

from nvllm.evidence import comparison, sidebyside
from nvllm.evidence.comparison import ArmLegs
from nvllm.evidence.records import Comparison, RunManifest


def of(manifest: RunManifest, arms: Sequence[ArmLegs]) -> Comparison:
    """Return the comparison of ARMS, the legs of the run of MANIFEST."""
    return sidebyside.compare(arms) if manifest.kind == "bench" else comparison.compare(arms)
