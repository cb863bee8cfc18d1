"""Replicas: runs that gave the same output, byte for byte, are one sample.

A deterministic engine gives five identical runs for one question list. They say nothing that one of them does not say,
and an interval that counts five is too narrow.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def groups(outputs: Sequence[T]) -> tuple[tuple[int, ...], ...]:
    """Return the places in OUTPUTS by equal output, in the order of their first places."""
    by_output: dict[T, list[int]] = {}
    for index, output in enumerate(outputs):
        by_output.setdefault(output, []).append(index)
    return tuple(tuple(places) for places in by_output.values())


def distinct(outputs: Sequence[T]) -> tuple[int, ...]:
    """Return the first place of each different output in OUTPUTS."""
    return tuple(places[0] for places in groups(outputs))
