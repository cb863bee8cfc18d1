"""What must be zero after a call, byte by byte, and which ids to try. Nothing in here knows the kernel or its table."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
"""Bytes from the first number up to the second one, which is not among them."""


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return RANGES in order, with those that touch or overlap as one, and without empty ones."""
    merged: list[Range] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def cleared(stride: int, owned: Sequence[Range], ids: Iterable[int]) -> list[Range]:
    """Return the bytes of a buffer that a call with IDS must clear, and no others.

    OWNED are the bytes of a page that its layers own; page b begins at `b * STRIDE`.
    """
    return joined((block * stride + start, block * stride + stop) for block in set(ids) for start, stop in owned)


def id_lists(blocks: int, seed: int) -> dict[str, list[int]]:
    """Return lists of ids below BLOCKS by name: the ends, every one, runs, repetitions, and random ones from SEED."""
    rng = random.Random(seed)
    every = list(range(blocks))
    many = min(512, blocks)
    return {
        "none": [],
        "the first": [0],
        "the last": [blocks - 1],
        "both ends": [blocks - 1, 0],
        "neighbours": [blocks // 2, blocks // 2 + 1],
        "every second": every[::2],
        "every one": every,
        "every one, backwards": every[::-1],
        "one, three times": [blocks // 3] * 3,
        "repeated and mixed": [1, 3, 1, 2, 3, 1],
        "one at random": [rng.randrange(blocks)],
        f"{many} at random": rng.sample(every, many),
        f"{many} at random with repetitions": rng.choices(every, k=many),
    }


ODD_LAYOUTS: dict[str, tuple[int, int, int]] = {
    "a page of one word": (0, 4, 4),
    "one word in a larger stride": (0, 4096, 4),
    "one word short of a chunk": (0, 4096, 4092),
    "one word more than a chunk": (0, 4100, 4100),
    "aligned to a word only": (4, 4100, 4096),
    "aligned to two words": (8, 8200, 8192),
    "a stride of an odd number of words": (12, 12300, 4096),
    "three chunks and a half": (64, 16384, 14336),
    "a prime number of words": (20, 4 * 1031, 4 * 1021),
}
"""Offset of the first page in the buffer, stride and page size, in bytes, for pages as no cache has them."""
