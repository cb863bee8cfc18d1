"""The base layer: a root file system unpacked from exactly the locked Debian packages.

No maintainer script runs and no privilege is needed, so the tree is a pure function of the packages. This module
writes what an engine needs of the scripts' work: the merged /usr and the user database. The dynamic loader uses its
built-in search path.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, collected, refuse_any
from nvllm.layers import deb, tarlayer
from nvllm.layers.tarlayer import TarEntry

FORMAT = "1"

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Directories that are links into /usr since Debian 12; packages still ship paths below them."""

# Documentation that no engine reads. Copyright files stay: licences ask for it.
_DROPPED = (
    "usr/share/man/",
    "usr/share/info/",
    "usr/share/locale/",
    "usr/share/lintian/",
    "usr/share/bug/",
    "usr/share/doc-base/",
    "usr/share/gdb/",
    "usr/share/gcc/python/",
    "usr/lib/systemd/",
)

_SPECIAL = {tarfile.FIFOTYPE: "a FIFO", tarfile.CHRTYPE: "a character device", tarfile.BLKTYPE: "a block device"}

_USERS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_DIRECTORIES = ("dev", "proc", "sys", "run/nvllm", "models", "var/tmp", "tmp", "home/nvllm")
"""Empty ones: the root of a container is read-only, so that nothing can make a mount point later."""

_LINKS = 40
"""How many links in a row are followed, as by the kernel."""


def merged(path: str) -> str:
    """Return PATH as it lies in a tree with a merged /usr."""
    return f"usr/{path}" if path.split("/", 1)[0] in MERGED else path


def kept(path: str) -> bool:
    """Whether a package's PATH enters the image."""
    if path.startswith("usr/share/doc/"):
        return path.endswith("/copyright")
    return not path.startswith(_DROPPED)


