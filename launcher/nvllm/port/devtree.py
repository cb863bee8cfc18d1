"""The patches of an image as commits on its pinned source, and the commits as patches again. Pure."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from nvllm.core import yamledit
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.patches import edit, imported, patchcheck, patching, seriesfile, unified
from nvllm.patches.series import Patch, Series, Upstream
from nvllm.patches.source import Overlay, SourceTree
from nvllm.patches.unified import Diff

_ID, _PROOF, _UPSTREAM = "Nvllm-Patch", "Proved-by", "Upstream"
_TRAILER = re.compile(rb"^(Nvllm-Patch|Proved-by|Upstream): *(\S.*?) *$", re.MULTILINE)
_AUTOSQUASH = ("fixup!", "squash!", "amend!")

Change: TypeAlias = Literal["unchanged", "changed", "new", "left out"]
"""What became of a patch: the commit makes of the files what the patch made; something else; there was no such patch;
its commit is gone, and with it the patch from the set. Its file stays."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: ID and summary of the patch that it is, its DIFF, and of a new one its tests and its pull request."""

    id: str
    summary: str
    diff: Diff
    proved_by: tuple[str, ...] = ()
    upstream: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The series with the commits as its patches: its FILES by name, the ids to ENABLE, what became of each patch."""

    files: Mapping[str, bytes]
    enable: tuple[str, ...]
    changes: Mapping[str, Change]


def message(patch: Patch) -> str:
    """Return the message of the commit that is PATCH."""
    proofs = "".join(f"{_PROOF}: {node}\n" for node in patch.proved_by)
    return f"{patch.summary}\n\n{_ID}: {patch.id}\n{proofs}"


def commits(mails: bytes, series: Series, where: str, base: str) -> tuple[Commit, ...]:
    """Return the commits after BASE in MAILS, which `git format-patch` wrote; messages call their tree WHERE.

    Raises Refused NV610 for all that is missing: tests of a new patch, two commits of one patch, and a fixup that has
    not been squashed. NV104 for what no patch can hold.
    """
    rebase = shlex.join(["git", "-C", where, "rebase", "--interactive", "--autosquash", base])
    squash = f"squash it: {rebase}"
    read: list[Commit] = []
    refusals: list[Refusal] = []
    taken = [patch.id for patch in series.patches]
    for number, (subject, text) in enumerate(imported.mails(mails), 1):
        label, summary = f"{where}: commit {number}", subject or ""
        trailers = _TRAILER.findall(text.partition(b"\n---\n")[0])
        words = {
            key: [word.decode(errors="replace") for name, word in trailers if name.decode() == key]
            for key in (_ID, _PROOF, _UPSTREAM)
        }
        before = [commit.id for commit in read]
        own = [patch.id for patch in series.patches if patch.summary == summary and patch.id == imported.slug(summary)]
        patch_id = (words[_ID] or own or [imported.unused(imported.slug(summary), [*taken, *before])])[-1]
        if summary.startswith(_AUTOSQUASH):
            refusals.append(Refusal("NV610", label, "a commit for each patch", summary, squash))
            continue
        if patch_id in before:
            refusals.append(Refusal("NV610", label, "one commit for each patch", f"another of {patch_id}", squash))
        elif patch_id not in taken and not words[_PROOF]:
            cure = f"reword it, with a line {_PROOF}: tests/test_mine.py::test_it, in {rebase}"
            refusals.append(Refusal("NV610", label, f"a test that fails without {patch_id}", f"no {_PROOF}", cure))
        upstream = words[_UPSTREAM][-1] if words[_UPSTREAM] else None
        read.append(Commit(patch_id, summary, unified.parse(text, label), tuple(words[_PROOF]), upstream))
    refuse_any(refusals)
    return tuple(read)


def finished(
    text: str,
    series: Series,
    diffs: Mapping[str, Diff],
    enabled: Collection[str],
    made: Sequence[Commit],
    tree: SourceTree,
) -> Finished:
    """Return SERIES, whose file is TEXT, with the commits MADE on TREE, the pinned source, as its patches.

    DIFFS are those of its carried patches, ENABLED the set that the commits began as. A patch of which the commit makes
    what it made keeps its file. Another one is written on top of what it requires, and requires more where it needs to.
    Raises Refused: NV106 for a commit that is no carried patch, NV610 if the patches in the order of the series do not
    make what the commits made, and what `edit` raises of a new entry.
    """
    label = f"patches/{series.base}"
    files: dict[str, bytes] = {}
    changes: dict[str, Change] = {}
    now: dict[str, Diff] = dict(diffs)
    made_so_far: dict[str, bytes | None] = {}
    for commit in made:
        here = Overlay(tree, made_so_far)
        after = patching.apply(here, commit.diff)
        old = series.patch(commit.id)
        if old is not None:
            old = edit.carried(series, commit.id, label)
        before = patching.attempt(here, diffs[commit.id]) if old is not None else None
        if old is not None and before is not None and not before.conflicts and before.changes == after:
            changes[commit.id] = "unchanged"
        else:
            changes[commit.id] = "new" if old is None else "changed"
            below = [patch for patch in series.patches if patch.id in changes and patch.id != commit.id]
            requires, diff = _placed(series, old, commit, below, now, tree)
            now[commit.id] = diff
            series, text, name = _entered(series, text, old, commit, diff, requires, label)
            files[name] = unified.render(diff)
        made_so_far |= after
    changes |= {patch.id: "left out" for patch in series.patches if patch.id in enabled and patch.id not in changes}
    ordered = [patch for patch in series.patches if changes.get(patch.id, "left out") != "left out"]
    _same(ordered, now, made_so_far, tree, label)
    return Finished(
        {seriesfile.NAME: text.encode(), **files} if files else {}, tuple(patch.id for patch in ordered), changes
    )


def _placed(
    series: Series,
    old: Patch | None,
    commit: Commit,
    below: Sequence[Patch],
    diffs: Mapping[str, Diff],
    tree: SourceTree,
) -> tuple[tuple[str, ...], Diff]:
    """Return what the patch that COMMIT is has to require, and its diff on top of that.

    BELOW are the patches before it, with which it applies; a patch requires as few of them as it can.
    """
    required = {*(old.requires if old is not None else ())}
    closed = {patch.id for patch in patchcheck.requirements(series, old)} if old is not None else set[str]()
    kept = [patch.id for patch in below]
    for name in reversed([patch.id for patch in below if patch.id not in closed]):
        fewer = [other for other in kept if other != name]
        if any(name in patch.requires for patch in below if patch.id in fewer):
            continue  # it is needed by another one that stays
        if not patching.attempt(patching.tried(tree, [diffs[patch_id] for patch_id in fewer]), commit.diff).conflicts:
            kept = fewer
    implied = {need.id for patch in below if patch.id in kept for need in patchcheck.requirements(series, patch)}
    order = [patch.id for patch in series.patches]
    needs = {*required} | ({*kept} - implied - closed)
    below_it = patching.tried(tree, [diffs[patch_id] for patch_id in kept])
    return tuple(sorted(needs, key=order.index)), edit.exact(below_it, commit.diff)


def _entered(
    series: Series, text: str, old: Patch | None, commit: Commit, diff: Diff, requires: tuple[str, ...], label: str
) -> tuple[Series, str, str]:
    """Return SERIES and its TEXT with DIFF as the content of OLD, or of a new patch, and the name of the file."""
    digest = hashlib.sha256(unified.render(diff)).hexdigest()
    if old is None:
        upstream = edit.NOT_UPSTREAM if commit.upstream is None else Upstream("open", commit.upstream)
        entry = edit.entry(series, commit.id, commit.summary, commit.proved_by, diff, upstream)
        if requires:
            entry["requires"] = list(requires)
        edit.check_entry(series, entry)
        text = edit.extended(text, entry, f"{label}/{seriesfile.NAME}")
        file = str(entry["file"])
        new = Patch(
            commit.id, "carried", commit.summary, upstream, diff.paths, commit.proved_by, file, digest, requires
        )
        return replace(series, patches=(*series.patches, new)), text, file
    index = series.patches.index(old)
    steps = ("patches", index)
    text = yamledit.set_scalar(text, (*steps, "sha256"), digest)
    if {*diff.paths} != {*old.touches}:
        text = yamledit.set_list(text, (*steps, "touches"), diff.paths)
    if requires != old.requires and old.requires:
        text = yamledit.set_list(text, (*steps, "requires"), requires)
    elif requires != old.requires:
        text = yamledit.followed(text, (*steps, "touches"), [f"requires: [{', '.join(requires)}]"])
    new = replace(old, touches=diff.paths, sha256=digest, requires=requires)
    return replace(series, patches=(*series.patches[:index], new, *series.patches[index + 1 :])), text, str(old.file)


def _same(
    ordered: Sequence[Patch], diffs: Mapping[str, Diff], made: Mapping[str, bytes | None], tree: SourceTree, label: str
) -> None:
    """Raise Refused NV610 unless the patches ORDERED, as a build applies them, make of TREE what the commits MADE."""
    cure = "let the commits stand in the order of the series: git rebase --interactive"
    changed: dict[str, bytes | None] = {}
    for patch in ordered:
        tried = patching.attempt(Overlay(tree, changed), diffs[patch.id])
        if tried.conflicts:
            expected = f"{patch.id} to apply after the patches before it in the series"
            raise refuse("NV610", label, expected, f"a conflict in {tried.conflicts[0].file}", cure)
        changed |= tried.changes
    here, there = Overlay(tree, changed), Overlay(tree, made)
    other = [path for path in sorted({*changed, *made}) if here.read(path) != there.read(path)]
    if other:
        raise refuse("NV610", label, "the files that the commits made", f"others: {', '.join(other[:3])}", cure)
