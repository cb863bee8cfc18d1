"""`nvllm build`: an image from its lock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from nvllm.cli.complete import images
from nvllm.cli.frame import PATH, App, Command, with_app
from nvllm.core import durable
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedRegistryBase
from nvllm.core.refusal import refuse_any
from nvllm.host.facts import EngineProblem
from nvllm.image import engine, identity, oci
from nvllm.image import record as buildrecord
from nvllm.image.identity import Build

if TYPE_CHECKING:
    from nvllm.image.builder import ImageBuilder

EXAMPLES = """
Examples:
  nvllm build cpu                              build what the lock says, load it, tag it nvllm:cpu
  nvllm build cpu --dry-run                    the build hash, and whether the image is there
  nvllm build cpu --patches aot-load-guard     another patch set; only the layers above change
  nvllm build cpu --layout out/                an OCI layout instead of an image in the engine
  nvllm build sm120 --layers-only              patches and kernels, without the base: the bytes of a whole build
"""


patches_option = click.option(
    "--patches", metavar="ID,...", help="This patch set instead of the spec's; `none` for no patch."
)


def fresh_build(app: App, image: str, patches: str | None) -> Build:
    """Return the build of IMAGE with PATCHES, the value of `patches_option`. Raises Refused if its lock is stale."""
    enable = None if patches is None else [one for one in patches.split(",") if one and one != "none"]
    build, stale = identity.load_build(app.project, image, enable)
    refuse_any(stale)
    return build


@click.command("build", cls=Command, epilog=EXAMPLES)
@click.argument("image_name", metavar="IMAGE", shell_complete=images, help="An image spec: images/IMAGE.yaml.")
@patches_option
@click.option("--layout", type=PATH, metavar="DIR", help="Write an OCI layout to DIR; needs no engine.")
@click.option(
    "--layers-only",
    is_flag=True,
    help="Build only the layers of the patch set, without base and engine. Use it with --layout.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be built; fetch, build and load nothing.")
@with_app
def build_command(
    app: App, image_name: str, patches: str | None, layout: Path | None, layers_only: bool, dry_run: bool
) -> None:
    """An image that the engine already holds, by its build hash, is not built again. Prints the tag."""
    build = fresh_build(app, image_name, patches)
    if layout is not None:  # refuse before the build, which may take minutes
        durable.absent(layout, "--layout")
    if dry_run:
        _dry_run(app, build)
        return
    app.remember_project()
    if layers_only:
        _layers(app, build, layout)
        return
    if layout is not None:
        spec, finished = build.spec, _image_builder(app).image(build)
        digest = oci.write_layout(finished, spec.name, layout)
        _print_result(app, build, finished.id, f"OCI layout at {layout}, manifest {digest}")
        return
    held = engine.require()
    record = buildrecord.recorded(build, app.places, held, build.tags)
    if record is None:
        _print_result(app, build, _image_builder(app).into_engine(build, held, build.tags).image_id, "built")
    else:
        _print_result(app, build, record.image_id, "already there")


def _layers(app: App, build: Build, layout: Path | None) -> None:
    """Make the layers of the patch set, and write them with a list to LAYOUT, if it is given."""
    layers = _image_builder(app).upper(build)
    listed = [{"kind": one.kind, "diff_id": one.diff_id, "size": one.size} for one in layers]
    data: Json = {
        "image": build.spec.name,
        "platform": build.lock.platform,
        "build_hash": build.build_hash,
        "base": build.lock.base.image if isinstance(build.lock.base, LockedRegistryBase) else None,
        "layers": cast("Json", listed),
    }
    if layout is not None:
        oci.write_layers(layers, data, layout)

    def say() -> None:
        app.out.line(f"{build.spec.name} for {build.lock.platform}, build hash {build.build_hash}")
        app.out.table(["layer", "diff_id", "bytes"], [(one.kind, one.diff_id, str(one.size)) for one in layers])
        if layout is not None:
            app.out.line(f"written: {layout}/layers.json and {layout}/blobs")

    app.out.result("build", data, say)


def _dry_run(app: App, build: Build) -> None:
    found = engine.connect()
    record = buildrecord.read(app.places.builds, build.build_hash)
    if not isinstance(found, EngineProblem) and record is not None and buildrecord.held(record, found) is not None:
        _print_result(app, build, record.image_id, "already there")
    else:
        _print_result(app, build, record.image_id if record is not None else None, "would be built")


def _image_builder(app: App) -> ImageBuilder:
    # Imported here: for an image that is already there these modules are not needed.
    from nvllm.image import builder

    return builder.ImageBuilder(app.project, app.places, app.progress, offline=app.offline)


def _print_result(app: App, build: Build, image_id: str | None, outcome: str) -> None:
    tag, latest = build.tags
    data: Json = {
        "image": build.spec.name,
        "build_hash": build.build_hash,
        "image_id": image_id,
        "tag": tag,
        "patches": [patch.id for patch in build.patches],
        "outcome": outcome,
    }
    listed = ", ".join(patch.id for patch in build.patches) or "none"
    text = (
        f"{tag}  {outcome}\n  build hash  {build.build_hash}\n  image id    {image_id or '-'}\n  patches     {listed}"
    )
    app.out.result("build", data, text if outcome != "built" else f"{text}\n  also        {latest}")
