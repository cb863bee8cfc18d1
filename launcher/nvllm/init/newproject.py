"""A user's own project, made from an image that nvllm comes with: its spec, its series, and its first lock.

What is needed and not said is computed: the commit of the version, the wheels that it needs, the files in which its
wheel differs from its source, and which patches of nvllm's own series apply to it.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from nvllm.core import durable, reading
from nvllm.core.fields import COMMIT
from nvllm.core.lock import Lock, LockedFile
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.core.spec import DirectoryModel, ImageSpec
from nvllm.lock import lockdoc, release_wheels, resolve, wheel_matches_source
from nvllm.lock.project import read_inputs
from nvllm.lock.providers import Providers
from nvllm.patches import edit, imported, patchcheck, patching, patchset, proofs, seriesfile, source
from nvllm.patches.imported import Change, Fit
from nvllm.patches.series import Series
from nvllm.patches.source import Overlay
from nvllm.port import newspec
from nvllm.port.newspec import Need, NewRelease
from nvllm.sources import commits
from nvllm.sources.wheels import Resolved
from nvllm.spec import projectfile, specfile, template

_NAME = re.compile(r"[^a-z0-9]+")
_PROOF = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Template:
    """An image that nvllm comes with. LOCK is that for the platform, else for another one, None without any."""

    project: Project
    spec: ImageSpec
    series: Series
    lock: Lock | None

    @property
    def diffs(self) -> Path:
        return self.project.series(self.spec.patches.series)


@dataclass(frozen=True, slots=True)
class ProjectRequest:
    """What the user asks for. VERSION is None for the template's; DIFFS are pairs of name and content.

    PROOFS are tests, ``[ID=]FILE::TEST``, for one patch or for all that are imported. BARE leaves out the template's
    patches. SIGNERS is the allowed signers file that the blessed profiles are to name, if any.
    """

    name: str
    version: str | None = None
    commit: str | None = None
    diffs: Sequence[tuple[str, bytes]] = ()
    checkout: Path | None = None
    proofs: Sequence[str] = ()
    bare: bool = False
    signers: str | None = None


@dataclass(frozen=True, slots=True)
class ProjectDraft:
    """A project that is not written yet: the VALUES of its spec, its FILES by path, the changes that become patches.

    PROOFS are the tests of each change, by its id. FITS says of each patch of the template how it fits the version.
    UPDATE names the parts that the first lock resolves again.
    """

    values: template.Values
    files: Mapping[str, bytes]
    changes: Sequence[Change]
    proofs: Mapping[str, Sequence[str]]
    fits: Sequence[Fit]
    template: Template
    update: frozenset[str]
    wheels: Sequence[Resolved] = ()
    """What the version's wheel was resolved to, if it was."""
    decisions: Sequence[Need] = ()
    """The variables that the version reads otherwise than the template's, or not at all; they stay as they are."""

    @property
    def spec(self) -> str:
        """The path of the image spec."""
        return f"images/{self.values.name}.yaml"


def name_of(directory: Path) -> str:
    """Return the image name that DIRECTORY suggests."""
    return _NAME.sub("-", directory.absolute().name.lower()).strip("-") or "mine"


def template_of(packaged: Project, image: str) -> Template:
    """Return IMAGE of the project PACKAGED as a template. Raises Refused NV107 if there is none."""
    spec = specfile.of(packaged, image)
    series = seriesfile.of(packaged, spec.patches.series)
    projects = [packaged, *(replace(packaged, platform=platform) for platform in spec.platforms)]
    locks = [path for project in projects if (path := project.lock(image)).is_file()]
    lock = lockdoc.read(locks[0], packaged.show(locks[0])) if locks else None
    return Template(packaged, spec, series, lock)


def nearest(origin: Template, version: str) -> Template:
    """Return ORIGIN with that one of nvllm's series for releases whose release is the nearest to VERSION.

    A patch fits the release that it was made for, and fewer do with each one further. Enabled is what that series
    carries, but for what the spec of ORIGIN leaves out.
    """
    bases = [path.name for path in reading.listed(origin.project.root / "patches", "v*")]
    others = [seriesfile.of(origin.project, base) for base in bases]
    series = min([origin.series, *others], key=lambda series: _distance(series.version, version))
    left_out = {patch.id for patch in origin.series.patches if patch.status == "carried"} - {
        *origin.spec.patches.enable
    }
    enable = tuple(patch.id for patch in series.patches if patch.status == "carried" and patch.id not in left_out)
    spec = replace(origin.spec, patches=replace(origin.spec.patches, series=series.base, enable=enable))
    return replace(origin, spec=spec, series=series)


