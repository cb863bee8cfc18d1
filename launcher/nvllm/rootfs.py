"""The base layer: a root file system unpacked from exactly the locked Debian packages.

No maintainer script runs and no privilege is needed, so the tree is a pure function of the packages. What the
scripts would have done and an engine needs is written here, by hand and in plain sight: the merged /usr, the
user database, the search path of the dynamic loader being its built-in one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nvllm import deb, tarlayer
from nvllm.progress import Progress
from nvllm.refusal import Refusal, Refused
from nvllm.tarlayer import Entry

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

_USERS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_DIRECTORIES = ("dev", "proc", "sys", "run/nvllm", "models", "var/tmp", "tmp", "home/nvllm")


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

    TREE appears only when it is whole. Raises Refused NV306 for members that leave the tree, that are devices,
    or that two packages hold with different content.
    """
    partial = tree.with_name(f"{tree.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        refusals: list[Refusal] = []
        with progress.task("unpack base", len(packages), "files") as task:
            for name, path in packages:
                refusals.extend(_unpack_one(name, path, partial))
                task.advance(1)
        if refusals:
            raise Refused(refusals)
        for base in MERGED:
            if (partial / "usr" / base).is_dir():
                (partial / base).symlink_to(f"usr/{base}")
        for place, text in _USERS.items():
            _write(partial / place, text.encode(), 0o644)
        for directory in _DIRECTORIES:
            os.makedirs(partial / directory, exist_ok=True)
        shutil.rmtree(tree, ignore_errors=True)
        partial.rename(tree)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack_one(name: str, path: Path, tree: Path) -> Iterator[Refusal]:
    for member, data in deb.files(path):
        inside = member.name.removeprefix("./").rstrip("/")
        if inside in {"", ".", *MERGED}:
            continue
        if not tarlayer.safe(inside) or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            yield Refusal(
                "NV306",
                f"{path.name}: {member.name}",
                "a file, directory or link below the root",
                f"type {member.type!r}",
                "nvllm lock, and report the package",
            )
            continue
        inside = merged(inside)
        through = _link_on_the_way(tree, inside)
        if through is not None:
            yield Refusal(
                "NV306",
                f"{path.name}: {member.name}",
                "a path that no link redirects",
                f"{through} is a link",
                "nvllm lock, and report the package",
            )
            continue
        if not kept(inside) and not member.isdir():
            continue
        target = tree / inside
        if member.isdir():
            if not target.is_symlink() and kept(inside + "/"):
                target.mkdir(parents=True, exist_ok=True)
        elif member.issym():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(member.linkname)
        elif member.islnk():
            source = tree / merged(member.linkname.removeprefix("./"))
            _write(target, source.read_bytes(), source.stat().st_mode & 0o777)
        else:
            _write(target, data, 0o755 if member.mode & 0o100 else 0o644)
    _write(tree / "var/lib/dpkg/status.d" / name, deb.control(path).encode(), 0o644)


def _link_on_the_way(tree: Path, inside: str) -> str | None:
    """Return the parent of INSIDE that is a link: writing below it could leave the tree for the host."""
    parts = inside.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        if (tree / "/".join(parts[:depth])).is_symlink():
            return "/".join(parts[:depth])
    return None


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(mode)  # not by the umask: the tree is read again with these modes


def entries(tree: Path) -> Iterator[Entry]:
    """Yield the layer's entries for the unpacked TREE."""
    for path in _walk(tree):
        inside = str(path.relative_to(tree))
        if path.is_symlink():
            yield tarlayer.link(inside, os.readlink(path))
        elif path.is_dir():
            yield Entry(inside, "directory", 0o1777 if inside in {"tmp", "var/tmp"} else 0o755)
        else:
            status = path.stat()
            yield Entry(inside, "file", 0o755 if status.st_mode & 0o100 else 0o644, status.st_size, content=_Opener(path))


@dataclass(frozen=True, slots=True)
class _Opener:
    path: Path

    def __call__(self) -> BinaryIO:
        return self.path.open("rb")


def _walk(tree: Path) -> Iterable[Path]:
    for root, directories, names in os.walk(tree):
        for name in (*directories, *names):
            yield Path(root, name)
