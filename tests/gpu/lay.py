"""Lay out what tests/gpu/pack.py packed: `python lay.py DIR... PLACE`. Needs Python alone.

Every DIR holds some of the pieces, and one of them `pieces.json`. PLACE gets what was packed of `repository`,
`kernels`, `engines`, `registry`, `site`, `tool` and `trees`, which holds vLLM as it is, `stock`, and with the whole
series, `patched`. Files that do not differ are one file on disk.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import shutil
import sys
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MANIFEST = "pieces.json"


class Pieces(io.RawIOBase):
    """The PARTS one after the other, as one file."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = iter(parts)
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]  # what io.RawIOBase is called with
        while not self._left:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._left = part
        taken = self._left[: len(view)]
        view[: len(taken)] = taken
        self._left = self._left[len(taken) :]
        return len(taken)


def checked(directories: Sequence[Path], pieces: Sequence[dict[str, str]]) -> list[Path]:
    """Return where PIECES lie in DIRECTORIES. Exits if one is missing or has other bytes than were packed."""
    paths = []
    for piece in pieces:
        here = [directory / piece["name"] for directory in directories if (directory / piece["name"]).is_file()]
        if not here:
            raise SystemExit(f"{piece['name']}: in none of {', '.join(map(str, directories))}")
        if hashlib.sha256(here[0].read_bytes()).hexdigest() != piece["sha256"]:
            raise SystemExit(f"{here[0]}: not the bytes that were packed")
        paths.append(here[0])
    return paths


def unpack(files: Sequence[Path], target: Path) -> None:
    """Unpack into TARGET the archive that FILES are the pieces of."""
    parts = Pieces(file.read_bytes() for file in files)
    with lzma.open(io.BufferedReader(parts, 1 << 20)) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        tar.extractall(target)


def patch(trees: Path) -> None:
    """Make `patched` in TREES from `stock` and the files in `changed`."""
    shutil.copytree(trees / "stock", trees / "patched", copy_function=os.link)
    for file in (path for path in (trees / "changed").rglob("*") if path.is_file()):
        target = trees / "patched" / file.relative_to(trees / "changed")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a link: the stock file would change with it
        shutil.copy(file, target)


def lay(directories: Sequence[Path], target: Path) -> None:
    """Lay out in TARGET what the pieces in DIRECTORIES hold."""
    manifest = next((directory / MANIFEST for directory in directories if (directory / MANIFEST).is_file()), None)
    if manifest is None:
        raise SystemExit(f"{MANIFEST}: in none of {', '.join(map(str, directories))}")
    archives = json.loads(manifest.read_text(encoding="utf-8"))
    target.mkdir(parents=True, exist_ok=True)
    files = [checked(directories, pieces) for pieces in archives.values()]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda pieces: unpack(pieces, target), files))
    if (target / "trees").is_dir():
        patch(target / "trees")


if __name__ == "__main__":
    *named, last = map(Path, sys.argv[1:])
    lay(named, last)
