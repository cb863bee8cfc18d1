"""`nvllm push` and `nvllm pull`: images and blessings by digest, through an OCI registry."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from nvllm.cache.blessings import Blessings
from nvllm.cli import terminal
from nvllm.cli.build import fresh_build, image_builder, patches_option
from nvllm.cli.complete import profiles
from nvllm.cli.fleet import opened
from nvllm.cli.frame import App, Command
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.engine import engine
from nvllm.fleet import blessings, images, registry
from nvllm.fleet.blessings import PulledBlessing, PushedBlessing
from nvllm.fleet.registry import Repository
from nvllm.image import digests, recording
from nvllm.image.buildrecord import Proof
from nvllm.image.identity import Build
from nvllm.image.recording import Witness
from nvllm.layers.oci import Image
from nvllm.serve.examination import Depth, examine
from nvllm.spec.specfile import named_profile

PUSH_EXAMPLES = """
Examples:
  nvllm push 127.0.0.1:5000/nvllm cpu                           a registry on this host, over HTTP
  nvllm push registry.example/team/nvllm cpu --dry-run          what is there, and what would travel
  nvllm push registry.example/team/nvllm cpu --blessing tiny-blessed
"""

PULL_EXAMPLES = """
Examples:
  nvllm pull registry.example/team/nvllm cpu                    the image of the lock here, as recorded
  nvllm pull registry.example/team/nvllm@sha256:... cpu         the image with this manifest, for the lock here
  nvllm pull registry.example/team/nvllm cpu --verify           an image that is not recorded: compare every layer
  nvllm pull registry.example/team/nvllm cpu --blessing tiny-blessed
