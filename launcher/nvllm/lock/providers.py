"""What a lock is resolved from: mirrors, indexes, the hub, repositories of git, and the content store.

`Providers` is the interface that `resolve.lock` uses; `connect` returns the real one. Tests pass their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from nvllm.core.lock import LockedFile, LockedModel, LockedWheel, ModelFile, Offered
from nvllm.core.paths import Places
from nvllm.core.progress import Progress
from nvllm.core.refusal import refuse
from nvllm.core.spec import DebianBase, HubModel, ImageSpec, VllmPin
from nvllm.kernels import devicecode
from nvllm.kernels.devicecode import Library
from nvllm.models import location, modeltree
from nvllm.sources import debian, fetch, gitsource, hub, wheels
from nvllm.sources.debian import Selection
from nvllm.sources.indexes import Sdist, Sources, extra_indexes
from nvllm.sources.store import Store
from nvllm.sources.wheels import Resolved, Target

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Providers:
    """The functions that `resolve.lock` calls. Each may raise Refused; none is called for a part that is kept."""

    debs: Callable[[DebianBase, str, Mapping[str, str]], Selection]
    """Base, architecture, versions to keep: `debian.resolve` with the mirrors of that base."""
    wheels: Callable[[Sequence[str], Target, Mapping[str, str]], tuple[Resolved, ...]]
    """Requirements, target, versions to keep: `wheels.resolve`."""
    sdist: Callable[[str], Sdist]
    """Version to the source archive of vLLM: `Indexes.sdist`."""
    offered: Callable[[str, str], tuple[Offered, ...]]
    """Name and version to all wheels of it: `Indexes.wheels`."""
    versions: Callable[[str], frozenset[str]]
    """Name to the versions of which there is a wheel: `Indexes.wheel_versions`."""
    size: Callable[[str], int]
    """The size in bytes of the file at a URL: `Indexes.size`."""
    fetch: Callable[[Sequence[LockedFile]], None]
    """Fetches files into the store."""
    path: Callable[[str], Path]
    """The path in the store of the file with a sha256."""
    directory_model: Callable[[ImageSpec, str], tuple[ModelFile, ...]]
    """The files of the directory model of that name on this host: `models/modeltree.py`."""
    hub: Callable[[HubModel], LockedModel]
    """Resolves a repository of the hub to a revision and its files."""
    libraries: Callable[[LockedFile], tuple[Library, ...]]
    """The libraries with device code in a wheel that the store holds: `devicecode.cached_libraries`."""
    commit: Callable[[VllmPin, str], LockedFile]
    """Fetches and verifies the archive of a pinned commit, for the spec that messages call so: `git.bring`."""
    compiled: LockedWheel | None = None
    """The compiled wheel to lock. It is in the store already."""


def connect(spec: ImageSpec, places: Places, compiled: Path | None, *, offline: bool, progress: Progress) -> Providers:
    """Return the providers for SPEC; what they fetch goes into the store of PLACES.

    COMPILED is a wheel that was compiled from the pinned commit; it is copied into the store. With OFFLINE, every
    function that would resolve a name raises Refused NV209. Raises Refused NV108 if COMPILED has no name of a wheel.
    """
    store = Store(places.store)
    sources = Sources(spec.base.suite if isinstance(spec.base, DebianBase) else None, os.environ)

    def resolved(label: str, resolve: Callable[[], T]) -> T:
        if offline:
            cure = "run it once without --offline"
            raise refuse("NV209", f"nvllm lock, {label}", "to ask what a name stands for", "--offline", cure)
        with progress.task(f"resolve {label}", None, "files"):
            return resolve()

    def chosen_wheels(requirements: Sequence[str], target: Target, kept: Mapping[str, str]) -> tuple[Resolved, ...]:
        elsewhere = extra_indexes(spec.python.indexes)
        return wheels.resolve(requirements, target, kept, elsewhere, sources.indexes().configuration)

    def debs(base: DebianBase, architecture: str, kept: Mapping[str, str]) -> Selection:
        releases = (base.suite, f"{base.suite}-security") if base.security else (base.suite,)
        return debian.resolve(base.suite, base.packages, architecture, kept, sources.mirrors().of(*releases))

    def hub_model(model: HubModel) -> LockedModel:
        revision = model.revision or model.follow or "main"
        resolved_model = hub.resolve(model.repo, revision, cache_dir=places.cache / "hub", progress=progress)
        return replace(resolved_model, follow=model.follow)

    def directory_model(of: ImageSpec, name: str) -> tuple[ModelFile, ...]:
        directory = location.model_directory(of, name, places)
        return modeltree.tree_of(directory, cure=location.model_cure(of, name), progress=progress)[1]

    return Providers(
        debs=lambda base, architecture, kept: resolved("Debian packages", lambda: debs(base, architecture, kept)),
        wheels=lambda requirements, target, kept: resolved("wheels", lambda: chosen_wheels(requirements, target, kept)),
        sdist=lambda version: resolved("the source", lambda: sources.indexes().sdist("vllm", version)),
        offered=lambda name, version: resolved(f"wheels of {name}", lambda: sources.indexes().wheels(name, version)),
        versions=lambda name: resolved(f"versions of {name}", lambda: sources.indexes().wheel_versions(name)),
        size=lambda url: sources.indexes().size(url),
        fetch=lambda files: fetch.fetch(files, store, sources, progress, offline=offline),
        path=store.path,
        directory_model=directory_model,
        hub=lambda model: resolved(f"the model {model.repo}", lambda: hub_model(model)),
        libraries=lambda file: devicecode.cached_libraries(
            store.path(file.sha256), file.filename, file.sha256, places.code
        ),
        commit=lambda pin, label: resolved(
            "the commit", lambda: gitsource.bring(pin, label, store, sources.client(), os.environ, progress)
        ),
        compiled=None if compiled is None else wheels.adopted(compiled, store),
    )
