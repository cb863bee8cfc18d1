"""`nvllm dockerfile`: a build context for those who have only Docker, and a base image for it."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import click

from nvllm.cli.build import fresh_build, image_builder, patches_option
from nvllm.cli.frame import PATH, App, Command, with_app
from nvllm.cli.image_argument import IMAGE, selected
from nvllm.core import reading
from nvllm.core.canonical import Json
from nvllm.core.paths import packaged
from nvllm.core.refusal import refuse
from nvllm.engine import engine
from nvllm.image import dockerfiles
from nvllm.image.builder import LayerBuilder
from nvllm.image.identity import Build
from nvllm.kernels import toolchain
from nvllm.layers import oci
from nvllm.layers.cache import LayerCache
from nvllm.layers.oci import Image
from nvllm.patches.unified import Diff

EXAMPLES = """
Examples:
  nvllm dockerfile cpu --context out/cpu                 write everything that `docker build` needs
  nvllm dockerfile cpu --base-image nvllm-base:cpu       load the base layer alone, for --build-arg BASE
  docker build --network=none --build-arg BASE=IMAGE-ID --target image -t vllm out/cpu
"""


@click.command("dockerfile", cls=Command, epilog=EXAMPLES)
@IMAGE
@click.option("--context", type=PATH, metavar="DIR", help="Write the build context at DIR.")
@click.option("--base-image", metavar="TAG", help="Load an image of only the base layer into the engine, as TAG.")
@patches_option
@with_app
def dockerfile(app: App, image: str | None, context: Path | None, base_image: str | None, patches: str | None) -> None:
    """The same lock gives the same files: Dockerfile, wheels, source, patches and hashes.

    The context has two targets: `image`, a complete image, and `native`, the wheel compiled from the pinned commit with
    the patch set.
    """
    if context is None and base_image is None:
        raise click.UsageError("name --context DIR, --base-image TAG, or both")
    image = selected(app)  # behind the options: a line that lacks both is no cure, whichever IMAGE it names
    build = fresh_build(app, image, patches)
    data: dict[str, Json] = {"image": image, "build_hash": build.build_hash}
    lines: list[str] = []
    if context is not None:
        sha256 = write_context(app, build, build.diffs(app.project), context)
        data |= {"context": str(context), "sums": sha256, "whole": dockerfiles.whole(build)}
        targets = "image, native" if dockerfiles.whole(build) else "native (a patch of the set has to be compiled)"
        lines += [f"{context}  build context", f"  sums        {sha256}", f"  targets     {targets}"]
    if base_image is not None:
        loaded = base(app, build)
        engine.require().load(loaded, [base_image], app.progress)
        data |= {"base_tag": base_image, "base_id": loaded.id}
        lines += [f"{base_image}  base layer alone", f"  image id    {loaded.id}"]
    app.out.result("dockerfile", data, "\n".join(lines))


def write_context(app: App, build: Build, diffs: tuple[Diff, ...], directory: Path) -> str:
    """Write the context of BUILD, whose patch set is DIFFS, at DIRECTORY; return the sha256 of its SHA256SUMS."""
    locked = dockerfiles.build_requirements(app.project.root / "images", build.spec.name)
    native = dockerfiles.native_wheels(_read(app, locked), app.project.show(locked))
    given = dockerfiles.dockerfile(_read(app, app.project.root / "Dockerfile"), build, "Dockerfile")
    wheels = (wheel.file for wheel in (*build.lock.wheels, *native))
    compiling = toolchain.inputs(build.lock) if build.spec.targets else ()
    app.remember_project()
    store = image_builder(app).fetched(build, [build.lock.vllm.source, *wheels, *compiling])
    items = dockerfiles.items(build, store, native, given)
    with tempfile.TemporaryDirectory(prefix="nvllm-context-") as name:
        scratch = Path(name)
        for path, entries in dockerfiles.overlays(build, diffs, store).items():
            items.append(dockerfiles.tar(path, entries, build.lock.epoch, scratch, app.progress))
        if dockerfiles.whole(build):
            # No layer digests: the layers of `docker build` have other timestamps.
            builder = LayerBuilder(build, diffs, store, LayerCache(app.places.layers), app.progress)
            items += [dockerfiles.layer("kernels.tar", layer) for layer in builder.kernels()]
            items.append(dockerfiles.layer("identity.tar", builder.identity([])))
        return dockerfiles.write(items, directory)


def _read(app: App, path: Path) -> str:
    try:
        return reading.text(path, reading.CONFIGURATION)
    except FileNotFoundError:
        where = app.project.show(path)
        cure = shlex.join(["cp", str(packaged().root / where), str(path)])  # nvllm's own serves any project
        raise refuse("NV107", where, "a file of the project", "no such file", cure) from None
    except OSError as error:
        raise reading.refused(app.project.show(path), error) from error


def base(app: App, build: Build) -> Image:
    """Return an image of only the base layer of BUILD, for FROM in a Dockerfile without a registry.

    Raises Refused NV305 if the base is an image of a registry, which can be named in FROM itself.
    """
    app.remember_project()
    store = image_builder(app).fetched(build, build.lock.files)
    layer = LayerBuilder(build, (), store, LayerCache(app.places.layers), app.progress).base()
    return oci.assemble(
        [layer],
        platform=build.lock.platform,
        epoch=build.lock.epoch,
        entrypoint=(),
        environment={"PATH": "/usr/bin:/bin"},
        labels={"nvllm.base": layer.diff_id},
    )
