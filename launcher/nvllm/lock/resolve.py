"""Resolving a lock: every name in a spec is resolved once and pinned by a hash.

`lock` reaches the network and the store only through the :class:`Providers` that it is given, so the rules (what is
kept, what is resolved again, what must agree) are tested without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from packaging.utils import canonicalize_name

from nvllm.core.lock import (
    SCHEMA,
    Lock,
    LockedDebianBase,
    LockedFile,
    LockedLibrary,
    LockedModel,
    LockedNative,
    LockedPatch,
    LockedRegistryBase,
    LockedSeries,
    LockedVllm,
    LockedWheel,
)
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.core.spec import DebianBase, DirectoryModel, HubModel, ImageSpec, PythonSet, RegistryBase, VllmPin
from nvllm.kernels import devicecode, toolchain
from nvllm.lock import arguments, wheel_matches_source
from nvllm.lock.providers import Providers
from nvllm.models import modeltree, recipes
from nvllm.patches.series import Series
from nvllm.sources import gitsource
from nvllm.sources.wheels import Target

LAYERS = "1"
"""The version of the rules by which layers are made from locked files; part of the build hash."""

PARTS = frozenset({"debs", "source", "wheels", "models"})
"""The values of `nvllm lock --update PART`, besides ``all``."""

_MACHINES = {"linux/amd64": ("amd64", "x86_64"), "linux/arm64": ("arm64", "aarch64")}


@dataclass(frozen=True, slots=True)
class _Job:
    """The inputs of one lock, and which parts of the previous lock may stay."""

    spec: ImageSpec
    platform: str
    label: str
    inputs: str
    previous: Lock | None
    update: frozenset[str]
    providers: Providers

    def unchanged(self, *parts: str) -> Lock | None:
        """Return the previous lock if its PARTS can stay: the inputs are equal, and none of PARTS is to be updated."""
        same = self.previous is not None and self.previous.inputs == self.inputs
        return self.previous if same and self.update.isdisjoint(parts) else None

    def earlier(self, part: str) -> Lock | None:
        """Return the previous lock, unless PART is to be updated: its versions stay where the spec allows them."""
        return None if part in self.update else self.previous


def lock(
    spec: ImageSpec,
    platform: str,
    label: str,
    series: Series,
    inputs: str,
    previous: Lock | None,
    update: frozenset[str],
    providers: Providers,
) -> Lock:
    """Return the lock of SPEC for PLATFORM. INPUTS is the hash of its lock-relevant part; messages call it LABEL.

    What PREVIOUS names stays where SPEC still allows it, except for the parts in UPDATE (members of
    ``PARTS``, or ``all``). If the inputs are those of PREVIOUS and nothing is to be updated, no index, mirror
    or hub is asked, and the result equals PREVIOUS except for the patches. PREVIOUS may be a lock for another platform;
    its versions of wheels, source and models stay then. Raises Refused: NV108 for an
    unknown part, NV207 and NV208 if source, wheel and commit do not belong together, NV603 for an argument that vLLM
    does not have, NV606 if its source does not say which it has, NV209 and NV206 from PROVIDERS.
    """
    refuse_any(_unknown_part(part) for part in update if part not in PARTS | {"all"})
    job = _Job(spec, platform, label, inputs, previous, PARTS if "all" in update else update, providers)
    refuse_any(_needless_wheel(job))
    _prove_commit(job)
    base = _base(job)
    wheels, excluded = _wheels(job, base)
    vllm, wheels = _commit(job, wheels) if spec.vllm.source is not None else (_vllm(job, wheels), wheels)
    refuse_any(arguments.unknown(spec, vllm.arguments, label))
    vllm = replace(vllm, native=_native(job, base))
    return Lock(
        schema=SCHEMA,
        image=spec.name,
        inputs=inputs,
        platform=platform,
        epoch=spec.epoch,
        toolchain={"layers": LAYERS, "python": _interpreter(base)},
        base=base,
        vllm=vllm,
        wheels=wheels,
        aliases=tuple((alias.name, alias.version, alias.distribution) for alias in spec.python.aliases),
        series=locked_series(series),
        models={name: _model(job, name, model) for name, model in sorted(spec.models.items())},
        device_code=_device_code(job, wheels),
        tools=_tools(job, wheels),
        excluded=excluded,
    )


def _unknown_part(part: str) -> Refusal:
    known = ", ".join([*sorted(PARTS), "all"])
    return Refusal("NV108", "--update", f"one of {known}", part, f"name one of {known}")


def locked_series(series: Series) -> LockedSeries:
    """Return the entry of a lock for SERIES."""
    patches = tuple(LockedPatch(patch.id, patch.status, patch.sha256) for patch in series.patches)
    return LockedSeries(series.base, patches)


def _interpreter(base: LockedDebianBase | LockedRegistryBase) -> str:
    """Return the exact interpreter: the version of Debian's package, or the one that the spec names for the image."""
    if isinstance(base, LockedRegistryBase):
        return base.python
    name = f"python{base.python}-minimal"
    for package in base.packages:
        if package.name == name:
            return package.version
    problem, cure = "no package of that name among the resolved ones", f"add {name} to base.packages of the spec"
    raise refuse("NV209", "base.packages", f"{name}, the interpreter that base.python names", problem, cure)


