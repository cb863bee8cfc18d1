"""What a removal frees: each layer and each file counted once, and only if nothing that stays has it too."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nvllm.host.facts import StoredImage

_BLOCKS = 1.05
"""What files take on a disk, for each byte that an engine counts: a file takes whole blocks."""

_LAYER = 80 * 2**10
"""Bytes that a layer takes besides its files: the directories above them, and what the engine keeps of it.

Both were measured: the 24 layers of the image cpu, of 400 bytes to 2.3 GB, in overlay2 on ext4. No layer took 7 % more
or less than this says.
"""


def of_images(gone: Sequence[StoredImage], stored: Sequence[StoredImage]) -> Iterator[tuple[StoredImage, int]]:
    """Yield each image of GONE with the bytes that its removal frees, after those before it.

    STORED are all images of the engine: a layer goes with the last of its images. An engine calls a layer by the chain
    of layers up to it, because it keeps the same layer twice above two others.
    """
    left = Counter(chain for image in stored for chain, _ in image.layers)
    for image in gone:
        size = 0
        for chain, counted in image.layers:
            left[chain] -= 1
            if not left[chain]:
                size += int(counted * _BLOCKS) + _LAYER
        yield image, size


@dataclass(slots=True)
class RemovedFiles:
    """The files that were counted so far, each by its device and inode, with how many of its names go."""

    _names: Counter[tuple[int, int]] = field(default_factory=Counter)

    def freed_by(self, *paths: Path) -> int:
        """Return the bytes that the removal of PATHS frees, with everything below them, after what was counted before.

        A file with several names frees its blocks when the last of them goes.
        """
        return sum(self._freed(info) for path in paths for info in _below(path))

    def _freed(self, info: os.stat_result) -> int:
        file = (info.st_dev, info.st_ino)
        self._names[file] += 1
        links = 1 if stat.S_ISDIR(info.st_mode) else info.st_nlink
        # In units of 512 bytes, whatever the blocks of the file system are (stat(2)).
        return info.st_blocks * 512 if self._names[file] == links else 0


def _below(path: Path) -> Iterator[os.stat_result]:
    """Yield the status of PATH and of everything below it. A link is not followed. Nothing if it is not there."""
    try:
        yield path.lstat()
    except FileNotFoundError:  # another process has just removed it
        return
    if path.is_dir() and not path.is_symlink():
        for inner in path.rglob("*"):
            yield inner.lstat()
