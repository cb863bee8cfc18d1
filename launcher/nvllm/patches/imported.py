"""Changes from elsewhere as patches: unified diffs, mails of `git format-patch`, and another version's series."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from email import policy
from email.parser import BytesHeaderParser
from pathlib import PurePath

from nvllm.core import yamledit
from nvllm.core.refusal import Refused, refuse
from nvllm.patches import edit, patchcheck, patching, unified
from nvllm.patches.series import Series
from nvllm.patches.source import Overlay, SourceTree
from nvllm.patches.unified import Diff

MAIL = re.compile(rb"^From ([0-9a-f]{40}) Mon Sep 17 00:00:00 2001$", re.MULTILINE)
"""The first line of a mail of `git format-patch`, with its commit; git writes this one date into each."""
BASE = re.compile(rb"^\nbase-commit: ([0-9a-f]{40})\n(?:prerequisite-patch-id: [0-9a-f]{40}\n)*", re.MULTILINE)
"""What `git format-patch --base`, or format.useAutoBase, writes behind the diff."""
_TAG = re.compile(r"^(\s*\[[^\]]*\])+\s*")
_ID_LENGTH = 48
"""Characters: an id is typed, and is the name of a file and of a column."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is to become a patch: its ID, what it does in one line, and its DIFF."""

    id: str
    summary: str
    diff: Diff


@dataclass(frozen=True, slots=True)
class Fit:
    """How a patch of another series fits a source: FAULT says in words why it cannot be carried, None if it can."""

    id: str
    fault: str | None = None


def changes(files: Iterable[tuple[str, bytes]], taken: Collection[str]) -> tuple[Change, ...]:
    """Return the changes in FILES, pairs of name and content, in order; a file may hold several mails.

    The subject of a mail gives the id and the summary, else the name of the file does. No id is one of TAKEN, or there
    twice. Raises Refused NV104 for what is no diff of text files.
    """
    read: list[Change] = []
    for name, content in files:
        for number, (subject, text) in enumerate(mails(content), 1):
            label = name if subject is None else f"{name}, mail {number}"
            # `git format-patch` puts a number before the name.
            stem = re.sub(r"^[0-9]+[-_]", "", PurePath(name).stem)
            patch_id = unused(slug(subject or stem), [*taken, *(change.id for change in read)])
            summary = subject or f"Imported from {PurePath(name).name}"
            read.append(Change(patch_id, summary, unified.parse(BASE.sub(b"", text), label)))
    return tuple(read)


def only(name: str, content: bytes, taken: Collection[str]) -> Change:
    """Return the one change in the file NAME with CONTENT, as `changes` does. Raises Refused NV104 for several."""
    listed = changes([(name, content)], taken)
    if len(listed) != 1:
        cure = "git mailsplit -o. " + shlex.quote(name)
        raise refuse("NV104", name, "one patch", f"{len(listed)} mails", cure)
    return listed[0]


def exact(tree: SourceTree, imported: Sequence[Change], version: str) -> tuple[Change, ...]:
    """Return IMPORTED with the line numbers that each has on TREE, the source of VERSION, with those before it applied.

    Raises Refused for the first that cannot be applied: NV106 if the source holds all of it already, NV301 with each
    hunk that does not apply.
    """
    applied: dict[str, bytes | None] = {}
    placed: list[Change] = []
    for change in imported:
        below = Overlay(tree, applied)
        if patching.reverses(below, change.diff):
            cure = "leave this diff out"
            raise refuse("NV106", change.diff.name, f"a change that vLLM {version} lacks", "all of it", cure)
        try:
            diff = edit.exact(below, change.diff)
        except Refused as refused:
            cure = f"make the change on the source of vLLM {version}, with the patches before it, and name that diff"
            raise Refused(replace(refusal, cure=cure) for refusal in refused.refusals) from None
        applied |= patching.apply(below, diff)
        placed.append(replace(change, diff=diff))
    return tuple(placed)


def fits(series: Series, ids: Collection[str], report: patchcheck.Report) -> tuple[Fit, ...]:
    """Return how each of IDS, patches of SERIES, fits the source that REPORT is about.

    What requires a patch that cannot be carried cannot be carried either.
    """
    fits_by_id: dict[str, Fit] = {}
    for outcome in report.outcomes:
        patch = series.patch(outcome.id)
        if patch is None or patch.id not in ids:
            continue
        missing = [
            name for name in patch.requires if name in ids and (name not in fits_by_id or fits_by_id[name].fault)
        ]
        fault = None if outcome.outcome == "applies" and not outcome.tests else outcome.detail
        if fault is None and missing:
            fault = f"requires {', '.join(missing)}"
        fits_by_id[patch.id] = Fit(patch.id, fault)
    return tuple(fits_by_id.values())


def series_text(
    text: str, series: Series, *, base: str, version: str, commit: str, kept: Collection[str], heading: Sequence[str]
) -> str:
    """Return TEXT, the file of SERIES, as the file of a series for VERSION with the patches KEPT alone."""
    gone = [index for index, patch in enumerate(series.patches) if patch.id not in kept]
    text = yamledit.without(text, ("patches",), gone)
    for key, value in (("base", base), ("version", version), ("commit", commit)):
        text = yamledit.set_scalar(text, (key,), value)
    return yamledit.headed(text, heading)


def mails(content: bytes) -> Iterator[tuple[str | None, bytes]]:
    """Yield subject and text of each mail in CONTENT; None and CONTENT if it is a diff and no mail."""
    starts = [match.start() for match in MAIL.finditer(content)]
    if not starts:
        yield None, content
        return
    for start, end in zip(starts, [*starts[1:], len(content)], strict=True):
        text = content[start:end]
        message = BytesHeaderParser(policy=policy.default).parsebytes(text.partition(b"\n")[2])
        subject = " ".join(_TAG.sub("", str(message["subject"] or "")).split())
        yield subject or None, text


def slug(text: str) -> str:
    """Return TEXT as an id: words of a-z and 0-9, joined by -, and not longer than a file name likes."""
    words = re.findall(r"[a-z0-9]+", text.lower()) or ["change"]
    slug: str = words[0][:_ID_LENGTH]
    for word in words[1:]:
        if len(slug) + 1 + len(word) > _ID_LENGTH:
            break
        slug += f"-{word}"
    return slug


def unused(patch_id: str, taken: Collection[str]) -> str:
    """Return PATCH_ID, with a number behind it if it is one of TAKEN."""
    if patch_id not in taken:
        return patch_id
    return next(name for number in range(2, len(taken) + 3) if (name := f"{patch_id}-{number}") not in taken)
