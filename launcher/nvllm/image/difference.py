"""How two images differ: layer, file, attribute, both values; of texts the lines that differ.

Only layers with different digests are read. A layer is read once for its list of files; of files only those whose size
is the same on both sides are read whole, to compare them.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from nvllm.core import archives, explain
from nvllm.core.archives import ArchiveName
from nvllm.core.refusal import Refusal
from nvllm.image.contents import Contents, FileRange, StoredLayer

_CHUNK = 1 << 20

DETAILED = 20
"""Of so many files the lines that differ are shown; of the others, that they differ."""

_TEXT = _CHUNK
"""Bytes of the largest text of which the lines are compared: difflib takes long for more."""

_SHOWN = 120
"""How many lines of a comparison are kept."""

_HEADER = 16
"""Bytes of a bytecode file before its code (PEP 552)."""

CONFIGURATION = "configuration"


@dataclass(frozen=True, slots=True)
class ImageDifference:
    """One attribute in which two images differ.

    LAYER is the name of the layer, or `CONFIGURATION`. PATH is the path of a file in it, "" for the layer as a whole.
    FIRST and SECOND are the values, LINES the lines of a unified diff of two contents, if there is one.
    """

    layer: str
    path: str
    attribute: str
    first: str
    second: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layer:
    """An open layer: its file, its entries by path in their order, and where its tar begins."""

    stream: IO[bytes]
    entries: Mapping[str, tarfile.TarInfo]
    blob: FileRange

    def content(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        """Yield the bytes of MEMBER in chunks of a fixed size."""
        self.stream.seek(member.offset_data)
        left = member.size
        while left and (data := self.stream.read(min(left, _CHUNK))):
            left -= len(data)
            yield data


def images(first: Contents, second: Contents) -> Iterator[ImageDifference]:
    """Yield what differs between the images FIRST and SECOND, from the configuration to the topmost layer.

    Of layers without an image around them, on either side, those are compared that both sides have. Raises Refused
    NV306 for a layer that is no tar.
    """
    before, after = ({layer.name: layer for layer in image.layers} for image in (first, second))
    known = [{layer.diff_id for layer in image.layers} for image in (first, second)]
    if first.configuration is not None and second.configuration is not None:
        for factor in explain.differences(first.configuration, second.configuration):
            yield ImageDifference(
                CONFIGURATION, factor.path, "value", factor.before or "absent", factor.after or "absent"
            )
        for name in {**before, **after}:
            for here, there, digests, sides in (
                (before, after, known[1], ("present", "absent")),
                (after, before, known[0], ("absent", "present")),
            ):
                # A layer of the same bytes under another name is no difference: names only show what a layer is.
                if name in here and name not in there and here[name].diff_id not in digests:
                    yield ImageDifference(name, "", "layer", *sides)
    common = [[name for name in side if name in before and name in after] for side in (before, after)]
    if common[0] != common[1]:
        yield ImageDifference(CONFIGURATION, "", "order of the layers", ", ".join(common[0]), ", ".join(common[1]))
    details = itertools.count()
    for name in common[0]:
        if before[name].diff_id != after[name].diff_id:
            yield from layers(before[name], after[name], details)


def layers(first: StoredLayer, second: StoredLayer, details: Iterator[int]) -> Iterator[ImageDifference]:
    """Yield at least one difference between the layers FIRST and SECOND. DETAILS counts the files with lines."""
    blobs = first.tar(), second.tar()
    with blobs[0].open() as opened, blobs[1].open() as other_opened:
        sides = _open(first.name, opened, blobs[0]), _open(second.name, other_opened, blobs[1])
        differing = list(_entries(first.name, *sides, details))
        yield from differing or _archives(first, second, opened, other_opened, blobs)


def _open(layer: str, stream: IO[bytes], blob: FileRange) -> _Layer:
    entries: dict[str, tarfile.TarInfo] = {}
    cure = "write the image again, and compare that"
    name = ArchiveName(f"{blob.path}: layer {layer}", "a tar, or one in gzip", cure)
    with (
        archives.whole(name),
        tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="surrogateescape") as tar,
    ):
        for member in archives.members(tar, archives.WHEEL):
            path, number = member.name.rstrip("/"), 1
            while path in entries:  # a tar may hold a path twice; the second replaces the first
                number += 1
                path = f"{member.name.rstrip('/')} ({number})"
            entries[path] = member
    return _Layer(stream, entries, blob)


def _entries(layer: str, first: _Layer, second: _Layer, details: Iterator[int]) -> Iterator[ImageDifference]:
    for path in sorted({**first.entries, **second.entries}):
        before_member, after_member = first.entries.get(path), second.entries.get(path)
        if before_member is None or after_member is None:
            yield ImageDifference(layer, path, "file", _kind(before_member), _kind(after_member))
            continue
        yield from changed(layer, path, _attributes(before_member), _attributes(after_member), "absent")
        if before_member.isreg() and after_member.isreg() and not _same(first, before_member, second, after_member):
            yield _content(layer, path, first, second, details)
    orders = [
        [path for path in side.entries if path in second.entries and path in first.entries] for side in (first, second)
    ]
    moved = next((number for number, (a, b) in enumerate(zip(*orders, strict=True)) if a != b), None)
    if moved is not None:
        yield ImageDifference(layer, "", f"order, from entry {moved + 1} on", orders[0][moved], orders[1][moved])


def changed(
    layer: str, path: str, before: Mapping[str, str], after: Mapping[str, str], lacking: str
) -> Iterator[ImageDifference]:
    """Yield the attributes of PATH in LAYER that differ between BEFORE and AFTER; LACKING is for an absent one."""
    for attribute in {**before, **after}:
        if before.get(attribute) != after.get(attribute):
            yield ImageDifference(layer, path, attribute, before.get(attribute, lacking), after.get(attribute, lacking))


_KINDS = {
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
    tarfile.FIFOTYPE: "FIFO",
}


def _kind(member: tarfile.TarInfo | None) -> str:
    if member is None:
        return "absent"
    return "file" if member.isreg() else _KINDS.get(member.type, f"type {member.type!r}")


_OWN_NAMES = {"path", "linkpath", "size", "mtime", "uid", "gid", "uname", "gname"}
"""The pax headers that are attributes in their own right."""


def _attributes(member: tarfile.TarInfo) -> dict[str, str]:
    """Return the attributes of MEMBER beside its content, in the words of a report."""
    attributes = {
        "type": _kind(member),
        "mode": f"{member.mode:04o}",
        "owner": str(member.uid),
        "group": str(member.gid),
        "owner name": member.uname,
        "group name": member.gname,
        "mtime": f"{member.mtime:.9f}".rstrip("0").rstrip("."),
        "size": str(member.size),
    }
    if member.linkname:
        attributes["link"] = member.linkname
    if member.ischr() or member.isblk():
        attributes["device"] = f"{member.devmajor}:{member.devminor}"
    for name, value in member.pax_headers.items():
        if name.startswith("SCHILY.xattr."):
            attributes[f"xattr {name.removeprefix('SCHILY.xattr.')}"] = value
        elif name not in _OWN_NAMES:
            attributes[f"pax {name}"] = value
    return attributes


def _same(first: _Layer, member: tarfile.TarInfo, second: _Layer, other_member: tarfile.TarInfo) -> bool:
    if member.size != other_member.size:
        return False
    pairs = itertools.zip_longest(first.content(member), second.content(other_member))
    return all(data == another for data, another in pairs)


def _content(layer: str, path: str, first: _Layer, second: _Layer, details: Iterator[int]) -> ImageDifference:
    """Return the difference between the contents of the file PATH."""
    digests, data = [], []
    for side in (first, second):
        digest, head = hashlib.sha256(), b""
        for chunk in side.content(side.entries[path]):
            digest.update(chunk)
            head = head or chunk
        digests.append(f"sha256 {digest.hexdigest()}")
        data.append(head if side.entries[path].size <= _TEXT else None)
    before, after = data
    lines: tuple[str, ...] = ()
    if before is not None and after is not None and next(details) < DETAILED:
        lines = tuple(_header(before, after) if path.endswith(".pyc") else _texts(before, after))
    return ImageDifference(layer, path, "content", digests[0], digests[1], lines)


def _header(before: bytes, after: bytes) -> Iterator[str]:
    """Yield the parts of the headers of two bytecode files that differ, and whether their code differs."""
    for name, part in (("Python version", slice(0, 4)), ("kind", slice(4, 8)), ("source", slice(8, _HEADER))):
        if before[part] != after[part]:
            yield f"header, {name}: {before[part].hex()} and {after[part].hex()}"
    if before[_HEADER:] != after[_HEADER:]:
        yield "the code differs: diffoscope shows how"


def _texts(before: bytes, after: bytes) -> Iterator[str]:
    try:
        lines, other_lines = (data.decode().splitlines(keepends=True) for data in (before, after))
    except UnicodeDecodeError:
        lines = other_lines = []
    if not lines or not other_lines or b"\0" in before + after:
        at = next(number for number, (a, b) in enumerate(itertools.zip_longest(before, after)) if a != b)
        values = (side[at : at + 8].hex() or "end" for side in (before, after))
        yield f"first different at byte {at}: {' and '.join(values)}"
        return
    yield from _unified(lines, other_lines)


def _unified(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Yield a unified diff of the lines BEFORE and AFTER without its head, cut to `_SHOWN` lines."""
    lines = [line.rstrip("\n") for line in difflib.unified_diff(before, after, n=2)][2:]
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"... {len(lines) - _SHOWN} more lines"


