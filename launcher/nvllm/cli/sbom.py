"""`nvllm sbom`: the bill of materials of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from nvllm.cli.build import fresh_build, patches_option
from nvllm.cli.frame import PATH, App, Command
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core import canonical, durable, extras
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.image import sbom
from nvllm.image.identity import Build
from nvllm.layers import wheelmetadata
from nvllm.sources.store import Store

EXAMPLES = """
Examples:
  nvllm sbom cpu                          CycloneDX 1.6, for scanners
  nvllm sbom cpu --output cpu.cdx.json    the same, into a file
  nvllm sbom cpu --format spdx            the small document that is inside the image
"""


@click.command("sbom", cls=Command, epilog=EXAMPLES)
@IMAGE
@click.option(
    "--format",
    "form",
    type=click.Choice(["cyclonedx", "spdx"]),
    default="cyclonedx",
    show_default=True,
    help="CycloneDX 1.6, or the SPDX 2.3 that the image contains.",
)
@click.option("--output", type=PATH, metavar="FILE", help="Write it to FILE instead of stdout.")
@patches_option
@with_image()
def sbom_command(
    app: App, image: str, form: Literal["cyclonedx", "spdx"], output: Path | None, patches: str | None
) -> None:
    """Nothing is built or fetched: it is made from the lock, and from those wheels that the store has.

    A wheel in the store is asked for its license and for the parts that it contains; `nvllm fetch IMAGE` gets them all.
    """
    build = fresh_build(app, image, patches)
    if form == "spdx":
        _print(app, build, sbom.document(build), output, None)
        return
    store = Store(app.places.store)
    present = [wheel for wheel in build.lock.wheels if store.has(wheel.file.sha256)]
    read = {wheel.name: wheelmetadata.read(store.path(wheel.file.sha256), wheel.file.filename) for wheel in present}
    try:
        from nvllm.image import cyclonedx
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"cyclonedx", "packageurl"}:
            raise  # a defect, and no extra that is not installed
        expected, cure = "the Python package cyclonedx-python-lib", extras.installing("sbom")
        raise refuse("NV512", "nvllm sbom", expected, "not installed", cure) from error
    _print(app, build, cyclonedx.document(build, read), output, len(read))


def _print(app: App, build: Build, document: Json, output: Path | None, read: int | None) -> None:
    """Print DOCUMENT, or write it to OUTPUT. READ is how many wheels were looked into, None if none was to be."""
    text = canonical.pretty(document)
    basis = f"looked into {read} of {len(build.lock.wheels)} wheels" if read is not None else "from the lock alone"
    if output is not None:
        durable.replace(output, text.encode(), 0o644, code="NV920")
    data: Json = {
        "image": build.spec.name,
        "build_hash": build.build_hash,
        "wheels": len(build.lock.wheels),
        "wheels_read": read,
        **({"document": document} if output is None else {"file": str(output)}),
    }
    if output is None:  # stdout holds the document and nothing else
        app.progress.note(f"{build.spec.name}: {basis}")
    app.out.result("sbom", data, text if output is None else f"{output}: {basis}")
