"""A pull request as a patch: the .patch or .diff that GitHub writes of it, and what changed since it was taken."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nvllm.core.refusal import refuse, refuse_any
from nvllm.patches import imported, patching, rangediff, seriesfile, unified
from nvllm.patches.imported import Change
from nvllm.patches.series import Patch, Upstream
from nvllm.patches.source import SourceTree
from nvllm.patches.unified import Diff, FileDiff

_NAME = re.compile(r"(?:(?:.*/)?(?P<repository>[\w.-]+/[\w.-]+)/pull/|(?:.*/)?)(?P<number>[0-9]+)(?:\.patch|\.diff)")

Since = Literal["same", "adapted", "changed"]
"""A pull request beside the patch that was taken from it: the same change; another one, which is the patch's doing, for
the pull request has the head that it had; another one."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """The pull request REFERENCE, ``owner/repository#number``.

    HEAD is its last commit, BASE the one that it is based on; a text may name neither. CHANGES are its commits in their
    order, or one that is all of it, without the files OUTSIDE, which no patch may touch.
    """

    reference: str
    head: str | None
    base: str | None
    changes: tuple[Change, ...]
    outside: tuple[str, ...]

    @property
    def upstream(self) -> Upstream:
        """What the entry of a patch says of it."""
        return Upstream("open", self.reference, None, self.head, self.base)


@dataclass(frozen=True, slots=True)
class ComparedRequest:
    """A patch ID beside the pull request REFERENCE: the HEAD that it was taken at and the head NOW, what changed SINCE,
    and the range-diff from the patch to the pull request."""

    id: str
    reference: str
    head: str | None
    now: str | None
    since: Since
    range_diff: tuple[str, ...]


def reference(where: str, option: str, repository: str) -> str:
    """Return the pull request that WHERE, a file or a URL that OPTION names, is of; of a file alone, in REPOSITORY.

    Raises Refused NV108 if it does not say the number.
    """
    match = _NAME.fullmatch(where)
    if match is None:
        expected = (
            "the number of the pull request: NUMBER.patch, NUMBER.diff or https://HOST/OWNER/REPO/pull/NUMBER.patch"
        )
        raise refuse("NV108", option, expected, where, "give the file the pull request's number: mv FILE NUMBER.patch")
    return f"{match['repository'] or repository}#{match['number']}"


def read(content: bytes, reference: str, label: str, taken: Collection[str]) -> PullRequest:
    """Return the pull request REFERENCE from CONTENT, its text, which messages call LABEL. No id is one of TAKEN.

    Raises Refused NV104 for what is no diff of text files, and if it has no file that a patch may touch.
    """
    heads, bases = (
        [match.decode() for match in pattern.findall(content)] for pattern in (imported.MAIL, imported.BASE)
    )
    number = reference.rpartition("#")[2]
    parsed = imported.changes([(label, content)], taken)
    if next(imported.mails(content))[0] is None:
        whole_id = imported.unused(f"pull-{number}", taken)
        parsed = tuple(replace(change, id=whole_id, summary=f"Pull request {reference}") for change in parsed)
    paths = {path for change in parsed for path in change.diff.paths}
    outside = sorted(path for path in paths if not seriesfile.patchable(path))
    if len(outside) == len(paths):
        refuse_any(seriesfile.outside(outside, label))
    changes = tuple(
        replace(change, diff=replace(change.diff, files=files))
        for change in parsed
        if (files := tuple(file for file in change.diff.files if not {*file.paths} & {*outside}))
    )
    return PullRequest(reference, heads[-1] if heads else None, bases[-1] if bases else None, changes, tuple(outside))


def whole(tree: SourceTree | None, changes: Sequence[Change], label: str) -> Change:
    """Return CHANGES, the commits of a pull request, as one change of TREE; messages call it LABEL.

    Raises Refused NV301 if they do not apply to TREE one after the other, NV108 for several without a TREE.
    """
    if len(changes) == 1:
        return changes[0]
    cure = "name the pull request's .diff, which has all commits in one"
    if tree is None:
        raise refuse("NV108", label, "one commit, or the source to join them on", f"{len(changes)} commits", cure)
    after = patching.apply_all(tree, [change.diff for change in changes])
    modes = {path: mode for change in changes for path, mode in patching.modes(change.diff).items()}
    files: list[FileDiff] = []
    for path, content in sorted(after.items()):
        before = tree.read(path)
        if before != content:
            sides = (path if before is not None else None, path if content is not None else None)
            files.append(FileDiff(*sides, unified.hunks(before or b"", content or b""), None, modes.get(path)))
    return replace(changes[0], diff=Diff(label, tuple(files)))


def compared(patch: Patch, carried: Diff, now: Diff, request: PullRequest) -> ComparedRequest:
    """Return PATCH, whose diff is CARRIED, beside REQUEST, whose diff is NOW."""
    head = patch.upstream.head
    since: Since = "changed"
    if rangediff.changed(carried) == rangediff.changed(now) and carried.paths == now.paths:
        since = "same"
    elif head is not None and head == request.head:
        since = "adapted"
    return ComparedRequest(patch.id, request.reference, head, request.head, since, rangediff.lines(carried, now, {}))
