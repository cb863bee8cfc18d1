"""Promotion: how a bless comes into force, by one rename.

Everything that the new manifest needs, its archived predecessor and its signature, is on the disk under a name of
its own before that rename, and nothing is taken away by it. So at every instant, and whatever kills the process,
either the old or the new bless is in force, whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from nvllm.cache import manifest
from nvllm.cache.blessings import Blessing, Blessings
from nvllm.cache.manifest import Manifest
from nvllm.core import durable
from nvllm.core.refusal import Refusal, Refused, refuse_any


def _trace(point: str) -> None:
    """Do nothing. Tests replace this in a child process, to kill it at POINT."""


def next_version(blessings: Blessings, serve_hash: str) -> int:
    """Return the version that a bless of SERVE_HASH has to have: above every one that is known here."""
    known = [0]
    for path in (*blessings.directory.glob("*.json"), *(blessings.directory / "archive").glob("*.json")):
        try:
            found = manifest.read(path, str(path))
        except Refused:
            continue  # it is not in force, and never will be
        known += [found.version] if found.serve_hash == serve_hash else []
    seen = blessings.versions.newest(serve_hash)
    return max([*known, seen[0] if seen is not None else 0]) + 1


def promote(blessings: Blessings, new: Manifest, signed: bytes | None = None) -> Path:
    """Bring NEW into force for a serve hash without a blessing, and return where it lies.

    SIGNED is its signature, over the bytes of `manifest.encode`. Raises Refused NV902 if there is a blessing
    already, and otherwise as `replace` does.
    """
    return _promote(blessings, new, signed, None)


def replace(blessings: Blessings, new: Manifest, old: Blessing, signed: bytes | None = None) -> Path:
    """Bring NEW into force in the place of OLD, the blessing of the same serve hash, which is archived.

    Raises Refused: NV902 if OLD is not what is in force now, or has another label; NV903 if the tree of NEW is
    revoked; NV906 if its version is not above all others; NV908 if it is not consistent; NV911 if it cannot be
    written. What was in force still is, then; only after NV911 it may be NEW, if the rename was the last that worked.
    """
    return _promote(blessings, new, signed, old)


def _promote(blessings: Blessings, new: Manifest, signed: bytes | None, old: Blessing | None) -> Path:
    directory = blessings.directory
    place, data = directory / new.filename, manifest.encode(new)
    _make(directory)
    with durable.locked(directory):
        manifest.decode(data, str(place))
        refusals = [
            *_in_the_way(blessings, new, old),
            *_not_next(blessings, new, place),
            *blessings.revocations.against(place, new),
        ]
        refuse_any(refusals)
        if old is not None:
            before = durable.read(old.path)
            durable.replace(_make(directory / "archive") / _archived(old, before), before, 0o644, _traced("archive"))
        if signed is not None:
            _make(directory / "signatures")
            durable.replace(blessings.signature(new), signed, 0o644, _traced("signature"))
        durable.replace(place, data, 0o644, _traced("manifest"))
    blessings.versions.saw(new)
    return place


def _traced(what: str) -> Callable[[str], None]:
    return lambda point: _trace(f"{what} {point}")


def _make(directory: Path) -> Path:
    with durable.writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    return directory


def _archived(old: Blessing, data: bytes) -> str:
    if old.manifest is not None:
        return old.manifest.archived
    return f"{old.path.stem}_damaged_{hashlib.sha256(data).hexdigest()[:8]}.json"


def _in_the_way(blessings: Blessings, new: Manifest, old: Blessing | None) -> list[Refusal]:
    """Return NV902 unless what is in force for NEW is exactly OLD, under the name that NEW will have."""
    place = blessings.directory / new.filename
    there = [one for one in blessings.all() if one.path == place or one in blessings.of(new.serve_hash)]
    if there == ([] if old is None else [old]) and (old is None or old.path == place):
        return []
    expected = (
        f"{place.name}, as it was read" if old is not None else "no blessing of this serve hash, nor of this name"
    )
    found = ", ".join(one.path.name for one in there) or "none"
    cure = new.cure
    return [Refusal("NV902", str(place), expected, found, cure)]


def _not_next(blessings: Blessings, new: Manifest, place: Path) -> list[Refusal]:
    version = next_version(blessings, new.serve_hash)
    if new.version >= version:
        return []
    cure = new.cure
    return [Refusal("NV906", str(place), f"version {version} or later", f"version {new.version}", cure)]