def _base(job: _Job) -> LockedDebianBase | LockedRegistryBase:
    unchanged = job.unchanged("debs")
    if unchanged is not None:
        return unchanged.base
    base = job.spec.base
    if isinstance(base, RegistryBase):
        return LockedRegistryBase("registry", base.python, base.image, base.interpreter)
    old = _old_base(job.earlier("debs"), job.platform, base)
    architecture, _ = _MACHINES[job.platform]
    versions = {package.name: package.version for package in old.packages} if old is not None else {}
    resolved = job.providers.debs(base, architecture, versions)
    if old is not None and versions.keys() == {package.name for package in resolved.packages}:
        # The same package names: the locked versions fitted together and still do, even if the mirror has newer
        # ones. Their files are in the store, or in Debian's archive of old versions.
        return LockedDebianBase("debian", base.suite, base.python, old.packages, base.security, old.snapshot)
    packages = tuple(sorted(resolved.packages, key=lambda deb: deb.name))
    return LockedDebianBase("debian", base.suite, base.python, packages, base.security, resolved.snapshot)


def _old_base(earlier: Lock | None, platform: str, base: DebianBase) -> LockedDebianBase | None:
    """Return the base of EARLIER if its packages are from the suites of BASE."""
    if earlier is None or earlier.platform != platform or not isinstance(earlier.base, LockedDebianBase):
        return None
    same = (earlier.base.suite, earlier.base.security) == (base.suite, base.security)
    return earlier.base if same else None


def _glibc(spec: DebianBase | RegistryBase, base: LockedDebianBase | LockedRegistryBase) -> int:
    """Return the minor version of glibc on BASE, the lock of the spec's base SPEC."""
    versions = [p.version for p in base.packages if p.name == "libc6"] if isinstance(base, LockedDebianBase) else []
    if isinstance(spec, RegistryBase):
        versions = [spec.glibc]
    return int(versions[0].split("-")[0].split(".")[1])


def _python(base: LockedDebianBase | LockedRegistryBase) -> str:
    """Return the version of Python on BASE. Of a registry image only the minor version is known."""
    return f"{base.python}.0" if isinstance(base, LockedRegistryBase) else _interpreter(base).partition("-")[0]


def target(spec: DebianBase | RegistryBase, base: LockedDebianBase | LockedRegistryBase, platform: str) -> Target:
    """Return what wheels must run on: PLATFORM with BASE, the lock of what is SPEC."""
    _, machine = _MACHINES[platform]
    return Target(_python(base), machine, _glibc(spec, base))