def _archives(
    first: StoredLayer,
    second: StoredLayer,
    opened: IO[bytes],
    other_opened: IO[bytes],
    blobs: tuple[FileRange, FileRange],
) -> Iterator[ImageDifference]:
    """Yield how two layers differ whose entries are the same: in the bytes of the archive around them."""
    for stream, blob in zip((opened, other_opened), blobs, strict=True):
        stream.seek(blob.offset)
    if blobs[0].size != blobs[1].size:
        yield ImageDifference(first.name, "", "size of the archive", str(blobs[0].size), str(blobs[1].size))
    at = 0
    while at < min(blob.size for blob in blobs):
        length = min(_CHUNK, *(blob.size - at for blob in blobs))
        a, b = opened.read(length), other_opened.read(length)
        if a != b:
            inside = next((number for number, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
            values = [f"{side[inside : inside + 8].hex()} at byte {at + inside}" for side in (a, b)]
            yield ImageDifference(first.name, "", "bytes of the archive", values[0], values[1])
            return
        at += length
    if blobs[0].size == blobs[1].size:
        yield ImageDifference(first.name, "", "digest", first.diff_id, second.diff_id)


def refusals(differences: Sequence[ImageDifference], code: str, where: str, cure: str) -> Iterator[Refusal]:
    """Yield one refusal with CODE for each layer in DIFFERENCES: its first difference, and how many more there are.

    WHERE and CURE are those of the whole comparison.
    """
    for layer, some in itertools.groupby(differences, key=lambda difference: difference.layer):
        first, *others = some
        path = ": ".join(filter(None, (where, layer if layer == CONFIGURATION else f"layer {layer}", first.path)))
        more = f" (and {len(others)} more differences in this layer)" if others else ""
        yield Refusal(code, path, f"{first.attribute} {first.first}", f"{first.attribute} {first.second}{more}", cure)
