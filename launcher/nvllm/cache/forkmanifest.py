"""Manifests of the nvllm fork: read, checked by their own rules, and measured against ours. Never served.

The fork knows two schemas: 1 with one ``mount``, 2 with ``mounts`` and a ``mount_id`` for each file. Its hash is
the sha256 of compact JSON with sorted keys of the image's id and the ``config`` object as it stands. What such a
manifest has proved is worth keeping as the starting point of a bless: which arguments and environment, and which
files came out. It does not say enough to be served by.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from nvllm.cache import confidence
from nvllm.cache import tree as cachetree
from nvllm.cache.tree import TreeFile
from nvllm.core import documents
from nvllm.core.canonical import Json
from nvllm.core.fields import NOT_EMPTY, Count, Form, Positive, Rule, Sha256, Word
from nvllm.core.refusal import Refusal, refuse
from nvllm.core.spec import HubModel, ImageSpec, Profile

MOST_FILES = 10_000
"""Most files of a cache. The fork's have hundreds; a directory with more is no cache."""

_CURE = "restore the file from the fork's repository"
_ONLY_MOUNT = "mount"
"""What the one mount of schema 1 is called here."""

_ARGUMENTS = {
    "kv_cache_dtype": "kv-cache-dtype",
    "attention_backend": "attention-backend",
    "cudagraph_mode": "compilation-config.cudagraph_mode",
    "cudagraph_capture_sizes": "compilation-config.cudagraph_capture_sizes",
    "max_num_seqs": "max-num-seqs",
    "max_model_len": "max-model-len",
    "max_num_batched_tokens": "max-num-batched-tokens",
}
"""Keys of the fork's config, and the engine arguments that they came from."""

_SWITCHES = "cute_"
"""Keys of the config that begin so are environment variables in lower case."""


AbsolutePath = Annotated[str, Rule("^/", "an absolute path")]


@dataclass(frozen=True, slots=True)
class ForkMount:
    host_path: AbsolutePath
    container_path: AbsolutePath
    mode: str
    id: Word = ""


@dataclass(frozen=True, slots=True)
class ForkFile:
    path: Annotated[
        str,
        Rule(r"^(?!/)(?!(.*/)?\.{0,2}(/|$))[^\u0000]+$", "a path below its mount, without `..`", name="relative_path"),
    ]
    sha256: Sha256
    size: Annotated[Count, Rule(name="size_bytes")]
    role: Word
    mount: Annotated[Word, Rule(name="mount_id")] = ""


@dataclass(frozen=True, slots=True)
class ForkValidation:
    trials: Positive
    passed: Annotated[Count, Rule(name="trials_passed")]
    unsafe: Annotated[bool, Rule(name="unsafe_dev_trials")]
    replays: Annotated[Count, Rule(name="c2_replay_n_replays_per_trial")] = 0


@dataclass(frozen=True, slots=True)
class ForkManifest:
    """docs/blessed-caches/*.json of the fork, schema 1 and 2, as far as it is read; other names in it are ignored.

    MOUNT is the one of schema 1; `decode` puts it among MOUNTS.
    """

    schema: Annotated[Literal[1, 2], Rule(name="schema_version")]
    hash: Annotated[Sha256, Rule(name="config_hash")]
    label: Annotated[Word, Rule(name="human_label")]
    image_id: Annotated[str, Rule("^sha256:[0-9a-f]{64}$", "an image id, sha256:<64 hex>", name="blessed_image_id")]
    config: Mapping[str, Any]
    files: Annotated[tuple[ForkFile, ...], NOT_EMPTY]
    validation: ForkValidation
    mount: ForkMount | None = None
    mounts: Annotated[tuple[ForkMount, ...], NOT_EMPTY] = ()
    blessed_at: str = ""

    @property
    def arguments(self) -> dict[str, Json]:
        """The engine arguments that a profile takes over."""
        return {name: _scalar(self.config[key]) for key, name in _ARGUMENTS.items() if key in self.config}

    @property
    def environment(self) -> dict[str, str]:
        """The environment that a profile takes over."""
        return {key.upper(): str(value) for key, value in self.config.items() if key.startswith(_SWITCHES)}


FORM = Form("fork", "nvllm.fork/1", "Manifest of the nvllm fork", ForkManifest, open=True)


