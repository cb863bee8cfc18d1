"""How people have resolved conflicts: a diff for each, from what git merged to what the person made of it.

Like git's ``rerere``, they are looked up by what conflicted, so that another port finds them: of the same series in
another checkout, of another series with the same patch, or to another release.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import durable, reading
from nvllm.core.refusal import Refused
from nvllm.patches import patching, unified
from nvllm.patches.source import ArchiveTree
from nvllm.patches.unified import Diff, FileDiff
from nvllm.port.conflicts import marked

_CONFLICT = re.compile(rb"^<<<<<<< .*?^>>>>>>> [^\n]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Resolutions:
    """The resolutions in DIRECTORY, which may be missing."""

    directory: Path

    def file(self, path: str, merged: bytes) -> Path:
        """Return where the resolution of MERGED, what git made of the file at PATH, is kept.

        It depends on the lines in conflict alone; on all of MERGED if the text has no conflict.
        """
        parts = _CONFLICT.findall(merged) or [merged]
        key = hashlib.sha256(b"\0".join([path.encode(), *parts])).hexdigest()
        return self.directory / f"{key}.patch"

    def recall(self, path: str, merged: bytes) -> bytes | None:
        """Return MERGED as a person has resolved it before, None if nobody has, or did it where the text differs."""
        file = self.file(path, merged)
        try:
            diff = unified.parse(reading.content(file, reading.PATCH), str(file))
        except (FileNotFoundError, Refused):  # refused if somebody has edited it: then a person is asked again
            return None
        tried = patching.attempt(ArchiveTree(dict.fromkeys(diff.paths) | {path: merged}), diff)
        content = tried.changes.get(path)
        return None if tried.conflicts or content is None or marked(content) else content

    def remember(self, path: str, merged: bytes, content: bytes) -> None:
        """Keep that a person has made CONTENT of MERGED. Raises Refused NV920 if it cannot be written."""
        file = self.file(path, merged)
        data = unified.render(Diff(str(file), (FileDiff(path, path, unified.hunks(merged, content)),)))
        durable.keep(file, data)