def _wheels(
    job: _Job, base: LockedDebianBase | LockedRegistryBase
) -> tuple[tuple[LockedWheel, ...], tuple[LockedWheel, ...]]:
    """Return the wheels of the image, and those that the spec excludes, both sorted by name."""
    unchanged = job.unchanged("wheels")
    if unchanged is not None:
        return unchanged.wheels, unchanged.excluded
    python = job.spec.python
    earlier = job.earlier("wheels")
    before = (*earlier.wheels, *earlier.excluded) if earlier is not None else ()
    old: dict[str, LockedWheel] = {wheel.name: wheel for wheel in before}
    required = {canonicalize_name(requirement.split("==")[0]) for requirement in python.requirements}
    # What the spec requires has its version there; what else comes with it stays at the locked one.
    versions = {name: wheel.version for name, wheel in old.items() if name not in required}
    excluded = {canonicalize_name(exclusion.name) for exclusion in python.exclude}
    aliases: dict[str, str] = {canonicalize_name(name): alias for name, alias in python.indexes.items()}
    omitted = _omitted(python)
    installed: list[LockedWheel] = []
    left_out: list[LockedWheel] = []
    for wheel in job.providers.wheels(python.requirements, target(job.spec.base, base, job.platform), versions):
        known = old.get(wheel.name)
        # The size of the same bytes is known from the earlier lock.
        same = known is not None and known.file.sha256 == wheel.sha256
        size = known.file.size if known is not None and same else job.providers.size(wheel.url)
        file = LockedFile(wheel.filename, wheel.sha256, size, aliases.get(wheel.name, "pypi"))
        if wheel.name in excluded:
            left_out.append(LockedWheel(wheel.name, wheel.version, file))
        else:
            installed.append(LockedWheel(wheel.name, wheel.version, file, omitted.pop(wheel.name, ())))
    refuse_any(_omits_nothing(job, name) for name in sorted(omitted))
    kept, excluded_wheels = (tuple(sorted(wheels, key=lambda wheel: wheel.name)) for wheels in (installed, left_out))
    return kept, excluded_wheels


def _omitted(python: PythonSet) -> dict[str, tuple[str, ...]]:
    """Return what `omit` leaves out, by distribution."""
    paths_of: dict[str, list[str]] = {}
    for omission in python.omit:
        paths_of.setdefault(canonicalize_name(omission.distribution), []).append(omission.path)
    return {name: tuple(sorted(paths)) for name, paths in paths_of.items()}


def _omits_nothing(job: _Job, name: str) -> Refusal:
    expected, cure = f"a wheel of {name} among the resolved ones", f"remove {name} from python.omit"
    return Refusal("NV209", f"{job.label}: .python.omit", expected, "none", cure)


def _tools(job: _Job, wheels: Sequence[LockedWheel]) -> tuple[LockedWheel, ...]:
    """Return the tools that compile the kernels of an image with targets."""
    if not job.spec.targets:
        return ()
    unchanged = job.unchanged("wheels")
    if unchanged is not None and unchanged.tools:
        return unchanged.tools
    return toolchain.resolve(wheels, job.spec.name, job.providers.offered, job.providers.size)


def _native(job: _Job, base: LockedDebianBase | LockedRegistryBase) -> LockedNative | None:
    """Return what compiles vLLM's extensions for patches of their source, if the spec says how that is done."""
    native = job.spec.vllm.native
    if native is None:
        return None
    unchanged = job.unchanged("wheels")
    if unchanged is not None and unchanged.vllm.native is not None:
        return unchanged.vllm.native
    resolved = job.providers.wheels(native.tools, target(job.spec.base, base, job.platform), {})
    tools = [
        LockedWheel(
            tool.name, tool.version, LockedFile(tool.filename, tool.sha256, job.providers.size(tool.url), "pypi")
        )
        for tool in resolved
    ]
    sources = {
        name: LockedFile(archive.path, archive.sha256, archive.size, archive.index)
        for name, archive in native.sources.items()
    }
    return LockedNative(native.device, tuple(sorted(tools, key=lambda wheel: wheel.name)), sources)


