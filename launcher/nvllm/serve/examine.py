"""What would be served: the launch plan, and every reason at once why it must not start.

`serve` starts what is examined without a refusal; `doctor` and ``--dry-run`` show the same examination. Nothing else
decides whether a profile may be served.

Without a lock, `preview` still shows the part of the plan that the image spec alone decides: command, environment,
limits and waivers. Hashes that need the lock are empty in it, and it cannot be served.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nvllm.cache.blessings import BlessingQuery, Blessings
from nvllm.cache.manifest import Manifest
from nvllm.cache.store import TreeStore
from nvllm.core.lock import LockedModel
from nvllm.core.paths import Places, Project
from nvllm.core.plan import LaunchPlan
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import Access, ImageSpec
from nvllm.host import checks, survey
from nvllm.host.checks import Outcome, Subject
from nvllm.host.facts import EngineProblem, HostFacts
from nvllm.image import identity, presence
from nvllm.image.engine import Engine, connect
from nvllm.image.identity import Build
from nvllm.lock import document, templates
from nvllm.lock.project import read_lock
from nvllm.lock.templates import LocalTemplate
from nvllm.models import local as models
from nvllm.models.local import LocalModel
from nvllm.models.memo import HashCache
from nvllm.patches import patchset, seriesfile
from nvllm.serve import access, owners, planner, servehash, stopping
from nvllm.serve.planner import PlannedImage
from nvllm.serve.stopping import Orphan
from nvllm.spec import file as specfile


@dataclass(frozen=True, slots=True)
class Instance:
    """The container to start: its NAME, the PROFILE that it serves, and its PORT on 127.0.0.1."""

    name: str
    profile: str
    port: int
    access: Access = field(default_factory=Access)
    """Who may ask it. A trial is nobody's but nvllm's: it is published on 127.0.0.1, and needs no key."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of an examination. It always has a PLAN, also if there are REFUSALS."""

    build: Build
    plan: LaunchPlan
    models: tuple[LockedModel, ...]
    """The models of the plan, in its order."""
    outcomes: tuple[Outcome, ...]
    refusals: tuple[Refusal, ...]
    engine: Engine | None
    manifest: Manifest | None = None
    """The bless manifest that the profile is served by, if it is a blessed one."""
    orphan: Orphan | None = None
    """A container that nobody supervises, which `serve` ends before it starts."""


