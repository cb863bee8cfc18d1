"""`nvllm export`: a profile as files for another supervisor, and which of its guarantees they keep."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

import click

from nvllm.cache.store import TreeStore
from nvllm.cli.complete import profiles
from nvllm.cli.fleet import repository_name
from nvllm.cli.frame import PATH, App, Command
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core import durable
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse, refuse_any
from nvllm.export import compose, kubernetes, mounted, quadlet, systemd
from nvllm.export.export import GUARANTEES, Export, ExportSource, refusals, relevant
from nvllm.export.systemd import Service
from nvllm.fleet import blessings
from nvllm.serve.examination import Depth, Examination, examine

EXAMPLES = """
Examples:
  nvllm export kubernetes cpu --profile tiny-blessed --registry registry.example/team/nvllm --out deploy
  nvllm export kubernetes cpu --profile tiny-blessed --registry registry.example/team/nvllm --explain
  nvllm export systemd cpu --profile tiny-blessed --out deploy
"""

PLATFORMS = ("kubernetes", "quadlet", "compose", "systemd")
MODELS_AT = "/var/lib/nvllm/models"


@click.command("export", cls=Command, epilog=EXAMPLES)
@click.argument("target", metavar="PLATFORM", type=click.Choice(PLATFORMS), help=f"One of {', '.join(PLATFORMS)}.")
@IMAGE
@click.option("--profile", required=True, metavar="NAME", shell_complete=profiles, help="The profile to export.")
@click.option(
    "--registry", "repo", metavar="REPO", help="The repository that `nvllm push` sent both to: host[:port]/path."
)
@click.option("--out", type=PATH, metavar="DIR", help="Write the files into the new directory DIR. Default: show them.")
@click.option(
    "--server-version",
    metavar="VERSION",
    default=kubernetes.DEFAULT_SERVER,
    show_default=True,
    help="Kubernetes: the version of the API server and of every kubelet, 1.31 at least.",
)
@click.option(
    "--models",
    "models_at",
    metavar="DIR",
    default=MODELS_AT,
    show_default=True,
    help="Kubernetes: the directory of the nodes that has each model under its name, or a claim, pvc:NAME.",
)
@click.option("--explain", is_flag=True, help="Show which guarantees the files keep, and by what; write nothing.")
@with_image()
def export(
    app: App,
    target: str,
    image: str,
    profile: str,
    repo: str | None,
    out: Path | None,
    server_version: str,
    models_at: str,
    explain: bool,
) -> None:
    """The profile is examined as by `nvllm serve`, and refused for the same reasons.

    The files name image and blessing by the digests that `nvllm push` prints. Nothing is sent; no registry is asked.
    The file has a comment for each guarantee that the platform lacks.
    """
    if target == "systemd":
        repository = ""
    elif repo is None:
        cure = f"name the repository: nvllm export {target} {image} --profile {profile} --registry REPO"
        raise refuse("NV108", "--registry", "the repository that `nvllm push` sent the image to", "none", cure)
    else:
        repository = str(repository_name(repo))
    server = kubernetes.version(server_version)
    if server is None:
        expected = f"a version from {'.'.join(map(str, kubernetes.OLDEST))} on, the first that mounts images"
        raise refuse("NV108", "--server-version", expected, server_version, "kubectl version")
    if not models_at.startswith(("/", "pvc:")):
        expected = "an absolute path, or pvc: and the name of a claim"
        raise refuse("NV108", "--models", expected, models_at, "--models pvc:models")
    if out is not None:
        durable.absent(out, "--out")
    app.remember_project()
    examination = examine(app.project, app.places, image, profile, Depth.WHOLE, paranoid=False, progress=app.progress)
    refuse_any(relevant(examination.refusals))
    source = _source(app, examination, repository, models_at)
    made = _export_to(app, target, source, server)
    data: dict[str, Json] = {
        "platform": target,
        "image": image,
        "serve_hash": source.plan.serve_hash,
        "guarantees": {
            name: {"held": guarantee.kept, "by": guarantee.by} for name, guarantee in made.guarantees.items()
        },
    }
    if explain:
        app.out.result("export", {**data, "files": {}}, _explained(made))
        return
    files: Json = {file.path: file.data.decode() for file in made.files}
    if out is None:
        listed = [file for file in made.files if file.path.endswith(_SHOWN)]
        text = "".join(f"# {file.path}\n{file.data.decode()}" for file in listed)
    else:
        _write(app, made, examination, out)
        lost = sum(not guarantee.kept for guarantee in made.guarantees.values())
        counted = f"guarantees that are not held there: {lost} of {len(made.guarantees)}; --explain lists them"
        text = "\n".join([*(str(out / file.path) for file in made.files), counted])
    app.out.result("export", {**data, "files": files}, text)


_SHOWN = (".yaml", ".container", ".service")
"""The files that are shown without --out; the others are what these mount."""


def _source(app: App, examination: Examination, repository: str, models_at: str) -> ExportSource:
    manifest, platform = examination.manifest, app.project.platform
    restart = examination.profile.restart
    if manifest is None:
        return ExportSource(
            examination.plan, examination.models, platform, repository=repository, models_at=models_at, restart=restart
        )
    digest = ""
    if repository:
        digest = blessings.digest_of(manifest, platform, app.places, app.progress)
    label = f"{manifest.label} v{manifest.version}, tree {manifest.tree_hash}"
    return ExportSource(
        examination.plan, examination.models, platform, manifest.tree, label, repository, digest, models_at, restart
    )


def _export_to(app: App, platform: str, source: ExportSource, server: tuple[int, int]) -> Export:
    """Return the export of SOURCE to PLATFORM. Raises Refused NV333 if it could not be a faithful one."""
    if platform == "kubernetes":
        refuse_any(kubernetes.refusals(source))
        return kubernetes.exported(source, server)
    refuse_any(refusals(source, platform))
    if platform == "quadlet":
        return quadlet.exported(source)
    return compose.exported(source) if platform == "compose" else systemd.exported(source, _service(app))


def _service(app: App) -> Service:
    """Return how a unit runs this nvllm, on this project, with this user's places."""
    command = [sys.executable, "-m", "nvllm", "--project", str(app.project.root.absolute())]
    kept = {name: text for name, text in sorted(os.environ.items()) if name in _PLACES and text}
    return Service(command, kept, pwd.getpwuid(os.geteuid()).pw_name)