def unpack(packages: Sequence[tuple[str, Path]], tree: Path, progress: Progress) -> None:
    """Unpack PACKAGES, (name, ``.deb``) in the lock's order, into the directory TREE.

    TREE appears only when it is complete. Raises Refused NV306 for packages that cannot be read, and for members
    that leave the tree, that are devices, or that two packages hold with different content.
    """
    partial = tree.with_name(f"{tree.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        refusals: list[Refusal] = []
        owners: dict[str, str] = {}
        with progress.task("unpack base", len(packages), "files") as task:
            for name, path in packages:
                with collected(refusals):  # report the other packages too
                    refusals.extend(list(_unpack_one(name, path, partial, owners)))
                task.advance(1)
        refuse_any([*refusals, *_redirected(partial, owners)])
        for base in MERGED:
            if (partial / "usr" / base).is_dir():
                (partial / base).symlink_to(f"usr/{base}")
        for account_file, text in _USERS.items():
            (partial / account_file).unlink(missing_ok=True)
            _put(partial / account_file, _Node("file", 0o644, text.encode()))
        for directory in _DIRECTORIES:
            os.makedirs(partial / directory, exist_ok=True)
        shutil.rmtree(tree, ignore_errors=True)  # a rename replaces no directory that has something in it
        partial.rename(tree)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Node:
    """What is at one path. DATA is the content of a file or the target of a link; only files have a MODE."""

    kind: Literal["file", "directory", "link"]
    mode: int = 0
    data: bytes = b""


def _unpack_one(name: str, path: Path, tree: Path, owners: dict[str, str]) -> Iterator[Refusal]:
    """Unpack the package NAME at PATH into TREE, and record in OWNERS the package of each path."""
    for member, data in deb.files(path, name):
        problem = _unpack_member(member, data, name, tree, owners)
        if problem is not None:
            yield _refusal(name, member.name, *problem)
    note = f"var/lib/dpkg/status.d/{name}"
    paragraph = _Node("file", 0o644, deb.control(path, name).encode())
    clear = tarlayer.safe(note) and _obstacle(tree, note) is None
    if not clear or _present(tree / note) not in {None, paragraph}:
        yield _refusal(name, note, "a free path for the package's control file", "another file there")
    else:
        _put(tree / note, paragraph)


def _refusal(package: str, path: str, expected: str, problem: str) -> Refusal:
    printable = path.encode("utf-8", "backslashreplace").decode()
    return Refusal(
        "NV306",
        f"{package}: {printable}",
        expected,
        problem,
        "take the package out of base.packages, or report it to Debian",
    )


def _unpack_member(
    member: tarfile.TarInfo, data: bytes, package: str, tree: Path, owners: dict[str, str]
) -> tuple[str, str] | None:
    """Put MEMBER into TREE, if it is kept. Return (expected, found) if it is not allowed there, else None."""
    inside = member.name.removeprefix("./").rstrip("/")
    if inside in {"", ".", *MERGED}:
        return None
    if not tarlayer.safe(inside):
        return "a path below the root, without ..", "another path"
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "a file, a directory or a link", _SPECIAL.get(member.type, f"type {member.type!r}")
    inside = merged(inside)
    if not kept(f"{inside}/" if member.isdir() else inside):
        return None
    obstacle = _obstacle(tree, inside)
    if obstacle is not None:
        return "a path through directories only", f"{obstacle[0]} is a {obstacle[1]}"
    target = tree / _on_disk(inside)
    node = _node(member, data, tree)
    if node is None:
        return "a hard link to a file that was unpacked before it", member.linkname
    there = _present(target)
    if there is None:
        _put(target, node)
        owners[inside] = package
    elif there != node and (there.kind, node.kind) != ("link", "directory"):
        # dpkg, too, keeps a link where a package has a directory. It refuses everything else, or decides by fields
        # (Replaces, Conffiles) that would make the tree depend on the order of the packages.
        return "a path that no other package has", f"a {there.kind} of {owners.get(inside, 'another package')}"
    return None


def _node(member: tarfile.TarInfo, data: bytes, tree: Path) -> _Node | None:
    """Return MEMBER as a `_Node`, or None for a hard link to something that is not a file of TREE."""
    if member.isdir():
        return _Node("directory")
    if member.issym():
        return _Node("link", data=tarlayer.encoded(member.linkname))
    if member.isreg():
        return _Node("file", 0o755 if member.mode & 0o100 else 0o644, data)
    source = merged(member.linkname.removeprefix("./"))
    if not tarlayer.safe(source) or _obstacle(tree, source) is not None:
        return None
    there = _present(tree / _on_disk(source))
    return there if there is not None and there.kind == "file" else None


def _obstacle(tree: Path, inside: str) -> tuple[str, str] | None:
    """Return the first parent of INSIDE that is no directory, and its kind: a link could lead out of TREE."""
    parts = inside.split("/")
    for depth in range(1, len(parts)):
        parent = "/".join(parts[:depth])
        there = _present(tree / _on_disk(parent))
        if there is None:
            return None
        if there.kind != "directory":
            return parent, there.kind
    return None


def _redirected(tree: Path, owners: Mapping[str, str]) -> Iterator[Refusal]:
    """Yield a refusal for each package whose files are in the way of those that nvllm writes itself."""
    own = (*_DIRECTORIES, "usr", *(f"usr/{base}" for base in MERGED))
    for path in (*_USERS, *(f"{directory}/x" for directory in own)):
        obstacle = _obstacle(tree, path)
        if obstacle is None and path in _USERS and _present(tree / path) == _Node("directory"):
            obstacle = path, "directory"
        if obstacle is not None:
            where, kind = obstacle
            yield _refusal(owners.get(where, tree.name), where, f"what nvllm needs for {path}", f"a {kind}")


def _present(path: Path) -> _Node | None:
    """Return what is at PATH, without following a link, or None."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return _Node("directory")
    if stat.S_ISLNK(status.st_mode):
        return _Node("link", data=os.readlink(os.fsencode(path)))
    return _Node("file", status.st_mode & 0o777, path.read_bytes())


def _put(path: Path, node: _Node) -> None:
    if node.kind == "directory":
        path.mkdir(parents=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if node.kind == "link":
        os.symlink(node.data, os.fsencode(path))
    else:
        path.write_bytes(node.data)
        path.chmod(node.mode)  # regardless of the umask: the modes are read back for the layer


def _on_disk(path: str) -> str:
    """Return the PATH of a layer for the functions of this host: the same bytes in any locale."""
    return os.fsdecode(tarlayer.encoded(path))


def _in_layer(path: str) -> str:
    """Return PATH, from a function of this host, as it is in a layer: the reverse of `_on_disk`."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def followed(tree: Path, path: Path) -> Path | None:
    """Return the file that PATH, below TREE, is or links to in an image with the root TREE; None if there is none.

    The kernel would take an absolute link from the host's root, and read a file of the host.
    """
    for _ in range(_LINKS):
        if not path.is_symlink():
            return path if path.is_file() else None
        inside = os.path.join("/", path.parent.relative_to(tree), os.readlink(path))
        path = tree / os.path.normpath(inside).lstrip("/")
    return None


def entries(tree: Path) -> Iterator[TarEntry]:
    """Yield the layer's entries for the unpacked TREE."""
    for path in (Path(root, name) for root, below, names in os.walk(tree) for name in (*below, *names)):
        inside = _in_layer(str(path.relative_to(tree)))
        if path.is_symlink():
            yield tarlayer.link(inside, _in_layer(os.readlink(path)))
        elif path.is_dir():
            yield TarEntry(inside, "directory", 0o1777 if inside in {"tmp", "var/tmp"} else 0o755)
        else:
            status = path.stat()
            mode: Literal[0o644, 0o755] = 0o755 if status.st_mode & 0o100 else 0o644
            yield TarEntry(inside, "file", mode, status.st_size, content=tarlayer.stored(path))