def examine(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Examination:
    """Examine PROFILE of IMAGE on this host, with its blessing and every byte of its cache.

    Raises Refused as `examine_unblessed` does.
    """
    return examine_cache(
        examine_without_cache(project, places, image, profile, paranoid=paranoid, progress=progress), places
    )


def examine_without_cache(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Examination:
    """Examine PROFILE of IMAGE on this host, with its blessing, but do not hash its cache.

    `serve` hashes the cache while it copies it (`staged_cache.staged`), so hashing it here would be wasted. Raises
    Refused as `examine_unblessed` does.
    """
    found = _examined(project, places, image, profile, alone=False, paranoid=paranoid, progress=progress)
    return blessed(project, places, after_orphan(places, found))


def after_orphan(places: Places, examination: Examination) -> Examination:
    """Return EXAMINATION with the orphan of its instance, if any, and without the refusals that end with it."""
    engine, instance = examination.engine, examination.plan.instance
    left = None if engine is None else stopping.orphan(engine, places, instance)
    if left is None:
        return examination
    ended = f"container {left.container[:12]} is an orphan, which `nvllm serve` ends first"
    outcomes = [
        Outcome(one.code, one.name, "ok", ended)
        if one.refusals and all(left.explains(refusal, examination.plan) for refusal in one.refusals)
        else one
        for one in examination.outcomes
    ]
    refusals = tuple(one for one in examination.refusals if not left.explains(one, examination.plan))
    return replace(examination, outcomes=tuple(outcomes), refusals=refusals, orphan=left)


def blessed(project: Project, places: Places, found: Examination) -> Examination:
    """Return FOUND with the blessing of its profile, or the refusals for there being none; unchanged if it needs none.

    The cache itself is not hashed.
    """
    plan = found.plan
    profile = found.build.spec.profiles[plan.profile]
    if not profile.blessed:
        return found
    blessings, rules = Blessings.of_project(project, places), profile.bless
    signers, factors = project.signers(rules.signers), servehash.factors(plan)
    query = BlessingQuery(
        plan.image, plan.profile, plan.serve_hash, factors, plan.dev, time.time(), signers, rules.valid_days
    )
    try:
        manifest = blessings.lookup(query)
    except Refused as refused:
        return replace(found, refusals=(*found.refusals, *refused.refusals))
    return replace(
        found,
        plan=planner.loading(plan, manifest.tree, profile.kernels.missing),
        manifest=manifest,
    )


def examine_cache(found: Examination, places: Places) -> Examination:
    """Hash the cache of FOUND in the tree store; return FOUND with the refusals that follow."""
    if found.manifest is None:
        return found
    try:
        TreeStore(places.trees).verify(found.manifest.tree, found.manifest.cure)
    except Refused as refused:
        return replace(found, refusals=(*found.refusals, *refused.refusals), manifest=None)
    return found


def examine_unblessed(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Examination:
    """Examine PROFILE of IMAGE on this host, but not whether it is blessed. `bless` starts from this.

    Only nvllm itself asks what it starts, so no key is needed.
    PARANOID hashes every file of the model again, instead of trusting the hashes on record. Raises Refused if
    there is nothing to examine: no such image, profile, lock or patch set.
    """
    return _examined(project, places, image, profile, alone=True, paranoid=paranoid, progress=progress)


def _examined(
    project: Project, places: Places, image: str, profile: str, *, alone: bool, paranoid: bool, progress: Progress
) -> Examination:
    """Do what `examine_unblessed` does. ALONE: only nvllm itself asks what is started, so no key is needed."""
    build, stale = identity.load_build(project, image, None)
    served = specfile.named_profile(project, build.spec, profile)
    hashes = HashCache.none() if paranoid else HashCache.load(places.state / "verified.json")
    name = owners.instance_name(project, places, build.spec.name, profile)
    instance, engine = Instance(name, profile, served.port), connect()
    if not alone:
        instance = replace(instance, access=served.access)
    try:
        found = examine_build(project, places, build, instance, engine, hashes, progress)
    except Refused as refused:  # there is no plan; what this host lacks in any case is said all the same
        lacking = checks.outcomes(Subject(None, survey.host_facts(places, engine)))
        raise Refused([*stale, *refused.refusals, *(one for each in lacking for one in each.refusals)]) from refused
    return replace(found, refusals=(*stale, *found.refusals))


def examine_build(
    project: Project,
    places: Places,
    build: Build,
    instance: Instance,
    engine: Engine | EngineProblem,
    hashes: HashCache,
    progress: Progress,
) -> Examination:
    """Examine BUILD as INSTANCE in ENGINE. INSTANCE may have another name and port than `nvllm serve` would use.

    A model file whose hash is in HASHES is not hashed again. Raises Refused NV202 if the lock lacks a model.
    """
    build = _for_instance(build, instance)
    refusals: list[Refusal] = []
    image = presence.of_build(build, places, engine)
    refusals.extend(image.refusals)
    profile = build.spec.profiles[instance.profile]
    missing = document.without_models(build.lock, profile.models, project.show(project.lock(build.lock.image)))
    if missing:
        raise Refused([*refusals, *missing])
    local: dict[str, LocalModel] = {}
    for name in profile.models:
        local[name], problems = models.verified(build.spec, name, build.lock.models[name], places, hashes, progress)
        refusals.extend(problems)
    lock = project.show(project.lock(build.spec.name))
    refusals += models.no_adapters(profile.adapters, build.lock.models, build.spec.name, lock)
    template, problems = templates.of_profile(project, build.lock, profile)
    refusals += problems
    facts = survey.host_facts(places, engine)
    planned = PlannedImage(build.spec, build.build_hash, build.scheme, image.ids)
    plan = _plan(planned, instance, local, template, facts, places)
    refusals += access.refusals(plan.access, plan.user, project.root)
    of_plan = tuple(build.lock.models[one.name] for one in plan.models)
    outcomes = survey.outcomes(plan, facts, patchset.sentinels(build.patches), places, profile.gates)
    refusals.extend(refusal for outcome in outcomes for refusal in outcome.refusals)
    answering = None if isinstance(engine, EngineProblem) else engine
    return Examination(build, plan, of_plan, outcomes, tuple(refusals), answering)


def _plan(
    image: PlannedImage,
    instance: Instance,
    local: Mapping[str, LocalModel],
    template: LocalTemplate | None,
    facts: HostFacts,
    places: Places,
) -> LaunchPlan:
    """Return the launch plan of INSTANCE; LOCAL has the models of its profile by name."""
    profile = image.spec.profiles[instance.profile]
    request = planner.PlanRequest(
        image=image,
        profile_name=instance.profile,
        model=local[profile.model],
        draft=None if profile.draft is None else local[profile.draft],
        user=(facts.uid, facts.gid),
        gpus=facts.gpus,
        cpu=facts.cpu,
        run_directory=places.run(instance.name) / "run",
        adapters=[local[name] for name in profile.adapters],
        template=template,
    )
    return replace(planner.plan(request), instance=instance.name)


def _for_instance(build: Build, instance: Instance) -> Build:
    """Return BUILD with port and access of INSTANCE in its profile: the engine's command depends on both."""
    profiles = build.spec.profiles
    moved = replace(profiles[instance.profile], port=instance.port, access=instance.access)
    return replace(build, spec=replace(build.spec, profiles={**profiles, instance.profile: moved}))


@dataclass(frozen=True, slots=True)
class Preview:
    """A launch plan to show, the outcomes of the host checks, and every refusal."""

    plan: LaunchPlan
    outcomes: tuple[Outcome, ...]
    refusals: tuple[Refusal, ...]


def preview(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Preview:
    """Return the launch plan of PROFILE of IMAGE as far as it is known on this host, and every refusal.

    A lock that is missing, damaged or without a model of PROFILE, and a host of another platform are refusals like the
    others. PARANOID is that of `examine`. Raises Refused if there is nothing to show: no such image, profile or patch
    set.
    """
    spec = specfile.of(project, image)
    specfile.named_profile(project, spec, profile)
    refusals = list(specfile.other_platform(spec, project.platform))
    if refusals:  # what it would be on a platform that it is build for
        project = replace(project, platform=spec.platforms[0])
    try:
        lock = read_lock(project, image)
    except Refused as refused:
        return _unlocked(
            project, places, spec, profile, [*refusals, *refused.refusals, *presence.without_lock(image, connect())]
        )
    missing = document.without_models(lock, spec.profiles[profile].models, project.show(project.lock(image)))
    if missing:
        build, stale = identity.load_build(project, image, None)
        wrong = presence.of_build(build, places, connect()).refusals
        return _unlocked(project, places, spec, profile, [*refusals, *stale, *wrong, *missing])
    found = examine(project, places, image, profile, paranoid=paranoid, progress=progress)
    return Preview(found.plan, found.outcomes, (*refusals, *found.refusals))


def _unlocked(project: Project, places: Places, spec: ImageSpec, profile: str, refusals: Sequence[Refusal]) -> Preview:
    """Return the preview of PROFILE of SPEC, whose models are not all locked, with REFUSALS and those found here."""
    series, shown = seriesfile.of(project, spec.patches.series), project.show(project.spec(spec.name))
    patches = patchset.choose(series, spec.patches.enable, where=f"{shown}: .patches.enable")
    served, name = spec.profiles[profile], owners.instance_name(project, places, spec.name, profile)
    instance = Instance(name, profile, served.port, served.access)
    facts = survey.host_facts(places, connect())
    local = {name: models.unlocked(spec.models[name]) for name in served.models}
    planned = PlannedImage(spec, "", identity.scheme(spec.base.python), ())
    template, _ = templates.of_profile(project, None, served)
    plan = replace(_plan(planned, instance, local, template, facts, places), serve_hash="")
    outcomes = survey.outcomes(plan, facts, patchset.sentinels(patches), places, spec.profiles[profile].gates)
    return Preview(
        plan,
        outcomes,
        (
            *refusals,
            *models.missing(spec, served.models, {}, places),
            *_no_blessing(project, places, spec, profile),
            *access.refusals(plan.access, plan.user, project.root),
            *(refusal for outcome in outcomes for refusal in outcome.refusals),
        ),
    )


def _no_blessing(project: Project, places: Places, spec: ImageSpec, profile: str) -> list[Refusal]:
    if not spec.profiles[profile].blessed:
        return []
    found = "no lock of all its models, so the serve hash is not known"
    cure = f"nvllm bless {spec.name} --profile {profile}"
    where = project.show(Blessings.of_project(project, places).directory)
    return [Refusal("NV901", where, "a blessing of this profile", found, cure)]