def _prove_commit(job: _Job) -> None:
    """Refuse a commit that the source of the release is not of (NV207), before minutes are spent on what it needs."""
    pin, earlier = job.spec.vllm, job.earlier("source")
    known = earlier is not None and (earlier.vllm.version, earlier.vllm.commit) == (pin.version, pin.commit)
    if pin.source is None and not known:
        source = _source(job)
        job.providers.fetch([source])
        files = wheel_matches_source.source_files(job.providers.path(source.sha256))
        refuse_any(wheel_matches_source.other_commit(files, source.filename, pin, job.label))


def _vllm(job: _Job, wheels: Sequence[LockedWheel]) -> LockedVllm:
    unchanged = job.unchanged("source", "wheels")
    if unchanged is not None:
        return unchanged.vllm
    pin = job.spec.vllm
    source = _source(job)
    wheel = next((wheel for wheel in wheels if wheel.name == canonicalize_name(pin.distribution)), None)
    if wheel is None:
        expected = f"a wheel of {pin.distribution} among the resolved ones"
        cure = f"add {pin.distribution}=={pin.version} to python.requirements"
        raise refuse("NV209", f"{job.label}: .vllm.distribution", expected, "none", cure)
    return _matching(job, source, wheel.file)


def _matching(job: _Job, source: LockedFile, wheel: LockedFile) -> LockedVllm:
    """Return vLLM as SOURCE and WHEEL have it. Raises Refused NV207 and NV208 if they do not belong together."""
    pin = job.spec.vllm
    job.providers.fetch([source, wheel])
    files = wheel_matches_source.source_files(job.providers.path(source.sha256))
    installed = wheel_matches_source.wheel_files(job.providers.path(wheel.sha256))
    sources = wheel_matches_source.digests(files)
    differs = wheel_matches_source.differences(sources, installed, pin.brings)
    wrong = wheel_matches_source.unlisted(differs, pin.differs, wheel.filename, job.label)
    if pin.source is None:  # the archive of a commit that is compiled was checked when it was brought
        refuse_any(wheel_matches_source.other_commit(files, source.filename, pin, job.label))
        wrong += wheel_matches_source.not_brought(sources, installed, pin.brings, wheel.filename, job.label)
    refuse_any(wrong)
    return LockedVllm(
        pin.version, pin.commit, source, pin.distribution, differs, arguments.known(files, source.filename)
    )


def _device_code(job: _Job, wheels: Sequence[LockedWheel]) -> tuple[LockedLibrary, ...]:
    """Return the device code in the wheels that the spec names. Raises Refused NV213 and NV214."""
    unchanged = job.unchanged("wheels")
    if unchanged is not None:
        return unchanged.device_code
    required = job.spec.device_code
    if required is None:
        return ()
    by_name = {wheel.name: wheel for wheel in wheels}
    names = sorted(canonicalize_name(name) for name in required.wheels)
    if job.spec.vllm.source is not None and canonicalize_name(job.spec.vllm.distribution) not in by_name:
        names = [name for name in names if name != canonicalize_name(job.spec.vllm.distribution)]  # not compiled yet
    refuse_any(_no_wheel(job, name) for name in names if name not in by_name)
    job.providers.fetch([by_name[name].file for name in names])
    libraries = tuple(
        devicecode.locked(name, library, job.spec.targets)
        for name in names
        for library in job.providers.libraries(by_name[name].file)
        if not by_name[name].omits(library.path)
    )
    refuse_any(devicecode.lacking(libraries, required, job.label))
    return libraries


def _no_wheel(job: _Job, name: str) -> Refusal:
    cure = f"remove {name} from device-code.wheels, or require it in python.requirements"
    return Refusal(
        "NV209", f"{job.label}: .device-code.wheels", f"a wheel of {name} among the resolved ones", "none", cure
    )


def _source(job: _Job) -> LockedFile:
    version = job.spec.vllm.version
    earlier = job.earlier("source")
    if earlier is not None and earlier.vllm.version == version:
        return earlier.vllm.source
    offered = job.providers.sdist(version)
    return LockedFile(offered.filename, offered.sha256, job.providers.size(offered.url), "pypi")