_PLACES = ("DOCKER_HOST", "NVLLM_HOME", "NVLLM_MODELS", "XDG_CACHE_HOME", "XDG_STATE_HOME")
"""The variables that say where this nvllm keeps its state, and which engine it uses."""


def _explained(made: Export) -> str:
    lines = []
    for name, text in GUARANTEES.items():
        guarantee = made.guarantees[name]
        lines += [f"{'held' if guarantee.kept else 'NOT HELD':<9} {name}: {text}", f"          {guarantee.by}"]
    return "\n".join(lines)


def _write(app: App, made: Export, examination: Examination, out: Path) -> None:
    """Write MADE at OUT, with a copy of the cache of EXAMINATION if it has one.

    Whatever the umask, all of it can be read: others copy it, and the engine's user reads it through its mounts.
    """
    with durable.appearing(out, "--out") as directory:
        for file in made.files:
            target = directory / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.parent.chmod(0o755)
            target.write_bytes(file.data)
            target.chmod(0o444)
        if made.copies_cache and examination.manifest is not None:
            tree, cure = examination.manifest.tree, examination.manifest.cure
            copy = TreeStore(app.places.trees).stage(tree, directory, cure).path
            copy.chmod(0o755)  # who is not root moves only what he may write to
            copy.rename(directory / mounted.CACHE).chmod(int(tree.directories[0].mode, 8))
            copy.parent.rmdir()
