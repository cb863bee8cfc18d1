"""What a wheel says of itself: its license, and the parts by others that it contains (PEP 639 and PEP 770)."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.metadata import parse_email

from nvllm.core import archives, canonical
from nvllm.core.archives import ArchiveName

_MOST = 1 << 24
"""Most bytes of a file of metadata. The largest bill of materials in a wheel of the images has half a megabyte."""
_LICENSE_NAME = 100
"""Most characters of a license's name; older metadata may have the whole text in its place."""


@dataclass(frozen=True, slots=True)
class BundledPart:
    """A part by others that a wheel contains, such as a library that was linked into it."""

    name: str
    version: str | None
    purl: str | None


@dataclass(frozen=True, slots=True)
class WheelMetadata:
    """What a wheel says of itself. LICENSES are names; LICENSE is an SPDX expression or identifier, if it has one."""

    license: str | None
    licenses: tuple[str, ...]
    parts: tuple[BundledPart, ...]
    unreadable: tuple[str, ...]
    """The bills of materials in the wheel that have a form which nvllm does not read."""


def read(path: Path, filename: str) -> WheelMetadata:
    """Return the metadata of the wheel at PATH, which messages call FILENAME. Raises Refused NV306 if it is damaged."""
    with archives.zipped(path, ArchiveName(filename, "a whole wheel (PEP 427)")) as archive:
        names = sorted(info.filename for info in archive.infolist() if not info.is_dir())
        expression, licenses = _licenses(archive, names)
        parts: dict[BundledPart, None] = {}
        unreadable = []
        for name in names:
            if ".dist-info/sboms/" in name:
                try:
                    bundled = list(_parts(canonical.decode(_content(archive, name))))
                except (ValueError, TypeError, AttributeError, KeyError):  # no JSON, or another form of it
                    unreadable.append(name)
                else:
                    parts.update(dict.fromkeys(bundled))
    own_name = filename.split("-", 1)[0].lower()
    # auditwheel lists the wheel itself too
    others = tuple(part for part in parts if part.name.replace("-", "_").lower() != own_name)
    return WheelMetadata(expression, licenses, others, tuple(unreadable))


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > _MOST:
        raise ValueError(f"{name} has more than {_MOST} bytes")
    return archive.read(name)


def _licenses(archive: zipfile.ZipFile, names: list[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the license as an expression or identifier, else the licenses' names."""
    metadata = next((name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)), None)
    if metadata is None:
        raise zipfile.BadZipFile("no METADATA")
    raw, _ = parse_email(_content(archive, metadata))
    expression = raw.get("license_expression")
    if expression:
        return expression, ()
    short = (raw.get("license") or "").strip()
    if short and short != "UNKNOWN" and "\n" not in short and len(short) <= _LICENSE_NAME:
        return short, ()
    classified = (classifier for classifier in raw.get("classifiers", []) if classifier.startswith("License ::"))
    return None, tuple(sorted({classifier.rsplit(" :: ", 1)[-1] for classifier in classified}))


def _parts(document: Any) -> Iterator[BundledPart]:
    """Yield the parts in DOCUMENT, a bill of materials of CycloneDX or SPDX. Raises ValueError for another one."""
    if document.get("bomFormat") == "CycloneDX":
        for part in document.get("components", []):
            yield BundledPart(_text(part["name"]), _optional(part.get("version")), _optional(part.get("purl")))
    elif str(document.get("spdxVersion")).startswith("SPDX-2"):
        for part in document.get("packages", []):
            urls = (ref["referenceLocator"] for ref in part.get("externalRefs", []) if ref["referenceType"] == "purl")
            yield BundledPart(_text(part["name"]), _optional(part.get("versionInfo")), _optional(next(urls, None)))
    else:
        raise ValueError("neither CycloneDX nor SPDX 2")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a text: {value!r}")
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)