"""

blessing_option = click.option(
    "--blessing",
    "profiles",
    metavar="PROFILE",
    multiple=True,
    shell_complete=profiles,
    help="The blessing of PROFILE too.",
)


@click.command("push", cls=Command, epilog=PUSH_EXAMPLES)
@click.argument("repo", help="The repository: host[:port]/path.")
@IMAGE
@blessing_option
@patches_option
@click.option("--dry-run", is_flag=True, help="Say what the registry lacks; send nothing.")
@with_image()
def push(app: App, repo: str, image: str, profiles: Sequence[str], patches: str | None, dry_run: bool) -> None:
    """The image is built if it is not there, compared with the recorded digests, and sent layer by layer.

    Where the registry has the recorded image, nothing is built. Layers that it has are not sent again, so a push that
    was interrupted goes on where it was. Prints the digests that `nvllm pull` takes. Credentials are those of `docker
    login`.
    """
    name, digest = registry.parse(repo)
    if digest is not None:
        raise refuse("NV108", "REPO", "a repository without a digest", repo, f"nvllm push {name} {image}")
    build = fresh_build(app, image, patches)
    for profile in profiles:
        named_profile(app.project, build.spec, profile)  # refuse an unknown one before the build
    app.remember_project()
    manifests = Blessings.of_project(app.project, app.places)
    now = time.time()
    chosen = [
        blessing
        for profile in profiles
        for blessing in blessings.of_build(manifests, image, profile, build.build_hash, now)
    ]
    repository = opened(app, name)
    target: dict[str, Json] = {"repository": str(name), "image": image}
    tag = images.tag_of(build)
    # A host that pulled the image has none of its layers in the cache, and perhaps no index to make them from.
    present = images.present(build, digests.of_project(app.project, image), repository)
    if dry_run:
        lacking = images.lacking(_finished(app, build), repository) if present is None else 0
        text = f"{name}:{tag}: {terminal.size(lacking)} would travel"
        app.out.result("push", {**target, "tag": tag, "bytes": lacking, "pushed": False}, text)
        return
    if present is None:
        pushed = images.push_image(_finished(app, build), tag, repository)
    else:
        pushed = images.tag_present(present, tag, repository)
    sent = [
        blessings.push_blessing(blessing, manifests, app.project.platform, app.places, repository, app.progress)
        for blessing in chosen
    ]
    data: Json = {
        **target,
        "tag": pushed.tag,
        "manifest": pushed.digest,
        "build_hash": build.build_hash,
        "bytes": pushed.sent,
        "pushed": True,
        "blessings": [_pushed(blessing) for blessing in sent],
    }
    lines = [
        f"{name}:{pushed.tag}  {terminal.size(pushed.sent)} of {terminal.size(pushed.size)} sent",
        f"  nvllm pull {name}@{pushed.digest} {image}",
        *(
            f"{name}:{blessing.tag[:21]}...  {blessing.label} v{blessing.version}, {terminal.size(blessing.sent)} sent"
            for blessing in sent
        ),
        *(f"  nvllm pull {name}@{pushed.digest} {image} --blessing {profile}" for profile in profiles),
    ]
    app.out.result("push", data, "\n".join(lines))


def _finished(app: App, build: Build) -> Image:
    """Return the image of BUILD, made here. Raises Refused NV308 if it is not as recorded."""
    finished = image_builder(app).image(build)
    recording.verify(finished.layers, app.progress)
    built = recording.of_image(build, finished)
    Witness(app.project, app.places, engine.connect).hold(build.spec.name, built, finished.layers)
    return finished


def _pushed(blessing: PushedBlessing) -> Json:
    return {
        "label": blessing.label,
        "version": blessing.version,
        "tag": blessing.tag,
        "manifest": blessing.digest,
        "bytes": blessing.sent,
    }


@click.command("pull", cls=Command, epilog=PULL_EXAMPLES)
@click.argument("repo", help="The repository: host[:port]/path, or one manifest in it: host[:port]/path@sha256:...")
@IMAGE
@blessing_option
@click.option("--verify", is_flag=True, help="Make every layer here too, and compare: needs no recorded digests.")
@with_image()
def pull(app: App, repo: str, image: str, profiles: Sequence[str], verify: bool) -> None:
    """Every byte is hashed while it comes. Tags, digests and labels say nothing of where an image comes from.

    So it has to be as manifests/IMAGE.digests.json records it, or --verify. A blessing is of exactly this host's serve
    hash, and every file of its cache is the one that its manifest lists. It comes into force if a signer has signed it
    whom the profile names; else `nvllm bless --candidate` must try it here.
    """
    name, digest = registry.parse(repo)
    build = fresh_build(app, image, None)
    docker = engine.require()
    repository = opened(app, name)
    app.remember_project()
    if verify:
        builder = image_builder(app)
        digest = images.compared(repository, digest, build, builder)
    proof: Proof | None = "built" if verify else None
    done = images.pull_image(repository, digest, build, app.project, app.places, docker, app.progress, proof=proof)
    brought = [_blessing(app, repository, build, profile) for profile in profiles]
    record = done.record
    tag, *_ = record.tags or build.tags
    data: Json = {
        "repository": str(name),
        "image": record.image,
        "tag": tag,
        "manifest": done.digest,
        "image_id": record.image_id,
        "build_hash": record.build_hash,
        "blessings": [_pulled(app, blessing) for blessing in brought],
    }
    lines = [
        f"{tag}  pulled",
        f"  build hash  {record.build_hash}",
        f"  image id    {record.image_id}",
        *(line for blessing in brought for line in _lines(app, blessing)),
    ]
    app.out.result("pull", data, "\n".join(lines))


def _blessing(app: App, repository: Repository, build: Build, profile: str) -> PulledBlessing:
    """Bring the blessing of PROFILE of BUILD for this host into force."""
    examination = examine(
        app.project, app.places, build.spec.name, profile, Depth.UNBLESSED, paranoid=False, progress=app.progress
    )
    rules = examination.profile.bless
    return blessings.pull_blessing(
        repository,
        examination.plan.serve_hash,
        app.project.signers(rules.signers),
        Blessings.of_project(app.project, app.places),
        app.places,
        app.progress,
    )


def _lines(app: App, blessing: PulledBlessing) -> Sequence[str]:
    """Return what to print of BLESSING, which was pulled."""
    manifest = blessing.manifest
    name = f"{manifest.label} v{manifest.version}"
    if blessing.candidate:
        bless = f"nvllm bless {manifest.image} --profile {manifest.profile} --candidate {manifest.tree_hash[:12]}"
        return (
            f"{name}  a candidate: the profile names no signers, so trials here must show what it claims",
            f"  {bless}",
        )
    return (f"{name}  {'in force' if blessing.new else 'in force before'}: {app.project.show(blessing.path)}",)


def _pulled(app: App, blessing: PulledBlessing) -> Json:
    return {
        "label": blessing.manifest.label,
        "version": blessing.manifest.version,
        "serve_hash": blessing.manifest.serve_hash,
        "file": app.project.show(blessing.path),
        "new": blessing.new,
        "candidate": blessing.manifest.tree_hash if blessing.candidate else None,
    }
