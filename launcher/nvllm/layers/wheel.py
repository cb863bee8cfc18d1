"""Wheels as layer entries: the files that an installer writes, without its metadata.

Follows the binary distribution format (PEP 427): ``<name>.data/`` directories go to their paths of the scheme, scripts
get the image's interpreter, console entry points become scripts. RECORD is not rewritten, INSTALLER and
direct_url.json are not written. The store has verified the sha256 of the wheel.
"""

from __future__ import annotations

import configparser
import io
import posixpath
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from nvllm.core import archives
from nvllm.core.archives import ArchiveName
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.layers import tarlayer
from nvllm.layers.tarlayer import TarEntry

FORMAT = "1"

_CURE = "lock another file in its place: nvllm lock IMAGE --update wheels"


@dataclass(frozen=True, slots=True)
class Scheme:
    """The paths of an environment for Python PYTHON (``3.11``), relative to the root of the image."""

    prefix: str
    python: str

    @property
    def site(self) -> str:
        return f"{self.prefix}/lib/python{self.python}/site-packages"

    @property
    def interpreter(self) -> str:
        return f"/{self.prefix}/bin/python{self.python}"

    def path_of(self, category: str, rest: str, distribution: str) -> str | None:
        """Return where PATH of a ``.data`` CATEGORY goes, or None for an unknown category."""
        roots: Mapping[str, str] = {
            "purelib": self.site,
            "platlib": self.site,
            "scripts": f"{self.prefix}/bin",
            "data": self.prefix,
            "headers": f"{self.prefix}/include/site/python{self.python}/{distribution}",
        }
        return f"{roots[category]}/{rest}" if category in roots else None


def _whole(member: str) -> AbstractContextManager[None]:
    """Turn the exceptions of a damaged archive into Refused NV306."""
    return archives.whole(ArchiveName(member, "a whole wheel (PEP 427)", _CURE))


def _refusal(where: str, expected: str, problem: str, cure: str = "exclude the distribution in the spec") -> Refusal:
    return Refusal("NV306", where, expected, problem, cure)


class Wheel:
    """An open wheel. A context manager: its entries can be read only while it is open.

    Messages call it FILENAME, because in the store its name is its hash. OMITTED are the members that are left out, and
    directories whose members are. Opening and reading raise Refused NV306 if PATH is not a complete zip archive.
    """

    def __init__(self, path: Path, filename: str | None = None, omitted: Sequence[str] = ()) -> None:
        self.path = path
        self.filename = filename or path.name
        self.omitted = omitted
        with _whole(self.filename):
            self.zip = zipfile.ZipFile(path)
            archives.check(self.zip.infolist())

    def __enter__(self) -> Wheel:
        return self

    def __exit__(self, *_: object) -> None:
        self.zip.close()

    def placed(self, scheme: Scheme) -> dict[str, zipfile.ZipInfo]:
        """Return image path to member, for every file that is copied as it is.

        Raises Refused NV306 for members that leave the scheme, that belong to no known category, or of which two
        go to the same place, and for a path to omit that the wheel does not have.
        """
        members: dict[str, zipfile.ZipInfo] = {}
        unused = set(self.omitted)
        refusals: list[Refusal] = []
        for info in self.zip.infolist():
            if info.is_dir() or "__pycache__" in info.filename.split("/"):
                continue  # bytecode that some wheels contain; the image's own is compiled later
            covering = [path for path in self.omitted if f"{info.filename}/".startswith(f"{path}/")]
            if covering:
                unused.difference_update(covering)
                continue
            first, _, rest = info.filename.partition("/")
            target: str | None = f"{scheme.site}/{info.filename}"
            if first.endswith(".data") and rest:
                category, _, inner = rest.partition("/")
                target = scheme.path_of(category, inner, first.split("-", 1)[0])
            member = f"{self.filename}: {info.filename}"
            if target is None or not tarlayer.safe(info.filename) or not tarlayer.safe(target):
                refusals.append(_refusal(member, "a path inside the environment", "one outside it"))
            elif target in members:
                refusals.append(_refusal(member, f"one member for {target}", f"also {members[target].filename}"))
            else:
                members[target] = info
        for path in sorted(unused):
            cure = f"remove {path} from python.omit in the spec, and lock again"
            refusals.append(_refusal(f"{self.filename}: {path}", "a file or directory of the wheel", "none", cure))
        refuse_any(refusals)
        return members

    def entries(self, scheme: Scheme) -> Iterator[TarEntry]:
        """Yield the layer's entries: files, rewritten scripts, console entry points."""
        scripts = f"{scheme.prefix}/bin/"
        for target, info in self.placed(scheme).items():
            if target.startswith(scripts):
                yield tarlayer.blob(target, _with_interpreter(self.read(info), scheme), executable=True)
            else:
                executable = bool(info.external_attr >> 16 & 0o100)
                yield TarEntry(
                    target, "file", 0o755 if executable else 0o644, info.file_size, content=_MemberOpener(self, info)
                )
        yield from self._console_scripts(scheme)

    def read(self, info: zipfile.ZipInfo) -> bytes:
        """Return the bytes of the member INFO."""
        with _whole(f"{self.filename}: {info.filename}"):
            return archives.member(self.zip, info)

    def text(self, name: str) -> str:
        """Return the metadata file NAME of the ``.dist-info`` directory, or an empty text."""
        for info in self.zip.infolist():
            directory, _, rest = info.filename.partition("/")
            if directory.endswith(".dist-info") and rest == name:
                data = self.read(info)
                with _whole(f"{self.filename}: {info.filename}"):
                    return data.decode()
        return ""

    @property
    def dist_info(self) -> str:
        """Name of the ``.dist-info`` directory."""
        for info in self.zip.infolist():
            directory = info.filename.partition("/")[0]
            if directory.endswith(".dist-info"):
                return directory
        raise Refused([_refusal(self.filename, "a .dist-info directory", "none", cure=_CURE)])

    def _console_scripts(self, scheme: Scheme) -> Iterator[TarEntry]:
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        member = f"{self.filename}: entry_points.txt"
        try:
            parser.read_string(self.text("entry_points.txt"))
        except configparser.Error as error:
            raise Refused([_refusal(member, "sections of name = module:function", str(error))]) from error
        if not parser.has_section("console_scripts"):
            return
        for name, reference in sorted(parser.items("console_scripts")):
            module, _, function = (part.strip() for part in reference.partition("[")[0].partition(":"))
            if not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
                raise Refused([_refusal(member, f"{name} = module:function", reference)])
            top = function.partition(".")[0]
            # The guard is needed: a process that vLLM spawns imports this script again.
            text = f"""#!{scheme.interpreter}
import sys

from {module} import {top}

if __name__ == "__main__":
    sys.exit({function}())
"""
            yield tarlayer.blob(f"{scheme.prefix}/bin/{name}", text.encode(), executable=True)


