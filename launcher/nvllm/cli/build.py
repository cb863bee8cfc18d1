"""`nvllm build`: an image from its lock."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from nvllm.cli.complete import sets
from nvllm.cli.frame import PATH, App, Command, packed
from nvllm.cli.image import listed, show
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core import durable
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedRegistryBase
from nvllm.core.refusal import refuse, refuse_any
from nvllm.engine import engine
from nvllm.host.facts import EngineProblem, ImageFacts
from nvllm.image import buildrecord, contents, difference, identity, presence, recording
from nvllm.image.buildrecord import Record
from nvllm.image.digests import BuildDigests
from nvllm.image.identity import Build
from nvllm.image.recording import Witness
from nvllm.layers import oci
from nvllm.layers.tarlayer import Layer
from nvllm.patches import proved

if TYPE_CHECKING:
    from nvllm.image.builder import ImageBuilder, ImagePart

EXAMPLES = """
Examples:
  nvllm build                                  build the project's image: the only one, or its default
  nvllm build cpu                              build what the lock says, load it, tag it nvllm:cpu
  nvllm build cpu --dry-run                    the build hash, and whether the image is there
  nvllm build cpu --patches aot-load-guard     another patch set; only the layers above change
  nvllm build cpu --layout out/                an OCI layout instead of an image in the engine
  nvllm build cpu --builder nix                the same image, built by Nix in its sandbox
  nvllm build sm120 --layers-only              patches and kernels, without the base: the bytes of a whole build
  nvllm build cpu --check                      build twice, the second time where much is different, and compare
  nvllm build cpu --record                     write manifests/cpu.digests.json, which every later build must meet
"""


BuilderName: TypeAlias = Literal["nvllm", "nix"]

patches_option = click.option(
    "--patches",
    metavar="ID,...",
    shell_complete=sets,
    help="This patch set instead of the spec's; `none` for no patch.",
)


def fresh_build(app: App, image: str, patches: str | None) -> Build:
    """Return the build of IMAGE with PATCHES, the value of `patches_option`.

    Raises Refused if its lock is stale, and NV607 if the spec demands proved patches and one is not.
    """
    enable = None if patches is None else [id_ for id_ in patches.split(",") if id_ and id_ != "none"]
    build, stale = identity.load_build(app.project, image, enable)
    refuse_any([*stale, *proved.demanded(app.project, build.spec, build.patches)])
    return build


def fetched_source(app: App, build: Build) -> Path:
    """Return the archive of the source of BUILD in the store; it is fetched if it is not there."""
    source = build.lock.vllm.source
    return image_builder(app).fetched(build, [source]).path(source.sha256)


def image_builder(app: App, name: BuilderName = "nvllm") -> ImageBuilder:
    """Return the builder NAME of images of the project of APP."""
    # Imported here: for an image that is already there these modules are not needed.
    from nvllm.image import builder, nix

    kind = nix.NixBuilder if name == "nix" else builder.ImageBuilder
    return kind(app.project, app.places, app.progress, offline=app.offline)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of `build`: what is built, by what, and where it goes."""

    patches: str | None
    layout: Path | None
    layers_only: bool
    only: ImagePart | None
    builder: BuilderName
    record: bool
    check: bool
    dry_run: bool


_OPTIONS = (
    patches_option,
    click.option("--layout", type=PATH, metavar="DIR", help="Write an OCI layout to DIR; needs no engine."),
    click.option(
        "--layers-only",
        is_flag=True,
        help="Build only the layers of the patch set, without base and engine. Use it with --layout.",
    ),
    click.option(
        "--only",
        type=click.Choice(["base", "wheels", "patches", "kernels"]),
        help="Build only these layers, without engine. Use it with --layout.",
    ),
    click.option(
        "--builder",
        type=click.Choice(["nvllm", "nix"]),
        default="nvllm",
        help="Build here, or let Nix build by the project's flake.nix; the image is the same.  [default: nvllm]",
    ),
    click.option("--record", is_flag=True, help="Record the digests of what is built beside the lock."),
    click.option(
        "--check",
        is_flag=True,
        help="Build again where much is different, and compare; needs no engine, loads nothing.",
    ),
    click.option("--dry-run", is_flag=True, help="Show what would be built; fetch, build and load nothing."),
)


