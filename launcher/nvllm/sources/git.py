"""A commit of a git repository as a source archive: where it is offered, and the proof that it is that commit.

An archive is made anew by whoever hosts the repository, so no list says its sha256 beforehand. It says which commit it
is of (git writes the id into it), and its files come to the tree that the spec pins, by git's own naming of trees. A
host that answers with anything else is found out before its bytes are locked; afterwards their sha256 is.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from nvllm.core.lock import REPOSITORY, LockedFile
from nvllm.core.paths import ensure
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.core.spec import VllmPin
from nvllm.sources.store import Store

MIRROR_VARIABLE = "NVLLM_GITHUB_MIRROR"
_HOST = "https://github.com"
_CHUNK = 1 << 18
_MODES = {"file": b"100644", "executable": b"100755", "link": b"120000", "directory": b"40000"}


@dataclass(frozen=True, slots=True)
class Contents:
    """What an archive holds: the COMMIT that it names, None if it names none, and the TREE of its files."""

    commit: str | None
    tree: str


def path(repository: str, commit: str) -> str:
    """Return where the archive of COMMIT of REPOSITORY (``owner/name``) lies below the host."""
    return f"{repository}/archive/{commit}.tar.gz"


def url(file: str, env: Mapping[str, str]) -> str:
    """Return the address of FILE, a `path`: at the mirror that ENV names, else at GitHub."""
    return f"{(env.get(MIRROR_VARIABLE) or _HOST).rstrip('/')}/{file}"


def bring(
    pin: VllmPin, shown: str, store: Store, client: httpx2.Client, env: Mapping[str, str], progress: Progress
) -> LockedFile:
    """Bring the archive of PIN's commit into STORE, and return it as a lock names it. SHOWN is the spec in messages.

    Raises Refused NV209 if the host does not give it, and NV207 if it is not the commit, or not the tree, of PIN.
    """
    assert pin.source is not None
    file = path(pin.source.repository, pin.commit)
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
                        digest.update(chunk)
                        task.advance(len(chunk))
            except httpx2.HTTPError as error:
                raise Refused([_not_given(pin, file, error)]) from error
            size = stream.tell()
        refusals = list(other(contents(Path(name)), pin, file, shown))
        if refusals:
            raise Refused(refusals)
        store.adopt(Path(name), digest.hexdigest())
    finally:
        Path(name).unlink(missing_ok=True)
    return LockedFile(file, digest.hexdigest(), size, REPOSITORY)


def _not_given(pin: VllmPin, file: str, error: httpx2.HTTPError) -> Refusal:
    # The message of a status error is a URL with what it may hold of credentials; the status is enough.
    found = f"{type(error).__name__}: {error}"
    if isinstance(error, httpx2.HTTPStatusError):
        found = f"status {error.response.status_code}"
    cure = f"try again where the host can be reached, or name a mirror of it: export {MIRROR_VARIABLE}=URL"
    return Refusal("NV209", f"index {REPOSITORY}: {file}", f"the archive of commit {pin.commit}", found, cure)


def other(found: Contents, pin: VllmPin, file: str, shown: str) -> Iterator[Refusal]:
    """Yield NV207 for what of the archive FILE, which holds FOUND, is not what PIN of the spec SHOWN pins."""
    assert pin.source is not None
    cure = "use a mirror of the repository itself; if a pin is wrong, mend it: git rev-parse COMMIT COMMIT^{tree}"
    if found.commit != pin.commit:
        said = f"commit {found.commit}" if found.commit is not None else "no recorded commit"
        yield Refusal("NV207", f"{file}: commit", f"commit {pin.commit} ({shown}: .vllm.commit)", said, cure)
    if found.tree != pin.source.tree:
        expected = f"tree {pin.source.tree} ({shown}: .vllm.source.tree)"
        yield Refusal("NV207", f"{file}: files", expected, f"tree {found.tree}", cure)


def contents(archive: Path) -> Contents:
    """Return what ARCHIVE, as ``git archive`` writes one, holds below its one top directory.

    Raises Refused NV306 for what no commit can hold or is there twice, or if it is no whole archive.
    """
    blobs: dict[str, tuple[bytes, bytes]] = {}
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                name = member.name.partition("/")[2]
                if member.isdir():
                    continue
                if not name or name in blobs or not (member.isreg() or member.issym()):
                    raise Refused([_unfit(archive, member)])
                blobs[name] = _blob(tar, member)
            commit = tar.pax_headers.get("comment")
    except (tarfile.TarError, zlib.error, EOFError) as error:
        found = str(error) or "its end is missing"
        raise refuse("NV306", str(archive), "a whole source archive", found, "fetch it again") from error
    return Contents(commit, _tree(blobs).hex())


def _blob(tar: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[bytes, bytes]:
    """Return mode and id of MEMBER as git has them."""
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
    """Return the id that git gives to DATA. What is trusted is the sha256 that a lock then names, not this."""
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
        mode + b" " + name.removesuffix(b"/") + b"\0" + one for name, (mode, one) in sorted(entries.items())
    )
    return _object(b"tree", listing)


def _unfit(archive: Path, member: tarfile.TarInfo) -> Refusal:
    expected = "regular files and links below one directory, each once"
    cure = "use an archive of the commit as git makes it: git archive --prefix=NAME/ COMMIT"
    return Refusal("NV306", f"{archive}: {member.name}", expected, "another kind of member, or a second one", cure)
