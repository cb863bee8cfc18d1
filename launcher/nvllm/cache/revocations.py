"""Revocations: trees that are never served again, whatever manifest names them.

::

    manifests/blessed/revoked/<tree hash>.json    for every host that has the project
    <state>/blessings/revoked/<tree hash>.json    the copy of this host, which stays if git is reset

A revocation names a tree, not a manifest: neither a later bless nor an old manifest that comes back lifts it. No
command undoes one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm.cache.manifest import Manifest
from nvllm.core import canonical, clock, durable, reading
from nvllm.core.canonical import Json
from nvllm.core.paths import ensure
from nvllm.core.refusal import Refusal, Refused, refuse

SCHEMA = "nvllm.revoked/1"


@dataclass(frozen=True, slots=True)
class Revocations:
    """The revocations in PROJECT, a directory that git tracks, and in MEMORY, the one of this host."""

    project: Path
    memory: Path

    def reason(self, tree_hash: str) -> str | None:
        """Return why the tree of TREE_HASH is revoked, or None. A record that cannot be read revokes as well.

        Raises Refused NV903 for a directory that this user cannot look into: nobody knows what is in it.
        """
        for directory in (self.project, self.memory):
            path = directory / f"{tree_hash}.json"
            if exists(path, "NV903", "no record, or one that this user can find"):
                document = read_document(path, SCHEMA)
                return str(document["reason"]) if document is not None and "reason" in document else "record damaged"
        return None

    def against(self, path: Path, found: Manifest) -> list[Refusal]:
        """Return NV903 if the tree of FOUND, the manifest at PATH, is revoked, or if that cannot be found out."""
        try:
            reason = self.reason(found.tree_hash)
        except Refused as refused:
            return list(refused.refusals)
        if reason is None:
            return []
        said = f"tree {found.tree_hash[:12]}: {reason}"
        return [Refusal("NV903", str(path), "a cache that is not revoked", said, found.cure)]

    def add(self, tree_hash: str, reason: str, now: float, manifests: Sequence[str] = ()) -> Path:
        """Revoke the tree of TREE_HASH for REASON, at NOW (seconds), and return the project's record.

        MANIFESTS, the names of the files that name it, stand in the record for readers. The copy of this host is
        written first; from then on the tree is refused. Raises Refused NV911 if a record cannot be written.
        """
        document: Json = {
            "schema": SCHEMA,
            "tree_hash": tree_hash,
            "manifests": list(manifests),
            "revoked": clock.stamp(now),
            "reason": reason,
        }
        data, name = canonical.pretty(document).encode(), f"{tree_hash}.json"
        for directory, mode, what in [(self.memory, 0o600, "memory"), (self.project, 0o644, "project")]:
            with durable.writing(directory):
                ensure(directory) if what == "memory" else directory.mkdir(parents=True, exist_ok=True)
            durable.replace(directory / name, data, mode, what)
        return self.project / name


def exists(path: Path, code: str, expected: str) -> bool:
    """Say whether anything is at PATH, a link included.

    Raises Refused with CODE and EXPECTED if that cannot be found out, as behind a directory that this user cannot
    enter. `os.path.lexists` would say that nothing is there.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        closed = next((one for one in reversed(path.parents) if not os.access(one, os.X_OK)), path.parent)
        found = error.strerror or str(error)
        raise refuse(code, str(path), expected, found, f"chmod a+rx {shlex.quote(str(closed))}") from error
    return True


def read_document(path: Path, schema: str) -> dict[str, Any] | None:
    """Return the JSON object at PATH if it is one of SCHEMA."""
    try:
        document = canonical.decode(reading.unlinked(path, reading.STATE))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and document.get("schema") == schema else None