@click.command("build", cls=Command, epilog=EXAMPLES)
@IMAGE
@packed("given", BuildOptions, _OPTIONS)
@with_image()
def build_command(app: App, image: str, given: BuildOptions) -> None:
    """An image that the engine already holds, by its build hash, is not built again.

    A build whose digests differ from those that the project recorded for this build hash (manifests/IMAGE.digests.json)
    is refused. Prints the tag.
    """
    build = fresh_build(app, image, given.patches)
    proved.read(app.project, build.spec.patches.series)  # refuse a damaged record before the build, too
    partly = given.layers_only or given.only is not None
    if given.builder == "nix" and (given.patches is not None or partly or given.check):
        raise click.UsageError("--builder nix builds a whole image with the patch set of its spec, once")
    if given.only is not None and (given.record or given.check):
        raise click.UsageError("--only builds a part of what --record and --check are about")
    if given.layout is not None:  # refuse before the build, which may take minutes
        durable.absent(given.layout, "--layout")
    if given.record:
        app.project.writable(app.project.digests(image))
    if given.check and (given.record or given.layout is not None):
        cure = f"nvllm build {image} --check"
        raise refuse("NV108", "--check", "--check alone", "--record or --layout too", cure)
    if given.dry_run:
        _dry_run(app, build)
        return
    app.remember_project()
    if given.check:
        _check(app, build, given.layers_only)
    elif partly:
        _layers(app, build, given.only, given.layout, given.record)
    elif given.layout is not None:
        finished = image_builder(app, given.builder).image(build)
        recording.verify(finished.layers, app.progress)
        comparison = _against_record(app, build, recording.of_image(build, finished), finished.layers, given.record)
        digest = oci.write_layout(finished, build.spec.name, given.layout)
        _print_result(app, build, finished.id, f"OCI layout at {given.layout}, manifest {digest}", comparison)
    else:
        _into_engine(app, build, given.builder, given.record)


def _against_record(app: App, build: Build, built: BuildDigests, layers: Sequence[Layer], record: bool) -> str:
    """Hold BUILT against the record, or write it there; return what is said of that."""
    if record:
        path = recording.record(app.project, build.spec.name, built, layers)
        return f"written to {app.project.show(path)}"
    return _witness(app).hold(build.spec.name, built, layers)


def _witness(app: App) -> Witness:
    return Witness(app.project, app.places, engine.connect)


def _into_engine(app: App, build: Build, builder: BuilderName, record: bool) -> None:
    docker = engine.require()
    tags = buildrecord.own_tags(build.tags, app.places, docker)
    before = docker.image(tags[-1])
    if record:
        made = image_builder(app, builder)
        finished = made.whole(build, docker)
        recording.verify(finished.layers, app.progress)
        comparison = _against_record(app, build, recording.of_image(build, finished), finished.layers, record)
        done = made.load(build, finished, docker, build.tags)
        _print_result(app, build, done.image_id, "built", comparison, _left(tags[-1], before, done), tags)
        return
    there = presence.recorded(build, app.project, app.places, docker, build.tags)
    if there is not None:
        comparison, deviations = recording.outcome(app.project, build.spec.name, recording.of_record(there))
        if not deviations:  # else it is built again, because only its layers show in what it deviates
            _print_result(app, build, there.image_id, "already there", comparison, _left(tags[-1], before, there), tags)
            return
    done = image_builder(app, builder).into_engine(build, docker, build.tags)
    comparison, _ = recording.outcome(app.project, build.spec.name, recording.of_record(done))
    _print_result(app, build, done.image_id, "built", comparison, _left(tags[-1], before, done), tags)


def _left(latest: str, before: ImageFacts | None, now: Record) -> str | None:
    """Return what LATEST, the tag of the newest build of the image, named BEFORE, if it was another image than NOW.

    All projects of a home share that tag, so another project may have put it there.
    """
    if before is None or before.id in now.ids:
        return None
    return next((tag for tag in before.tags if tag != latest), before.id)


def _layers(app: App, build: Build, only: ImagePart | None, layout: Path | None, record: bool) -> None:
    """Make the layers ONLY, or those of the patch set, and write them with a list to LAYOUT, if it is given."""
    builder = image_builder(app)
    layers = builder.upper(build) if only is None else builder.part(build, only)
    recording.verify(layers, app.progress)
    digests = recording.of_layers(build, layers)
    if only is None:
        comparison = _against_record(app, build, digests, layers, record)
    else:
        comparison = _witness(app).hold_some(build.spec.name, digests, layers)
    kinds: Json = [{"kind": layer.kind, "diff_id": layer.diff_id, "size": layer.size} for layer in layers]
    data: dict[str, Json] = {
        "image": build.spec.name,
        "platform": build.lock.platform,
        "build_hash": build.build_hash,
        "base": build.lock.base.image if isinstance(build.lock.base, LockedRegistryBase) else None,
        "layers": kinds,
    }
    if layout is not None:
        oci.write_layers(layers, data, layout)

    def say() -> None:
        app.out.line(f"{build.spec.name} for {build.lock.platform}, build hash {build.build_hash}")
        app.out.table(["layer", "diff_id", "bytes"], [(layer.kind, layer.diff_id, str(layer.size)) for layer in layers])
        app.out.line(f"digests: {comparison}")
        if layout is not None:
            app.out.line(f"written: {layout}/layers.json and {layout}/blobs")

    app.out.result("build", {**data, "record": comparison}, say)


