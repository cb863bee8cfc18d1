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
    """The upstream status of a change: its state, its pull request or issue, and the release that has it.

    REFERENCE is ``owner/repository#number``, or None if none is known.
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
    """Evidence that a source has a change: the file PATH contains and lacks these texts."""

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
    """Every path that the patch changes; for ``upstream``, the paths of the change."""
    proved_by: tuple[str, ...] = ()
    """Tests that fail without the patch: pytest node ids, relative to the project."""
    file: str | None = None
    sha256: str | None = None
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    sentinel: Sentinel | None = None
    reads_sentinels: bool = False
    """Whether this patch makes the engine read sentinels; without it every switchable patch of the set is on."""
    reason: str | None = None
    """Why a ``rejected`` change must not be applied."""
    evidence: tuple[SourceEvidence, ...] = ()
    """Evidence that a source already has the change, even in another form."""


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
