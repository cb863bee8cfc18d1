"""A sketch of a layer: a few kilobytes by which the files are found that another layer has differently.

The record of a layer with 40,000 files cannot list them. A sketch can still name the few that differ, without the layer
it was made from. Each file is a row of fixed length. A row is added to three of `CELLS` cells: a cell counts its rows,
and has the exclusive or of them. Take the cells of one layer from those of another, and the rows that both have cancel
out. A cell with one row left shows it; taking that row out of its other cells leaves more cells with one. That finds
every row as long as they are few (an invertible Bloom lookup table, Goodrich and Mitzenmacher, 2011).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nvllm.image import difference
from nvllm.image.contents import FileRange
from nvllm.image.difference import ImageDifference

CELLS = 48
_EACH = 3
"""Cells of a sketch, and cells of each row. With three, rows are nearly always found where there are 1.22 times as many
cells or more. The two dozen rows of a dozen changed files fill half of them: 5.7 kB (decision 9)."""
_PART = CELLS // _EACH

_ROW = struct.Struct(">16sB3I2Q32s")
_CHECK = 8
"""Bytes of a row's own digest. A cell that is the exclusive or of two rows passes it once in 2^64 times."""
_LENGTH = _ROW.size + _CHECK
_COUNT = 4
"""Bytes of the number of rows in a cell."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """What a sketch knows of one entry of a layer. PATH is the beginning of the sha256 of its path.

    TIME is in nanoseconds. CONTENT is the sha256 of a file's content, or of a link's target.
    """

    path: bytes
    kind: int
    mode: int
    owner: int
    group: int
    time: int
    size: int
    content: bytes

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes in the words of a report."""
        content = {} if self.kind == tarfile.DIRTYPE[0] else {"content": f"sha256 {self.content.hex()}"}
        return {
            "type": chr(self.kind),
            "mode": f"{self.mode:04o}",
            "owner": str(self.owner),
            "group": str(self.group),
            "mtime": f"{self.time / 10**9:.9f}".rstrip("0").rstrip("."),
            "size": str(self.size),
            **content,
        }

    def packed(self) -> bytes:
        data = _ROW.pack(self.path, self.kind, self.mode, self.owner, self.group, self.time, self.size, self.content)
        return data + hashlib.sha256(data).digest()[:_CHECK]


@dataclass(frozen=True, slots=True)
class Cell:
    """COUNT rows, and the exclusive or of them, as a number."""

    count: int = 0
    rows: int = 0

    def row(self) -> bytes | None:
        """Return the row in this cell if it is one alone, else None."""
        if abs(self.count) != 1 or self.rows >> (8 * _LENGTH):
            return None
        data = self.rows.to_bytes(_LENGTH, "big")
        right = hashlib.sha256(data[: _ROW.size]).digest()[:_CHECK] == data[_ROW.size :]
        return data if right else None


def rows(blob: FileRange) -> Mapping[str, Row]:
    """Return the rows of the layer in BLOB by path."""
    read: dict[str, Row] = {}
    with (
        blob.open() as stream,
        tarfile.open(fileobj=stream, mode="r:", encoding="utf-8", errors="surrogateescape") as tar,
    ):
        for member in tar:
            content = hashlib.sha256(member.linkname.encode("utf-8", "surrogateescape"))
            data = tar.extractfile(member) if member.isreg() else None
            while data is not None and (chunk := data.read(_CHUNK)):
                content.update(chunk)
            read[member.name] = Row(
                hashed(member.name),
                member.type[0],
                member.mode,
                member.uid,
                member.gid,
                int(member.mtime * 10**9),
                member.size,
                content.digest(),
            )
    return read


def hashed(path: str) -> bytes:
    """Return how a row names PATH."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).digest()[:16]


def _places(row: bytes) -> tuple[int, ...]:
    """Return the cells that have ROW, one in each third of them, so that they differ."""
    digest = hashlib.sha256(b"cells" + row).digest()
    return tuple(part * _PART + int.from_bytes(digest[4 * part : 4 * part + 4], "big") % _PART for part in range(_EACH))


def _with(cells: list[Cell], row: bytes, sign: int) -> None:
    number = int.from_bytes(row, "big")
    for index in _places(row):
        cells[index] = Cell(cells[index].count + sign, cells[index].rows ^ number)


def sketch(rows: Iterable[Row]) -> str:
    """Return the sketch of the rows ROWS as text, the same for any order of them."""
    cells = [Cell()] * CELLS
    for row in rows:
        _with(cells, row.packed(), 1)
    data = b"".join(cell.count.to_bytes(_COUNT, "big") + cell.rows.to_bytes(_LENGTH, "big") for cell in cells)
    return base64.b64encode(data).decode()


EMPTY = sketch(())
"""The sketch of a layer without files."""


def _cells(text: str) -> list[Cell]:
    """Return the cells of the sketch TEXT. Raises ValueError if it is none."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    width = _COUNT + _LENGTH
    if len(data) != CELLS * width:
        raise ValueError(f"{len(data)} bytes, not {CELLS * width}")
    parts = (data[at : at + width] for at in range(0, len(data), width))
    return [Cell(int.from_bytes(part[:_COUNT], "big"), int.from_bytes(part[_COUNT:], "big")) for part in parts]


@dataclass(frozen=True, slots=True)
class Changes:
    """The rows that only one of two layers has; WHOLE says whether these are all of them."""

    first: tuple[Row, ...]
    second: tuple[Row, ...]
    whole: bool


def changes(first: str, second: str) -> Changes:
    """Return the rows that only one of two layers has, whose sketches are FIRST and SECOND.

    Raises ValueError for a text that is no sketch.
    """
    pairs = zip(_cells(first), _cells(second), strict=True)
    cells = [Cell(a.count - b.count, a.rows ^ b.rows) for a, b in pairs]
    sides: dict[int, list[Row]] = {1: [], -1: []}
    for _ in range(CELLS):  # each row empties a cell for good; in a text that is no layer's sketch it may come back
        sign, row = next(((cell.count, row) for cell in cells if (row := cell.row()) is not None), (0, b""))
        if not row:
            break
        sides[sign].append(Row(*_ROW.unpack(row[: _ROW.size])))
        _with(cells, row, -sign)
    return Changes(tuple(sides[1]), tuple(sides[-1]), all(cell == Cell() for cell in cells))


def differences(layer: str, recorded: str, built: Mapping[str, Row]) -> Iterator[ImageDifference]:
    """Yield how BUILT, the rows of LAYER by path, differ from the layer whose sketch is RECORDED.

    Yields nothing if too much differs. Raises ValueError as `changes` does.
    """
    changed = changes(recorded, sketch(built.values()))
    paths = {row.path: path for path, row in built.items()}
    after_rows, before_rows = ({row.path: row for row in side} for side in (changed.second, changed.first))
    named = sorted(after_rows.keys() | before_rows.keys(), key=lambda key: paths.get(key, ""))
    for key in named:
        path = paths.get(key, f"a path whose sha256 begins with {key.hex()}")
        if key not in after_rows or key not in before_rows:
            # With everything found, a row on one side alone is a file on one side alone.
            if changed.whole:
                yield ImageDifference(
                    layer, path, "file", *(("absent", "present") if key in after_rows else ("present", "absent"))
                )
            continue
        yield from difference.changed(layer, path, before_rows[key].attributes, after_rows[key].attributes, "none")
    if named and not changed.whole:
        yield ImageDifference(layer, "", "other files", "as recorded", "more than the record can name differ")
