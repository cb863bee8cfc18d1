"""The releases of vLLM, in their order."""

from __future__ import annotations

from collections.abc import Collection

from packaging.version import InvalidVersion, Version


def after(versions: Collection[str], version: str) -> tuple[str, ...]:
    """Return those of VERSIONS that are final releases and come after VERSION, in their order."""
    known = {release: text for text in versions if (release := _version(text)) is not None}
    return tuple(
        text for release, text in sorted(known.items()) if release > Version(version) and not release.is_prerelease
    )


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