def draft(
    request: ProjectRequest, origin: Template, providers: Providers, env: Mapping[str, str], *, offline: bool
) -> ProjectDraft:
    """Return the project that REQUEST asks for, made from the template ORIGIN.

    PROVIDERS are those for the template's spec. Raises Refused: NV108 for what cannot be used of REQUEST, NV104, NV106
    and NV301 for a diff that cannot become a patch, NV207 for a commit that the source is not of, NV209 and NV204 for
    what cannot be resolved or brought here, NV620 for a source that does not show which variables it reads.
    """
    pin = origin.spec.vllm
    version = request.version or pin.version
    other = version != pin.version
    if other and pin.source is not None:
        cure = f"leave --vllm out: {origin.spec.name} is compiled from a commit that is no release"
        raise refuse("NV108", "--vllm", pin.version, version, f"{cure}; or name another --target")
    origin = nearest(origin, version) if other else origin
    taken = [patch.id for patch in origin.series.patches]
    changes = imported.changes(request.diffs, taken)
    if request.checkout is None:  # what is wrong with the diffs is said before anything is brought here
        _proofs(request.proofs, changes)
    archive = _source(origin, version, providers) if other or request.diffs or request.checkout is not None else None
    commit = _commit(request, origin, version, archive, providers, env, offline=offline)
    if request.checkout is not None:
        branch = commits.mails(request.checkout, commit, f"--from-branch {request.checkout}")
        changes = imported.changes([(str(request.checkout), branch)], taken)
        if not changes:
            cure = shlex.join(["git", "-C", str(request.checkout), "commit", "--all"])
            raise refuse("NV104", f"--from-branch {request.checkout}", "commits after the release", "none", cure)
    nodes, tests = _proofs(request.proofs, changes)
    fits: tuple[Fit, ...] = () if request.bare else tuple(Fit(name) for name in origin.spec.patches.enable)
    if archive is not None:
        paths = {path for change in changes for path in change.diff.paths} | patchcheck.paths_read(origin.series)
        tree = source.archive(providers.path(archive.sha256), paths)
        diffs = seriesfile.diffs(origin.diffs, origin.series.patches, origin.project.show(origin.diffs))
        if other and fits:
            enabled = origin.spec.patches.enable
            fits = imported.fits(
                origin.series, enabled, patchcheck.report(origin.series, diffs, enabled, tree, version)
            )
        below = [diffs[name] for name in _carried(origin.series, fits)]
        changes = imported.exact(Overlay(tree, patching.apply_all(tree, below)), changes, version)
    carried = _carried(origin.series, fits)
    values = _values(request, origin, version, commit, [*carried, *(change.id for change in changes)], carried)
    wheels: tuple[Resolved, ...] = ()
    decisions: tuple[Need, ...] = ()
    if other and archive is not None:
        sources = wheel_matches_source.source_files(providers.path(archive.sha256))
        values, wheels = _resolved(values, origin, sources, providers)
        before = wheel_matches_source.source_files(providers.path(_source(origin, pin.version, providers).sha256))
        release = NewRelease(version, commit, values.series, sources, archive.filename, frozenset(carried), before)
        decisions = tuple(need for need in newspec.environment(origin.spec, release) if need.state == "decide")
    kept = {*carried} if other or request.bare else {patch.id for patch in origin.series.patches}
    return ProjectDraft(
        values=values,
        files=_files(origin, values, kept, tests),
        changes=changes,
        proofs=nodes,
        fits=fits,
        template=origin,
        update=frozenset({"wheels", "source"}) if other else frozenset(),
        wheels=wheels,
        decisions=decisions,
    )


