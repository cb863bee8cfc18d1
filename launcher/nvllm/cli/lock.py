"""`nvllm lock`: the only command that asks what a moving name stands for."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import click

from nvllm.cli.complete import images
from nvllm.cli.frame import App, Command, with_app
from nvllm.core.canonical import Json
from nvllm.core.lock import Lock, LockedModel
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.core.spec import DebianBase, HubModel, ImageSpec
from nvllm.lock import devicecode, drift, resolve, updates
from nvllm.lock import document as lockdoc
from nvllm.lock.drift import Drift
from nvllm.lock.resolve import Edges
from nvllm.lock.updates import Reminder
from nvllm.models import tree as models
from nvllm.patches import seriesfile
from nvllm.serve import examine
from nvllm.sources import debian, fetch, hub
from nvllm.sources import git as gitsource
from nvllm.sources import wheels as wheelset
from nvllm.sources.debian import Selection
from nvllm.sources.indexes import Sources, extra_indexes
from nvllm.sources.store import Store
from nvllm.spec import file as specfile

T = TypeVar("T")

EXAMPLES = """
Examples:
  nvllm lock cpu                           resolve what images/cpu.yaml added or changed; keep the rest
  nvllm lock cpu --update wheels           let the wheels move to what the indexes have now
  nvllm lock cpu --check                   write nothing; exit 1 if `nvllm lock cpu` would change the lock
  nvllm lock cpu --check --update all      what has moved since the lock was made, by kind
  nvllm lock gb10 --compiled out/vllm.whl  with the wheel that was compiled from the pinned commit
"""


@click.command("lock", cls=Command, epilog=EXAMPLES)
@click.argument("image", shell_complete=images, help="An image spec: images/IMAGE.yaml.")
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing; list what would change, and exit 1 if anything would. Reminds of security updates.",
)
@click.option(
    "--update",
    multiple=True,
    type=click.Choice([*sorted(resolve.PARTS), "all"]),
    help="Resolve this part again, and not only what the spec changed. Repeatable.",
)
@click.option(
    "--compiled",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="WHEEL",
    help="The wheel of a vLLM that no index has, as it was compiled; it is locked by its sha256.",
)
@with_app
def lock(app: App, image: str, check: bool, update: tuple[str, ...], compiled: Path | None) -> None:
    """Resolve every name in the spec of IMAGE, and pin it by sha256 in manifests/IMAGE.lock.json.

    What the lock names stays as it is while the spec still allows it. Nothing but this command asks an index, a
    mirror or the hub what a name stands for.
    """
    spec_path, lock_path = app.project.spec(image), app.project.lock(image)
    shown, shown_lock = app.project.show(spec_path), app.project.show(lock_path)
    spec, platform = specfile.load(spec_path, shown), app.project.platform
    refuse_any(specfile.other_platform(spec, platform))
    directory = app.project.series(spec.patches.series)
    series = seriesfile.load(directory, app.project.show(directory))
    previous = lockdoc.read(lock_path, shown_lock) if check else _present(app, app.project, image)
    app.remember_project()
    inputs = specfile.inputs(spec, platform)
    asked = edges(app, spec)
    if compiled is not None:
        asked = dataclasses.replace(asked, compiled=wheelset.adopted(compiled, Store(app.places.store)))
    kept = previous or _elsewhere(app, spec)
    new = resolve.lock(spec, platform, shown, series, inputs, kept, frozenset(update), asked)
    found = drift.drift(previous, new) if previous is not None else ()
    changed = lockdoc.encode(previous) != lockdoc.encode(new) if previous is not None else True
    if not check:
        lockdoc.write(lock_path, new)
    data = {
        "image": image,
        "platform": platform,
        "lock": shown_lock,
        "changed": changed,
        "drift": [dataclasses.asdict(one) for one in found],
    }
    reminder = updates.remind(new, os.environ, offline=app.offline) if check else None
    if reminder is not None:
        data["security"] = reminder.data
    verb = ("would change" if check else "written") if changed else "unchanged"
    head = f"{shown_lock}: {verb}, {_counts(new)}"
    app.out.result("lock", cast("Json", data), lambda: _say(app, head, found, reminder))
    if check and changed:
        raise click.exceptions.Exit(1)


def _present(app: App, project: Project, image: str) -> Lock | None:
    """Return the lock of IMAGE that is there for PROJECT's platform. One that is missing or damaged keeps nothing."""
    path = project.lock(image)
    try:
        return lockdoc.read(path, project.show(path))
    except Refused as refused:
        if {refusal.code for refusal in refused.refusals} - {"NV201", "NV210"}:
            raise
        if path.exists():
            app.progress.note(f"{project.show(path)} is damaged; nothing of it is kept")
        return None


