"""The blessings of a project: which manifest is in force for a serve hash, and why it must not be served.

::

    manifests/blessed/<label>_<serve-hash 7>.json    in force; one for a serve hash
    manifests/blessed/archive/..._v<version>.json    what was in force before
    manifests/blessed/signatures/<sha256>.sig        of the manifest with exactly these bytes
    manifests/blessed/revoked/                       see `revocations.py`
    <state>/blessings/candidates/                    what came from elsewhere without a signature; see `promotion.offer`

Only `promotion.py` writes here. Manifests lie in a git repository, which can be reset to an older commit. Therefore a
host remembers the newest version of each blessing that it has seen, and every revocation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm.cache import evaluation, manifest, seen_versions, signature
from nvllm.cache.evaluation import Demand
from nvllm.cache.manifest import Manifest
from nvllm.cache.revocations import Revocations
from nvllm.cache.seen_versions import Versions
from nvllm.core import clock, explain, reading, trusted
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import Refusal, Refused, collected, refuse, refuse_any
from nvllm.core.trusted import Trusted

_WHOLE = re.compile(r"[0-9a-f]{64}")
_HASHES = re.compile(rb"[0-9a-f]{64}")

CLOCK_SLACK = 300
"""Seconds by which the clocks of two hosts may differ: a manifest that was just made elsewhere is not of the future."""


@dataclass(frozen=True, slots=True)
class BlessingQuery:
    """A search for the blessing of SERVE_HASH at NOW, in seconds since 1970.

    SIGNERS is the allowed signers file that the profile requires, VALID_DAYS the age that it allows. IMAGE and
    PROFILE are names; the nearest manifest is looked for by them if none has the SERVE_HASH.
    """

    image: str
    profile: str
    serve_hash: str
    factors: Mapping[str, Any]
    dev: bool
    now: float
    signers: Path | None = None
    valid_days: int | None = None
    image_id: str = ""
    """The image that is served; empty if none is known."""
    evaluation: Demand | None = None
    """The evaluation that the profile demands, if any."""

    @property
    def cure(self) -> str:
        return f"nvllm bless {self.image} --profile {self.profile}"


@dataclass(frozen=True, slots=True)
class Blessing:
    """A manifest file: its MANIFEST, or the REFUSALS because of which it cannot be used."""

    path: Path
    manifest: Manifest | None
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Blessings:
    """The blessings in DIRECTORY, ``manifests/blessed`` of a project. MEMORY is this host's directory of records."""

    directory: Path
    memory: Path

    @classmethod
    def of_project(cls, project: Project, places: Places) -> Blessings:
        """Return the blessings of PROJECT, as this host sees them.

        Those of the project that nvllm came with are in the state directory: nothing is written into a package, and
        an upgrade of it must not lose a revocation.
        """
        return cls(project.blessed if project.own else places.packaged_blessed, places.blessings)

    @property
    def revocations(self) -> Revocations:
        return Revocations(self.directory / "revoked", self.memory / "revoked")

    @property
    def versions(self) -> Versions:
        return Versions(self.memory)

    @property
    def _trust(self) -> Trusted:
        """The trust in what lies below the root of the project, two levels above the manifests."""
        return trusted.project(self.directory.parents[1], "NV908")

    # Listing and names

    def all(self) -> tuple[Blessing, ...]:
        """Return every manifest that is not archived, by file name, also damaged ones."""
        return _below(self.directory, self._trust)

    def archived(self) -> tuple[Blessing, ...]:
        """Return every archived manifest, by file name, also damaged ones."""
        return _below(self.directory / "archive", self._trust)

    def candidates(self) -> tuple[Manifest, ...]:
        """Return the manifests of the candidates on this host, by file name; nobody believes what they claim.

        One that is damaged or revoked is left out: it can neither be tried nor served.
        """
        every = _below(self.waiting, trusted.state(self.memory.parent, "NV908"))
        return tuple(candidate for path, candidate in whole(every) if not self.revocations.against(path, candidate))

    @property
    def waiting(self) -> Path:
        """The directory of the candidates, which wait for a bless."""
        return self.memory / "candidates"

    def candidate(self, name: str, serve_hash: str, cure: str) -> Manifest:
        """Return the candidate of SERVE_HASH whose tree hash begins with NAME, at least 7 digits of it.

        Raises Refused NV107 with CURE if there is none, or more than one.
        """
        known = [candidate for candidate in self.candidates() if candidate.serve_hash == serve_hash]
        matching = [candidate for candidate in known if _begins(candidate, name)]
        if len(matching) != 1:
            names = ", ".join(candidate.tree_hash[:12] for candidate in known) or "none is here"
            expected = f"a candidate of serve hash {serve_hash[:12]}: {names}"
            raise refuse("NV107", "--candidate", expected, ascii(name[:80]), cure)
        return matching[0]

    def named(self, name: str) -> Blessing:
        """Return the blessing NAME; an archived one only if no other one has that name.

        A name is that of its file, its label, or at least 7 digits of its serve hash or of its tree hash. Raises
        Refused NV107 if there is none, or more than one.
        """
        matching = self._matching(name)
        if len(matching) != 1:
            raise Refused([self._unnamed(name, matching)])
        return matching[0]

    def tree(self, name: str) -> str:
        """Return the tree hash of the blessing NAME (see `named`), or of the candidate whose tree hash begins so.

        If there is neither, NAME may be a whole tree hash, and is returned. Raises Refused NV107 if it is none, or if
        there is more than one, and NV908 if its manifest is damaged.
        """
        matching = self._matching(name)
        refuse_any(refusal for blessing in matching for refusal in blessing.refusals)
        hashes = {blessed.tree_hash for _, blessed in whole(matching)}
        hashes = hashes or {candidate.tree_hash for candidate in self.candidates() if _begins(candidate, name)}
        if not hashes and _WHOLE.fullmatch(name):
            return name
        if len(hashes) != 1:
            raise Refused([self._unnamed(name, matching)])
        return hashes.pop()

    def naming(self, tree_hash: str) -> tuple[str, ...]:
        """Return the file names of all manifests, also archived ones, that name the tree of TREE_HASH."""
        every = (*self.all(), *self.archived())
        return tuple(path.name for path, blessed in whole(every) if blessed.tree_hash == tree_hash)

    def _matching(self, name: str) -> list[Blessing]:
        """Return the blessings called NAME: by file name, else by label or hash; those in force come first."""
        in_force, archived = self.all(), self.archived()
        files = [blessing for blessing in (*in_force, *archived) if blessing.path.stem == name.removesuffix(".json")]
        return (
            files
            or [blessing for blessing in in_force if _called(blessing, name)]
            or [blessing for blessing in archived if _called(blessing, name)]
        )

    def _unnamed(self, name: str, matching: Sequence[Blessing]) -> Refusal:
        known = ", ".join(blessing.path.stem for blessing in (*self.all(), *self.archived()))
        expected = f"one of {known}" if known else "a blessing; there is none"
        matches = (
            f"{len(matching)} called {name}: {', '.join(blessing.path.stem for blessing in matching)}"
            if matching
            else ascii(name)
        )
        return Refusal("NV107", str(self.directory), expected, matches, "nvllm manifest list --all")

    def of(self, serve_hash: str) -> tuple[Blessing, ...]:
        """Return the blessings of SERVE_HASH, and the damaged ones that may be of it."""
        return tuple(
            blessing
            for blessing in self.all()
            if (
                _may_be(blessing.path, serve_hash)
                if blessing.manifest is None
                else blessing.manifest.serve_hash == serve_hash
            )
        )

    def trees(self) -> frozenset[str]:
        """Return the hashes of the trees that manifests in force and candidates name: they stay in the tree store.

        Raises Refused NV908 if a manifest is damaged, because the tree that it names is not known.
        """
        every = self.all()
        refuse_any(refusal for blessing in every for refusal in blessing.refusals)
        in_force = {blessed.tree_hash for _, blessed in whole(every)}
        return frozenset(in_force | {candidate.tree_hash for candidate in self.candidates()})

    def restorable(self) -> frozenset[str]:
        """Return the hashes of the trees that `nvllm manifest restore` can bring back, which stay in the tree store.

        Of each serve hash with a manifest in force that is the tree of the newest archived one that has another tree
        and is not revoked. All before it go: each rebless would leave one more for ever.
        """
        in_force = {blessed.serve_hash: blessed.tree_hash for _, blessed in whole(self.all())}
        newest: dict[str, Manifest] = {}
        for path, earlier in whole(self.archived()):
            known, now = newest.get(earlier.serve_hash), in_force.get(earlier.serve_hash, earlier.tree_hash)
            newer = known is None or earlier.version > known.version
            if newer and earlier.tree_hash != now and not self.revocations.against(path, earlier):
                newest[earlier.serve_hash] = earlier
        return frozenset(blessed.tree_hash for blessed in newest.values())

    def logs(self) -> frozenset[str]:
        """Return the sha256 of every log that a manifest names, in force or archived.

        A damaged manifest may name any hash that its text holds. Raises Refused NV908 for one that cannot be read.
        """
        every = (*self.all(), *self.archived())
        digests = {trial.log for _, blessed in whole(every) for trial in blessed.trials}
        refusals: list[Refusal] = []
        for blessing in every:
            if blessing.manifest is None:
                try:
                    digests.update(
                        map(bytes.decode, _HASHES.findall(reading.unlinked(blessing.path, reading.MANIFEST)))
                    )
                except OSError:
                    refusals.extend(blessing.refusals)
        refuse_any(refusals)
        return frozenset(digests)

    # Serving

    def lookup(self, query: BlessingQuery) -> Manifest:
        """Return the manifest that is in force for QUERY.

        Raises Refused with every reason not to serve it: NV901 none, NV910 none but a similar one, NV902 more than one,
        NV903 revoked, NV904 unsafe, NV905 expired, NV906 older, NV908 damaged, NV909 not signed as required, NV916 of
        another image, NV919 without the evaluation that is demanded.
        """
        blessings = self.of(query.serve_hash)
        refusals = [refusal for blessing in blessings for refusal in blessing.refusals]
        matching = whole(blessings)
        if not blessings:
            candidates = [
                candidate.tree_hash for candidate in self.candidates() if candidate.serve_hash == query.serve_hash
            ]
            raise Refused(_none(query, self.directory, whole(self.all()), candidates))
        if len(matching) > 1:
            names = ", ".join(path.name for path, _ in matching)
            cure = shlex.join(["git", "rm", *(path.name for path, _ in matching[1:])])
            refusals.extend(
                Refusal("NV902", str(path), "one manifest for a serve hash", f"{len(matching)}: {names}", cure)
                for path, _ in matching
            )
        for path, blessed in matching:
            against = self.against(path, blessed, query)
            refusals.extend([*against, *self._saw(blessed, against)])
        refuse_any(refusals)
        return matching[0][1]

    def _saw(self, blessed: Manifest, against: Sequence[Refusal]) -> Sequence[Refusal]:
        """Record the version of BLESSED, also if it is refused (AGAINST): an older one must not take its place.

        A manifest that lacks a demanded signature may be anybody's, and is not recorded. Returns what hinders that.
        """
        if any(refusal.blame in {"version", "signature"} for refusal in against):
            return ()
        try:
            self.versions.saw(blessed)
        except Refused as refused:
            return refused.refusals
        return ()

    def against(self, path: Path, blessed: Manifest, query: BlessingQuery) -> list[Refusal]:
        """Return every reason not to serve QUERY by the manifest BLESSED at PATH."""
        refusals = self.reasons_against(path, blessed, query.now)
        if query.dev:  # a `dev` profile may be served by a bless with fewer trials (docs/bless.md)
            refusals = [refusal for refusal in refusals if refusal.blame != "few trials"]
        if not any(refusal.blame == "age" for refusal in refusals):  # the manifest may be older than valid-days
            refusals += _too_old(path, blessed, query)
        if blessed.image_id is not None and query.image_id and blessed.image_id != query.image_id:
            cure = f"{query.cure} --rebless"
            refusals.append(Refusal("NV916", str(path), f"a bless of image {query.image_id}", blessed.image_id, cure))
        if query.evaluation is not None:
            refusals += evaluation.against(path, query.evaluation, blessed.evaluations, blessed.cure)
        if query.signers is not None:
            with collected(refusals):
                self.signer(path, blessed, query.signers)
        return refusals

    def reasons_against(self, path: Path, blessed: Manifest, now: float) -> list[Refusal]:
        """Return every reason why no production profile may be served by the manifest BLESSED at PATH at NOW."""
        cure = blessed.cure
        refusals = self.revocations.against(path, blessed)
        if blessed.unsafe:
            trials = f"{blessed.claim.boots} trials, marked unsafe"
            refusals.append(Refusal("NV904", str(path), f"at least {manifest.LEAST_BOOTS} trials", trials, cure))
        date = clock.stamp(now)
        if blessed.expires is not None and now >= clock.seconds(blessed.expires):
            refusals.append(Refusal("NV905", str(path), f"a time before {blessed.expires}", date, cure))
        if now + CLOCK_SLACK < clock.seconds(blessed.created):
            wait = "set the clock of this host (timedatectl)"
            refusals.append(
                Refusal("NV905", str(path), f"a time after {blessed.created}, when it was made", date, wait)
            )
        return [*refusals, *self.versions.replayed(path, blessed, cure)]

    def signer(self, path: Path, blessed: Manifest, signers: Path) -> str:
        """Return who of SIGNERS, an allowed signers file, has signed BLESSED, the manifest at PATH.

        Raises Refused NV909 if nobody of them has.
        """
        signature_path, cure = self.signature(blessed), f"{blessed.cure} --sign KEY"
        try:
            signed = reading.unlinked(signature_path, reading.CONFIGURATION)
        except OSError as error:
            problem = f"{signature_path.name}: {error.strerror}"
            raise refuse("NV909", str(path), f"a signature by a signer in {signers}", problem, cure) from error
        return signature.verify(manifest.encode(blessed), signed, signers, str(path), cure)

    def signature(self, blessed: Manifest) -> Path:
        """Return the path of the signature of BLESSED, which need not exist."""
        return self.directory / "signatures" / f"{seen_versions.sha256(blessed)}.sig"