def write(drafted: ProjectDraft, root: Path) -> Project:
    """Write the project DRAFTED into the directory ROOT, which is empty, and return it.

    Raises Refused for what the rules of specs and series refuse, NV108 for a test that is none, and NV920 if it cannot
    be written.
    """
    with durable.writing(root, "NV920"):
        for path, content in drafted.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            durable.replace(root / path, content, 0o644, code="NV920")
        (root / "manifests").mkdir()
    project = Project(root, drafted.template.project.platform)
    refuse_any(proofs.refusals(root, sorted({node for nodes in drafted.proofs.values() for node in nodes})))
    directory = project.series(drafted.values.series)
    for change in drafted.changes:
        edit.add(directory, project.show(directory), change.id, change.summary, drafted.proofs[change.id], change.diff)
    series = seriesfile.of(project, drafted.values.series)
    spec = specfile.of(project, drafted.values.name)
    patchset.choose(series, spec.patches.enable, where=f"{drafted.spec}: .patches.enable")
    refuse_any(seriesfile.touching(series, spec.vllm.differs, project.show(directory)))
    return project


def first_lock(drafted: ProjectDraft, project: Project, providers: Providers) -> Path:
    """Write the lock of DRAFTED, which lies in PROJECT, and return its path. Raises what `resolve.lock` raises."""
    inputs = read_inputs(project, drafted.values.name)
    spec = inputs.spec
    known = {(wheel.name, wheel.version) for wheel in drafted.wheels}
    pins = (requirement.split("==") for requirement in spec.python.requirements)
    if known and all((canonicalize_name(name), version) in known for name, version in pins):
        # The requirements were taken from this solution: there is nothing to resolve again.
        providers = replace(providers, wheels=lambda *_: tuple(drafted.wheels))
    hashed, previous = specfile.inputs(spec, project.platform), drafted.template.lock
    new = resolve.lock(spec, project.platform, drafted.spec, inputs.series, hashed, previous, drafted.update, providers)
    path = project.lock(drafted.values.name)
    lockdoc.write(path, new)
    return path


def start(spec: ImageSpec) -> tuple[str, str | None]:
    """Return the first profile of SPEC that needs no blessing, and the model that has to be made for it, if any."""
    name = next((name for name, profile in spec.profiles.items() if not profile.blessed), next(iter(spec.profiles)))
    model = spec.models[spec.profiles[name].model]
    made = isinstance(model, DirectoryModel) and model.recipe is not None
    return name, spec.profiles[name].model if made else None


def vacant(directory: Path) -> None:
    """Raise Refused NV108 if DIRECTORY is there and holds anything, or is no directory."""
    if not os.path.lexists(directory):
        return
    empty = directory.is_dir() and not directory.is_symlink() and not any(os.scandir(directory))
    if not empty:
        expected, cure = "a directory that is empty or not there yet", "name another directory"
        raise refuse("NV108", "DIR", expected, str(directory), cure)


