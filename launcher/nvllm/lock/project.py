"""The lock of an image of a project: read what it is made from, resolve it, read the lock that is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nvllm.core.lock import REPOSITORY, Lock, LockedFile
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.core.spec import HubModel, ImageSpec
from nvllm.lock import lockdoc, templates, wheel_matches_source
from nvllm.patches import patchset, seriesfile, source, together
from nvllm.patches.series import Series
from nvllm.sources.store import Store
from nvllm.spec import specfile

_VERSION = "vllm/_version.py"


@dataclass(frozen=True, slots=True)
class LockInputs:
    """The files that the lock of an image is made from: its spec and the patch series that the spec names."""

    project: Project
    spec: ImageSpec
    series: Series


def read_inputs(project: Project, image: str) -> LockInputs:
    """Return what the lock of IMAGE for PROJECT's platform is made from.

    Raises Refused for a spec or a series that is missing or wrong, or not for that platform, and for patches of the
    spec that are no patch set of the series: no image could be built from the lock.
    """
    spec = specfile.of(project, image)
    refuse_any(specfile.other_platform(spec, project.platform))
    series = seriesfile.of(project, spec.patches.series)
    label = project.show(project.series(spec.patches.series))
    refuse_any(seriesfile.other_commit(series, spec.vllm.commit, label))
    patchset.choose(series, spec.patches.enable, where=f"{project.show(project.spec(image))}: .patches.enable")
    return LockInputs(project, spec, series)


def read_lock(project: Project, image: str) -> Lock:
    """Return the lock of IMAGE for PROJECT's platform. Raises Refused NV201 if it is missing, NV210 if damaged."""
    path = project.lock(image)
    return lockdoc.read(path, project.show(path))


def proved_digits(lock: Lock, store: Store) -> int | None:
    """Return how many of the digits of the commit of LOCK its source proves; None if the source is not in STORE.

    A source that is compiled is proved by its git tree. The archive of a release records only the first digits of its
    commit; the others, if the spec has them, are what it says.
    """
    if lock.vllm.source.index == REPOSITORY:
        return len(lock.vllm.commit)
    if not store.has(lock.vllm.source.sha256):
        return None
    version_file = source.archive(store.path(lock.vllm.source.sha256), [_VERSION]).read(_VERSION)
    recorded = wheel_matches_source.recorded_commit(version_file or b"")
    return len(recorded) if recorded is not None and lock.vllm.commit.startswith(recorded) else 0


def usable_lock(project: Project, image: str, progress: Progress) -> Lock | None:
    """Return what `read_lock` returns, or None if the lock is missing or damaged; reports damage to PROGRESS."""
    try:
        return read_lock(project, image)
    except Refused as refused:
        if any(refusal.blame not in {"no lock", "damaged lock"} for refusal in refused.refusals):
            raise
        if project.lock(image).exists():
            progress.note(f"{project.show(project.lock(image))} is damaged; nothing of it is kept")
        return None


def lock_image(
    inputs: LockInputs,
    previous: Lock | None,
    places: Places,
    update: Collection[str] = (),
    compiled: Path | None = None,
    later: Collection[str] = (),
    again: Collection[str] = (),
    *,
    offline: bool,
    progress: Progress,
) -> Lock:
    """Return the lock that INPUTS resolve to now. Files that it must read are fetched into PLACES; it writes no lock.

    What PREVIOUS, the lock before, pins stays where the spec still allows it, except for the parts in UPDATE (see
    `resolve.PARTS`, or ``all``). COMPILED is a wheel that was compiled from the pinned commit. Models of the hub in
    LATER are left out of the lock if no lock before has one of that name; `nvllm lock` without it adds them. Models in
    AGAIN are pinned as they are now. Without PREVIOUS, the versions come from a lock of the image for another platform,
    if there is one. Raises Refused as `resolve.lock` does, NV107 for another name in LATER and AGAIN, NV301 and NV609
    for patches of the spec that do not apply together, and NV405 for a chat template that cannot be read.
    """
    # Every other command only reads the lock; the clients of indexes and the hub take as long to load as all the rest.
    from nvllm.lock import providers, resolve

    project, spec = inputs.project, inputs.spec
    connected = providers.connect(spec, places, compiled, offline=offline, progress=progress)
    kept = previous or _other_platform(inputs, progress)
    label, hashed = project.show(project.spec(spec.name)), specfile.inputs(spec, project.platform)
    refuse_any(_unknown_model(spec, name, label) for name in later if not isinstance(spec.models.get(name), HubModel))
    refuse_any(_no_model(spec, name, label) for name in again if name not in spec.models)
    pinned_templates = templates.of(project, spec)
    if kept is not None:
        pinned_models = {name: model for name, model in kept.models.items() if name not in again}
        kept = dataclasses.replace(kept, models=pinned_models)
    put_off = set(later) - (kept.models.keys() if kept is not None else set())
    spec = dataclasses.replace(spec, models={name: model for name, model in spec.models.items() if name not in put_off})
    store = Store(places.store)
    known = kept.vllm.source if kept is not None and kept.vllm.commit == spec.vllm.commit else None
    if known is not None:
        check_set(inputs, known, store)  # what is local is looked at before anything is resolved
    new = resolve.lock(spec, project.platform, label, inputs.series, hashed, kept, frozenset(update), connected)
    if new.vllm.source != known:
        check_set(inputs, new.vllm.source, store)
    return dataclasses.replace(new, templates=pinned_templates)


def check_set(inputs: LockInputs, archive: LockedFile, store: Store) -> None:
    """Raise Refused NV301 or NV609 if the patches of the spec do not apply to ARCHIVE, the source, together.

    Without ARCHIVE in STORE nothing is known of it.
    """
    spec, project = inputs.spec, inputs.project
    if not spec.patches.enable or not store.has(archive.sha256):
        return
    where = f"{project.show(project.spec(spec.name))}: .patches.enable"
    chosen = patchset.choose(inputs.series, spec.patches.enable, where=where)
    diffs = seriesfile.diffs_of(project, spec.patches.series, chosen)
    tree = source.archive(store.path(archive.sha256), {path for patch in chosen for path in patch.touches})
    refuse_any(together.conflicts(inputs.series, chosen, diffs, tree, where))


def _unknown_model(spec: ImageSpec, name: str, label: str) -> Refusal:
    known = ", ".join(name for name, model in spec.models.items() if isinstance(model, HubModel)) or "none"
    return Refusal("NV107", f"{label}: .models", f"a model of the hub: {known}", name, "leave --later out")


def _no_model(spec: ImageSpec, name: str, label: str) -> Refusal:
    known = ", ".join(spec.models) or "none"
    return Refusal("NV107", f"{label}: .models", f"one of {known}", name, f"nvllm lock {spec.name}")


def _other_platform(inputs: LockInputs, progress: Progress) -> Lock | None:
    """Return a lock of the image for another platform."""
    others = [platform for platform in inputs.spec.platforms if platform != inputs.project.platform]
    projects = (dataclasses.replace(inputs.project, platform=platform) for platform in others)
    locks = (usable_lock(project, inputs.spec.name, progress) for project in projects)
    return next((lock for lock in locks if lock is not None), None)
