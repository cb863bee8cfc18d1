"""`nvllm image`: what is in images, and how two of them differ."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import click

from nvllm.cli.complete import files
from nvllm.cli.frame import App, Group, with_app
from nvllm.cli.terminal import printable
from nvllm.core.canonical import Json
from nvllm.engine import engine
from nvllm.image import contents, difference
from nvllm.image.contents import Contents
from nvllm.image.difference import ImageDifference
from nvllm.layers.cache import LayerCache

EXAMPLES = """
Examples:
  nvllm image diff nvllm:cpu nvllm:cpu-0b68a0b2ac6e     two images of the engine
  nvllm image diff out/ there.tar                       an OCI layout, and an archive of one or of `docker save`
  nvllm image diff good/ nvllm:cpu --json               every difference, for programs
"""


image = Group("image", epilog=EXAMPLES)


@image.command("diff", epilog=EXAMPLES)
@click.argument("a", shell_complete=files, help="An OCI layout, an archive of an image, or a tag of the engine.")
@click.argument("b", shell_complete=files, help="The one to compare it with.")
@with_app
def diff_command(app: App, a: str, b: str) -> None:
    """Show how two images differ: layer, file, attribute, both values, and the lines of texts and bytecode.

    Only layers with different digests are read. Ends with exit status 3 if the images differ.
    """
    with tempfile.TemporaryDirectory(prefix="nvllm-diff-") as scratch:
        first, second = (_opened(app, name, Path(scratch)) for name in (a, b))
        differences = list(difference.images(first, second))
    data: Json = {"a": a, "b": b, "same": not differences, "differences": listed(differences)}
    cure = "build the one that is wrong twice, to see what it depends on: nvllm build IMAGE --check"
    refusals = list(difference.refusals(differences, "NV310", f"{a} and {b}", cure))
    app.show("image diff", data, lambda: show(app, differences), refusals)


def _opened(app: App, name: str, scratch: Path) -> Contents:
    stored = contents.stored(name, scratch)
    if stored is not None:
        return stored
    return contents.of_engine(name, engine.require(), LayerCache(app.places.layers), scratch)


def listed(differences: Sequence[ImageDifference]) -> Json:
    """Return DIFFERENCES as --json has it."""
    return [
        {
            "layer": change.layer,
            "path": change.path,
            "attribute": change.attribute,
            "a": change.first,
            "b": change.second,
            "lines": cast("Json", change.lines),
        }
        for change in differences
    ]


def show(app: App, differences: Sequence[ImageDifference]) -> None:
    """Print DIFFERENCES: a heading for each file, a line for each attribute, and the lines that differ."""
    heading = None
    for change in differences:
        name = f"layer {change.layer}" if change.layer != difference.CONFIGURATION else change.layer
        here = printable(f"{name}: {change.path}" if change.path else name)
        if here != heading:
            app.out.line(here)
            heading = here
        app.out.line(printable(f"  {change.attribute}\n    a  {change.first}\n    b  {change.second}"))
        for line in change.lines:
            app.out.line(printable(f"    {line}"))
    if not differences:
        app.out.line("the same bytes")
