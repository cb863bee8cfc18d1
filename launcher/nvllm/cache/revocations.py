"""Revocations: trees that are never served again, whatever manifest names them.

::

    manifests/blessed/revoked/<tree hash>.json    for every host that has the project
    <state>/blessings/revoked/<tree hash>.json    the copy of this host, which stays if git is reset

A revocation names a tree, not a manifest: neither a later bless nor an old manifest that comes back lifts it. No
command undoes one. Whoever asks whether a tree is revoked first copies what the project's directory holds into the
memory of this host, so a record that came by git is not forgotten when git takes it away.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm.cache.manifest import Manifest
from nvllm.core import canonical, clock, durable, reading, trusted
from nvllm.core.canonical import Json
from nvllm.core.paths import ensure
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.trusted import Trusted

SCHEMA = "nvllm.revoked/1"

_DAMAGED = "record damaged"
_NAME = re.compile(r"[0-9a-f]{64}\.json")


@dataclass(frozen=True, slots=True)
class Revocations:
    """The revocations in PROJECT, a directory that git tracks, and in MEMORY, the one of this host."""

    project: Path
    memory: Path

    def reason(self, tree_hash: str) -> str | None:
        """Return why the tree of TREE_HASH is revoked, or None. A record that cannot be read revokes as well.

        Raises Refused NV903 for a directory or record that is not to be trusted, or that this user cannot look into:
        nobody knows what was there.
        """
        name = f"{tree_hash}.json"
        for trust, directory in self._places():
            data = trust.content(directory / name, reading.STATE)
            if data is not None:
                document = decode(data, SCHEMA)
                return str(document["reason"]) if document is not None and "reason" in document else _DAMAGED
        return None

    def against(self, path: Path, blessed: Manifest) -> list[Refusal]:
        """Return NV903 if the tree of BLESSED, the manifest at PATH, is revoked, or if that cannot be found out.

        Returns NV911 as well if a revocation in the project cannot be written into the memory of this host.
        """
        forgotten = self.remember()
        try:
            reason = self.reason(blessed.tree_hash)
        except Refused as refused:
            return list(dict.fromkeys([*refused.refusals, *forgotten]))
        if reason is None:
            return forgotten
        revoked = f"tree {blessed.tree_hash[:12]}: {reason}"
        return [Refusal("NV903", str(path), "a cache that is not revoked", revoked, blessed.cure), *forgotten]

    def remember(self) -> list[Refusal]:
        """Copy each record of the project that this host lacks into its memory.

        Returns NV903 for a directory or record that is not to be trusted, and NV911 if the memory cannot be written.
        """
        (project, _), (memory, _) = self._places()
        try:
            known = {path.name for path in memory.listed(self.memory, "*.json")}
            for path in project.listed(self.project, "*.json"):
                if _NAME.fullmatch(path.name) and path.name not in known:
                    data = project.content(path, reading.STATE)
                    if data is not None and decode(data, SCHEMA) is None:
                        data = _record(path.stem, _DAMAGED, clock.now(), ())
                    if data is not None:
                        self._write_memory(path.name, data)
        except Refused as refused:
            return list(refused.refusals)
        return []

    def add(self, tree_hash: str, reason: str, now: float, manifests: Sequence[str] = ()) -> Path:
        """Revoke the tree of TREE_HASH for REASON, at NOW (seconds), and return the project's record.

        MANIFESTS, the names of the files that name it, stand in the record for readers. The copy of this host is
        written first; from then on the tree is refused. Raises Refused NV911 if a record cannot be written.
        """
        data, name = _record(tree_hash, reason, clock.stamp(now), manifests), f"{tree_hash}.json"
        self._write_memory(name, data)
        with durable.writing(self.project):
            self.project.mkdir(parents=True, exist_ok=True)
        durable.replace(self.project / name, data, 0o644, "project")
        return self.project / name

    def _places(self) -> tuple[tuple[Trusted, Path], tuple[Trusted, Path]]:
        """Return both directories, each with the trust in it: the project's root, and the state, lie above them."""
        project = trusted.project(self.project.parents[2], "NV903")
        return (project, self.project), (trusted.state(self.memory.parents[1], "NV903"), self.memory)

    def _write_memory(self, name: str, data: bytes) -> None:
        with durable.writing(self.memory):
            # One after the other: os.makedirs gives its mode to the last directory alone.
            ensure(ensure(self.memory.parent) / self.memory.name)
        durable.replace(self.memory / name, data, 0o600, "memory")


def _record(tree_hash: str, reason: str, when: str, manifests: Sequence[str]) -> bytes:
    document: Json = {
        "schema": SCHEMA,
        "tree_hash": tree_hash,
        "manifests": list(manifests),
        "revoked": when,
        "reason": reason,
    }
    return canonical.pretty(document).encode()


def decode(data: bytes, schema: str) -> dict[str, Any] | None:
    """Return the JSON object in DATA if it is one of SCHEMA."""
    try:
        document = canonical.decode(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) and document.get("schema") == schema else None
