"""The examination of a profile: the launch plan, and every reason at once why it must not be carried out.

`serve` starts what is examined without a refusal; `doctor` and ``--dry-run`` show the same examination. Nothing else
decides whether a profile may be served.

What is known grows in one frozen value, `KnownProfile`: by the spec, the lock, the engine's image, the models. With the
facts of the host, the plan and the refusals follow from it. Then come an orphan, the blessing, and the cache.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nvllm.cache import evaluation
from nvllm.cache.blessings import BlessingQuery, Blessings
from nvllm.cache.manifest import Manifest
from nvllm.cache.store import TreeStore
from nvllm.core.lock import LockedModel
from nvllm.core.paths import Places, Project
from nvllm.core.plan import LaunchPlan
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.core.spec import Access, ImageSpec, Profile
from nvllm.engine.engine import Engine, connect
from nvllm.host import checks, survey
from nvllm.host.checks import Outcome, Subject
from nvllm.host.facts import EngineProblem
from nvllm.image import identity, presence
from nvllm.image.identity import Build
from nvllm.lock import lockdoc, templates
from nvllm.lock.project import read_lock
from nvllm.lock.templates import LocalTemplate
from nvllm.models import local
from nvllm.models.local import LocalModel
from nvllm.models.memo import HashCache
from nvllm.patches import patchset, proved, seriesfile
from nvllm.patches.series import Patch
from nvllm.serve import access, owners, planner, readable, servehash, stopping
from nvllm.serve.planner import PlannedImage, PlanRequest
from nvllm.serve.stopping import Orphan
from nvllm.spec import specfile


class Depth(enum.Enum):
    """How far an examination looks."""

    UNBLESSED = enum.auto()
    """Not at the blessing, and not at the API key, for only nvllm itself asks what is started. `bless` begins so."""
    BLESSED = enum.auto()
    """Also at the blessing, but not at the bytes of its cache."""
    START = enum.auto()
    """At these bytes only if something else is refused, to show all at once, or if an orphan would be ended, which
    works and is not ended for an engine that may not start. Else `serve` hashes them while it copies them."""
    WHOLE = enum.auto()
    """At every byte of the cache."""
    SHOW = enum.auto()
    """As `WHOLE`; and without a lock of all models, or for another platform, at what the spec alone decides."""


@dataclass(frozen=True, slots=True)
class Instance:
    """The container to start: its NAME, the PROFILE that it serves, and its PORT on 127.0.0.1."""

    name: str
    profile: str
    port: int
    access: Access = field(default_factory=Access)
    """Who may ask it. A trial is nobody's but nvllm's: it is published on 127.0.0.1, and needs no key."""


@dataclass(frozen=True, slots=True)
class KnownProfile:
    """What is known of INSTANCE before its host is looked at, and the REFUSALS so far.

    The profile in SPEC and BUILD has port and access of INSTANCE: the engine's command depends on both.
    """

    project: Project
    places: Places
    instance: Instance
    spec: ImageSpec
    patches: tuple[Patch, ...] = ()
    build: Build | None = None
    """None without a lock that has all models: then no hash is known."""
    image_ids: tuple[str, ...] = ()
    """What the engine knows the image as; none if it was never built."""
    models: Mapping[str, LocalModel] = field(default_factory=dict)
    template: LocalTemplate | None = None
    refusals: tuple[Refusal, ...] = ()

    @property
    def profile(self) -> Profile:
        return self.spec.profiles[self.instance.profile]

    @property
    def shown_lock(self) -> str:
        """What messages call the lock."""
        return self.project.show(self.project.lock(self.spec.name))


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of an examination. It always has a PLAN, also if there are REFUSALS."""

    profile: Profile
    plan: LaunchPlan
    models: tuple[LockedModel, ...]
    """The models of the plan, in its order."""
    outcomes: tuple[Outcome, ...]
    refusals: tuple[Refusal, ...]
    engine: Engine | None
    build: Build | None = None
    """None only of `Depth.SHOW`, where the lock lacks something. Such a plan has no hashes, and is never served."""
    manifest: Manifest | None = None
    """The bless manifest that the profile is served by, if it is a blessed one."""
    orphan: Orphan | None = None
    """A container that nobody supervises, which `serve` ends before it starts."""


def examine(
    project: Project, places: Places, image: str, profile: str, depth: Depth, *, paranoid: bool, progress: Progress
) -> Examination:
    """Examine PROFILE of IMAGE on this host, as far as DEPTH says.

    PARANOID hashes every file of the model again, instead of trusting the hashes on record. Raises Refused if there is
    nothing to examine: no such image, profile or patch set; and unless DEPTH is `Depth.SHOW`, no lock of all models.
    """
    known = _from_lock(_from_spec(project, places, image, profile, depth), depth)
    hashes = HashCache.none() if paranoid else HashCache.load(places.state / "verified.json")
    engine = connect()
    try:
        examination = _on_host(_with_models(_from_engine(known, engine), depth, hashes, progress), engine)
    except Refused as refused:  # there is no plan; what this host lacks in any case is said all the same
        lacking = checks.outcomes(Subject(None, survey.host_facts(places, engine)))
        of_host = [refusal for outcome in lacking for refusal in outcome.refusals]
        raise Refused([*known.refusals, *refused.refusals, *of_host]) from refused
    return _with_blessing(known, examination, depth)


