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
    ONE and OTHER are the values, LINES the lines of a unified diff of two contents, if there is one.
    """

    layer: str
    path: str
    attribute: str
    one: str
    other: str
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


def images(one: Contents, other: Contents) -> Iterator[ImageDifference]:
    """Yield what differs between the images ONE and OTHER, from the configuration to the topmost layer.

    Of layers without an image around them, on either side, those are compared that both sides have. Raises Refused
    NV306 for a layer that is no tar.
    """
    whole = one.configuration is not None and other.configuration is not None
    if one.configuration is not None and other.configuration is not None:
        for factor in explain.differences(one.configuration, other.configuration):
            yield ImageDifference(
                CONFIGURATION, factor.path, "value", factor.before or "absent", factor.after or "absent"
            )
    theirs, ours = ({layer.name: layer for layer in image.layers} for image in (one, other))
    known = [{layer.diff_id for layer in image.layers} for image in (one, other)]
    if whole:
        for name in {**theirs, **ours}:
            for here, there, digests, sides in (
                (theirs, ours, known[1], ("present", "absent")),
                (ours, theirs, known[0], ("absent", "present")),
            ):
                # A layer of the same bytes under another name is no difference: names only show what a layer is.
                if name in here and name not in there and here[name].diff_id not in digests:
                    yield ImageDifference(name, "", "layer", *sides)
    common = [[name for name in side if name in theirs and name in ours] for side in (theirs, ours)]
    if common[0] != common[1]:
        yield ImageDifference(CONFIGURATION, "", "order of the layers", ", ".join(common[0]), ", ".join(common[1]))
    details = itertools.count()
    for name in common[0]:
        if theirs[name].diff_id != ours[name].diff_id:
            yield from layers(theirs[name], ours[name], details)


def layers(one: StoredLayer, other: StoredLayer, details: Iterator[int]) -> Iterator[ImageDifference]:
    """Yield what differs between the layers ONE and OTHER, at least one difference. DETAILS counts files with lines."""
    blobs = one.tar(), other.tar()
    with blobs[0].open() as first, blobs[1].open() as second:
        sides = _open(one.name, first, blobs[0]), _open(other.name, second, blobs[1])
        found = list(_entries(one.name, *sides, details))
        yield from found or _archives(one, other, first, second, blobs)


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


def _entries(layer: str, one: _Layer, other: _Layer, details: Iterator[int]) -> Iterator[ImageDifference]:
    for path in sorted({**one.entries, **other.entries}):
        ours, theirs = one.entries.get(path), other.entries.get(path)
        if ours is None or theirs is None:
            yield ImageDifference(layer, path, "file", _kind(ours), _kind(theirs))
            continue
        before, after = _attributes(ours), _attributes(theirs)
        for attribute in {**before, **after}:
            if before.get(attribute) != after.get(attribute):
                yield ImageDifference(
                    layer, path, attribute, before.get(attribute, "absent"), after.get(attribute, "absent")
                )
        if ours.isreg() and theirs.isreg() and not _same(one, ours, other, theirs):
            yield _content(layer, path, one, other, details)
    orders = [[path for path in side.entries if path in other.entries and path in one.entries] for side in (one, other)]
    moved = next((number for number, (a, b) in enumerate(zip(*orders, strict=True)) if a != b), None)
    if moved is not None:
        yield ImageDifference(layer, "", f"order, from entry {moved + 1} on", orders[0][moved], orders[1][moved])


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
    found = {
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
        found["link"] = member.linkname
    if member.ischr() or member.isblk():
        found["device"] = f"{member.devmajor}:{member.devminor}"
    for name, value in member.pax_headers.items():
        if name.startswith("SCHILY.xattr."):
            found[f"xattr {name.removeprefix('SCHILY.xattr.')}"] = value
        elif name not in _OWN_NAMES:
            found[f"pax {name}"] = value
    return found


def _same(one: _Layer, ours: tarfile.TarInfo, other: _Layer, theirs: tarfile.TarInfo) -> bool:
    if ours.size != theirs.size:
        return False
    pairs = itertools.zip_longest(one.content(ours), other.content(theirs))
    return all(data == another for data, another in pairs)


def _content(layer: str, path: str, one: _Layer, other: _Layer, details: Iterator[int]) -> ImageDifference:
    """Return the difference between the contents of the file PATH."""
    digests, data = [], []
    for side in (one, other):
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
        one, other = (data.decode().splitlines(keepends=True) for data in (before, after))
    except UnicodeDecodeError:
        one = other = []
    if not one or not other or b"\0" in before + after:
        at = next(number for number, (a, b) in enumerate(itertools.zip_longest(before, after)) if a != b)
        values = (side[at : at + 8].hex() or "end" for side in (before, after))
        yield f"first different at byte {at}: {' and '.join(values)}"
        return
    yield from _unified(one, other)


def _unified(one: Sequence[str], other: Sequence[str]) -> Iterator[str]:
    """Yield a unified diff of the lines ONE and OTHER without its head, cut to `_SHOWN` lines."""
    lines = [line.rstrip("\n") for line in difflib.unified_diff(one, other, n=2)][2:]
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"... {len(lines) - _SHOWN} more lines"


def _archives(
    one: StoredLayer, other: StoredLayer, first: IO[bytes], second: IO[bytes], blobs: tuple[FileRange, FileRange]
) -> Iterator[ImageDifference]:
    """Yield how two layers differ whose entries are the same: in the bytes of the archive around them."""
    for stream, blob in zip((first, second), blobs, strict=True):
        stream.seek(blob.offset)
    if blobs[0].size != blobs[1].size:
        yield ImageDifference(one.name, "", "size of the archive", str(blobs[0].size), str(blobs[1].size))
    at = 0
    while at < min(blob.size for blob in blobs):
        length = min(_CHUNK, *(blob.size - at for blob in blobs))
        a, b = first.read(length), second.read(length)
        if a != b:
            inside = next((number for number, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
            values = [f"{side[inside : inside + 8].hex()} at byte {at + inside}" for side in (a, b)]
            yield ImageDifference(one.name, "", "bytes of the archive", values[0], values[1])
            return
        at += length
    if blobs[0].size == blobs[1].size:
        yield ImageDifference(one.name, "", "digest", one.diff_id, other.diff_id)


def refusals(found: Sequence[ImageDifference], code: str, where: str, cure: str) -> Iterator[Refusal]:
    """Yield one refusal with CODE for each layer in FOUND: its first difference, and how many more there are.

    WHERE and CURE are those of the whole comparison.
    """
    for layer, some in itertools.groupby(found, key=lambda one: one.layer):
        first, *others = some
        place = ": ".join(filter(None, (where, layer if layer == CONFIGURATION else f"layer {layer}", first.path)))
        more = f" (and {len(others)} more differences in this layer)" if others else ""
        yield Refusal(code, place, f"{first.attribute} {first.one}", f"{first.attribute} {first.other}{more}", cure)
