"""The source archive of a commit of a git repository: its URL, and the check that it is of that commit.

A host creates such an archive on request, so its sha256 is not known beforehand. Git writes the commit's id into it,
and the git tree id of its files must be the one that the spec pins. Both are checked before the archive is locked; from
then on its sha256 is pinned.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from nvllm.core import archives
from nvllm.core.archives import ArchiveName
from nvllm.core.lock import REPOSITORY, LockedFile
from nvllm.core.paths import ensure
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.core.spec import VllmPin
from nvllm.sources import fetch
from nvllm.sources.fetch import Answer
from nvllm.sources.store import Store

MIRROR_VARIABLE = "NVLLM_GITHUB_MIRROR"
_HOST = "https://github.com"
_CHUNK = 1 << 18
_MODES = {"file": b"100644", "executable": b"100755", "link": b"120000", "directory": b"40000"}


@dataclass(frozen=True, slots=True)
class ArchiveIds:
    """The COMMIT that an archive names, or None, and the git TREE id of its files."""

    commit: str | None
    tree: str


def path(repository: str, commit: str) -> str:
    """Return the URL path of the archive of COMMIT of REPOSITORY (``owner/name``)."""
    return f"{repository}/archive/{commit}.tar.gz"


def url(file: str, env: Mapping[str, str]) -> str:
    """Return the URL of FILE, a `path`: at the mirror that ENV names, else at GitHub."""
    return f"{fetch.usable(env.get(MIRROR_VARIABLE) or _HOST, MIRROR_VARIABLE).rstrip('/')}/{file}"


def bring(
    pin: VllmPin, label: str, store: Store, client: httpx2.Client, env: Mapping[str, str], progress: Progress
) -> LockedFile:
    """Fetch the archive of PIN's commit into STORE and return its locked file. Messages call the spec LABEL.

    Raises Refused NV209 if the host does not give it, NV207 if it has another commit or tree than PIN.
    """
    assert pin.source is not None
    file = path(pin.source.repository, pin.commit)
    # In the store's directory: the store takes a file by a rename.
    descriptor, name = tempfile.mkstemp(prefix=".source-", dir=ensure(store.root))
    try:
        with os.fdopen(descriptor, "wb") as stream:
            digest = hashlib.sha256()
            try:
                with (
                    client.stream(
                        "GET", url(file, env), headers={"Accept-Encoding": "identity"}, follow_redirects=True
                    ) as response,
                    progress.task(f"fetch {pin.source.repository}", None, "B") as task,
                ):
                    response.raise_for_status()
                    for chunk in response.iter_raw(_CHUNK):
                        stream.write(chunk)
                        if stream.tell() > archives.SOURCE:
                            raise Refused([_not_given(pin, file, f"more than {archives.SOURCE} bytes")])
                        digest.update(chunk)
                        task.advance(len(chunk))
            except httpx2.HTTPError as error:
                raise Refused([_not_given(pin, file, Answer.of("", error).problem)]) from error
            size = stream.tell()
        refuse_any(other(contents(Path(name)), pin, file, label))
        store.adopt(Path(name), digest.hexdigest())
    finally:
        Path(name).unlink(missing_ok=True)
    return LockedFile(file, digest.hexdigest(), size, REPOSITORY)


def _not_given(pin: VllmPin, file: str, problem: str) -> Refusal:
    cure = f"try again where the host can be reached, or name a mirror of it: export {MIRROR_VARIABLE}=URL"
    return Refusal("NV209", f"index {REPOSITORY}: {file}", f"the archive of commit {pin.commit}", problem, cure)


def other(ids: ArchiveIds, pin: VllmPin, file: str, label: str) -> Iterator[Refusal]:
    """Yield NV207 if the archive FILE, which holds IDS, has another commit or tree than PIN of the spec LABEL."""
    assert pin.source is not None
    cure = "use a mirror of the repository itself; if a pin is wrong, correct it: git rev-parse COMMIT COMMIT^{tree}"
    if ids.commit != pin.commit:
        recorded = f"commit {ids.commit}" if ids.commit is not None else "no recorded commit"
        yield Refusal("NV207", f"{file}: commit", f"commit {pin.commit} ({label}: .vllm.commit)", recorded, cure)
    if ids.tree != pin.source.tree:
        expected = f"tree {pin.source.tree} ({label}: .vllm.source.tree)"
        yield Refusal("NV207", f"{file}: files", expected, f"tree {ids.tree}", cure)


def contents(archive: Path) -> ArchiveIds:
    """Return the contents of ARCHIVE, written by ``git archive``, below its one top directory.

    Raises Refused NV306 for members that no commit can have, for duplicates, and for an incomplete archive.
    """
    blobs: dict[str, tuple[bytes, bytes]] = {}
    with archives.tar(archive, ArchiveName(str(archive), "a whole source archive")) as tar:
        for member in archives.members(tar):
            name = member.name.partition("/")[2]
            if member.isdir():
                continue
            if not name or name in blobs or not (member.isreg() or member.issym()):
                raise Refused([_unfit(archive, member)])
            blobs[name] = _blob(tar, member)
        commit = tar.pax_headers.get("comment")
        return ArchiveIds(commit, _tree(blobs).hex())


def _blob(tar: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[bytes, bytes]:
    """Return the git mode and blob id of MEMBER."""
    if member.issym():
        data = os.fsencode(member.linkname)
        return _MODES["link"], _object(b"blob", data)
    stream = tar.extractfile(member)
    assert stream is not None
    digest = hashlib.sha1(b"blob %d\0" % member.size, usedforsecurity=False)
    for chunk in iter(lambda: stream.read(_CHUNK), b""):
        digest.update(chunk)
    return _MODES["executable" if member.mode & stat.S_IXUSR else "file"], digest.digest()


def _object(kind: bytes, data: bytes) -> bytes:
    """Return the git object id (sha1) of DATA. Once locked, the archive is trusted by its sha256."""
    return hashlib.sha1(kind + b" %d\0" % len(data) + data, usedforsecurity=False).digest()


def _tree(blobs: Mapping[str, tuple[bytes, bytes]]) -> bytes:
    """Return the id of the tree of BLOBS, mode and id by path: git sorts a directory as if its name ended in ``/``."""
    entries: dict[bytes, tuple[bytes, bytes]] = {}
    below: dict[str, dict[str, tuple[bytes, bytes]]] = {}
    for name, blob in blobs.items():
        directory, slash, rest = name.partition("/")
        if slash:
            below.setdefault(directory, {})[rest] = blob
        else:
            entries[os.fsencode(name)] = blob
    for directory, inside in below.items():
        entries[os.fsencode(directory) + b"/"] = (_MODES["directory"], _tree(inside))
    listing = b"".join(
        mode + b" " + name.removesuffix(b"/") + b"\0" + object_id for name, (mode, object_id) in sorted(entries.items())
    )
    return _object(b"tree", listing)


def _unfit(archive: Path, member: tarfile.TarInfo) -> Refusal:
    expected = "regular files and links below one directory, each once"
    cure = "use an archive that git itself makes of the commit: git archive --prefix=NAME/ COMMIT"
    return Refusal("NV306", f"{archive}: {member.name}", expected, "another kind of member, or a second one", cure)
