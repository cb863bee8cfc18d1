"""Whether an image is that of a build, and whether an engine holds it.

`judged` alone decides what counts as the image of a build hash, and it decides by digests: the project's recorded ones,
or what this host has made itself. Labels, tags, names and the files inside say nothing: whoever makes an image writes
them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvllm.core import canonical
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import Refusal
from nvllm.engine.engine import Engine
from nvllm.host.facts import EngineProblem
from nvllm.image import buildrecord, digests, recording
from nvllm.image.buildrecord import Record
from nvllm.image.digests import Deviation
from nvllm.image.identity import IDENTITY_PATH, Build


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether an image COUNTS as that of its build hash, and in which digests it is not as its project recorded it."""

    counts: bool
    deviations: tuple[Deviation, ...] = ()


@dataclass(frozen=True, slots=True)
class ImagePresence:
    """What is known of an image here: its recorded IDS, none if it was never built, and why it cannot be started."""

    ids: tuple[str, ...]
    refusals: tuple[Refusal, ...]


def judged(described: Record, project: Project) -> Judgement:
    """Return whether the image that DESCRIBED lists by its digests is that of its build hash, for PROJECT.

    The id of an image is the sha256 of its configuration, which lists every layer, so an equal id is an equal image.
    Recorded digests of PROJECT decide if it has them; else what this host itself knows, see `buildrecord.Proof`. What
    another project recorded says nothing, though both share the state directory and the build hash.

    Raises Refused NV309 if the recorded digests are damaged.
    """
    recorded = digests.of_project(project, described.image)
    outcome, deviations = digests.compare(recorded, recording.of_record(described))
    if deviations:
        return Judgement(False, deviations)  # noqa: FBT003 - a field
    as_recorded = outcome == "as recorded" and recorded is not None and recorded.whole
    return Judgement(as_recorded or described.proof is not None)


def deviating(project: Project, image: str, deviations: Iterable[Deviation]) -> list[Refusal]:
    """Return NV308 for each of DEVIATIONS of IMAGE from what PROJECT has recorded."""
    where, cure = project.show(project.digests(image)), f"nvllm build {image}"
    return [
        Refusal(
            "NV308",
            f"{where}: {deviation.what}",
            deviation.recorded or "no such layer",
            deviation.built or "no such layer",
            cure,
        )
        for deviation in deviations
    ]


def proved(build: Build, project: Project, places: Places) -> Record | None:
    """Return the record in PLACES of BUILD, if its image counts as that of BUILD for PROJECT.

    Raises Refused NV309 if the recorded digests are damaged, NV513 if somebody else can have written the record.
    """
    known = buildrecord.read(places.builds, build.build_hash)
    return known if known is not None and judged(known, project).counts else None


def recorded(build: Build, project: Project, places: Places, engine: Engine, tags: Sequence[str]) -> Record | None:
    """Return the record of BUILD and give its image the TAGS, if ENGINE holds exactly that image; else None.

    Names that another home has get this one's id, see `buildrecord.own_tags`. PROJECT is noted as one that needs the
    build. Raises Refused as `proved` does.
    """
    known = proved(build, project, places)
    image = buildrecord.in_engine(known, engine) if known is not None else None
    if known is None or image is None:
        return None
    buildrecord.use(places, project, build.build_hash)
    own = buildrecord.own_tags(tags, places, engine)
    written = buildrecord.tagged(known, own, places)
    for tag in own:
        engine.tag(image.id, tag)
    return written


def of_build(build: Build, project: Project, places: Places, engine: Engine | EngineProblem) -> ImagePresence:
    """Return what ENGINE holds of the image of BUILD; an engine that does not answer has its own refusal elsewhere.

    Raises Refused NV513 if somebody else can have written the record, NV309 if the recorded digests are damaged.
    """
    known = buildrecord.read(places.builds, build.build_hash)
    judgement = Judgement(counts=True) if known is None else judged(known, project)
    if not judgement.counts:
        name = build.spec.name
        return ImagePresence((), tuple(deviating(project, name, judgement.deviations) or [_unproved(build)]))
    problems = [] if isinstance(engine, EngineProblem) else refusals(build, known, engine)
    return ImagePresence(known.ids if known is not None else (), tuple(problems))


def refusals(build: Build, recorded: Record | None, engine: Engine) -> list[Refusal]:
    """Return why the image of BUILD in ENGINE is not the one that RECORDED, its build record, describes.

    NV302: there is no such image. NV303: another image has its tag. NV304: its identity file names another build.
    """
    tag, _ = build.tags
    cure = f"nvllm build {build.spec.name}"
    where = f"docker engine: {tag}"
    # By its id first: another home may have the tag (`buildrecord.own_tags`).
    image = (buildrecord.in_engine(recorded, engine) if recorded is not None else None) or engine.image(tag)
    if recorded is None or image is None:
        problem = "no such image" if image is None else "an image without a build record on this host"
        return [Refusal("NV302", where, f"the image of build hash {build.build_hash[:12]}", problem, cure)]
    if image.id not in recorded.ids:
        return [Refusal("NV303", where, " or ".join(recorded.ids), image.id, cure)]
    if not recorded.is_of(image):
        expected = f"{len(recorded.layers)} layers, as recorded"
        problem = f"{len(image.diff_ids)} layers, not the same ones"
        return [Refusal("NV303", where, expected, problem, f"docker rmi {tag} && {cure}")]
    named = _build_hash(engine.read_file(image.id, f"/{IDENTITY_PATH}"))
    if named != build.build_hash:
        # All tags of the image must go: nvllm does not build again what the engine still has.
        cure = f"docker rmi --force {image.id} && {cure}"
        return [Refusal("NV304", f"{where}: /{IDENTITY_PATH}", build.build_hash, named, cure)]
    return []


def without_lock(image: str, engine: Engine | EngineProblem) -> list[Refusal]:
    """Return NV302 if ENGINE has no image of the name IMAGE at all. Which one it must be, only a lock says."""
    if isinstance(engine, EngineProblem) or engine.image(f"nvllm:{image}") is not None:
        return []
    return [unbuilt(image)]


def unbuilt(image: str) -> Refusal:
    """Return the refusal NV302 of IMAGE, which is locked and not built."""
    cure = f"nvllm build {image}"
    return Refusal("NV302", f"docker engine: nvllm:{image}", f"the image of the lock of {image}", "no such image", cure)


def _unproved(build: Build) -> Refusal:
    expected = f"the image of build hash {build.build_hash[:12]}, built here or as the project has recorded it"
    problem = "an image that was pulled, or is of an older nvllm, and of which neither is known"
    return Refusal("NV302", f"docker engine: {build.tags[0]}", expected, problem, f"nvllm build {build.spec.name}")


def _build_hash(identity_file: bytes | None) -> str:
    """Return the build hash in IDENTITY_FILE, or the reason why there is none."""
    if identity_file is None:
        return "no identity file"
    try:
        document = canonical.decode(identity_file)
    except ValueError:
        return "an identity file that is not JSON"
    if not isinstance(document, dict) or "build_hash" not in document:
        return "an identity file without a build hash"
    return str(document["build_hash"])
