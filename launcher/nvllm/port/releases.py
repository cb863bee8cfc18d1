"""The releases of vLLM, in their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from packaging.version import InvalidVersion, Version


def after(versions: Collection[str], version: str) -> tuple[str, ...]:
    """Return those of VERSIONS that are final releases and come after VERSION, in their order."""
    known = {release: text for text in versions if (release := _version(text)) is not None}
    return tuple(
        text for release, text in sorted(known.items()) if release > Version(version) and not release.is_prerelease
    )


def first(versions: Sequence[str], change: str, upstream: Callable[[str], Collection[str]]) -> str:
    """Return the first of VERSIONS that has CHANGE, by halving: the last one has it, and what has it keeps it.

    UPSTREAM says which changes a version has. It is asked of as few as can decide, for each one costs an archive.
    """
    low, high = 0, len(versions) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if change in upstream(versions[middle]) else (middle + 1, high)
    return versions[high]


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