@dataclass(frozen=True, slots=True)
class Missing:
    """One of our rules that the manifest, or what it names, does not keep: the RULE, and what was FOUND."""

    rule: str
    found: str


@dataclass(frozen=True, slots=True)
class Compared:
    """One KEY of the fork's config beside what a profile has in its place, None where it has nothing."""

    key: str
    fork: str | None
    profile: str | None

    @property
    def agrees(self) -> bool:
        return self.fork == self.profile


def _scalar(value: Json) -> Json:
    return json.dumps(value) if isinstance(value, Sequence | Mapping) and not isinstance(value, str) else value


def compared(fork: ForkManifest, spec: ImageSpec, profile: Profile) -> list[Compared]:
    """Return each key of FORK's config beside PROFILE of SPEC, in the config's order.

    A key that is none of the 17 that are known has no place in a profile, and is shown as one that differs.
    """
    model = spec.models[profile.model]
    environment = {**spec.runtime.environment, **profile.environment}
    found = []
    for key, value in fork.config.items():
        ours: object = None
        if key == "model_id":
            ours = model.repo if isinstance(model, HubModel) else profile.model
        elif key == "model_revision_resolved":
            ours = model.revision if isinstance(model, HubModel) else None
        elif key in _ARGUMENTS:
            ours = profile.arguments.get(_ARGUMENTS[key])
        elif key.startswith(_SWITCHES):
            ours = environment.get(key.upper())
        found.append(Compared(key, str(_scalar(value)), None if ours is None else str(ours)))
    return found


def beyond(fork: ForkManifest, spec: ImageSpec, profile: Profile) -> dict[str, str]:
    """Return what PROFILE of SPEC gives the engine and FORK's hash does not cover, by argument or variable."""
    environment = {**spec.runtime.environment, **profile.environment}
    arguments = {f"--{name}": str(value) for name, value in sorted(profile.arguments.items())}
    said = {*(f"--{name}" for name in fork.arguments), *fork.environment}
    return {
        name: value for name, value in {**arguments, **dict(sorted(environment.items()))}.items() if name not in said
    }


