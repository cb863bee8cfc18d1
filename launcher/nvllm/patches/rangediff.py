"""What differs between two texts of one patch, as `git range-diff` shows it: a diff of diffs, without line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nvllm.patches import unified
from nvllm.patches.unified import Diff

_HEADER = re.compile(rb"^@@ .* @@$", re.MULTILINE)


def lines(old: Diff, new: Diff, renamed: Mapping[str, str]) -> tuple[str, ...]:
    """Return what differs from OLD to NEW: for each part ``@@ path``, then lines of both patches, each after a tag.

    RENAMED are the files that lie elsewhere in the source of NEW: old path, new path. Nothing is returned where the two
    make the same change among the same lines, at whatever place.
    """
    return tuple(_lines(old, new, renamed))


def _lines(old: Diff, new: Diff, renamed: Mapping[str, str]) -> Iterator[str]:
    before = {renamed.get(path, path): text for path, text in _texts(old).items()}
    after = _texts(new)
    for path in sorted({*before, *after}):
        for hunk in unified.hunks(before.get(path, b""), after.get(path, b"")):
            yield f"@@ {path}"
            yield from (tag + text.decode(errors="replace").removesuffix("\n") for tag, text in hunk.lines)


def _texts(diff: Diff) -> dict[str, bytes]:
    return {file.path: _HEADER.sub(b"@@", unified.render(Diff(diff.name, (file,)))) for file in diff.files}
