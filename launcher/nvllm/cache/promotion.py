"""Promotion: how a manifest comes into force, by one rename.

Its signature and its archived predecessor are on the disk, under names of their own, before that rename, and the rename
removes nothing else. So at every instant, also if the process is killed, either the old or the new manifest is in
force, whole.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from nvllm.cache import manifest
from nvllm.cache.blessings import Blessing, Blessings, whole
from nvllm.cache.manifest import Manifest
from nvllm.core import durable, reading
from nvllm.core.paths import ensure
from nvllm.core.refusal import Refusal, refuse_any


def next_version(blessings: Blessings, serve_hash: str) -> int:
    """Return the version of the next blessing of SERVE_HASH: above every version that is known on this host."""
    every = whole((*blessings.all(), *blessings.archived()))  # a damaged one is never served
    known = [blessed.version for _, blessed in every if blessed.serve_hash == serve_hash]
    seen = blessings.versions.newest(serve_hash)
    return max([*known, seen[0] if seen is not None else 0]) + 1


def restored(blessings: Blessings, earlier: Manifest) -> Manifest:
    """Return EARLIER, which is archived, as the next blessing of its serve hash.

    Only its version is another one, for hosts refuse a version older than one that they have seen. Its age stays.
    """
    return replace(earlier, version=next_version(blessings, earlier.serve_hash))


def promote(blessings: Blessings, new: Manifest, old: Blessing | None = None, signed: bytes | None = None) -> Path:
    """Bring NEW into force, archive OLD, the blessing of the same serve hash, if there is one, and return NEW's path.

    SIGNED is the signature of the bytes of `manifest.encode`. Raises Refused: NV902 unless exactly OLD is in force,
    under the same label; NV903 if the tree of NEW is revoked; NV906 if its version is not above all others; NV908 if it
    is not consistent; NV911 if it cannot be written. OLD stays in force then; only after NV911 it may be NEW, if the
    rename itself succeeded.
    """
    directory = blessings.directory
    path, data = directory / new.filename, manifest.encode(new)
    _make(directory)
    with durable.locked(directory):
        manifest.decode(
            data, str(path)
        )  # by the rules of every reader: nothing comes into force that each would refuse
        refusals = [
            *_in_the_way(blessings, new, old),
            *_not_next(blessings, new, path),
            *blessings.revocations.against(path, new),
        ]
        refuse_any(refusals)
        if old is not None:
            before = reading.unlinked(old.path, reading.MANIFEST)
            durable.replace(_make(directory / "archive") / _archived(old, before), before, 0o644, "archive")
        if signed is not None:
            _make(directory / "signatures")
            durable.replace(blessings.signature(new), signed, 0o644, "signature")
        durable.replace(path, data, 0o644, "manifest")
    blessings.versions.saw(new)  # afterwards: remembered and not there, it would refuse the one that is (NV906)
    return path


def offer(blessings: Blessings, claimed: Manifest) -> Path:
    """Keep CLAIMED as a candidate, whose tree is in the store, and return its path; no serve looks there.

    It replaces a candidate of the same serve hash. Raises Refused NV911 if it cannot be written.
    """
    with durable.writing(blessings.memory):
        ensure(blessings.memory)
    directory = _make(blessings.waiting)
    with durable.locked(directory):
        durable.replace(directory / claimed.filename, manifest.encode(claimed), 0o600, "candidate")
    return directory / claimed.filename


def settle(blessings: Blessings, candidate: Manifest) -> None:
    """Forget CANDIDATE, which was tried and is in force now."""
    path = blessings.waiting / candidate.filename
    with durable.writing(path), durable.locked(blessings.waiting):
        path.unlink(missing_ok=True)


def _make(directory: Path) -> Path:
    with durable.writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    return directory


def _archived(old: Blessing, data: bytes) -> str:
    if old.manifest is not None:
        return old.manifest.archived
    return f"{old.path.stem}_damaged_{hashlib.sha256(data).hexdigest()[:8]}.json"


def _in_the_way(blessings: Blessings, new: Manifest, old: Blessing | None) -> list[Refusal]:
    """Return NV902 unless exactly OLD is in force for the serve hash of NEW, under the file name of NEW."""
    path = blessings.directory / new.filename
    in_force = [
        blessing for blessing in blessings.all() if blessing.path == path or blessing in blessings.of(new.serve_hash)
    ]
    if in_force == ([] if old is None else [old]) and (old is None or old.path == path):
        return []
    expected = f"{path.name}, as it was read" if old is not None else "no blessing of this serve hash, nor of this name"
    names = ", ".join(blessing.path.name for blessing in in_force) or "none"
    return [Refusal("NV902", str(path), expected, names, new.cure)]


def _not_next(blessings: Blessings, new: Manifest, path: Path) -> list[Refusal]:
    version = next_version(blessings, new.serve_hash)
    if new.version >= version:
        return []
    return [Refusal("NV906", str(path), f"version {version} or later", f"version {new.version}", new.cure)]