def config_hash(image_id: str, config: Mapping[str, Json]) -> str:
    """Return the fork's hash of an image's id and a config."""
    text = json.dumps({"blessed_image_id": image_id, "config": config}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def decode(data: bytes, shown: str) -> ForkManifest:
    """Return the manifest that DATA says. Raises Refused NV908 with all that is wrong by its own rules.

    That is its form, its hash, a path that leaves its mount, a file of no mount, a file that is named twice.
    """
    fork = documents.parse(FORM, data, _wrong, code="NV908", shown=shown, cure=_CURE)
    if fork.mount is None or fork.schema == 2:
        return fork
    files = tuple(replace(file, mount=_ONLY_MOUNT) for file in fork.files)
    return replace(fork, mounts=(replace(fork.mount, id=_ONLY_MOUNT),), files=files)


def _wrong(fork: ForkManifest) -> Iterator[tuple[str, str, str]]:
    if fork.schema == 1 and fork.mount is None:
        yield ".mount", "`mount`, as schema 1 has it", "`mounts`" if fork.mounts else "nothing"
        return
    if fork.schema == 2 and not fork.mounts:
        yield ".mounts", "`mounts`, as schema 2 has it", "`mount`" if fork.mount is not None else "nothing"
        return
    if fork.schema == 2:
        ids = [one.id for one in fork.mounts]
        if "" in ids or len(set(ids)) != len(ids):
            yield ".mounts", "an id for each mount, each once", str(ids)
        for number, file in enumerate(fork.files):
            if file.mount not in ids:
                yield f".files[{number}].mount_id", f"one of {ids}", file.mount or "nothing"
    names = [(file.mount, file.path) for file in fork.files]
    for mount, path in sorted({name for name in names if names.count(name) > 1}):
        yield ".files", "each file once", f"{path} of {mount or _ONLY_MOUNT} more than once"
    expected = config_hash(fork.image_id, fork.config)
    if fork.hash != expected:
        yield ".config_hash", f"the hash of image and config, {expected}", fork.hash


def roots(fork: ForkManifest, cache: Path | None) -> dict[str, Path]:
    """Return where the mounts of FORK lie: where it says, or below CACHE in the place of its first mount."""
    first = Path(fork.mounts[0].host_path)
    found = {}
    for mount in fork.mounts:
        place = Path(mount.host_path)
        if cache is not None and place.is_relative_to(first):
            place = cache / place.relative_to(first)
        found[mount.id] = place
    return found


def examine_files(fork: ForkManifest, places: Mapping[str, Path]) -> tuple[list[Refusal], list[Missing]]:
    """Return what is wrong by the fork's own rules with the files below PLACES, and by ours only.

    The fork's rule: each listed file is there with its size and sha256 (NV907). Ours: and nothing else is, and
    every one is a regular file of its owner alone.
    """
    cure = "name the directory that holds the cache: --cache DIR"
    listed = {places[file.mount] / file.path: file for file in fork.files}
    there: dict[Path, TreeFile] = {}
    unfit: list[Refusal] = []
    for root in sorted(set(places.values())):
        if not any(root != other and root.is_relative_to(other) for other in places.values()):
            sizes = {place: file.size for place, file in listed.items()}
            tree, refused = cachetree.walk(root, cure, _listed(root, sizes), left_out=_counted(root, cure))
            there.update((root / file.path, file) for file in tree.files)
            unfit += refused
    refusals = [one for one in unfit if Path(one.where) in listed or Path(one.where) in places.values()]
    known = [Path(one.where) for one in refusals]
    for place, file in sorted(listed.items()):
        found = there.get(place)
        if not any(place.is_relative_to(one) for one in known) and (
            found is None or (found.size, found.sha256) != (file.size, file.sha256)
        ):
            said = "no such file" if found is None else f"{found.size} bytes, sha256 {found.sha256}"
            expected = f"{file.size} bytes, sha256 {file.sha256}"
            refusals.append(Refusal("NV907", str(place), expected, said, "bless again: this is not the blessed cache"))
    missing = [Missing("exactly the listed files", f"not listed: {place}") for place in sorted(there.keys() - listed)]
    missing += [Missing(one.expected, f"{one.where}: {one.found}") for one in unfit if one not in refusals]
    return refusals, missing


def _listed(root: Path, sizes: Mapping[Path, int]) -> cachetree.Consumer:
    """Return what hashes the files below ROOT with one of SIZES. The manifest may name any directory of the host."""

    def consume(path: str, descriptor: int, info: os.stat_result) -> str:
        return cachetree.digest(path, descriptor, info) if sizes.get(root / path) == info.st_size else "not read"

    return consume


def _counted(root: Path, cure: str) -> cachetree.Rule:
    """Return a rule that skips nothing. It raises Refused NV907 after MOST_FILES files below ROOT."""
    count = itertools.count(1)

    def rule(_path: str, _info: os.stat_result) -> bool:
        if next(count) > MOST_FILES:
            raise refuse("NV907", str(root), f"a cache, of at most {MOST_FILES} files", "more files", cure)
        return False

    return rule


def missing(fork: ForkManifest) -> list[Missing]:
    """Return what our rules ask of a manifest and FORK does not say."""
    said = fork.validation
    boots = said.trials if said.trials == said.passed else 0
    found = [
        Missing("an identity that every host computes alike", f"an image id of one engine's store, {fork.image_id}"),
        Missing(
            "every factor: whole command, environment, GPU, driver, sentinels, waivers, model files",
            f"{len(fork.config)} keys: {', '.join(fork.config)}",
        ),
        Missing("directories and modes of the tree", "files only"),
        Missing("no place of a host", ", ".join(mount.host_path for mount in fork.mounts)),
        Missing("no mode of a mount", ", ".join(f"{mount.id} {mount.mode}" for mount in fork.mounts)),
        Missing("a version, an expiry, a signature", "none of them"),
        Missing("the blessed KV tokens, phase times, peak memory", "none of them"),
        Missing(
            "a claim, and fresh boots apart from replays",
            f"{said.passed} of {said.trials} trials: {int(confidence.lower_bound(boots) * 100)} % at 95 %; "
            f"{said.replays} replays in each count once",
        ),
    ]
    if said.unsafe:
        found.append(Missing("trials enough for production", "marked unsafe_dev_trials"))
    return found
