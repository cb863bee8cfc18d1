"""Files of the store in one tar, to carry them to a host without network.

The members are called by their sha256 and sorted, without times and owners: the same files give the same bytes. Nothing
in such a tar is trusted. Each member is hashed while it is read, and enters the store only under the hash that it has.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nvllm.core import archives, durable
from nvllm.core.archives import ArchiveName
from nvllm.core.lock import LockedFile
from nvllm.core.progress import Progress, Task
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.sources import fetch
from nvllm.sources.store import Store

_CHUNK = 1 << 20
_NAME = re.compile(r"sha256/([0-9a-f]{64})")
_CURE = "write it again, and carry it again: nvllm store export IMAGE FILE"


@dataclass(frozen=True, slots=True)
class Imported:
    """What a bundle had: how many FILES of how many BYTES, and how many of them were NEW to the store."""

    files: int
    bytes: int
    new: int


def write(files: Sequence[LockedFile], store: Store, path: Path, cure: str, progress: Progress) -> int:
    """Write FILES of STORE as a tar to PATH, by one rename, and return its size in bytes.

    Raises Refused NV204, with CURE, for each file that STORE lacks; NV205 for one that is damaged, which STORE then
    loses; NV920 if PATH cannot be written.
    """
    refuse_any(
        Refusal("NV204", str(store.root), f"{file.filename} (sha256 {file.sha256})", "not in the store", cure)
        for file in fetch.missing(files, store)
    )
    members = sorted({file.sha256: file.size for file in files}.items())
    with (
        progress.task("export", sum(size for _, size in members), "B") as task,
        durable.replacing(path, 0o644, code="NV920") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for sha, size in members:
            store.verify(sha)
            member = tarfile.TarInfo(f"sha256/{sha}")
            member.size, member.mode = size, 0o444
            with store.path(sha).open("rb") as content:
                archive.addfile(member, content)
            task.advance(size)
    return path.stat().st_size


def read(path: Path, store: Store, progress: Progress) -> Imported:
    """Bring the files of the tar at PATH into STORE, and return what it had.

    Raises Refused NV306 for a tar that `write` did not write, NV205 for a member whose bytes have another sha256. What
    came before it stays in STORE: those files are whole. A file that STORE has is hashed, and not written again.
    """
    if not path.is_file():
        raise _other(path, "a regular file", "another kind of file, or none")
    size = path.stat().st_size  # also the bound: a compressed tar unpacks to more
    name = ArchiveName(str(path), "a tar that nvllm store export wrote", _CURE)
    files = new = total = end = 0
    before = ""
    with progress.task("import", size, "B") as task, archives.tar(path, name, size) as archive:
        for member in archives.members(archive, size):
            matched = _NAME.fullmatch(member.name)
            if matched is None or not member.isreg() or member.name <= before:
                raise _other(path, "files that are called by their sha256, in order", f"{member.name[:100]!a}")
            content = archive.extractfile(member)
            assert content is not None  # it is a regular file
            new += _bring(content, member.size, matched[1], store, path, task)
            files, total, before = files + 1, total + member.size, member.name
            end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    # A tar that was cut between two members looks whole to tarfile, and so does one with something behind its end.
    whole = -(-(end + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE
    if size != whole:
        raise _other(path, f"{whole} bytes, as its members say", f"{size} bytes")
    return Imported(files, total, new)


def _other(path: Path, expected: str, actual: str) -> Refused:
    return refuse("NV306", str(path), expected, actual, _CURE)


def _bring(content: IO[bytes], size: int, sha: str, store: Store, bundle: Path, task: Task) -> bool:
    """Bring CONTENT, of SIZE bytes, into STORE as SHA; return whether STORE lacked it. Messages name BUNDLE."""
    with store.locked(sha):
        stored = store.path(sha).is_file() and store.path(sha).stat().st_size == size
        partial = store.partial(sha)
        hasher = hashlib.sha256()
        try:
            with open(os.devnull if stored else partial, "wb") as stream:
                for chunk in iter(lambda: content.read(_CHUNK), b""):
                    hasher.update(chunk)
                    stream.write(chunk)
                    task.advance(len(chunk))
            if hasher.hexdigest() != sha:
                actual = f"sha256 {hasher.hexdigest()}"
                raise refuse("NV205", f"{bundle}: sha256/{sha}", f"sha256 {sha}", actual, _CURE)
            if not stored:
                store.adopt(partial, sha)
        finally:
            partial.unlink(missing_ok=True)
    return not stored