def whole(blessings: Iterable[Blessing]) -> list[tuple[Path, Manifest]]:
    """Return path and manifest of each of BLESSINGS that is not damaged."""
    return [(blessing.path, blessing.manifest) for blessing in blessings if blessing.manifest is not None]


def _begins(candidate: Manifest, name: str) -> bool:
    """Return whether NAME, if it has enough digits, is the beginning of the tree hash of CANDIDATE."""
    return len(name) >= manifest.PREFIX and candidate.tree_hash.startswith(name)


def _called(blessing: Blessing, name: str) -> bool:
    """Return whether the manifest of BLESSING has NAME as its label, or as enough digits of a hash of its own."""
    if blessing.manifest is None:
        return False
    hashes = (blessing.manifest.serve_hash, blessing.manifest.tree_hash)
    return blessing.manifest.label == name or (
        len(name) >= manifest.PREFIX and any(each.startswith(name) for each in hashes)
    )


def _below(directory: Path, trust: Trusted) -> tuple[Blessing, ...]:
    """Return the manifests in DIRECTORY, by file name; DIRECTORY itself, damaged, if they cannot be listed."""
    try:
        paths = trust.listed(directory, "*.json")
    except Refused as refused:
        return (Blessing(directory, None, tuple(refused.refusals)),)
    return tuple(_read(path, trust) for path in paths)


