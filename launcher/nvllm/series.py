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
    """Where a change stands upstream: pull request or issue, its state, and since which release it is in."""

    reference: str
    state: Literal["none", "open", "merged", "closed"]
    since: str | None = None


@dataclass(frozen=True, slots=True)
class Sentinel:
    """A file in ``/run/nvllm`` that switches the patch on inside the engine."""

    name: str


@dataclass(frozen=True, slots=True)
class Patch:
    """One entry of a series. FILE and SHA256 are None unless STATUS is ``carried``."""

    id: str
    status: Status
    summary: str
    upstream: Upstream
    touches: tuple[str, ...] = ()
    proved_by: tuple[str, ...] = ()
    """Tests that fail without the patch: pytest node ids, relative to the project."""
    file: str | None = None
    sha256: str | None = None
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    sentinel: Sentinel | None = None
    reason: str | None = None
    """Why a ``rejected`` change must not be applied."""


@dataclass(frozen=True, slots=True)
class Series:
    schema: str
    base: str
    version: str
    commit: str
    patches: tuple[Patch, ...]