def examine_build(
    project: Project,
    places: Places,
    build: Build,
    instance: Instance,
    engine: Engine | EngineProblem,
    depth: Depth,
    hashes: HashCache,
    progress: Progress,
) -> Examination:
    """Examine BUILD as INSTANCE in ENGINE. INSTANCE may have another name and port than `nvllm serve` would use.

    A model file whose hash is in HASHES is not hashed again. Raises Refused NV202 if the lock lacks a model.
    """
    build = replace(build, spec=_for_instance(build.spec, instance))
    known = KnownProfile(project, places, instance, build.spec, build.patches, build)
    examination = _on_host(_with_models(_from_engine(known, engine), depth, hashes, progress), engine)
    return _with_blessing(known, examination, depth)


def _from_spec(project: Project, places: Places, image: str, name: str, depth: Depth) -> KnownProfile:
    """Return what the spec of IMAGE says of its profile NAME."""
    spec = specfile.of(project, image)
    refusals = tuple(specfile.other_platform(spec, project.platform))
    if refusals and depth is Depth.SHOW:  # what it would be on a platform that it is built for
        project = replace(project, platform=spec.platforms[0])
    else:
        refuse_any(refusals)
    profile = specfile.named_profile(project, spec, name)
    allowed = Access() if depth is Depth.UNBLESSED else profile.access
    instance = Instance(owners.instance_name(project, places, spec.name, name), name, profile.port, allowed)
    return KnownProfile(project, places, instance, _for_instance(spec, instance), refusals=refusals)


def _for_instance(spec: ImageSpec, instance: Instance) -> ImageSpec:
    profile = replace(spec.profiles[instance.profile], port=instance.port, access=instance.access)
    return replace(spec, profiles={**spec.profiles, instance.profile: profile})


def _from_lock(known: KnownProfile, depth: Depth) -> KnownProfile:
    """Return KNOWN with the build, or only with the patches if there is no lock to read and DEPTH allows that."""
    project, spec = known.project, known.spec
    series = seriesfile.of(project, spec.patches.series)
    try:
        lock = read_lock(project, spec.name)
    except Refused as refused:
        if depth is not Depth.SHOW:
            raise
        patches = patchset.choose(
            series, spec.patches.enable, where=f"{project.show(project.spec(spec.name))}: .patches.enable"
        )
        unmet = patchset.unmet(spec, known.instance.profile, series, patches)
        return replace(known, patches=patches, refusals=(*known.refusals, *refused.refusals, *unmet))
    build, stale = identity.from_lock(project, spec, series, lock, None)
    unproved = proved.demanded(project, spec, build.patches)
    unmet = patchset.unmet(spec, known.instance.profile, series, build.patches)
    return replace(known, patches=build.patches, build=build, refusals=(*known.refusals, *stale, *unproved, *unmet))


def _from_engine(known: KnownProfile, engine: Engine | EngineProblem) -> KnownProfile:
    """Return KNOWN with what ENGINE has of the image."""
    if known.build is None:
        return replace(known, refusals=(*known.refusals, *presence.without_lock(known.spec.name, engine)))
    image = presence.of_build(known.build, known.project, known.places, engine)
    return replace(known, image_ids=image.ids, refusals=(*known.refusals, *image.refusals))


def _with_models(known: KnownProfile, depth: Depth, hashes: HashCache, progress: Progress) -> KnownProfile:
    """Return KNOWN with the models on this host and the chat template.

    Without a lock of all models nothing is hashed, and the build is no longer known. Raises Refused with all that is
    refused so far and NV202 if DEPTH does not allow that.
    """
    spec, names, build = known.spec, known.profile.models, known.build
    unlocked = lockdoc.without_models(build.lock, names, known.shown_lock) if build is not None else []
    refusals = [*known.refusals, *unlocked]
    if unlocked and depth is not Depth.SHOW:
        raise Refused(refusals)
    if build is None or unlocked:
        template, _ = templates.of_profile(known.project, None, known.profile)
        models = {name: local.unlocked(spec.models[name]) for name in names}
        refusals += local.missing(spec, names, {}, known.places)
        return replace(known, build=None, image_ids=(), models=models, template=template, refusals=tuple(refusals))
    models = {}
    for name in names:
        models[name], problems = local.verified(spec, name, build.lock.models[name], known.places, hashes, progress)
        refusals += problems
    refusals += local.no_adapters(known.profile.adapters, build.lock.models, spec.name, known.shown_lock)
    template, problems = templates.of_profile(known.project, build.lock, known.profile)
    return replace(known, models=models, template=template, refusals=(*refusals, *problems))