def _elsewhere(app: App, spec: ImageSpec) -> Lock | None:
    """Return a lock of SPEC's image for another platform: a first lock here takes the versions that are known there."""
    projects = [dataclasses.replace(app.project, platform=platform) for platform in spec.platforms]
    found = (_present(app, project, spec.name) for project in projects if project != app.project)
    return next((one for one in found if one is not None), None)


def _counts(new: Lock) -> str:
    size = sum(file.size for file in new.files) / 1e6
    return f"{len(new.files)} files, {size:.0f} MB, {len(new.wheels)} of them wheels"


def _say(app: App, head: str, found: Sequence[Drift], reminder: Reminder | None) -> None:
    app.out.line(head)
    if found:
        rows = [(one.kind, one.name, one.before or "-", one.after or "-") for one in found]
        app.out.table(["kind", "name", "before", "after"], rows)
    if reminder is not None:
        app.out.line("\n".join(reminder.words))


def edges(app: App, spec: ImageSpec) -> Edges:
    """Return what `resolve.lock` asks for SPEC: the real world, or with --offline only what the store holds."""
    store = Store(app.places.store)
    sources = Sources(spec.base.suite if isinstance(spec.base, DebianBase) else None, os.environ)

    def asked(label: str, ask: Callable[[], T]) -> T:
        if app.offline:
            cure = "run it once without --offline"
            raise Refused(
                [Refusal("NV209", f"nvllm lock, {label}", "to ask what a name stands for", "--offline", cure)]
            )
        with app.progress.task(f"resolve {label}", None, "files"):
            return ask()

    def debs(base: DebianBase, architecture: str, kept: Mapping[str, str]) -> Selection:
        releases = (base.suite, f"{base.suite}-security") if base.security else (base.suite,)
        return debian.resolve(base.suite, base.packages, architecture, kept, sources.mirrors().of(*releases))

    def hub_model(model: HubModel) -> LockedModel:
        revision = model.revision or model.follow or "main"
        found = hub.resolve(model.repo, revision, cache_dir=app.places.cache / "hub", progress=app.progress)
        return found.locked(model.follow)

    return Edges(
        debs=lambda base, architecture, kept: asked("Debian packages", lambda: debs(base, architecture, kept)),
        wheels=lambda requirements, target, kept: asked(
            "wheels", lambda: wheelset.resolve(requirements, target, kept, extra_indexes(spec.python.indexes))
        ),
        sdist=lambda version: asked("the source", lambda: sources.indexes().sdist("vllm", version)),
        offered=lambda name, version: asked(f"wheels of {name}", lambda: sources.indexes().wheels(name, version)),
        size=lambda url: sources.indexes().size(url),
        fetch=lambda files: fetch.fetch(files, store, sources, app.progress, offline=app.offline),
        path=store.path,
        directory_model=lambda of, name: models.tree_of(
            examine.plain_directory(name, app.places, os.environ),
            cure=examine.model_cure(of, name),
            progress=app.progress,
        )[1],
        commit=lambda pin, shown: asked(
            "the commit",
            lambda: gitsource.bring(pin, shown, store, sources.client(), os.environ, app.progress),
        ),
        hub=lambda model: asked(f"the model {model.repo}", lambda: hub_model(model)),
        libraries=lambda file: devicecode.remembered(
            store.path(file.sha256), file.filename, file.sha256, app.places.code
        ),
    )
