"""The patch series: ``patches/<base>/series.yaml`` as frozen values, and patch sets chosen from it.

Loading and checking the files is `seriesfile.py`; applying is `patching.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from nvllm.core.fields import PINNED, PINNED_COMMIT, Case, Commit, Form, Rule, Sha256

SCHEMA = "nvllm.series/1"

Status = Literal["carried", "upstream", "rejected"]
Id = Annotated[str, Rule("^[a-z0-9]+(-[a-z0-9]+)*$", "an id: words of a-z and 0-9, joined by -")]
Text = Annotated[str, Rule(allowed="text that is not empty", least=1)]
Version = Annotated[str, Rule(r"^[0-9]+(\.[0-9]+)+([a-z0-9.+-]*)$", "a version such as 0.28.0")]
Ids = Annotated[tuple[Id, ...], Rule(allowed="a list of ids, each once", unique=True)]
Texts = Annotated[tuple[Text, ...], Rule(allowed="a list of texts, each once", unique=True)]
SomeTexts = Annotated[tuple[Text, ...], Rule(allowed="a list of at least one text, each once", unique=True, least=1)]


@dataclass(frozen=True, slots=True)
class Upstream:
    """The upstream status of a change: its state, its pull request or issue, and the release that has it.

    REFERENCE is ``owner/repository#number``, or None if none is known. HEAD and BASE are the commits of a pull request
    that the patch was taken from: the last one of it, and the one that it is based on.
    """

    state: Literal["none", "open", "merged", "closed"]
    reference: Annotated[
        str | None,
        Rule("^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+#[0-9]+$", "a pull request or issue as owner/repository#number"),
    ] = None
    since: Version | None = None
    head: Commit | None = None
    base: Commit | None = None


@dataclass(frozen=True, slots=True)
class Sentinel:
    """A file in ``/run/nvllm`` that switches the patch on inside the engine."""

    name: Id


@dataclass(frozen=True, slots=True)
class SourceEvidence:
    """Evidence that a source has a change: the file PATH contains and lacks these texts."""

    path: Text
    contains: SomeTexts
    lacks: Texts = ()


_ONLY_CARRIED = dict.fromkeys(
    ("file", "sha256", "requires", "conflicts", "sentinel", "reads-sentinels"), "only a carried patch has it"
)
_ONLY_REJECTED = {"reason": "only a rejected patch has it"}


@dataclass(frozen=True, slots=True)
class Patch:
    """One entry of a series. FILE and SHA256 are None unless STATUS is ``carried``."""

    id: Id
    status: Status
    summary: Text
    upstream: Upstream
    touches: SomeTexts = ()
    """Every path that the patch changes; for ``upstream``, the paths of the change."""
    proved_by: SomeTexts = ()
    """Tests that fail without the patch: pytest node ids, relative to the project."""
    file: Annotated[
        str | None,
        Rule(r"^[0-9]{4}-[a-z0-9]+(-[a-z0-9]+)*\.patch$", "a patch file beside the series, NNNN-id.patch"),
    ] = None
    sha256: Sha256 | None = None
    requires: Ids = ()
    conflicts: Ids = ()
    sentinel: Sentinel | None = None
    reads_sentinels: Annotated[bool, Rule(choices=(True,))] = False
    """Whether this patch makes the engine read sentinels; without it every switchable patch of the set is on."""
    reason: Annotated[str | None, Rule(allowed="text that says why it must not be applied", least=1)] = None
    """Why a ``rejected`` change must not be applied."""
    evidence: Annotated[
        tuple[SourceEvidence, ...],
        Rule(allowed="what the source holds when the change is in it: path, contains", least=1),
    ] = ()
    """Evidence that a source already has the change, even in another form."""

    CASES: ClassVar = (
        Case("status", "carried", ("file", "sha256", "touches", "proved-by"), _ONLY_REJECTED),
        Case("status", "upstream", ("evidence", "touches", "upstream.since"), _ONLY_CARRIED | _ONLY_REJECTED),
        Case("status", "rejected", ("reason",), _ONLY_CARRIED),
    )


@dataclass(frozen=True, slots=True)
class Series:
    """patches/<base>/series.yaml: the patches for one commit of vLLM, in the order in which they are applied."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    base: Annotated[str, Rule("^[A-Za-z0-9][A-Za-z0-9._-]*$", "the name of the series' directory")]
    version: Version
    commit: Annotated[str, Rule(PINNED_COMMIT, PINNED, code="NV102")]
    patches: tuple[Patch, ...]

    def patch(self, patch_id: str) -> Patch | None:
        """Return the entry called PATCH_ID, None if there is none."""
        return next((patch for patch in self.patches if patch.id == patch_id), None)


FORM = Form("series", SCHEMA, "A patch series", Series, kebab=True)