def _commit(job: _Job, wheels: Sequence[LockedWheel]) -> tuple[LockedVllm, tuple[LockedWheel, ...]]:
    """Return vLLM as a commit that has to be compiled, and WHEELS with its compiled wheel, if there is one."""
    pin, earlier = job.spec.vllm, job.earlier("source")
    name = canonicalize_name(pin.distribution)
    others = tuple(wheel for wheel in wheels if wheel.name != name)
    if earlier is not None and earlier.vllm.compiled and earlier.vllm.commit == pin.commit:
        source = earlier.vllm.source
        job.providers.fetch([source])
        ids = gitsource.contents(job.providers.path(source.sha256))
        refuse_any(gitsource.other(ids, pin, source.path, job.label))
    else:
        source = job.providers.commit(pin, job.label)
    wheel = job.providers.compiled or _still_compiled(job, others)
    if wheel is None:
        files = wheel_matches_source.source_files(job.providers.path(source.sha256))
        known = arguments.known(files, source.path)
        return LockedVllm(pin.version, pin.commit, source, pin.distribution, (), known), others
    refuse_any(_other_wheel(wheel, pin, job.label))
    return _matching(job, source, wheel.file), tuple(sorted((*others, wheel), key=lambda wheel: wheel.name))


def _still_compiled(job: _Job, others: Sequence[LockedWheel]) -> LockedWheel | None:
    """Return the previous lock's compiled wheel if it is of the pinned commit, and of the torch among OTHERS."""
    previous, pin = job.previous, job.spec.vllm
    if previous is None or previous.platform != job.platform:
        return None
    if not previous.vllm.compiled or previous.vllm.commit != pin.commit:
        return None
    torch = [wheel for wheel in others if wheel.name == "torch"]
    if torch != [wheel for wheel in previous.wheels if wheel.name == "torch"]:
        return None
    return next((wheel for wheel in previous.wheels if wheel.name == canonicalize_name(pin.distribution)), None)


def _other_wheel(wheel: LockedWheel, pin: VllmPin, label: str) -> Iterator[Refusal]:
    expected = f"{canonicalize_name(pin.distribution)} {pin.version}, by .vllm of {label}"
    actual = f"{wheel.name} {wheel.version}"
    if (wheel.name, wheel.version) != (canonicalize_name(pin.distribution), pin.version):
        cure = "compile the pinned commit, by the target native of: nvllm dockerfile IMAGE --context DIR --patches none"
        yield Refusal("NV208", wheel.file.filename, expected, actual, cure)


def _needless_wheel(job: _Job) -> Iterator[Refusal]:
    if job.providers.compiled is not None and job.spec.vllm.source is None:
        cure = "leave --compiled out, or pin a repository in .vllm.source"
        yield Refusal("NV108", "--compiled", f"no wheel: {job.label} takes that of the index", "a wheel", cure)


def _model(job: _Job, name: str, model: DirectoryModel | HubModel) -> LockedModel:
    earlier = job.earlier("models")
    before = earlier.models.get(name) if earlier is not None else None
    if isinstance(model, HubModel):
        return before if before is not None and _fits(before, model) else job.providers.hub(model)
    if model.recipe is not None:  # a recipe makes the same files on any host, so they need not exist yet
        files = recipes.files(model.recipe)
    elif before is not None and before.kind == "directory" and model.tree in {None, before.tree} and before.files:
        return before
    else:
        files = job.providers.directory_model(job.spec, name)
    tree = modeltree.tree_hash(files)
    if model.tree not in {None, tree}:
        raise Refused([recipes.other_tree(job.label, name, model.tree, tree)])
    return LockedModel("directory", tree, files)


def _fits(before: LockedModel, model: HubModel) -> bool:
    """Return whether BEFORE still fits MODEL."""
    same = before.repo == model.repo and before.follow == model.follow
    return same and model.revision in (None, before.revision)
