"""`nvllm model`: make, fetch and check the models of an image."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from nvllm.cli.complete import models
from nvllm.cli.frame import App, Group
from nvllm.cli.image_argument import IMAGE_BEFORE_MODEL, MODEL, Needed, with_image
from nvllm.core import paths
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedModel
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.core.spec import DirectoryModel
from nvllm.image import identity
from nvllm.image.identity import Build
from nvllm.lock import lockdoc
from nvllm.models import location, modeltree, recipes
from nvllm.models.memo import HashCache
from nvllm.sources import hub

EXAMPLES = """
Examples:
  nvllm model make cpu tiny-lfm2      make the model of the demo
  nvllm model fetch qwen35-27b-nvfp4  download the locked files of the locked revision
  nvllm model check cpu               hash every file of every model of the image
"""


model = Group("model", epilog=EXAMPLES)


def _needed_name(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the argument NAME, a model of an image, with the help TEXT."""
    options = {"required": False, "metavar": "NAME", "shell_complete": models, "help": text}
    return click.argument(MODEL, cls=Needed, **options)


def _with_model(app: App, image: str, name: str) -> Build:
    """Return the build of IMAGE. Raises Refused NV107 unless it has the model NAME."""
    build, _ = identity.load_build(app.project, image, None)
    _spec_model(build, name)
    return build


def _spec_model(build: Build, name: str) -> None:
    if name not in build.spec.models:
        known = ", ".join(build.spec.models) or "none"
        where = f"images/{build.spec.name}.yaml: .models"
        raise refuse("NV107", where, f"one of {known}", name, f"nvllm model check {build.spec.name}")


def _other_kind(build: Build, name: str, expected: str, actual: str) -> Refused:
    where = f"images/{build.spec.name}.yaml: .models.{name}"
    return refuse("NV107", where, expected, actual, location.model_cure(build.spec, name))


@model.command("make", epilog=EXAMPLES)
@IMAGE_BEFORE_MODEL
@_needed_name("A model of the image that has a recipe.")
@with_image(MODEL)
def make(app: App, image: str, name: str) -> None:
    """Make a model by its recipe, and compare it with its pin.

    No engine is needed. A model that is not the pinned one is refused and not kept.
    """
    build = _with_model(app, image, name)
    pinned = build.spec.models[name]
    if not isinstance(pinned, DirectoryModel) or pinned.recipe is None:
        raise _other_kind(build, name, "a model with a recipe", "one without")
    files = recipes.files(pinned.recipe)
    tree_hash = modeltree.tree_hash(files)
    assert pinned.tree is not None  # a spec with a recipe and no tree is refused
    if tree_hash != pinned.tree:
        raise Refused([recipes.other_tree(f"images/{image}.yaml", name, pinned.tree, tree_hash)])
    target = paths.ensure(app.places.models) / name
    with tempfile.TemporaryDirectory(dir=app.places.models, prefix=f".{name}-") as scratch:
        new = Path(scratch, name)
        new.mkdir()
        new.chmod(0o755)  # the container's user may be another one than ours
        for path, content in recipes.contents(pinned.recipe).items():
            (new / path).write_bytes(content)
            (new / path).chmod(0o644)
        shutil.rmtree(target, ignore_errors=True)  # rename(2) replaces no directory that holds files
        new.rename(target)
    size = sum(file.size for file in files)
    data: Json = {
        "image": image,
        "model": name,
        "tree": tree_hash,
        "files": len(files),
        "bytes": size,
        "directory": str(target),
    }
    app.out.result("model make", data, f"{name}: {len(files)} files, {size} bytes, {tree_hash}")


@model.command("fetch", epilog=EXAMPLES)
@IMAGE_BEFORE_MODEL
@_needed_name("A model of the image that comes from the hub.")
@with_image(MODEL)
def fetch(app: App, image: str, name: str) -> None:
    """Download the locked files of a model, and hash them."""
    build = _with_model(app, image, name)
    refuse_any(lockdoc.without_models(build.lock, [name], app.project.show(app.project.lock(image))))
    locked = build.lock.models[name]
    if locked.kind != "huggingface":
        raise _other_kind(build, name, "a model of the hub", "a directory")
    directory = location.model_directory(build.spec, name, app.places)
    hub.download(locked, directory, progress=app.progress)
    refuse_any(verify(app, build, [(name, locked)]))
    data: Json = {"image": image, "model": name, "revision": locked.revision, "directory": str(directory)}
    app.out.result("model fetch", data, f"{name}: revision {locked.revision}, checked, in {directory}")


@model.command("check", epilog=EXAMPLES)
@IMAGE_BEFORE_MODEL
@click.argument("name", required=False, shell_complete=models, help="Only this model.  [default: all]")
@with_image(MODEL)
def check(app: App, image: str, name: str | None) -> None:
    """Hash the models of an image, and compare them with the lock."""
    build, stale = identity.load_build(app.project, image, None)
    if name is not None:
        _spec_model(build, name)
        stale += lockdoc.without_models(build.lock, [name], app.project.show(app.project.lock(image)))
    chosen = [(key, locked) for key, locked in build.lock.models.items() if name in {None, key}]
    refuse_any([*stale, *verify(app, build, chosen)])
    data: Json = {"image": image, "models": [{"model": key, "tree": locked.tree} for key, locked in chosen]}
    app.out.result("model check", data, "\n".join(f"{key}: as locked, {locked.tree}" for key, locked in chosen))


def verify(app: App, build: Build, chosen: Sequence[tuple[str, LockedModel]]) -> list[Refusal]:
    """Hash the files of the models CHOSEN of BUILD; return what is not as locked."""
    return [
        refusal
        for name, locked in chosen
        for refusal in modeltree.verify(
            locked,
            location.model_directory(build.spec, name, app.places),
            HashCache.none(),
            cure=location.model_cure(build.spec, name),
            changed=location.changed_cure(build.spec, name),
            progress=app.progress,
        )
    ]
