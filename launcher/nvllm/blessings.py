"""The blessings of a project: which manifest is in force for a serve hash, and what speaks against it.

::

    manifests/blessed/<label>_<serve-hash 7>.json     in force; one for a serve hash
    manifests/blessed/archive/..._v<version>.json     what was in force before
    manifests/blessed/revoked/<tree hash>.json        trees that are never served again
    manifests/blessed/signatures/<sha256>.sig         of the manifest with exactly these bytes
    <state>/blessings/<serve hash>.json               the newest version that this host has seen

A bless comes into force by one rename, after everything it needs is on the disk: at every instant either the old
or the new one is in force, whole. A revocation names the tree, not the manifest, so neither a bless that follows
nor an old manifest that comes back lifts it; this host remembers it too, and the newest version that it has seen,
because the directory is one of a git repository, and can be taken back to an older state.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm import canonical, durable, explain, manifest, signature
from nvllm.manifest import Manifest
from nvllm.places import ensure
from nvllm.refusal import Refusal, Refused, refuse_any

REVOKED = "nvllm.revoked/1"
SEEN = "nvllm.seen/1"

CLOCK_SLACK = 300
"""Seconds by which the clocks of two hosts may differ."""


def _trace(point: str) -> None:
    """Do nothing. Tests replace this in a child process, to kill it at POINT."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is about to be served. SIGNERS is the allowed signers file that the profile requires, NOW seconds.

    IMAGE and PROFILE, names, are what the nearest manifest is looked for by when none has the SERVE_HASH.
    """

    image: str
    profile: str
    serve_hash: str
    factors: Mapping[str, Any]
    dev: bool
    now: float
    signers: Path | None = None

    @property
    def cure(self) -> str:
        return f"nvllm bless {self.image} --profile {self.profile}"


@dataclass(frozen=True, slots=True)
class Blessing:
    """A manifest file as it lies there: what it says, or why it says nothing."""

    path: Path
    manifest: Manifest | None
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Blessings:
    """The blessings in DIRECTORY, ``manifests/blessed`` of a project; MEMORY is what this host remembers of them."""

    directory: Path
    memory: Path

    # What there is

    def all(self) -> tuple[Blessing, ...]:
        """Return every manifest that is in force or would be, by file name, the damaged ones too."""
        found = []
        for path in sorted(self.directory.glob("*.json")):
            try:
                found.append(Blessing(path, manifest.read(path, str(path)), ()))
            except Refused as refused:
                found.append(Blessing(path, None, tuple(refused.refusals)))
        return tuple(found)

    def named(self, name: str) -> Blessing:
        """Return the blessing with NAME: its file's name, its label, or at least 7 digits of its serve hash.

        Raises Refused NV107 if there is none, or more than one.
        """
        every = self.all()
        known = {one.path.stem: one for one in every}
        matching = [known[name.removesuffix(".json")]] if name.removesuffix(".json") in known else []
        matching = matching or [
            one
            for one in every
            if one.manifest is not None
            and (one.manifest.label == name or (len(name) >= manifest.PREFIX and one.manifest.serve_hash.startswith(name)))
        ]
        if len(matching) != 1:
            expected = f"one of {', '.join(known)}" if known else "a blessing; there is none"
            found = f"{len(matching)} called {name}" if matching else name
            raise Refused([Refusal("NV107", str(self.directory), expected, found, "nvllm manifest list")])
        return matching[0]

    def revocation(self, tree_hash: str) -> str | None:
        """Return why the tree of TREE_HASH is revoked, or None. A record that cannot be read revokes too."""
        for directory in (self._revoked, self.memory / "revoked"):
            path = directory / f"{tree_hash}.json"
            if os.path.lexists(path):
                document = _document(path, REVOKED)
                return str(document["reason"]) if document is not None and "reason" in document else "not readable"
        return None

    def trees(self) -> frozenset[str]:
        """Return the hashes of the trees that manifests in force name: what must stay in the tree store.

        Raises Refused NV908 if a manifest is damaged, because nobody knows what it names.
        """
        every = self.all()
        refuse_any(refusal for one in every for refusal in one.refusals)
        return frozenset(one.manifest.tree_hash for one in every if one.manifest is not None)

    # Serving

    def lookup(self, demand: Demand) -> Manifest:
        """Return the manifest that is in force for DEMAND.

        Raises Refused with all that speaks against it: NV901 none, NV910 none but a near one, NV902 more than one,
        NV903 revoked, NV904 unsafe, NV905 expired, NV906 an old one, NV908 damaged, NV909 not signed as required.
        """
        every = self.all()
        damaged = [one for one in every if one.manifest is None and _may_be(one.path, demand.serve_hash)]
        refusals = [refusal for one in damaged for refusal in one.refusals]
        matching = [
            (one.path, one.manifest) for one in every if one.manifest and one.manifest.serve_hash == demand.serve_hash
        ]
        if not matching and not refusals:
            known = [(one.path, one.manifest) for one in every if one.manifest]
            raise Refused(_none(demand, self.directory, known))
        if len(matching) > 1:
            names = ", ".join(path.name for path, _ in matching)
            cure = f"git rm all but one of {names}, or bless again"
            refusals.extend(
                Refusal("NV902", str(path), "one manifest for a serve hash", f"{len(matching)}: {names}", cure)
                for path, _ in matching
            )
        for path, found in matching:
            refusals.extend(self.against(path, found, demand))
        refuse_any(refusals)
        return matching[0][1]

    def against(self, path: Path, found: Manifest, demand: Demand) -> list[Refusal]:
        """Return what speaks against serving by the manifest FOUND at PATH."""
        cure = f"{demand.cure} --rebless"
        refusals = []
        reason = self.revocation(found.tree_hash)
        if reason is not None:
            expected = "a cache that is not revoked"
            refusals.append(Refusal("NV903", str(path), expected, f"tree {found.tree_hash[:12]}: {reason}", cure))
        if found.unsafe and not demand.dev:
            said = f"{found.claim.boots} trials, marked unsafe"
            refusals.append(Refusal("NV904", str(path), f"at least {manifest.LEAST_BOOTS} trials", said, cure))
        now = manifest.stamp(demand.now)
        if found.expires is not None and demand.now >= manifest.seconds(found.expires):
            refusals.append(Refusal("NV905", str(path), f"a time before {found.expires}", now, cure))
        if demand.now + CLOCK_SLACK < manifest.seconds(found.created):
            wait = "set the clock of this host (timedatectl)"
            refusals.append(Refusal("NV905", str(path), f"a time after {found.created}, when it was made", now, wait))
        refusals.extend(self._replayed(path, found, cure))
        if demand.signers is not None:
            refusals.extend(self._unsigned(path, found, demand.signers))
        return refusals

    def _replayed(self, path: Path, found: Manifest, cure: str) -> list[Refusal]:
        seen = self._seen_of(found.serve_hash)
        if seen is None:
            return []
        version, digest = seen
        if found.version < version:
            said = f"version {found.version}"
            return [Refusal("NV906", str(path), f"version {version} or later, which was seen", said, cure)]
        if found.version == version and _sha256(found) != digest:
            expected = f"the version {version} that was seen, sha256 {digest[:12]}"
            return [Refusal("NV906", str(path), expected, f"another one, sha256 {_sha256(found)[:12]}", cure)]
        return []

    def _unsigned(self, path: Path, found: Manifest, signers: Path) -> list[Refusal]:
        cure = f"nvllm bless {found.image} --profile {found.profile} --rebless --sign KEY"
        place = self._signature(found)
        try:
            signature.verify(manifest.encode(found), place.read_bytes(), signers, str(path), cure)
        except OSError as error:
            said = f"{place.name}: {error.strerror}"
            return [Refusal("NV909", str(path), f"a signature by a signer in {signers}", said, cure)]
        except Refused as refused:
            return list(refused.refusals)
        return []

    def saw(self, found: Manifest) -> None:
        """Remember FOUND, so that this host takes no older one for its serve hash any more. Raises Refused NV911."""
        with durable.writing(self.memory):
            ensure(self.memory)
        with durable.locked(self.memory):
            seen = self._seen_of(found.serve_hash)
            if seen is None or seen[0] < found.version:
                document = {"schema": SEEN, "version": found.version, "sha256": _sha256(found)}
                durable.replace(self._seen(found.serve_hash), canonical.pretty(document).encode(), 0o600, _trace)

    # Blessing

    def next_version(self, serve_hash: str) -> int:
        """Return the version that a bless of SERVE_HASH has to have: greater than every one that is known here."""
        known = [one.version for one in self._every_version(serve_hash)]
        seen = self._seen_of(serve_hash)
        return max([0, *known, *([seen[0]] if seen is not None else [])]) + 1

    def _every_version(self, serve_hash: str) -> list[Manifest]:
        found = []
        for path in (*self.directory.glob("*.json"), *(self.directory / "archive").glob("*.json")):
            try:
                found.append(manifest.read(path, str(path)))
            except Refused:
                continue  # whatever it is, it never comes into force
        return [one for one in found if one.serve_hash == serve_hash]

    def promote(self, new: Manifest, signed: bytes | None = None) -> Path:
        """Bring NEW into force for a serve hash that has no blessing, and return where it lies.

        SIGNED is its signature, of the bytes of `manifest.encode`. Raises Refused NV902 if there is a blessing
        already, and as `replace` does.
        """
        return self._promote(new, signed, None)

    def replace(self, new: Manifest, old: Blessing, signed: bytes | None = None) -> Path:
        """Bring NEW into force in the place of OLD, the blessing of the same serve hash, which is archived.

        Raises Refused NV902 if OLD is not what is in force, or has another label; NV903 if the tree of NEW is
        revoked; NV906 if its version is not the next; NV908 if it is not consistent; NV911 if it cannot be
        written. Then what was in force still is.
        """
        return self._promote(new, signed, old)

    def _promote(self, new: Manifest, signed: bytes | None, old: Blessing | None) -> Path:
        place, data = self.directory / new.filename, manifest.encode(new)
        with durable.writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        with durable.locked(self.directory):
            manifest.decode(data, str(place))
            refuse_any([*self._in_the_way(new, place, old), *self._not_next(new, place), *self._banned(new, place)])
            if old is not None and old.manifest is not None:
                archive = self._directory("archive") / old.manifest.archived
                durable.replace(archive, manifest.encode(old.manifest), 0o644, lambda _: None)
                _trace("archived")
            if signed is not None:
                self._directory("signatures")
                durable.replace(self._signature(new), signed, 0o644, lambda _: None)
                _trace("signed")
            durable.replace(place, data, 0o644, _trace)
        self.saw(new)
        return place

    def _in_the_way(self, new: Manifest, place: Path, old: Blessing | None) -> list[Refusal]:
        """Return NV902 unless what is in force for the serve hash of NEW is exactly OLD, or nothing if that is None."""
        there = [
            one
            for one in self.all()
            if one.path == place or (one.manifest is not None and one.manifest.serve_hash == new.serve_hash)
        ]
        if [one.path for one in there] == ([place] if old is not None else []) and there == ([old] if old else []):
            return []
        names = ", ".join(one.path.name for one in there) or "none"
        expected = f"{old.path.name} as it was read" if old is not None else "no blessing of this serve hash and label"
        cure = f"nvllm bless {new.image} --profile {new.profile} --rebless, with the label that is in force"
        return [Refusal("NV902", str(place), expected, names if old is None else f"{names}, or another content", cure)]

    def _not_next(self, new: Manifest, place: Path) -> list[Refusal]:
        version = self.next_version(new.serve_hash)
        if new.version >= version:
            return []
        cure = f"nvllm bless {new.image} --profile {new.profile} --rebless"
        return [Refusal("NV906", str(place), f"version {version} or later", f"version {new.version}", cure)]

    def _banned(self, new: Manifest, place: Path) -> list[Refusal]:
        reason = self.revocation(new.tree_hash)
        if reason is None:
            return []
        cure = f"nvllm bless {new.image} --profile {new.profile}, which compiles another cache"
        return [Refusal("NV903", str(place), "a cache that is not revoked", f"tree {new.tree_hash[:12]}: {reason}", cure)]

    def revoke(self, found: Manifest, reason: str, now: float) -> Path:
        """Never serve the tree of FOUND again, by any manifest, for REASON. Return where that is written.

        This host remembers it first: from then on it holds, whatever becomes of the project. Raises Refused NV911.
        """
        document = {
            "schema": REVOKED,
            "tree_hash": found.tree_hash,
            "serve_hash": found.serve_hash,
            "version": found.version,
            "revoked": manifest.stamp(now),
            "reason": reason,
        }
        data, name = canonical.pretty(document).encode(), f"{found.tree_hash}.json"
        with durable.writing(self.memory):
            ensure(self.memory / "revoked")
        durable.replace(self.memory / "revoked" / name, data, 0o600, lambda _: None)
        _trace("remembered")
        durable.replace(self._directory("revoked") / name, data, 0o644, _trace)
        return self._revoked / name

    # Where things lie

    @property
    def _revoked(self) -> Path:
        return self.directory / "revoked"

    def _directory(self, name: str) -> Path:
        place = self.directory / name
        with durable.writing(place):
            place.mkdir(parents=True, exist_ok=True)
        return place

    def _signature(self, one: Manifest) -> Path:
        return self.directory / "signatures" / f"{_sha256(one)}.sig"

    def _seen(self, serve_hash: str) -> Path:
        return self.memory / f"{serve_hash}.json"

    def _seen_of(self, serve_hash: str) -> tuple[int, str] | None:
        """Return version and sha256 of the newest manifest that was seen for SERVE_HASH, None if none was.

        Raises Refused NV906 if this host's memory of it is damaged: then nothing tells an old one from a new one.
        """
        path = self._seen(serve_hash)
        if not os.path.lexists(path):
            return None
        match _document(path, SEEN):
            case {"version": int(version), "sha256": str(digest)}:
                return version, digest
            case _:
                cure = f"bless again after rm {path}"
                raise Refused([Refusal("NV906", str(path), "what this host has seen", "not what nvllm wrote", cure)])


def _document(path: Path, schema: str) -> dict[str, Any] | None:
    """Return the JSON object at PATH if it is one of SCHEMA."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("schema") == schema else None


