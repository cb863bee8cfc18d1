"""What each image of a project needs on this host before it can be built, served and blessed.

`nvllm doctor` shows it. Nothing is hashed, so it says what is there, not whether that is what was locked: `serve`
examines that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nvllm.core.lock import LockedModel
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import Refusal, Refused, collected
from nvllm.core.spec import ImageSpec
from nvllm.engine.engine import Engine
from nvllm.host import checks, engines
from nvllm.host.facts import EngineProblem, HostFacts
from nvllm.image import builder, buildrecord, identity, presence
from nvllm.image.identity import Build
from nvllm.models import local
from nvllm.patches import proved
from nvllm.spec import specfile


@dataclass(frozen=True, slots=True)
class ImageNeeds:
    """What IMAGE lacks here for each step, and the command that comes NEXT.

    SERVE and BLESS are about its first profile of that kind, and None if it has none. PROOFS is how many patches are
    in each state, empty if no test of the series ever ran.
    """

    image: str
    built: bool
    build: tuple[Refusal, ...]
    serve: tuple[Refusal, ...] | None
    bless: tuple[Refusal, ...] | None
    next: str
    proofs: Mapping[str, int] = field(default_factory=dict)


def needs(project: Project, places: Places, engine: Engine | EngineProblem, facts: HostFacts) -> tuple[ImageNeeds, ...]:
    """Return what each image of PROJECT needs on the host that FACTS describe, with its ENGINE."""
    return tuple(_needs(project, places, image, engine, facts) for image in project.image_names())


def _needs(
    project: Project, places: Places, image: str, engine: Engine | EngineProblem, facts: HostFacts
) -> ImageNeeds:
    try:
        spec = specfile.of(project, image)
    except Refused as refused:
        wrong = tuple(refused.refusals)
        return ImageNeeds(image, built=False, build=wrong, serve=wrong, bless=wrong, next=wrong[0].cure)
    elsewhere = tuple(specfile.other_platform(spec, project.platform))
    if elsewhere:
        following = f"nvllm --platform {spec.platforms[0]} doctor"
        return ImageNeeds(image, built=False, build=elsewhere, serve=elsewhere, bless=elsewhere, next=following)
    build: Build | None = None
    lacks: list[Refusal] = []
    states: Mapping[str, int] = {}
    with collected(lacks):
        build, stale = identity.load_build(project, image, None)
        lacks += [*stale, *builder.uncompiled(build), *proved.demanded(project, spec, build.patches)]
        states = proved.tally(project, spec.patches.series, build.patches)
    if isinstance(engine, EngineProblem):
        lacks.append(engines.unreachable(engine))
    built = False
    if build is not None and not isinstance(engine, EngineProblem):
        with collected(lacks):
            built = _built(build, project, places, engine)
    image_lacks = lacks or ([] if built else [presence.unbuilt(image)])
    locked = build.lock.models if build is not None else {}
    steps = [_profile(spec, places, locked, facts, image_lacks, blessed=blessed) for blessed in (False, True)]
    serve, bless = (step[1] if step is not None else None for step in steps)
    first = next(step for step in steps if step is not None)
    if project.own or all(refusal.blame != "no lock" for refusal in lacks):
        following = next(iter(first[1])).cure if first[1] else first[0]
    else:
        following = f"nvllm init {image} --target {image}"  # the lock would be written into nvllm's own project
    return ImageNeeds(image, built, tuple(lacks), serve, bless, following, states)


def _built(build: Build, project: Project, places: Places, engine: Engine) -> bool:
    known = presence.proved(build, project, places)
    return known is not None and buildrecord.in_engine(known, engine) is not None


def _profile(
    spec: ImageSpec,
    places: Places,
    locked: Mapping[str, LockedModel],
    facts: HostFacts,
    lacks: Sequence[Refusal],
    *,
    blessed: bool,
) -> tuple[str, tuple[Refusal, ...]] | None:
    """Return the command for the first profile of SPEC that is BLESSED or not, and what it lacks besides LACKS.

    LOCKED are the models of the lock.
    """
    name = next((name for name, profile in spec.profiles.items() if profile.blessed == blessed), None)
    if name is None:
        return None
    absent = local.missing(spec, spec.profiles[name].models, locked, places)
    command = f"nvllm {'bless' if blessed else 'serve'} {spec.name} --profile {name}"
    return command, (*lacks, *absent, *_gpus(spec, name, facts))


def _gpus(spec: ImageSpec, profile: str, facts: HostFacts) -> Iterator[Refusal]:
    need = spec.profiles[profile].gpu
    judged = checks.gpus(need, facts) if need is not None else ""
    if not isinstance(judged, str):
        yield from judged
