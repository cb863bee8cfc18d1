"""The patch series: ``patches/<base>/series.yaml`` as frozen values, and patch sets chosen from it.

Loading and checking the files is `seriesfile.py`; applying is `patching.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = "nvllm.series/1"

Status = Literal["carried", "upstream", "rejected"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a change stands upstream: its state, pull request or issue, and since which release it is in.

    REFERENCE is ``owner/repository#number``, or None where none is known.
    """

    state: Literal["none", "open", "merged", "closed"]
    reference: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True)
class Sentinel:
    """A file in ``/run/nvllm`` that switches the patch on inside the engine."""

    name: str


@dataclass(frozen=True, slots=True)
class SourceEvidence:
    """What the source holds at PATH when a change is in it: a claim that can be checked."""

    path: str
    contains: tuple[str, ...]
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Patch:
    """One entry of a series. FILE and SHA256 are None unless STATUS is ``carried``."""

    id: str
    status: Status
    summary: str
    upstream: Upstream
    touches: tuple[str, ...] = ()
    """Every path that the patch changes; for ``upstream``, where the change lies."""
    proved_by: tuple[str, ...] = ()
    """Tests that fail without the patch: pytest node ids, relative to the project."""
    file: str | None = None
    sha256: str | None = None
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    sentinel: Sentinel | None = None
    reads_sentinels: bool = False
    """Whether it is this patch that lets the files decide; without it in the set every switchable patch is on."""
    reason: str | None = None
    """Why a ``rejected`` change must not be applied."""
    evidence: tuple[SourceEvidence, ...] = ()
    """What shows that a source holds the change already, in whatever form upstream gave it."""


@dataclass(frozen=True, slots=True)
class Series:
    schema: str
    base: str
    version: str
    commit: str
    patches: tuple[Patch, ...]

    def patch(self, patch_id: str) -> Patch | None:
        """Return the entry called PATCH_ID, None if there is none."""
        return next((patch for patch in self.patches if patch.id == patch_id), None)
