"""Pack the layers of images for a machine that has most of their files: `python -m gpu.pack_layers DIR --machine LIST`.

LIST is what `sha256sum` printed there of its files. A file of a layer that is in it does not travel; headers and all
other files do, in pieces, packed one by one. DIR gets directories of at most `--most` bytes: `1`, `2` and so on. The
layers are those of the cache here, so build the images first: sm120, and the one of `project.whole`.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import hashlib
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import IO, Any

from gpu import project
from gpu.lay_layers import MANIFEST, PIECE, Part, zstd
from nvllm.core.paths import places
from nvllm.core.progress import Silent
from nvllm.image import identity
from nvllm.image.builder import ImageBuilder
from nvllm.layers.oci import Image
from nvllm.layers.tarlayer import Layer

LEVEL = 9
SMALLEST = 4096
"""Bytes of a file below which it travels whatever the machine has: its line would be as long."""

MOST = 50_000_000
_CHUNK = 1 << 20


def of_machine(lines: Iterable[str]) -> dict[str, str]:
    """Return paths by sha256 from LINES of sha256sum."""
    pairs = (line.rstrip("\n").partition("  ") for line in lines)
    return {sha256: path for sha256, _, path in pairs}


def parts(layer: Path, machine: Mapping[str, str]) -> Iterator[Part]:
    """Yield the parts of LAYER, a tar file, for a machine with the files MACHINE, path by sha256."""
    at = 0
    with tarfile.open(layer) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() and member.size >= SMALLEST else None
            sha256 = digest(stream) if stream is not None else ""
            if sha256 in machine:
                yield Part(member.offset_data - at)
                yield Part(member.size, machine[sha256], sha256)
                at = member.offset_data + member.size
    yield Part(layer.stat().st_size - at)


def digest(stream: IO[bytes]) -> str:
    made = hashlib.sha256()
    while data := stream.read(_CHUNK):
        made.update(data)
    return made.hexdigest()


def literals(layer: Path, made_of: Sequence[Part]) -> Iterator[bytes]:
    """Yield those bytes of LAYER, which is MADE_OF such parts, that travel."""
    with layer.open("rb") as stream:
        for part in made_of:
            if part.path:
                stream.seek(part.size, os.SEEK_CUR)
                continue
            left = part.size
            while left:
                data = stream.read(min(left, _CHUNK))
                left -= len(data)
                yield data


def cut(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield what CHUNKS are together, SIZE bytes at a time."""
    kept = bytearray()
    for chunk in chunks:
        kept += chunk
        while len(kept) >= size:
            yield bytes(kept[:size])
            del kept[:size]
    if kept:
        yield bytes(kept)


def packed(data: bytes) -> bytes:
    library = zstd()
    bound = library.ZSTD_compressBound(ctypes.c_size_t(len(data)))
    target = ctypes.create_string_buffer(bound)
    size = library.ZSTD_compress(target, ctypes.c_size_t(bound), data, ctypes.c_size_t(len(data)), LEVEL)
    assert not library.ZSTD_isError(ctypes.c_size_t(size))
    return target.raw[:size]


def pack(directory: Path, images: Sequence[Image], machine: Mapping[str, str], most: int) -> None:
    """Write the pieces of the layers of IMAGES into directories of at most MOST bytes in DIRECTORY."""
    layers = [*{layer.diff_id: layer for image in images for layer in image.layers}.values()]
    made = {layer: [part for part in parts(layer.path, machine) if part.size] for layer in layers}
    chunks = (chunk for layer in layers for chunk in literals(layer.path, made[layer]))
    raw, number, room = cut(chunks, PIECE), 0, 0
    pieces: list[dict[str, str]] = []
    with ThreadPoolExecutor(2) as pool:
        while several := list(islice(raw, 8)):
            for data in pool.map(packed, several):
                if len(data) > room:
                    number, room = number + 1, most
                    (directory / str(number)).mkdir(parents=True)
                room -= len(data)
                name = f"layers.{len(pieces):04}.zst"
                (directory / str(number) / name).write_bytes(data)
                pieces.append({"name": name, "sha256": hashlib.sha256(data).hexdigest()})
    described = [described_layer(layer, made[layer]) for layer in layers]
    text = json.dumps({"images": {image.name: image.id for image in images}, "pieces": pieces, "layers": described})
    (directory / str(number) / MANIFEST).write_text(text, encoding="utf-8")


def described_layer(layer: Layer, made_of: Sequence[Part]) -> dict[str, Any]:
    """Return what `layers.json` says of LAYER: its name and note in a cache, and the parts that it is MADE_OF."""
    note = layer.path.with_suffix(".json").read_text(encoding="utf-8")
    listed = [list(dataclasses.astuple(part)) if part.path else [part.size] for part in made_of]
    return {"key": layer.path.stem, "kind": layer.kind, "diff_id": layer.diff_id, "note": note, "parts": listed}


def main(argv: Sequence[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m gpu.pack_layers", description=__doc__.split("\n\n")[0])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--machine", type=Path, required=True, metavar="LIST", help="what sha256sum printed there")
    parser.add_argument("--most", type=int, default=MOST, help=f"bytes of a directory (default {MOST})")
    asked = parser.parse_args(argv)
    with asked.machine.open(encoding="utf-8") as lines, tempfile.TemporaryDirectory() as scratch:
        made = project.whole(Path(scratch), {})
        builder = ImageBuilder(made, places(os.environ), Silent(), offline=False)
        images = [builder.image(identity.load_build(made, name, None)[0]) for name in (project.OF, project.IMAGE)]
        pack(asked.directory, images, of_machine(lines), asked.most)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
