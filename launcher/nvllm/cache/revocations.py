"""Revocations: trees that are never served again, whatever manifest names them.

::

    manifests/blessed/revoked/<tree hash>.json    for every host that has the project
    <state>/blessings/revoked/<tree hash>.json    what this host remembers, whatever becomes of the project

A revocation names the tree and not the manifest: a bless that follows does not lift it, and neither does an old
manifest that comes back. There is no command that takes one back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm.cache import manifest
from nvllm.core import canonical, durable
from nvllm.core.canonical import Json
from nvllm.core.paths import ensure

SCHEMA = "nvllm.revoked/1"


@dataclass(frozen=True, slots=True)
class Revocations:
    """The revocations in PROJECT, a directory that git tracks, and those in MEMORY, of this host."""

    project: Path
    memory: Path

    def reason(self, tree_hash: str) -> str | None:
        """Return why the tree of TREE_HASH is revoked, or None. A record that cannot be read revokes as well."""
        for directory in (self.project, self.memory):
            path = directory / f"{tree_hash}.json"
            if os.path.lexists(path):
                document = read_document(path, SCHEMA)
                return str(document["reason"]) if document is not None and "reason" in document else "record damaged"
        return None

    def add(self, tree_hash: str, reason: str, now: float, manifests: Sequence[str] = ()) -> Path:
        """Revoke the tree of TREE_HASH for REASON, at NOW (seconds), and return the project's record.

        MANIFESTS are the names of the files that name it, for whoever reads the record. This host remembers it
        first: from then on it holds. Raises Refused NV911 if that cannot be written.
        """
        document: Json = {
            "schema": SCHEMA,
            "tree_hash": tree_hash,
            "manifests": list(manifests),
            "revoked": manifest.stamp(now),
            "reason": reason,
        }
        data, name = canonical.pretty(document).encode(), f"{tree_hash}.json"
        for directory, mode, what in [(self.memory, 0o600, "memory"), (self.project, 0o644, "project")]:
            with durable.writing(directory):
                ensure(directory) if what == "memory" else directory.mkdir(parents=True, exist_ok=True)
            durable.replace(directory / name, data, mode, what)
        return self.project / name


def read_document(path: Path, schema: str) -> dict[str, Any] | None:
    """Return the JSON object at PATH if it is one of SCHEMA."""
    try:
        document = json.loads(durable.read(path))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("schema") == schema else None
