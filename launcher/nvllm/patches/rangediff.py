"""What differs between two texts of one patch, as `git range-diff` shows it: a diff of diffs, without line numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from nvllm.patches import unified
from nvllm.patches.unified import Diff

_HEADER = re.compile(rb"^@@ .* @@$", re.MULTILINE)


def lines(old: Diff, new: Diff, renamed: Mapping[str, str]) -> tuple[str, ...]:
    """Return what differs from OLD to NEW: for each part ``@@ path``, then lines of both patches, each after a tag.

    RENAMED are the files that lie elsewhere in the source of NEW: old path, new path. Nothing is returned where the two
    make the same change among the same lines, at whatever place.
    """
    before = {renamed.get(path, path): text for path, text in _texts(old).items()}
    after = _texts(new)
    differing: list[str] = []
    for path in sorted({*before, *after}):
        for hunk in unified.hunks(before.get(path, b""), after.get(path, b"")):
            texts = (tag + text.decode(errors="replace").removesuffix("\n") for tag, text in hunk.lines)
            differing += [f"@@ {path}", *texts]
    return tuple(differing)


def changed(diff: Diff) -> Counter[tuple[str, bytes]]:
    """Return how often each line, without space at its ends, is added or removed by DIFF."""
    hunks = (hunk for file in diff.files for hunk in file.hunks)
    return Counter((tag, text.strip()) for hunk in hunks for tag, text in hunk.lines if tag != " " and text.strip())


def _texts(diff: Diff) -> dict[str, bytes]:
    return {file.path: _HEADER.sub(b"@@", unified.render(Diff(diff.name, (file,)))) for file in diff.files}
