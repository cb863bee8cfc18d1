"""What layers are made of, in small: Debian packages, wheels and source archives, written byte by byte."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nvllm

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The version of the interpreter that runs the tests, which stands for the image's."""

PACKERS = {"": bytes, ".xz": lzma.compress, ".gz": lambda data: gzip.compress(data, mtime=0)}


@dataclass(frozen=True)
class Member:
    """One member of a package's tar. KIND is a type of tarfile, LINK where it points."""

    name: str
    data: bytes = b""
    mode: int = 0o644
    kind: bytes = tarfile.REGTYPE
    link: str = ""


def directory(name: str) -> Member:
    return Member(name, mode=0o755, kind=tarfile.DIRTYPE)


def symlink(name: str, link: str) -> Member:
    return Member(name, mode=0o777, kind=tarfile.SYMTYPE, link=link)


def tar(members: Sequence[Member]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.mode, info.linkname, info.size = member.kind, member.mode, member.link, len(member.data)
            archive.addfile(info, io.BytesIO(member.data))
    return out.getvalue()


def ar(members: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the ``ar`` archive of MEMBERS (ar(5), the common form)."""
    out = b"!<arch>\n"
    for name, data in members:
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data
        out += b"\n" * (len(data) % 2)
    return out


def control(name: str) -> bytes:
    return f"Package: {name}\nVersion: 1.0\nArchitecture: amd64\nDescription: for tests\n".encode()


def deb_bytes(name: str, members: Sequence[Member], packed: str = ".xz") -> bytes:
    pack = PACKERS[packed]
    head = tar([directory("./"), Member("./control", control(name)), Member("./md5sums", b"")])
    return ar(
        [
            ("debian-binary", b"2.0\n"),
            (f"control.tar{packed}", pack(head)),
            (f"data.tar{packed}", pack(tar([directory("./"), *members]))),
        ]
    )


def deb(place: Path, name: str, *members: Member, packed: str = ".xz") -> tuple[str, Path]:
    """Write the package NAME of MEMBERS into the directory PLACE; return (name, path) as `rootfs.unpack` takes it."""
    path = place / f"{name}_1.0_amd64.deb"
    path.write_bytes(deb_bytes(name, members, packed))
    return name, path


@dataclass(frozen=True)
class Packed:
    """A wheel's file that needs more than its bytes."""

    data: bytes
    mode: int = 0o755


def record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def wheel(place: Path, name: str, files: Mapping[str, bytes | Packed], version: str = "1.0") -> Path:
    """Write the wheel NAME of FILES, with metadata and a right RECORD, into the directory PLACE."""
    stem = f"{name.replace('-', '_')}-{version}"
    content = {path: file if isinstance(file, Packed) else Packed(file, 0o644) for path, file in files.items()}
    content[f"{stem}.dist-info/METADATA"] = Packed(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(), 0o644
    )
    lines = "".join(record_line(path, file.data) for path, file in content.items())
    record = f"{stem}.dist-info/RECORD"
    content[record] = Packed(f"{lines}{record},,\n".encode(), 0o644)
    path = place / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, file in content.items():
            info = zipfile.ZipInfo(inside)
            info.external_attr = (0o100000 | file.mode) << 16
            archive.writestr(info, file.data, zipfile.ZIP_DEFLATED)
    return path


def sdist(place: Path, files: Mapping[str, bytes], name: str = "vllm-0.28.0") -> Path:
    """Write the source archive of FILES, below its one top directory NAME, into the directory PLACE."""
    path = place / f"{name}.tar.gz"
    path.write_bytes(PACKERS[".gz"](tar([Member(f"{name}/{inside}", data) for inside, data in files.items()])))
    return path


def interpreter_members(python: str = PYTHON) -> list[Member]:
    """Return the part of a base that can compile: the interpreter of the tests behind a dynamic loader of ours.

    A real base holds 100 MB of packages. Here the loader is a script, which drops what a real one takes
    (``--library-path``, directories, the interpreter's path) and starts the interpreter that runs the tests,
    so everything around it runs as it does with a real base.
    """
    loader = f'#!/bin/sh\nunset PYTHONHOME\nshift 3\nexec {sys.executable} "$@"\n'
    return [
        Member("./lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", loader.encode(), 0o755),
        Member(f"./usr/bin/python{python}", b"an interpreter", 0o755),
        Member(f"./usr/lib/python{python}/os.py", b"sep = '/'\n"),
        Member(f"./usr/lib/python{python}/template.py", b"not {{ Python }}\n"),
    ]


@dataclass(frozen=True)
class Surroundings:
    """What must not reach any bytes: a child process runs in these."""

    umask: int = 0o022
    cwd: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)


def child(code: str, *arguments: str | Path, around: Surroundings | None = None) -> str:
    """Run CODE in an interpreter of its own that can import nvllm and these samples; return what it printed."""
    around = around or Surroundings()
    paths = [str(Path(nvllm.__file__).parents[1]), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-", *map(str, arguments)],
        input=code.encode(),  # not an argument: how those are read depends on the locale
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths), **around.environment},
        cwd=around.cwd,
        umask=around.umask,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()