def _sha256(one: Manifest) -> str:
    return hashlib.sha256(manifest.encode(one)).hexdigest()


def _may_be(path: Path, serve_hash: str) -> bool:
    """Say whether the damaged manifest at PATH may be the one of SERVE_HASH: by its name, or by what it holds."""
    if path.stem.endswith(f"_{serve_hash[: manifest.PREFIX]}"):
        return True
    try:
        return serve_hash.encode() in path.read_bytes()
    except OSError:
        return False


def _none(demand: Demand, directory: Path, known: list[tuple[Path, Manifest]]) -> list[Refusal]:
    """Return NV910 for each factor in which the nearest manifest differs from DEMAND, or NV901 if there is none."""
    nearest = min(
        (
            (explain.differences(one.factors, demand.factors), path, one)
            for path, one in known
            if (one.image, one.profile) == (demand.image, demand.profile)
        ),
        key=lambda found: (len(found[0]), found[1]),
        default=None,
    )
    if nearest is None:
        expected = f"a blessing of serve hash {demand.serve_hash[:12]}"
        return [Refusal("NV901", str(directory), expected, f"{len(known)} of other serve hashes", demand.cure)]
    differing, path, _ = nearest
    missing = "nothing"
    return [
        Refusal("NV910", f"{path}: .factors{one.path}", one.before or missing, one.after or missing, demand.cure)
        for one in differing
    ]
