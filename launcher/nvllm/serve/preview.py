"""The launch plan as far as it is known, and everything that stands in its way: what ``--dry-run`` and `doctor` show.

With a lock that is what `examine` finds. Without one there is still a plan to look at, of what the image spec alone
decides: command, environment, limits, waivers. It says which hashes are not known yet, and nothing can serve it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nvllm.core.lock import LockedModel
from nvllm.core.paths import Places, Project
from nvllm.core.plan import LaunchPlan
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import DirectoryModel, ImageSpec, Model
from nvllm.host.checks import Outcome
from nvllm.host.facts import EngineProblem
from nvllm.image import identity
from nvllm.image.engine import Engine, connect
from nvllm.layers import wheel
from nvllm.lock import document as lockdoc
from nvllm.models import location
from nvllm.models import tree as models
from nvllm.patches import patchset, seriesfile
from nvllm.patches.series import Patch
from nvllm.serve import examine, planner
from nvllm.serve.examine import Instance
from nvllm.spec import file as specfile


@dataclass(frozen=True, slots=True)
class Preview:
    """A launch plan to look at, the outcomes of the host checks, and every refusal."""

    plan: LaunchPlan
    outcomes: tuple[Outcome, ...]
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class Unlocked:
    """An image of which there is only the spec, so that its build hash is the empty text: not known."""

    spec: ImageSpec

    @property
    def build_hash(self) -> str:
        return ""

    @property
    def scheme(self) -> wheel.Scheme:
        return identity.scheme(self.spec.base.python)

    @property
    def environment(self) -> Mapping[str, str]:
        return identity.environment(self.spec)


def preview(
    project: Project, places: Places, image: str, profile: str, *, paranoid: bool, progress: Progress
) -> Preview:
    """Return the launch plan of PROFILE of IMAGE as far as it is known on this host, and what refuses it.

    A missing or damaged lock, and a host of another platform, are refusals among the others. PARANOID is that of
    `examine.examine`. Raises Refused where there is nothing to look at: no such image, profile or patch set.
    """
    path = project.spec(image)
    spec = specfile.load(path, project.show(path))
    examine.named_profile(project, spec, profile)
    refusals = list(specfile.other_platform(spec, project.platform))
    if refusals:  # what it would be on a platform that it is made for
        project = replace(project, platform=spec.platforms[0])
    directory = project.series(spec.patches.series)
    series = seriesfile.load(directory, project.show(directory))
    patches = patchset.choose(series, spec.patches.enable, where=f"{project.show(path)}: .patches.enable")
    try:
        lockdoc.read(project.lock(image), project.show(project.lock(image)))
    except Refused as refused:
        return _unlocked(project, places, spec, profile, patches, [*refusals, *refused.refusals])
    found = examine.examine(project, places, image, profile, paranoid=paranoid, progress=progress)
    return Preview(found.plan, found.outcomes, (*refusals, *found.refusals))


def _unlocked(
    project: Project,
    places: Places,
    spec: ImageSpec,
    profile: str,
    patches: Sequence[Patch],
    refusals: Sequence[Refusal],
) -> Preview:
    """Return the preview of PROFILE of SPEC, which has no lock; REFUSALS say so."""
    instance = Instance(planner.instance_name(spec.name, profile), profile, spec.profiles[profile].port)
    engine = connect()
    facts = examine.host_facts(places, engine)
    wants = spec.profiles[profile]
    local = {name: planner.Local(_unlocked_model(spec.models[name]), ()) for name in wants.models}
    wanted = planner.Wanted(
        build=Unlocked(spec),
        image_ids=(),
        profile_name=profile,
        model=local[wants.model],
        draft=None if wants.draft is None else local[wants.draft],
        user=(facts.uid, facts.gid),
        gpus=facts.gpus,
        cpu=facts.cpu,
        run_directory=places.runs / instance.name / "run",
    )
    plan = replace(planner.plan(wanted), serve_hash="")
    outcomes = examine.host_outcomes(plan, facts, patches, places)
    return Preview(
        plan,
        outcomes,
        (
            *refusals,
            *_no_image(spec, engine),
            *(one for name, model in local.items() for one in _no_model(spec, name, model.locked, places)),
            *_no_blessing(project, spec, profile),
            *(refusal for outcome in outcomes for refusal in outcome.refusals),
        ),
    )


def _unlocked_model(model: Model) -> LockedModel:
    """Return what is known of MODEL before a lock: a directory's tree, or a hub model's pinned revision."""
    if isinstance(model, DirectoryModel):
        return LockedModel("directory", model.tree, ())
    return LockedModel("huggingface", "", (), model.repo, model.follow, model.revision)


def _no_image(spec: ImageSpec, engine: Engine | EngineProblem) -> list[Refusal]:
    tag, cure = f"nvllm:{spec.name}", f"nvllm build {spec.name}"
    if isinstance(engine, EngineProblem):
        found = "no engine that could hold one"
    elif engine.image(tag) is None:
        found = "no such image"
    else:
        found = "an image, and no lock that says which one it must be"
    return [Refusal("NV302", f"docker engine: {tag}", f"the image of the lock of {spec.name}", found, cure)]


def _no_model(spec: ImageSpec, name: str, model: LockedModel, places: Places) -> list[Refusal]:
    """Return whether the model NAME is here at all; which files it must have, only a lock says."""
    if model.kind == "huggingface" and model.revision is None:
        return []  # which revision it follows is for the lock to say
    try:
        models.located(model, location.model_directory(spec, name, places), cure=location.model_cure(spec, name))
    except Refused as refused:
        return list(refused.refusals)
    return []


def _no_blessing(project: Project, spec: ImageSpec, profile: str) -> list[Refusal]:
    if not spec.profiles[profile].blessed:
        return []
    found = "without a lock nobody knows the serve hash that it would be of"
    cure = f"nvllm bless {spec.name} --profile {profile}"
    return [Refusal("NV901", project.show(project.blessed), "a blessing of this profile", found, cure)]
