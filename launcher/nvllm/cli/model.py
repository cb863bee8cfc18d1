"""`nvllm model`: bringing the models of an image to this host, and checking them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from nvllm.cli.complete import images
from nvllm.cli.frame import App, Command, Group, with_app
from nvllm.core import paths
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedModel
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.core.spec import DirectoryModel
from nvllm.image.identity import Build
from nvllm.models import location, recipes
from nvllm.models import tree as models
from nvllm.serve import examine
from nvllm.sources import hub

EXAMPLES = """
Examples:
  nvllm model make cpu tiny-lfm2      make the demo's model, and compare it with its pin
  nvllm model fetch sm120 qwen        download exactly the locked files of exactly the locked revision
  nvllm model check cpu               read every byte of every model of the image
"""


@click.group("model", cls=Group, epilog=EXAMPLES)
def model() -> None:
    """Make, fetch or check the models of an image."""


def _with_model(app: App, image: str, name: str) -> Build:
    """Return the build of IMAGE. Raises Refused NV107 unless it has the model NAME."""
    made, _ = examine.load_build(app.project, image, None)
    _spec_model(made, name)
    return made


def _spec_model(made: Build, name: str) -> None:
    if name not in made.spec.models:
        known = ", ".join(made.spec.models) or "none"
        where = f"images/{made.spec.name}.yaml: .models"
        raise Refused([Refusal("NV107", where, f"one of {known}", name, f"nvllm model check {made.spec.name}")])


@model.command("make", cls=Command, epilog=EXAMPLES)
@click.argument("image", shell_complete=images, help="An image with a lock.")
@click.argument("name", help="A model of the image that has a recipe.")
@with_app
def make(app: App, image: str, name: str) -> None:
    """Make the model NAME of IMAGE by its recipe, and refuse it unless it is the pinned one. It takes no engine."""
    made = _with_model(app, image, name)
    wanted = made.spec.models[name]
    if not isinstance(wanted, DirectoryModel) or wanted.recipe is None:
        raise Refused(
            [
                Refusal(
                    "NV107",
                    f"images/{image}.yaml: .models.{name}",
                    "a model with a recipe",
                    "one without",
                    location.model_cure(made.spec, name),
                )
            ]
        )
    recipe = recipes.recipe(wanted.recipe)
    files = recipe.files()
    tree = models.tree_hash(files)
    if tree != wanted.tree:
        raise Refused([recipes.other_tree(f"images/{image}.yaml", name, wanted.tree, tree)])
    target = paths.ensure(app.places.models) / name
    with tempfile.TemporaryDirectory(dir=app.places.models, prefix=f".{name}-") as scratch:
        made_here = Path(scratch, name)
        made_here.mkdir()
        made_here.chmod(0o755)  # the container's user may be another one than ours
        for path, content in recipe.contents().items():
            (made_here / path).write_bytes(content)
            (made_here / path).chmod(0o644)
        shutil.rmtree(target, ignore_errors=True)
        made_here.rename(target)
    size = sum(file.size for file in files)
    data: Json = {"model": name, "tree": tree, "files": len(files), "bytes": size, "directory": str(target)}
    app.out.result("model make", data, f"{name}: {len(files)} files, {size} bytes, {tree}")


@model.command("fetch", cls=Command, epilog=EXAMPLES)
@click.argument("image", shell_complete=images, help="An image with a lock.")
@click.argument("name", help="A model of the image that comes from the hub.")
@with_app
def fetch(app: App, image: str, name: str) -> None:
    """Download exactly the locked files of the locked revision of NAME, and check every byte."""
    made = _with_model(app, image, name)
    locked = made.lock.models[name]
    if locked.kind != "huggingface":
        raise Refused(
            [
                Refusal(
                    "NV107",
                    f"images/{image}.yaml: .models.{name}",
                    "a model of the hub",
                    "a directory",
                    location.model_cure(made.spec, name),
                )
            ]
        )
    directory = location.model_directory(made.spec, name, app.places)
    hub.download(locked, directory, progress=app.progress)
    refuse_any(_verify(app, made, [(name, locked)]))
    data: Json = {"model": name, "revision": locked.revision, "directory": str(directory)}
    app.out.result("model fetch", data, f"{name}: revision {locked.revision}, checked, in {directory}")


@model.command("check", cls=Command, epilog=EXAMPLES)
@click.argument("image", shell_complete=images, help="An image with a lock.")
@click.argument("name", required=False, help="One model; else every one.")
@with_app
def check(app: App, image: str, name: str | None) -> None:
    """Read every byte of the models of IMAGE and compare them with the lock."""
    made, stale = examine.load_build(app.project, image, None)
    if name is not None:
        _spec_model(made, name)
    chosen = [(one, locked) for one, locked in made.lock.models.items() if name in {None, one}]
    refuse_any([*stale, *_verify(app, made, chosen)])
    data: Json = {"models": [{"model": one, "tree": locked.tree} for one, locked in chosen]}
    app.out.result("model check", data, "\n".join(f"{one}: as locked, {locked.tree}" for one, locked in chosen))


def _verify(app: App, made: Build, chosen: Sequence[tuple[str, LockedModel]]) -> list[Refusal]:
    return [
        refusal
        for name, locked in chosen
        for refusal in models.verify(
            locked,
            location.model_directory(made.spec, name, app.places),
            models.HashCache.none(),
            cure=location.model_cure(made.spec, name),
            progress=app.progress,
        )
    ]
