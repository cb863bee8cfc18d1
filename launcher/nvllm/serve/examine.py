"""Examining what is about to be served: every refusal at once, and the launch plan if there is one.

`serve` carries out what this returns without refusals; `doctor` and ``--dry-run`` show it. There is no second
place that decides whether something may be served.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nvllm.cache.blessings import Blessings, Demand
from nvllm.cache.manifest import Manifest
from nvllm.cache.store import TreeStore
from nvllm.core.lock import LockedModel
from nvllm.core.paths import Places, Project
from nvllm.core.plan import LaunchPlan
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.core.spec import ImageSpec, Profile
from nvllm.host import checks, locks
from nvllm.host import facts as host
from nvllm.host.checks import DiskNeed, Outcome, Subject
from nvllm.host.facts import EngineProblem, HostFacts
from nvllm.image import identity
from nvllm.image import record as buildrecord
from nvllm.image.engine import Engine, connect
from nvllm.image.identity import Build
from nvllm.lock import document as lockdoc
from nvllm.models import location
from nvllm.models import tree as models
from nvllm.patches import patchset, seriesfile
from nvllm.patches.series import Patch
from nvllm.serve import planner, servehash
from nvllm.serve.planner import Local
from nvllm.spec import file as specfile

_RUN_BYTES = 200 * 2**20
"""Of a run directory: two rotated logs of the engine, evidence, sentinels."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What is to be started: its container's NAME, the PROFILE that it serves, and the PORT on 127.0.0.1."""

    name: str
    profile: str
    port: int


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found. PLAN is there as soon as image and profile are known, also when much else is refused."""

    build: Build
    plan: LaunchPlan
    models: tuple[LockedModel, ...]
    """Those of the plan, in its order."""
    outcomes: tuple[Outcome, ...]
    refusals: tuple[Refusal, ...]
    engine: Engine | None
    facts: HostFacts
    manifest: Manifest | None = None
    """Of a blessed profile: what it is served by."""


def load_build(project: Project, image: str, enable: Sequence[str] | None) -> tuple[Build, list[Refusal]]:
    """Return the build of IMAGE with the patches ENABLE (None: those of the spec), and what is stale about it.

    Raises Refused for what cannot be read at all, is no patch set, or is not made for the project's platform.
    """
    path = project.spec(image)
    spec = specfile.load(path, project.show(path))
    refuse_any(specfile.other_platform(spec, project.platform))
    directory = project.series(spec.patches.series)
    series = seriesfile.load(directory, project.show(directory))
    lock = lockdoc.read(project.lock(image), project.show(project.lock(image)))
    stale = lockdoc.fresh(lock, specfile.inputs(spec, project.platform), series)
    where = f"{project.show(path)}: .patches.enable" if enable is None else "--patches"
    patches = patchset.choose(series, spec.patches.enable if enable is None else enable, where=where)
    stale.extend(seriesfile.touching(replace(series, patches=patches), spec.vllm.differs, project.show(directory)))
    return Build(spec, lock, patches), stale


def examine(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Examination:
    """Examine PROFILE of IMAGE on this host: all that `unblessed` does, its blessing, and every byte of its cache.

    Raises Refused as `unblessed` does.
    """
    return reading(unread(project, places, image, profile, paranoid=paranoid, progress=progress), places)


def unread(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Examination:
    """Examine PROFILE of IMAGE as `examine` does, but for the bytes of its cache.

    For a serve, which must not start by what lies in the store, whoever has read it, but by the copy that
    `staged_cache.staged` makes of it and reads in the same pass. Raises Refused as `unblessed` does.
    """
    found = unblessed(project, places, image, profile, paranoid=paranoid, progress=progress)
    if not found.build.spec.profiles[profile].blessed:
        return found
    plan = found.plan
    held = Blessings(project.blessed, places.blessings)
    rules = found.build.spec.profiles[profile].bless
    signers, factors = project.signers(rules.signers), servehash.factors(plan)
    demand = Demand(image, profile, plan.serve_hash, factors, plan.dev, time.time(), signers, rules.valid_days)
    try:
        manifest = held.lookup(demand)
    except Refused as refused:
        return replace(found, refusals=(*found.refusals, *refused.refusals))
    return replace(found, plan=planner.loading(plan, manifest.tree), manifest=manifest)


def reading(found: Examination, places: Places) -> Examination:
    """Return FOUND with what the bytes of its cache say, read where they lie in the store."""
    if found.manifest is None:
        return found
    try:
        TreeStore(places.trees).verify(found.manifest.tree, found.manifest.cure)
    except Refused as refused:
        return replace(found, refusals=(*found.refusals, *refused.refusals), manifest=None)
    return found


def unblessed(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Examination:
    """Examine PROFILE of IMAGE on this host, but not whether it is blessed: what a bless starts from.

    PARANOID reads every byte of the model again instead of trusting what was hashed before. Raises Refused
    where there is nothing to examine: no such image, profile, lock or patch set.
    """
    made, stale = load_build(project, image, None)
    wanted = named_profile(project, made.spec, profile)
    memo = models.HashCache.none() if paranoid else models.HashCache.load(places.state / "verified.json")
    instance = Instance(planner.instance_name(made.spec.name, profile), profile, wanted.port)
    try:
        found = examine_build(project, places, made, instance, connect(), memo, progress)
    except Refused as refused:
        raise Refused([*stale, *refused.refusals]) from refused
    return replace(found, refusals=(*stale, *found.refusals))


def examine_build(
    project: Project,
    places: Places,
    made: Build,
    instance: Instance,
    engine: Engine | EngineProblem,
    memo: models.HashCache,
    progress: Progress,
) -> Examination:
    """Examine MADE as INSTANCE in ENGINE; INSTANCE need not be the one that `nvllm serve` would start.

    The models' files are trusted as far as MEMO knows them. Raises Refused NV202 if the lock lacks a model.
    """
    made = _on_port(made, instance)
    refusals: list[Refusal] = []
    record = buildrecord.read(places.builds, made.build_hash)
    if not isinstance(engine, EngineProblem):
        refusals.extend(image_refusals(made, record, engine))
    profile, image = made.spec.profiles[instance.profile], made.spec.name
    missing = [name for name in profile.models if name not in made.lock.models]
    if missing:
        where, cure = project.show(project.lock(image)), f"nvllm lock {image}"
        said = [Refusal("NV202", where, f"the model {name}", "no such model in the lock", cure) for name in missing]
        raise Refused([*refusals, *said])
    local: dict[str, Local] = {}
    for name in profile.models:
        files, wrong = _model_files(made, name, made.lock.models[name], places, memo, progress)
        refusals.extend(wrong)
        local[name] = Local(made.lock.models[name], files)
    facts = host_facts(places, engine)
    wanted = planner.Wanted(
        build=made,
        image_ids=record.ids if record else (),
        profile_name=instance.profile,
        model=local[profile.model],
        draft=None if profile.draft is None else local[profile.draft],
        user=(facts.uid, facts.gid),
        gpus=facts.gpus,
        cpu=facts.cpu,
        run_directory=places.runs / instance.name / "run",
    )
    plan = replace(planner.plan(wanted), instance=instance.name)
    of_plan = tuple(made.lock.models[one.name] for one in plan.models)
    outcomes = host_outcomes(plan, facts, made.patches, places)
    refusals.extend(refusal for outcome in outcomes for refusal in outcome.refusals)
    return Examination(
        made, plan, of_plan, outcomes, tuple(refusals), None if isinstance(engine, EngineProblem) else engine, facts
    )


def host_outcomes(plan: LaunchPlan, facts: HostFacts, patches: Sequence[Patch], places: Places) -> tuple[Outcome, ...]:
    """Return the outcomes of every host check for PLAN, of an image with PATCHES, on a host of which FACTS hold."""
    read = patchset.sentinels(patches)
    need = DiskNeed(str(places.runs), _RUN_BYTES, "logs and evidence of the run")
    return checks.outcomes(Subject(plan, facts, disk=(need,), sentinels=read))


def _on_port(made: Build, instance: Instance) -> Build:
    """Return MADE with the port of INSTANCE in its profile: on the host's network the engine's command names it."""
    profiles = made.spec.profiles
    moved = replace(profiles[instance.profile], port=instance.port)
    return replace(made, spec=replace(made.spec, profiles={**profiles, instance.profile: moved}))


def named_profile(project: Project, spec: ImageSpec, name: str) -> Profile:
    """Return the profile NAME of SPEC. Raises Refused NV107, with the names that there are."""
    if name not in spec.profiles:
        where, known = f"{project.show(project.spec(spec.name))}: .profiles", ", ".join(spec.profiles)
        cure = f"nvllm serve {spec.name} --profile {next(iter(spec.profiles), 'NAME')}"
        raise Refused([Refusal("NV107", where, f"one of {known}", name, cure)])
    return spec.profiles[name]


def host_facts(places: Places, engine: Engine | EngineProblem) -> HostFacts:
    """Return what this host is, with what ENGINE says of itself."""
    facts = replace(host.probe([places.runs]), locks=locks.probe(places.locks))
    if isinstance(engine, EngineProblem):
        return replace(facts, engine_problem=engine)
    return replace(facts, engine=engine.facts(), containers=engine.containers())


def image_refusals(made: Build, record: buildrecord.Record | None, engine: Engine) -> list[Refusal]:
    """Return what is wrong with the image of MADE in ENGINE, whose build is on RECORD.

    NV302: it is not there. NV303: what is there under its name is another image. NV304: its identity file
    says something else than its name.
    """
    tag, _ = made.tags
    cure = f"nvllm build {made.spec.name}"
    where = f"docker engine: {tag}"
    found = engine.image(tag)
    if record is None or found is None:
        said = "no such image" if found is None else "an image that this host has no record of building"
        return [Refusal("NV302", where, f"the image of build hash {made.build_hash[:12]}", said, cure)]
    if found.id not in record.ids:
        return [Refusal("NV303", where, " or ".join(record.ids), found.id, f"docker rmi {tag} && {cure}")]
    if not record.is_of(found):
        expected, said = f"{len(record.layers)} layers, as recorded", f"other layers, or fewer: {len(found.diff_ids)}"
        return [Refusal("NV303", where, expected, said, f"docker rmi {tag} && {cure}")]
    says = _says(engine.read_file(found.id, "/" + identity.IDENTITY_PATH))
    if says != made.build_hash:
        # All names of the image must go: a build whose image the engine still holds is not made again.
        cure = f"docker rmi --force {found.id} && {cure}"
        return [Refusal("NV304", f"{where}: /{identity.IDENTITY_PATH}", made.build_hash, says, cure)]
    return []


def _says(identity_file: bytes | None) -> str:
    """Return the build hash that IDENTITY_FILE names, or in words why it names none."""
    if identity_file is None:
        return "no identity file"
    try:
        document = json.loads(identity_file)
    except ValueError:
        return "an identity file that is not JSON"
    if not isinstance(document, dict) or "build_hash" not in document:
        return "an identity file without a build hash"
    return str(document["build_hash"])


def _model_files(
    made: Build, name: str, locked: LockedModel, places: Places, memo: models.HashCache, progress: Progress
) -> tuple[Sequence[tuple[str, Path]], list[Refusal]]:
    directory, cure = location.model_directory(made.spec, name, places), location.model_cure(made.spec, name)
    refusals = models.verify(locked, directory, memo, cure=cure, progress=progress)
    try:
        return models.located(locked, directory, cure=cure), refusals
    except Refused as refused:
        said = {one.where for one in refusals}  # what is missing is missing for both
        return (), [*refusals, *(one for one in refused.refusals if one.where not in said)]