def _check(app: App, build: Build, layers_only: bool) -> None:
    """Build BUILD twice, the second time where much is different, and compare."""
    from nvllm.image import rebuild

    builder = image_builder(app)
    if layers_only:
        layers: Sequence[Layer] = builder.upper(build)
        first = contents.of_layers("first", layers)
    else:
        whole = builder.image(build)
        builder.fetched(build, rebuild.files(build))  # also those of layers that were in the cache
        layers, first = whole.layers, contents.of_image("first", whole)
    recording.verify(layers, app.progress)
    chosen = ["--patches", ",".join(patch.id for patch in build.patches) or "none"]
    kept = app.places.differing / f"{build.build_hash[:12]}-check"
    arguments = [build.spec.name, *chosen, *(["--layers-only"] if layers_only else [])]
    with rebuild.rebuilt(app.project, app.places, build, arguments) as (layout, variation):
        differences = rebuild.compare(first, layout, kept)
    data: Json = {
        "image": build.spec.name,
        "platform": build.lock.platform,
        "build_hash": build.build_hash,
        "same": not differences,
        "varied": dict(variation.varied),
        "not_varied": dict(variation.same),
        "differences": listed(differences),
    }

    def say() -> None:
        app.out.line(f"{build.spec.name} for {build.lock.platform}, build hash {build.build_hash}, built twice")
        rows = [(name, value) for name, value in variation.varied.items()]
        rows += [(name, f"the same: {reason}") for name, reason in variation.same.items()]
        app.out.table(["second build", ""], rows)
        show(app, differences)

    cure = shlex.join(["nvllm", "image", "diff", f"{kept}/first", f"{kept}/second"])
    app.show(
        "build", data, say, list(difference.refusals(differences, "NV310", f"{build.spec.name}, built twice", cure))
    )


def _dry_run(app: App, build: Build) -> None:
    docker = engine.connect()
    record = presence.proved(build, app.project, app.places)
    image_id, outcome = record.image_id if record is not None else None, "would be built"
    tags: Sequence[str] = build.tags
    if not isinstance(docker, EngineProblem):
        tags = buildrecord.own_tags(build.tags, app.places, docker)
        if record is not None and buildrecord.in_engine(record, docker) is not None:
            outcome = "already there"
    _print_result(app, build, image_id, outcome, tags=tags)


def _print_result(
    app: App,
    build: Build,
    image_id: str | None,
    outcome: str,
    record: str | None = None,
    left: str | None = None,
    tags: Sequence[str] | None = None,
) -> None:
    """Print what came of BUILD; RECORD is what is said of the recorded digests, None where nothing was built.

    LEFT is what the tag of the newest build named until now, if that was another image. TAGS are those of this home in
    the engine, for the build and for the newest build; if there is no engine, those of BUILD.
    """
    tag, latest = tags or build.tags
    states = proved.tally(app.project, build.spec.patches.series, build.patches)
    data: Json = {
        "image": build.spec.name,
        "build_hash": build.build_hash,
        "image_id": image_id,
        "tag": tag,
        "patches": [patch.id for patch in build.patches],
        **({"proofs": {**states}} if states else {}),
        "outcome": outcome,
        **({"record": record} if record is not None else {}),
        **({"moved_from": left} if left is not None else {}),
    }
    patches = ", ".join(patch.id for patch in build.patches) or "none"
    summary = f"{outcome}, {record}" if record is not None else outcome
    text = (
        f"{tag}  {summary}\n  build hash  {build.build_hash}\n  image id    {image_id or '-'}\n  patches     {patches}"
    )
    text += f"\n  proofs      {proved.words(states)}" if states else ""
    moved = f", which named {left} until now" if left is not None else ""
    app.out.result("build", data, f"{text}\n  also        {latest}{moved}" if moved or outcome == "built" else text)
