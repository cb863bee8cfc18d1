"""Write the layers that `pack_layers.py` packed: `python -m gpu.lay_layers DIR... CACHE`. Needs Python and libzstd.

Every DIR holds some of the pieces, and one of them `layers.json`. A layer is made from the pieces and from this
machine's own files, each of which must have its sha256, and gets its name in CACHE, a layer cache of nvllm, only if it
has its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpu.lay import Pieces, checked

MANIFEST = "layers.json"
PIECE = 16 << 20
"""Bytes of a piece, unpacked; the last one has fewer."""

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Part:
    """The next SIZE bytes of a layer: the file PATH of the machine, which has SHA256, or the next of the pieces."""

    size: int
    path: str = ""
    sha256: str = ""


def zstd() -> ctypes.CDLL:
    """Return the library of Zstandard, which Python has only since 3.14."""
    library = ctypes.CDLL("libzstd.so.1")
    for function in (library.ZSTD_compressBound, library.ZSTD_compress, library.ZSTD_decompress):
        function.restype = ctypes.c_size_t
    return library


def unpacked(data: bytes) -> bytes:
    """Return what `pack_layers.packed` made DATA of. Raises SystemExit if it is something else."""
    library, target = zstd(), ctypes.create_string_buffer(PIECE)
    size = library.ZSTD_decompress(target, ctypes.c_size_t(PIECE), data, ctypes.c_size_t(len(data)))
    if library.ZSTD_isError(ctypes.c_size_t(size)):
        raise SystemExit("a piece cannot be unpacked")
    return target.raw[:size]


def other(part: Part) -> str:
    """Return what is wrong with the file of PART on this machine; nothing if there is none, or it has its bytes."""
    if not part.path:
        return ""
    try:
        with open(part.path, "rb") as stream:
            return "" if hashlib.file_digest(stream, "sha256").hexdigest() == part.sha256 else f"{part.path}: changed"
    except FileNotFoundError:
        return f"{part.path}: not there"


def copied(source: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield SIZE bytes of SOURCE. Raises SystemExit if it ends before."""
    while size:
        data = source.read(min(size, _CHUNK))
        if not data:
            raise SystemExit("the pieces end before the layer does")
        size -= len(data)
        yield data


def write(layer: dict[str, Any], literals: BinaryIO, cache: Path) -> None:
    """Write LAYER, as `layers.json` has it, into CACHE; what the machine lacks comes next in LITERALS."""
    digest, partial = hashlib.sha256(), cache / f"{layer['key']}.partial"
    with partial.open("wb") as target:
        for part in (Part(*fields) for fields in layer["parts"]):
            with open(part.path, "rb") if part.path else io.BytesIO() as own:
                for data in copied(own if part.path else literals, part.size):
                    digest.update(data)
                    target.write(data)
    if f"sha256:{digest.hexdigest()}" != layer["diff_id"]:
        partial.unlink()
        raise SystemExit(f"layer {layer['kind']}: sha256 {digest.hexdigest()}, not {layer['diff_id']}")
    os.replace(partial, cache / f"{layer['key']}.tar")
    (cache / f"{layer['key']}.json").write_text(layer["note"], encoding="utf-8")


def packed(directories: Sequence[Path]) -> dict[str, Any]:
    """Return what `pack_layers.py` wrote of the pieces in DIRECTORIES."""
    manifest = next(directory / MANIFEST for directory in directories if (directory / MANIFEST).is_file())
    described: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    return described


def lay(directories: Sequence[Path], cache: Path, say: Callable[[str], None] = print) -> None:
    """Write into CACHE the layers whose pieces are in DIRECTORIES; SAY what took how long.

    Raises SystemExit, with nothing written, if a piece or a file of this machine has other bytes than were packed.
    """
    described, began = packed(directories), time.monotonic()
    parts = [Part(*fields) for layer in described["layers"] for fields in layer["parts"]]
    cache.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        wrong = [text for text in pool.map(other, parts) if text]
        if wrong:
            raise SystemExit("\n".join([f"{len(wrong)} files here are not those that were packed", *wrong[:9]]))
        own = [part.size for part in parts if part.path]
        say(f"{len(own)} files of this machine with {sum(own)} bytes, checked: {time.monotonic() - began:.1f} s")
        files = checked(directories, described["pieces"])
        literals = io.BufferedReader(Pieces(pool.map(lambda file: unpacked(file.read_bytes()), files)), _CHUNK)
        for layer in described["layers"]:
            write(layer, literals, cache)
    size = sum(part.size for part in parts)
    count, seconds = len(described["layers"]), time.monotonic() - began
    say(f"{count} layers of {size} bytes, each with its sha256: {seconds:.1f} s in all")


if __name__ == "__main__":
    *pieces, directory = map(Path, sys.argv[1:])
    lay(pieces, directory)