@contextmanager
def scratch() -> Iterator[Path]:
    """Give the context an empty directory that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="nvllm-init-") as directory:
        yield Path(directory)


def _distance(first: str, second: str) -> tuple[int, ...]:
    """Return how far two releases lie apart: by major, then minor, then patch version."""
    parts = zip_longest(Version(first).release, Version(second).release, fillvalue=0)
    return tuple(abs(part - other) for part, other in parts)


def _source(origin: Template, version: str, providers: Providers) -> LockedFile:
    """Return the source archive of VERSION, after bringing it into the store."""
    pin = origin.spec.vllm
    if origin.lock is not None and origin.lock.vllm.version == version:
        file = origin.lock.vllm.source
    elif pin.source is not None:
        return providers.commit(pin, origin.project.show(origin.project.spec(origin.spec.name)))
    else:
        offered = providers.sdist(version)
        file = LockedFile(offered.filename, offered.sha256, providers.size(offered.url), "pypi")
    providers.fetch([file])
    return file


def _commit(
    request: ProjectRequest,
    origin: Template,
    version: str,
    archive: LockedFile | None,
    providers: Providers,
    env: Mapping[str, str],
    *,
    offline: bool,
) -> str:
    """Return the commit of VERSION, as it is known here, as git says it, or as far as the source records it.

    Raises Refused NV209 if a checkout is to be compared with the commit and nobody knows all of it, or if the source
    records none, NV207 if it records another.
    """
    known = _known(origin.project).get(version)
    if known is not None and (archive is None or origin.spec.vllm.source is not None):
        if request.commit not in (None, known):
            expected = f"{known}, the commit of vLLM {version}"
            raise refuse("NV108", "--commit", expected, str(request.commit), "leave --commit out")
        return known
    assert archive is not None  # there is none only for the template's version, which is known
    version_file = source.archive(providers.path(archive.sha256), ["vllm/_version.py"]).read("vllm/_version.py")
    recorded = wheel_matches_source.recorded_commit(version_file or b"")
    commit = request.commit or known
    whole = commit is not None and re.fullmatch(COMMIT, commit)
    if request.checkout is not None and not whole:
        names = [commit] if commit is not None else [f"refs/tags/v{version}", *([recorded] if recorded else [])]
        commit = commits.of_checkout(request.checkout, names)
    if commit is None and not offline:
        commit = commits.tagged(version, env)
    if commit is None and request.checkout is None:  # it is only a beginning, to which no checkout can be compared
        commit = recorded
    if commit is None:
        started = f", of which {archive.filename} records {recorded}" if recorded is not None else ""
        cure = f"find it where the network reaches it, and name it with --commit: {commits.command(version, env)}"
        expected = f"the commit of vLLM {version}, 40 hex digits{started}"
        raise refuse("NV209", "--commit", expected, "nobody here who knows the rest", cure)
    if recorded is None or not commit.startswith(recorded):
        cure = f"name the commit of the tag v{version}: {commits.command(version, env)}"
        there = f"commit {recorded}" if recorded is not None else "no recorded commit"
        raise refuse("NV207", f"{archive.filename}: vllm/_version.py", f"commit {commit}", there, cure)
    return commit


def _known(packaged: Project) -> Mapping[str, str]:
    """Return the commits of the versions that the specs of PACKAGED pin."""
    specs = [specfile.of(packaged, image) for image in packaged.image_names()]
    return {spec.vllm.version: spec.vllm.commit for spec in specs}


def _proofs(asked: Sequence[str], changes: Sequence[Change]) -> tuple[Mapping[str, Sequence[str]], Mapping[str, bytes]]:
    """Return the tests of each of CHANGES, by its id, as ASKED names them, and the files that define them, by path.

    The files are renamed to lie in ``tests`` of the project.
    Raises Refused NV108 for a patch without a test, and for a test of no patch, or in no file.
    """
    ids = [change.id for change in changes]
    nodes: dict[str, list[str]] = {name: [] for name in ids}
    files: dict[str, bytes] = {}
    refusals: list[Refusal] = []
    for argument in asked:
        named = _PROOF.fullmatch(argument)
        node = named[2] if named else argument
        file, colons, test = node.partition("::")
        copy = f"tests/{Path(file).name}"
        if named is not None and named[1] not in ids:
            expected = f"one of {', '.join(ids)}" if ids else "a patch that is imported"
            refusals.append(
                Refusal("NV108", f"--proved-by {argument}", expected, named[1], "name the id of such a patch")
            )
        elif not colons or not Path(file).is_file():
            cure = "write the test first, then name it as pytest does: --proved-by FILE::TEST"
            refusals.append(Refusal("NV108", f"--proved-by {argument}", "FILE::TEST of a file", node, cure))
        elif files.setdefault(copy, content := reading.content(Path(file), reading.SOURCE)) != content:
            cure = "give one of the files another name"
            refusals.append(Refusal("NV108", f"--proved-by {argument}", "files of different names", copy, cure))
        else:
            for name in [named[1]] if named is not None else ids:
                nodes[name].append(f"{copy}::{test}")
    lacking = [name for name in ids if not nodes[name]]
    if lacking and not refusals:
        cure = "name a test that fails without it: " + " ".join(f"--proved-by {name}=FILE::TEST" for name in lacking)
        refusals.append(Refusal("NV108", "--proved-by", f"a test of {', '.join(lacking)}", "none", cure))
    refuse_any(refusals)
    return nodes, files


def _carried(series: Series, fits: Sequence[Fit]) -> list[str]:
    """Return the patches without a fault, in the order of SERIES."""
    fitting = {fit.id for fit in fits if fit.fault is None}
    return [patch.id for patch in series.patches if patch.id in fitting]


def _values(
    request: ProjectRequest, origin: Template, version: str, commit: str, enable: Sequence[str], carried: Sequence[str]
) -> template.Values:
    """Return what the spec says otherwise than its template, apart from what only a resolver knows."""
    spec = origin.spec
    chosen = [patch for patch in origin.series.patches if patch.id in carried]
    return template.Values(
        name=request.name,
        description=f"vLLM {version} with the patches of this project, made from nvllm's image {spec.name}",
        version=version,
        commit=commit,
        differs=spec.vllm.differs,
        brings=spec.vllm.brings,
        requirements=spec.python.requirements,
        aliases=[release_wheels.alias(alias.version, spec.vllm.version, version) for alias in spec.python.aliases],
        series=spec.patches.series if version == spec.vllm.version else f"v{version}",
        enable=enable,
        sentinels={
            name: patchset.narrowed(profile.sentinels, origin.series, chosen)
            for name, profile in spec.profiles.items()
            if profile.sentinels
        },
        signers=request.signers,
    )


def _resolved(
    values: template.Values, origin: Template, sources: Mapping[str, bytes], providers: Providers
) -> tuple[template.Values, tuple[Resolved, ...]]:
    """Return VALUES with the requirements and the files to differ that their version has, and the wheels that it needs.

    SOURCES are the Python files of that version.

    Raises Refused NV201 if the template has no lock, and what `release_wheels.of` raises.
    """
    spec = origin.spec
    if origin.lock is None:
        path, cure = origin.project.show(origin.project.lock(spec.name)), "name another --target"
        raise refuse("NV201", path, f"the lock of {spec.name}, for its interpreter", "none", cure)
    target = resolve.target(spec.base, origin.lock.base, origin.project.platform)
    wheels = release_wheels.of(spec, values.version, sources, target, providers)
    new_values = replace(values, requirements=wheels.requirements, brings=wheels.brings, differs=wheels.differs)
    return new_values, wheels.resolved


def _files(
    origin: Template, values: template.Values, kept: set[str], tests: Mapping[str, bytes]
) -> Mapping[str, bytes]:
    """Return the files of the project by path, apart from the patches that are imported, and the lock."""
    name, spec, root = values.name, origin.spec, origin.project.root
    heading = [
        f"The image {name}, written by `nvllm init` from nvllm's image {spec.name}. It is yours: edit it, then run",
        f"`nvllm lock {name}` and `nvllm build {name}`. No name in it may move: what an index, a mirror or the hub",
        f"must be asked is asked by `nvllm lock` alone, which writes the answers into manifests/{name}.lock.json.",
    ]
    text = template.write(reading.text(origin.project.spec(spec.name), reading.SPEC), values, heading)
    files = {f"images/{name}.yaml": text.encode()}
    for path in sorted((root / "images").iterdir()):  # what the Dockerfile of a compiled vLLM reads beside the spec
        if path.suffix != ".yaml" and path.name.startswith((f"{spec.name}-", "native-")):
            files[f"images/{path.name.replace(f'{spec.name}-', f'{name}-', 1)}"] = reading.content(
                path, reading.CONFIGURATION
            )
    files[projectfile.NAME] = projectfile.written(name)
    files["Dockerfile"] = reading.content(root / "Dockerfile", reading.CONFIGURATION)
    directory = f"patches/{values.series}"
    heading = [
        f"The patches for vLLM {values.version}, in the order in which they are applied. `nvllm patch check` tries",
        "them on the pinned source; `nvllm patch new` and `nvllm patch refresh` write files and hashes. The tests that",
        "patches of nvllm's own series name are in nvllm's repository.",
    ]
    series = imported.series_text(
        seriesfile.text(origin.diffs, origin.project.show(origin.diffs)),
        origin.series,
        base=values.series,
        version=values.version,
        commit=values.commit,
        kept=kept,
        heading=heading,
    )
    files[f"{directory}/{seriesfile.NAME}"] = series.encode()
    for patch in origin.series.patches:
        if patch.id in kept and patch.file is not None:
            files[f"{directory}/{patch.file}"] = reading.content(origin.diffs / patch.file, reading.PATCH)
    return {**files, **tests}
