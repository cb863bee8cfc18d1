"""Small real wheels and source archives, for resolvers and readers."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    *,
    extras: Sequence[str] = (),
    python: str = "",
) -> Path:
    """Write a wheel of NAME with FILES into DIRECTORY and return its path. The same arguments, the same bytes.

    PYTHON is what its Requires-Python says.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    path = directory / f"{stem}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    metadata += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    metadata += f"Requires-Python: {python}\n" if python else ""
    content = {
        **(files or {}),
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}.dist-info/RECORD": "",
    }
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in content.items():
            archive.writestr(zipfile.ZipInfo(inside), text)
    return path


def make_sdist(directory: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Write a source archive of NAME with FILES below its top directory, and return its path. No time is in it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}-{version}.tar.gz"
    with gzip.GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for inside, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{inside}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path
