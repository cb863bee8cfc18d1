"""The memo of hashes: the sha256 of model files that were read before, so that a start need not read 30 GB again.

A file is known by device, inode, size, and both times. Equal values mean equal bytes where every change moves the
change time, which nobody can set back. Three things are needed for that:

* A file that is written twice within one tick of its file system's clock keeps its times. So, as in git's index, a
  hash is kept only if the file was last changed more than two seconds, the coarsest tick in use, before it was read.
* A shared mapping (`mmap`) moves the times at its first write to a clean page; later writes to the page move nothing
  until it was written back. So the file is synced before it is hashed.
* tmpfs never writes back, and a network's file system has times of its own. So hashes are kept only for the file
  systems on which this was measured.

Beside the hash of the whole file stand the hashes of its blocks. Each start reads a few of them again, others each
time.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from nvllm.core import canonical, durable, reading, trusted
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refused

SCHEMA = "nvllm.memo/2"

SETTLED = 2_000_000_000
"""Nanoseconds."""

LASTING = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs"})
"""File systems on which a write through a shared mapping, after a sync, was seen to move the change time."""

SAMPLED, SAMPLED_OF_FILE = 128, 16
"""Blocks that one start reads again: of all files of a model, and of one file; at least one of each file."""

_LEAST_BLOCK = 2**20
_MOST_BLOCKS = 8192
"""A file of 64 GB is kept as 8192 digests, 128 KiB: what one start reads again stays one read in a file of any size."""
_DIGEST = 16
"""Bytes kept of the sha256 of a block."""

_MOST_FILES = 2048
"""The newest files that the memo keeps: some twenty models of a hundred files. An older one is hashed again."""


@dataclass(frozen=True, slots=True)
class Known:
    """The SHA256 of a file, and the hashes of its blocks of BLOCK bytes, one after the other."""

    sha256: str
    block: int
    blocks: bytes


@dataclass(slots=True)
class HashCache:
    """Hashes of files that were read before. Create one by `load` or `none`."""

    path: Path | None
    clock: Callable[[], int] = time.time_ns
    """Nanoseconds since 1970, as the file times are."""
    _known: dict[str, Known] = field(default_factory=dict)
    _changed: bool = False

    @classmethod
    def none(cls) -> HashCache:
        """Return a cache that keeps nothing, so that every file is read."""
        return cls(None)

    @classmethod
    def load(cls, path: Path, clock: Callable[[], int] = time.time_ns) -> HashCache:
        """Return the cache in the file PATH; an empty one if it is missing, damaged, or not to be trusted."""
        try:
            data = trusted.state(path.parent, "NV920").content(path, reading.STATE)
            document: Any = None if data is None else canonical.decode(data)
        except (Refused, ValueError):
            document = None
        files = document.get("files") if isinstance(document, dict) and document.get("schema") == SCHEMA else None
        entries = files.items() if isinstance(files, dict) else ()
        return cls(path, clock, {key: known for key, row in entries if (known := _decoded(key, row)) is not None})

    @staticmethod
    def key(info: os.stat_result) -> str:
        """Return the key of the file with the status INFO."""
        return f"{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}:{info.st_ctime_ns}"

    def get(self, info: os.stat_result) -> str | None:
        """Return the sha256 of the file with INFO, if it is known."""
        known = self._known.get(self.key(info))
        return None if known is None else known.sha256

    def put(self, info: os.stat_result, known: Known, started: int) -> None:
        """Keep KNOWN for INFO, if the file was unchanged for two seconds when reading STARTED (nanoseconds).

        KNOWN has no blocks where a hash does not last; such a one is not kept.
        """
        settled = max(info.st_mtime_ns, info.st_ctime_ns) + SETTLED < started
        if self.path is not None and known.block and settled:
            self._known[self.key(info)] = known
            self._changed = True

    def forget(self, info: os.stat_result) -> None:
        """Forget the hash of the file with INFO."""
        self._known.pop(self.key(info), None)
        self._changed = True

    def hashed(self, stream: FileIO, info: os.stat_result) -> Known:
        """Return the hashes of the file STREAM, which was synced and has the status INFO.

        Those of its blocks are made only where they can be kept; else the size of a block is 0.
        """
        if self.path is None or file_system(stream.fileno()) not in LASTING:
            return Known(hashlib.file_digest(stream, "sha256").hexdigest(), 0, b"")
        whole, block = hashlib.sha256(), block_size(info.st_size)
        digests: list[bytes] = []
        with ThreadPoolExecutor(1) as beside:  # both hashes at once where there is a second processor
            while data := os.pread(stream.fileno(), block, len(digests) * block):
                digest = beside.submit(_digest, data)
                whole.update(data)
                digests.append(digest.result())
        return Known(whole.hexdigest(), block, b"".join(digests))

    def sample(self, descriptor: int, info: os.stat_result, count: int) -> tuple[int, int] | None:
        """Read COUNT blocks, drawn at random, of the known file with INFO, open as DESCRIPTOR.

        Returns the first and the last byte of a block that is not as it was when the file was hashed, or None.
        """
        known = self._known[self.key(info)]
        number = len(known.blocks) // _DIGEST
        for index in random.SystemRandom().sample(range(number), min(count, number)):
            data = os.pread(descriptor, known.block, index * known.block)
            if _digest(data) != known.blocks[index * _DIGEST : (index + 1) * _DIGEST]:
                return index * known.block, min((index + 1) * known.block, info.st_size) - 1
        return None

    def save(self) -> None:
        """Write the cache to its path by one rename, if it changed. Raises Refused NV920 if it cannot be written."""
        if self.path is None or not self._changed:
            return
        last = {key.rsplit(":", 3)[0]: (key, known) for key, known in self._known.items()}  # one of each inode
        newest = list(last.values())[-_MOST_FILES:]
        files: Json = {
            key: [known.sha256, known.block, base64.b64encode(known.blocks).decode()] for key, known in newest
        }
        durable.keep(self.path, canonical.encode({"schema": SCHEMA, "files": files}))
        self._changed = False


def file_system(descriptor: int) -> str:
    """Return the type of the file system of DESCRIPTOR as the kernel lists it, such as ``ext4``; empty if unknown."""
    try:
        status = reading.text(Path(f"/proc/self/fdinfo/{descriptor}"), reading.CONFIGURATION)
        mounts = reading.text(Path("/proc/self/mountinfo"), reading.STATE)
    except (OSError, UnicodeDecodeError):
        return ""
    mount = next((line.split()[1] for line in status.splitlines() if line.startswith("mnt_id:")), "")
    line = next((line for line in mounts.splitlines() if line.startswith(f"{mount} ")), "")
    return (line.partition(" - ")[2].split() or [""])[0]


def block_size(size: int) -> int:
    """Return the size of the blocks of a file of SIZE bytes: 1 MiB, or more, so that there are at most 8192."""
    block = _LEAST_BLOCK
    while block * _MOST_BLOCKS < size:
        block *= 2
    return block


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST]


def _decoded(key: str, row: object) -> Known | None:
    """Return what ROW, the entry of KEY, holds; None unless it has the hash of each block of a file of that size."""
    try:
        size = int(key.split(":")[2])
        match row:
            case [str(sha256), int(block), str(text)] if len(bytes.fromhex(sha256)) == 32 and block == block_size(size):
                blocks = base64.b64decode(text, validate=True)
                return Known(sha256, block, blocks) if len(blocks) == -(-size // block) * _DIGEST else None
    except (ValueError, IndexError):
        pass
    return None
