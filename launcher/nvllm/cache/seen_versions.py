"""The newest version of each blessing that this host has seen, by which it refuses an older one that comes back.

::

    <state>/blessings/<serve hash>.json    version and sha256 of the newest manifest
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path

from nvllm.cache import manifest
from nvllm.cache.manifest import Manifest
from nvllm.cache.revocations import decode
from nvllm.core import canonical, durable, reading, trusted
from nvllm.core.canonical import Json
from nvllm.core.paths import ensure
from nvllm.core.refusal import Refusal, Refused, refuse

SCHEMA = "nvllm.seen/1"


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions that this host has seen, recorded below MEMORY."""

    memory: Path

    def newest(self, serve_hash: str) -> tuple[int, str] | None:
        """Return version and sha256 of the newest manifest seen for SERVE_HASH, or None if none was.

        Raises Refused NV906 if the record is damaged, not to be trusted, or cannot be looked for: then an old manifest
        cannot be told from a new one.
        """
        path = self.memory / f"{serve_hash}.json"
        data = trusted.state(self.memory.parent, "NV906").content(path, reading.STATE)
        if data is None:
            return None
        match decode(data, SCHEMA):
            case {"version": int(version), "sha256": str(digest)}:
                return version, digest
            case _:
                cure = shlex.join(["rm", str(path)])
                raise refuse("NV906", str(path), "what this host has seen", "not what nvllm wrote", cure)

    def replayed(self, path: Path, blessed: Manifest, cure: str) -> list[Refusal]:
        """Return NV906 if the manifest BLESSED at PATH is older than one that was seen, or another of its version."""
        try:
            seen = self.newest(blessed.serve_hash)
        except Refused as refused:
            return list(refused.refusals)
        if seen is None:
            return []
        version, digest = seen
        if blessed.version < version:
            expected = f"version {version} or later, which this host has seen"
            return [Refusal("NV906", str(path), expected, f"version {blessed.version}", cure)]
        if blessed.version == version and sha256(blessed) != digest:
            expected = f"the version {version} that this host has seen, sha256 {digest[:12]}"
            return [Refusal("NV906", str(path), expected, f"another one, sha256 {sha256(blessed)[:12]}", cure)]
        return []

    def saw(self, blessed: Manifest) -> None:
        """Record BLESSED if it is newer than the record. Raises Refused NV911 if that cannot be written."""
        with durable.writing(self.memory):
            ensure(self.memory)
        with durable.locked(self.memory):  # read and written under it: of two at once the newer must stay
            seen = self.newest(blessed.serve_hash)
            if seen is None or seen[0] < blessed.version:
                document: Json = {"schema": SCHEMA, "version": blessed.version, "sha256": sha256(blessed)}
                path = self.memory / f"{blessed.serve_hash}.json"
                durable.replace(path, canonical.pretty(document).encode(), 0o600, "seen")


def sha256(blessed: Manifest) -> str:
    """Return the sha256 of the file of BLESSED."""
    return hashlib.sha256(manifest.encode(blessed)).hexdigest()