def _on_host(known: KnownProfile, engine: Engine | EngineProblem) -> Examination:
    """Return the plan of what is KNOWN on this host with ENGINE, and all that is refused but for the blessing."""
    profile, build, spec = known.profile, known.build, known.spec
    host = survey.host_facts(known.places, engine)
    if build is None:
        scheme, environment = identity.scheme(spec.base.python), identity.environment(spec, None)
    else:
        scheme, environment = build.scheme, build.environment
    build_hash = "" if build is None else build.build_hash
    request = PlanRequest(
        image=PlannedImage(spec, build_hash, scheme, environment, known.image_ids),
        profile_name=known.instance.profile,
        model=known.models[profile.model],
        draft=None if profile.draft is None else known.models[profile.draft],
        user=(host.uid, host.gid),
        gpus=host.gpus,
        cpu=host.cpu,
        run_directory=known.places.run(known.instance.name) / "run",
        adapters=[known.models[name] for name in profile.adapters],
        template=known.template,
    )
    plan = replace(planner.plan(request), instance=known.instance.name)
    if build is None:
        plan = replace(plan, serve_hash="")
    outcomes = survey.outcomes(plan, host, patchset.sentinels(known.patches), known.places, profile.gates)
    refusals = (
        *known.refusals,
        *access.refusals(plan.access, plan.user, known.project.root),
        *readable.refusals(plan.mounts, plan.user),
        *(refusal for outcome in outcomes for refusal in outcome.refusals),
    )
    models = tuple(known.models[model.name].locked for model in plan.models)
    answering = None if isinstance(engine, EngineProblem) else engine
    return Examination(profile, plan, models, outcomes, refusals, answering, build)


def _with_blessing(known: KnownProfile, examination: Examination, depth: Depth) -> Examination:
    """Return EXAMINATION with orphan, blessing and the bytes of its cache, as far as DEPTH says."""
    if depth is Depth.UNBLESSED:
        return examination
    if depth is Depth.BLESSED or examination.build is None:
        return _blessed(known, examination)
    examination = _blessed(known, after_orphan(known.places, examination))
    if depth is Depth.START and examination.orphan is None and not examination.refusals:
        return examination
    return _hashed(known.places, examination)


def after_orphan(places: Places, examination: Examination) -> Examination:
    """Return EXAMINATION with the orphan of its instance, if any, and without the refusals that end with it."""
    engine, instance = examination.engine, examination.plan.instance
    orphan = None if engine is None else stopping.orphan(engine, places, instance)
    if orphan is None:
        return examination
    ended = f"container {orphan.container[:12]} is an orphan, which `nvllm serve` ends first"
    outcomes = [
        Outcome(outcome.code, outcome.name, "ok", ended)
        if outcome.refusals and all(orphan.explains(refusal, examination.plan) for refusal in outcome.refusals)
        else outcome
        for outcome in examination.outcomes
    ]
    refusals = tuple(refusal for refusal in examination.refusals if not orphan.explains(refusal, examination.plan))
    return replace(examination, outcomes=tuple(outcomes), refusals=refusals, orphan=orphan)


def _blessed(known: KnownProfile, examination: Examination) -> Examination:
    """Return EXAMINATION with the blessing of its profile, or the refusals for there being none.

    It is unchanged if the profile needs none. The cache itself is not hashed.
    """
    project, plan, profile = known.project, examination.plan, examination.profile
    if not profile.blessed:
        return examination
    blessings, rules = Blessings.of_project(project, known.places), profile.bless
    if examination.build is None:
        problem = "no lock of all its models, so the serve hash is not known"
        cure = f"nvllm bless {plan.image} --profile {plan.profile}"
        refusal = Refusal("NV901", project.show(blessings.directory), "a blessing of this profile", problem, cure)
        return replace(examination, refusals=(*examination.refusals, refusal))
    try:
        query = BlessingQuery(
            plan.image,
            plan.profile,
            plan.serve_hash,
            servehash.factors(plan),
            plan.dev,
            time.time(),
            project.signers(rules.signers),
            rules.valid_days,
            plan.image_id,
            None if rules.evaluation is None else evaluation.demanded(project, rules.evaluation),
        )
        manifest = blessings.lookup(query)
    except Refused as refused:
        return replace(examination, refusals=(*examination.refusals, *refused.refusals))
    return replace(examination, plan=planner.loading(plan, manifest.tree, profile.kernels.missing), manifest=manifest)


def _hashed(places: Places, examination: Examination) -> Examination:
    """Hash the cache of EXAMINATION in the tree store; return EXAMINATION with the refusals that follow."""
    manifest = examination.manifest
    if manifest is None:
        return examination
    try:
        TreeStore(places.trees).verify(manifest.tree, manifest.cure)
    except Refused as refused:
        return replace(examination, refusals=(*examination.refusals, *refused.refusals), manifest=None)
    return examination
