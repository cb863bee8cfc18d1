"""The models whose cache is cleared, and how many blocks at a time. No vLLM and no torch in here."""

from __future__ import annotations

from dataclasses import dataclass

COUNTS = (1, 4, 16, 64, 256, 512)
"""Block ids of one call: from one request that decodes to a step that prefills many."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A hybrid model: how many layers of each kind, and the bytes of a page of its cache.

    STATES are the shapes of a Mamba layer's states, in bfloat16. TOKENS is the block size of attention, whose page
    has `2 * TOKENS * HEADS * HEAD_SIZE` values of bfloat16 and is as large as the padded page of Mamba.
    """

    name: str
    attention: int
    mamba: int
    page: int
    tokens: int
    heads: int
    head_size: int
    states: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        assert self.page == 2 * 2 * self.tokens * self.heads * self.head_size, self.name


_MIB = 1 << 20
# A conv state of 61,440 and an ssm state of 786,432 bytes: what a gated delta net keeps on one of two GPUs.
_GDN = ((3, 10240), (24, 128, 128))

HYBRID = Shape("64-layer hybrid", 16, 48, _MIB, 512, 2, 256, _GDN)
"""16 attention and 48 linear attention layers: 16 buffers of 1 MiB pages, each shared by one layer of four groups."""

MAMBA_ONLY = Shape("10+12, two buffers without attention", 10, 12, _MIB, 512, 2, 256, _GDN)
"""10 attention and 12 linear attention layers: 12 buffers, of which two hold Mamba states alone."""

TINY = (
    Shape("tiny hybrid", 5, 15, 4096, 16, 2, 32, ((3, 200), (2, 12, 16))),
    Shape("tiny 10+12", 10, 12, 4096, 16, 2, 32, ((3, 200), (2, 12, 16))),
)
"""The same two for an interpreter without a GPU."""

SHAPES = (HYBRID, MAMBA_ONLY)
