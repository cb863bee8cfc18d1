"""The whole source with a patch set applied, as a directory: what a compiler or a reader wants to see."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from nvllm.core.refusal import refuse
from nvllm.patches import patching, source
from nvllm.patches.unified import Diff


def write(archive: Path, diffs: Sequence[Diff], directory: Path) -> tuple[str, ...]:
    """Unpack the source ARCHIVE into the empty DIRECTORY, apply DIFFS in order, and return the changed paths.

    Files get mode 0644, or 0755 if their owner may execute them; the archive's one top directory is stripped. Raises
    Refused NV301 for a patch that does not apply, before anything is written, and as `source.archive` does.
    """
    pristine = source.archive(archive, sorted({path for diff in diffs for path in diff.paths}))
    changes = patching.apply_all(pristine, diffs)
    modes = {path: mode for diff in diffs for path, mode in patching.modes(diff).items()}
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            if member.isdir() or changes.get(path, b"") is None:
                continue
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None or ".." in PurePosixPath(path).parts or path.startswith("/"):
                cure = "use the source archive that the lock names; this one was not made by a release"
                raise refuse("NV306", f"{archive}: {member.name}", "a regular file below the root", "another", cure)
            target = _place(directory, path)
            with target.open("xb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)
    apply(directory, changes, modes)
    return tuple(sorted(changes))


def apply(directory: Path, changes: Mapping[str, bytes | None], modes: Mapping[str, int]) -> None:
    """Write CHANGES below DIRECTORY: path to new content, or None for a file that goes. MODES are those that change."""
    for path, data in changes.items():
        target = _place(directory, path)
        if data is None:
            target.unlink(missing_ok=True)
            continue
        mode = modes.get(path) or (target.stat().st_mode & 0o777 if target.exists() else 0o644)
        target.write_bytes(data)
        target.chmod(mode)


def _place(directory: Path, path: str) -> Path:
    target = directory / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target
