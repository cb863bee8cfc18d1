"""Whether an engine holds the image of a build: the one that its record on this host describes."""

from __future__ import annotations

from dataclasses import dataclass

from nvllm.core import canonical
from nvllm.core.paths import Places
from nvllm.core.refusal import Refusal
from nvllm.engine.engine import Engine
from nvllm.host.facts import EngineProblem
from nvllm.image import buildrecord
from nvllm.image.buildrecord import Record
from nvllm.image.identity import IDENTITY_PATH, Build


@dataclass(frozen=True, slots=True)
class ImagePresence:
    """What is known of an image here: its recorded IDS, none if it was never built, and why it cannot be started."""

    ids: tuple[str, ...]
    refusals: tuple[Refusal, ...]


def of_build(build: Build, places: Places, engine: Engine | EngineProblem) -> ImagePresence:
    """Return what ENGINE holds of the image of BUILD; an engine that does not answer has its own refusal elsewhere.

    Raises Refused NV513 if somebody else can have written the record.
    """
    recorded = buildrecord.read(places.builds, build.build_hash)
    problems = [] if isinstance(engine, EngineProblem) else refusals(build, recorded, engine)
    return ImagePresence(recorded.ids if recorded is not None else (), tuple(problems))


def refusals(build: Build, recorded: Record | None, engine: Engine) -> list[Refusal]:
    """Return why the image of BUILD in ENGINE is not the one that RECORDED, its build record, describes.

    NV302: there is no such image. NV303: another image has its tag. NV304: its identity file names another build.
    """
    tag, _ = build.tags
    cure = f"nvllm build {build.spec.name}"
    where = f"docker engine: {tag}"
    image = engine.image(tag)
    if recorded is None or image is None:
        problem = "no such image" if image is None else "an image without a build record on this host"
        return [Refusal("NV302", where, f"the image of build hash {build.build_hash[:12]}", problem, cure)]
    if image.id not in recorded.ids:
        return [Refusal("NV303", where, " or ".join(recorded.ids), image.id, f"docker rmi {tag} && {cure}")]
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