def _read(path: Path, trust: Trusted) -> Blessing:
    try:
        trust.file(path)
        return Blessing(path, manifest.read(path, str(path)), ())
    except Refused as refused:
        return Blessing(path, None, tuple(refused.refusals))


def _too_old(path: Path, blessed: Manifest, query: BlessingQuery) -> list[Refusal]:
    """Return NV905 if BLESSED at PATH is older than the profile of QUERY allows."""
    ends = manifest.expiry(clock.seconds(blessed.created), None, query.valid_days)
    if ends is None or query.now < ends:
        return []
    expected = f"a bless of the last {query.valid_days} days, which the profile asks for"
    cure = f"{query.cure} --rebless"
    return [Refusal("NV905", str(path), expected, f"one of {blessed.created}", cure)]


def _may_be(path: Path, serve_hash: str) -> bool:
    """Return whether the damaged manifest at PATH may be of SERVE_HASH, by its file name or its content."""
    if path.suffix != ".json" or path.stem.endswith(f"_{serve_hash[: manifest.PREFIX]}"):
        return True  # of manifests that cannot be listed, each may be of it
    try:
        return serve_hash.encode() in reading.unlinked(path, reading.MANIFEST)
    except OSError:
        return False


def _none(
    query: BlessingQuery, directory: Path, known: Sequence[tuple[Path, Manifest]], candidates: Sequence[str]
) -> list[Refusal]:
    """Return NV910 for each factor in which the nearest manifest differs from QUERY, or NV901 if there is none.

    CANDIDATES are the hashes of the trees that could be tried for QUERY.
    """
    if candidates:
        expected = f"a blessing of serve hash {query.serve_hash[:12]}"
        problem = f"none, but {len(candidates)} that nobody has signed or tried here"
        return [
            Refusal("NV901", str(directory), expected, problem, f"{query.cure} --candidate {tree_hash[:12]}")
            for tree_hash in candidates
        ]
    nearest = min(
        (
            (explain.differences(blessed.factors, query.factors), path, blessed)
            for path, blessed in known
            if (blessed.image, blessed.profile) == (query.image, query.profile)
        ),
        key=lambda entry: (len(entry[0]), entry[1]),
        default=None,
    )
    if nearest is None or not nearest[0]:
        expected = f"a blessing of serve hash {query.serve_hash[:12]}"
        return [Refusal("NV901", str(directory), expected, f"{len(known)} of other serve hashes", query.cure)]
    differing, path, _ = nearest
    missing = "nothing"
    return [
        Refusal(
            "NV910",
            f"{path}: .factors{difference.path}",
            difference.before or missing,
            difference.after or missing,
            query.cure,
        )
        for difference in differing
    ]
