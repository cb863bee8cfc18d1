"""`nvllm provenance`: what an image was built from, as a statement that can be signed."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from nvllm.cache import signature
from nvllm.cli.build import fresh_build, patches_option
from nvllm.cli.frame import PATH, App, Command
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core import canonical, durable
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.image import provenance

EXAMPLES = """
Examples:
  nvllm provenance cpu                                            an in-toto statement, on stdout
  nvllm provenance cpu --output cpu.intoto.json --sign ~/.ssh/id  the same in a file, and cpu.intoto.json.sig
"""


@click.command("provenance", cls=Command, epilog=EXAMPLES)
@IMAGE
@click.option("--output", type=PATH, metavar="FILE", help="Write it to FILE instead of stdout.")
@click.option("--sign", type=PATH, metavar="KEY", help="Sign FILE with this SSH key: FILE.sig.")
@patches_option
@with_image()
def provenance_command(app: App, image: str, output: Path | None, sign: Path | None, patches: str | None) -> None:
    """The statement names the image by the digests that the project or a build on this host recorded.

    It lists the lock's files and the patches by sha256. Form: in-toto Statement v1, SLSA provenance v1.
    """
    if sign is not None and output is None:
        cure = f"nvllm provenance {image} --output {image}.intoto.json --sign {shlex.quote(str(sign))}"
        raise refuse("NV108", "--sign", "--output FILE, beside which the signature lies", "no --output", cure)
    build = fresh_build(app, image, patches)
    made = provenance.statement(build, provenance.built_digests(app.project, app.places, build))
    text = canonical.pretty(made)
    data: dict[str, Json] = {"image": image, "build_hash": build.build_hash}
    if output is None:
        app.out.result("provenance", {**data, "statement": made}, text)
        return
    # Before anything is written: a key that cannot sign leaves no new statement beside an old signature.
    signed = signature.sign(text.encode(), sign, str(output)) if sign is not None else None
    durable.replace(output, text.encode(), 0o644, code="NV920")
    files = [str(output)]
    if signed is not None:
        durable.replace(output.with_name(f"{output.name}.sig"), signed, 0o644, code="NV920")
        files.append(f"{output}.sig")
    app.out.result("provenance", {**data, "files": [*files]}, "\n".join(files))
