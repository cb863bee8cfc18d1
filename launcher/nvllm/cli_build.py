"""`nvllm build`: an image from its lock."""

from __future__ import annotations

import os
from pathlib import Path

import click

from nvllm import build, engine, examine, fetch, image, seriesfile
from nvllm.canonical import Json
from nvllm.cli_complete import images
from nvllm.cli_frame import App, Command, with_app
from nvllm.identity import Build
from nvllm.image import Image
from nvllm.indexes import Sources
from nvllm.layercache import LayerCache
from nvllm.lock import LockedDebianBase
from nvllm.refusal import refuse_any
from nvllm.store import Store

EXAMPLES = """
Examples:
  nvllm build cpu                              build what the lock says, load it, tag it nvllm:cpu
  nvllm build cpu --dry-run                    the build hash, and whether the image is there
  nvllm build cpu --patches aot-load-guard     another patch set; only the layers above change
  nvllm build cpu --layout out/                an OCI layout instead of an image in the engine
"""


@click.command("build", cls=Command, epilog=EXAMPLES)
@click.argument("image_name", metavar="IMAGE", shell_complete=images, help="An image spec: images/IMAGE.yaml.")
@click.option("--patches", metavar="ID,...", help="This patch set instead of the spec's; `none` for no patch.")
@click.option("--layout", type=click.Path(path_type=Path), metavar="DIR", help="Write an OCI layout; needs no engine.")
@click.option("--dry-run", is_flag=True, help="Say what would be built; fetch, build and load nothing.")
@with_app
def build_command(app: App, image_name: str, patches: str | None, layout: Path | None, dry_run: bool) -> None:
    """Build IMAGE: each layer a pure function of locked inputs, the same bytes wherever it is built.

    An image that the engine holds already, by its build hash, is not built again. Prints the tag.
    """
    enable = None if patches is None else [one for one in patches.split(",") if one and one != "none"]
    made, stale = examine.load_build(app.project, image_name, enable)
    refuse_any(stale)
    if dry_run:
        _say(app, made, None, "would be built")
        return
    if layout is not None:
        finished = layers(app, made)
        spec = made.spec
        digest = image.write_layout(finished, spec.name, made.lock.platform, made.lock.epoch, layout)
        _say(app, made, finished.id, f"OCI layout at {layout}, manifest {digest}")
        return
    held = engine.require()
    record = build.read_record(app.places.builds, made.build_hash)
    if record is not None and held.image(record.image_id) is not None:
        for tag in made.tags:
            held.tag(record.image_id, tag)
        _say(app, made, record.image_id, "already there")
        return
    finished = layers(app, made)
    held.load(finished, made.tags, app.progress)
    recorded = tuple(build.RecordedLayer(one.kind, one.diff_id, one.size) for one in finished.layers)
    build.write_record(app.places.builds, build.Record(image_name, made.build_hash, finished.id, recorded))
    _say(app, made, finished.id, "built")


def layers(app: App, made: Build) -> Image:
    """Return the finished image of MADE, fetching what the store lacks and making what the cache lacks."""
    store = Store(app.places.store)
    suite = made.lock.base.suite if isinstance(made.lock.base, LockedDebianBase) else None
    fetch.fetch(made.lock.files, store, Sources(suite, os.environ), app.progress, offline=app.offline)
    directory = app.project.series(made.spec.patches.series)
    diffs = seriesfile.diffs(directory, made.patches, app.project.show(directory))
    ordered = tuple(diffs[patch.id] for patch in made.patches)
    return build.Builder(made, ordered, store, LayerCache(app.places.layers), app.progress).image()


def _say(app: App, made: Build, image_id: str | None, outcome: str) -> None:
    tag, latest = made.tags
    data: Json = {
        "image": made.spec.name,
        "build_hash": made.build_hash,
        "image_id": image_id,
        "tag": tag,
        "patches": [patch.id for patch in made.patches],
        "outcome": outcome,
    }
    listed = ", ".join(patch.id for patch in made.patches) or "none"
    text = f"{tag}  {outcome}\n  build hash  {made.build_hash}\n  image id    {image_id or '-'}\n  patches     {listed}"
    app.out.result("build", data, text if outcome != "built" else f"{text}\n  also        {latest}")