@dataclass(frozen=True, slots=True)
class _MemberOpener:
    wheel: Wheel
    info: zipfile.ZipInfo

    def __call__(self) -> BinaryIO:
        member = f"{self.wheel.filename}: {self.info.filename}"
        with _whole(member):
            return cast("BinaryIO", _Checked(self.wheel.zip.open(self.info), member))


class _Checked(io.RawIOBase):
    """A member's file object; reading it raises Refused NV306 if the member is damaged."""

    def __init__(self, stream: IO[bytes], member: str) -> None:
        self.stream = stream
        self.member = member

    def read(self, size: int = -1) -> bytes:
        with _whole(self.member):
            return self.stream.read(size)

    def close(self) -> None:
        self.stream.close()
        super().close()


def _with_interpreter(data: bytes, scheme: Scheme) -> bytes:
    stream = io.BytesIO(data)
    first = stream.readline()
    if first.startswith((b"#!python", b"#!/usr/bin/env python")):
        return f"#!{scheme.interpreter}\n".encode() + stream.read()
    return data


def environment(scheme: Scheme, interpreter: str) -> Iterator[TarEntry]:
    """Yield the files of a virtual environment for the base's INTERPRETER, an absolute path."""
    text = f"home = {posixpath.dirname(interpreter)}\ninclude-system-site-packages = false\nversion = {scheme.python}\n"
    yield tarlayer.blob(f"{scheme.prefix}/pyvenv.cfg", text.encode())
    yield tarlayer.link(f"{scheme.prefix}/bin/python{scheme.python}", interpreter)
    yield tarlayer.link(f"{scheme.prefix}/bin/python3", f"python{scheme.python}")
    yield tarlayer.link(f"{scheme.prefix}/bin/python", f"python{scheme.python}")


def alias(name: str, version: str, of: str, scheme: Scheme) -> Iterator[TarEntry]:
    """Yield a metadata directory under which the distribution OF is also found as NAME."""
    # A hyphen in the directory's name would end the distribution's (recording installed projects, PEP 376 and after).
    directory = f"{scheme.site}/{name.replace('-', '_')}-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: another name of {of}\n"
    yield tarlayer.blob(f"{directory}/METADATA", text.encode())
    yield tarlayer.blob(f"{directory}/RECORD", b"")
