"""`nvllm store`: carry locked files from one host to another."""

from __future__ import annotations

from pathlib import Path

import click

from nvllm.cli import terminal
from nvllm.cli.fetch import needed
from nvllm.cli.frame import PATH, App, Group, with_app
from nvllm.cli.image_argument import IMAGE_BEFORE_PATH, Needed, with_image
from nvllm.core.canonical import Json
from nvllm.lock.project import read_lock
from nvllm.sources import bundle
from nvllm.sources.store import Store

EXAMPLES = """
Examples:
  nvllm fetch cpu && nvllm store export cpu cpu.tar    on a host with network
  nvllm store import cpu.tar                           on one without; then nvllm build cpu --offline
"""


store = Group("store", epilog=EXAMPLES)


@store.command("export", epilog=EXAMPLES)
@IMAGE_BEFORE_PATH
@click.argument("file", cls=Needed, required=False, metavar="FILE", type=PATH, help="The tar to write.")
@with_image("file")
def export_command(app: App, image: str, file: Path) -> None:
    """Write the files of an image's lock into one tar; the same lock gives the same bytes.

    Models are not in it. A file that the store lacks is refused.
    """
    files = needed(read_lock(app.project, image))
    cure = f"nvllm fetch {image} --platform {app.project.platform}"
    size = bundle.write(files, Store(app.places.store), file, cure, app.progress)
    count = len({locked.sha256 for locked in files})
    data: Json = {"image": image, "platform": app.project.platform, "file": str(file), "files": count, "bytes": size}
    app.out.result("store export", data, f"{file}: {count} files, {terminal.size(size)}")


@store.command("import", epilog=EXAMPLES)
@click.argument(
    "file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A tar of `nvllm store export`."
)
@with_app
def import_command(app: App, file: Path) -> None:
    """Hash every file of the tar, and bring those into the store that it lacks.

    Anything but such files is refused, and so is a file whose bytes have another sha256 than its name.
    """
    brought = bundle.read(file, Store(app.places.store), app.progress)
    data: Json = {"file": str(file), "files": brought.files, "bytes": brought.bytes, "new": brought.new}
    text = f"{file}: {brought.files} files, {terminal.size(brought.bytes)}, {brought.new} of them new"
    app.out.result("store import", data, text)
