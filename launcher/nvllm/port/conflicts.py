"""The directory in which a person resolves conflicts: DIR/PATCH/path, the new file with git's markers in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import durable, reading
from nvllm.port.merge import Ported

_MARKERS = (b"<<<<<<< ", b"||||||| ", b">>>>>>> ")


@dataclass(frozen=True, slots=True)
class Conflicts:
    """The conflicts in DIRECTORY, which may be missing. A file without markers is how a person resolved it."""

    directory: Path

    def resolved(self, patch_id: str, path: str) -> bytes | None:
        """Return the file PATH as somebody has merged it for PATCH_ID, None while it has markers or is not there."""
        try:
            content = reading.content(self.directory / patch_id / path, reading.SOURCE)
        except FileNotFoundError:
            return None
        return None if marked(content) else content

    def write(self, ported: Sequence[Ported]) -> tuple[Path, ...]:
        """Write the files that a person must merge, and return all of them. One that is there stays as it is.

        Raises Refused NV920 if the directory cannot be written.
        """
        paths: list[Path] = []
        for patch_id, file in ((outcome.id, file) for outcome in ported for file in outcome.unmerged):
            if file.content is None:
                continue
            path = self.directory / patch_id / file.path
            if not path.exists():  # else somebody may have begun to resolve it
                with durable.writing(path, "NV920"):
                    path.parent.mkdir(parents=True, exist_ok=True)
                durable.replace(path, file.content, 0o644, code="NV920")
            paths.append(path)
        return tuple(paths)


def marked(content: bytes) -> bool:
    """Return whether CONTENT has markers of a conflict."""
    return any(line.startswith(_MARKERS) for line in content.split(b"\n"))
