"""The identity of an image: the factors that decide its bytes, the build hash over them, and the identity file.

The build hash is known before anything is built, so an image that exists is not built again. The identity file,
inside the image, lists the factors: `nvllm explain` compares them, and the gate compares the file with what the
launcher expects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nvllm import runtime
from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.lock import Lock, LockedDebianBase, LockedNative
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, refuse_any
from nvllm.core.spec import ImageSpec
from nvllm.image import native
from nvllm.kernels import kernellayer
from nvllm.layers import bytecode, patchlayer, rootfs, tarlayer, wheel
from nvllm.lock import arguments, lockdoc
from nvllm.lock.project import read_lock
from nvllm.patches import patchset, seriesfile
from nvllm.patches.series import Patch, Series
from nvllm.patches.unified import Diff
from nvllm.spec import specfile

DOMAIN = "nvllm.build/1"
FORMAT = "1"
"""Version of the identity file, of the bill of materials, and of the image's configuration."""

IDENTITY_PATH = "opt/nvllm/identity.json"
"""Where the identity file lies in the image, relative to its root."""

GATE_PATH = "opt/nvllm/gate.py"
SEED_PATH = "opt/nvllm/seed.py"
"""Where an image has the program that fills the writable copies of a blessed cache."""
_INTERPRETER = ("libc6", "libpython3.{}-minimal", "libpython3.{}-stdlib", "python3.{}-minimal")


@dataclass(frozen=True, slots=True)
class Build:
    """What an image is built from: everything that decides its bytes."""

    spec: ImageSpec
    lock: Lock
    patches: tuple[Patch, ...]
    development: str = ""
    """The digest of what a development tree changes; only `nvllm dev` sets it, and no spec, lock or series can."""

    @property
    def factors(self) -> Mapping[str, Json]:
        """The factors of the build hash, as JSON. Nothing else may influence the image."""
        return {
            "image": self.spec.name,
            "platform": self.lock.platform,
            # An image for the CPU has no such factors: a key is here only for images that have it, since a key more
            # would change the build hash of every image that was recorded before.
            **({"targets": list(self.spec.targets), "kernels": kernel_factors(self.lock)} if self.spec.targets else {}),
            "epoch": self.lock.epoch,
            "rules": {**rules(), "patches": patchlayer.FORMAT, "image": FORMAT},
            "base": base_factors(self.lock),
            "vllm": {"commit": self.lock.vllm.commit, "source": self.lock.vllm.source.sha256},
            "wheels": wheel_factors(self.lock),
            "aliases": {name: [version, of] for name, version, of in self.lock.aliases},
            "patches": patch_factors(self.patches),
            **({} if self.native is None else {"native": self.native_factors(self.native)}),
            "runtime": {place: canonical.sha256_file(path) for place, path in runtime_paths().items()},
            "entrypoint": list(self.spec.runtime.entrypoint),
            "environment": dict(self.environment),
            **({"development": self.development} if self.development else {}),
        }

    @property
    def build_hash(self) -> str:
        """The build hash: hex sha256 of the canonical form of the factors."""
        return canonical.digest(DOMAIN, self.factors)

    @property
    def uncompiled(self) -> bool:
        """Whether the lock has no wheel of vLLM, because it is not compiled yet."""
        return self.lock.vllm.distribution not in {wheel.name for wheel in self.lock.wheels}

    @property
    def native(self) -> LockedNative | None:
        """What compiles vLLM's extensions for the patch set; None if no patch changes their source."""
        return self.lock.vllm.native if any(map(seriesfile.extends, self.patches)) else None

    def native_factors(self, locked: LockedNative) -> dict[str, Json]:
        """Return the factors of the extensions that LOCKED compiles, beside base, wheels, source and patches."""
        assert self.spec.vllm.native is not None
        return {**native.factors(locked), "targets": list(self.spec.vllm.native.targets)}

    @property
    def scheme(self) -> wheel.Scheme:
        return scheme(self.lock.base.python)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables of the image: PATH, then those of the spec."""
        return environment(self.spec, self.lock)

    @property
    def tags(self) -> tuple[str, str]:
        """The image's two tags: one for this build hash, one for the latest build. An image of `dev` has no build's."""
        if self.development:
            name = f"nvllm-dev:{self.spec.name}"
            return f"{name}-{self.development[:12]}", name
        return tag(self.spec.name, self.build_hash), f"nvllm:{self.spec.name}"

    def diffs(self, project: Project) -> tuple[Diff, ...]:
        """Return the diffs of the patch set of PROJECT, in order. Raises Refused as `seriesfile.diffs` does."""
        by_id = seriesfile.diffs_of(project, self.spec.patches.series, self.patches)
        return tuple(by_id[patch.id] for patch in self.patches)


def tag(image: str, build_hash: str) -> str:
    """Return the tag of IMAGE as built with BUILD_HASH."""
    return f"nvllm:{image}-{build_hash[:12]}"


def load_build(project: Project, image: str, enable: Sequence[str] | None) -> tuple[Build, list[Refusal]]:
    """Return the build of IMAGE with the patches ENABLE (None: those of the spec), and why its lock is stale.

    Raises Refused if a file cannot be read, ENABLE is not a patch set, or the spec is for another platform.
    """
    spec = specfile.of(project, image)
    refuse_any(specfile.other_platform(spec, project.platform))
    series = seriesfile.of(project, spec.patches.series)
    return from_lock(project, spec, series, read_lock(project, image), enable)


def from_lock(
    project: Project, spec: ImageSpec, series: Series, lock: Lock, enable: Sequence[str] | None
) -> tuple[Build, list[Refusal]]:
    """Return what `load_build` does, from what it reads. Raises Refused if ENABLE is not a patch set of SERIES."""
    image = spec.name
    stale = lockdoc.fresh(lock, specfile.inputs(spec, project.platform), series)
    where = f"{project.show(project.spec(image))}: .patches.enable" if enable is None else "--patches"
    patches = patchset.choose(series, spec.patches.enable if enable is None else enable, where=where)
    label = project.show(project.series(spec.patches.series))
    stale.extend(seriesfile.other_commit(series, spec.vllm.commit, label))
    stale.extend(seriesfile.touching(replace(series, patches=patches), spec.vllm.differs, label))
    stale.extend(arguments.unknown(spec, lock.vllm.arguments, project.show(project.spec(image))))
    return Build(spec, lock, patches), stale


def scheme(python: str) -> wheel.Scheme:
    """Return the paths of the Python environment in an image with the Python version PYTHON (``3.11``)."""
    return wheel.Scheme("opt/venv", python)


def environment(spec: ImageSpec, lock: Lock | None) -> Mapping[str, str]:
    """Return the environment variables of an image of SPEC: PATH, then those of the spec.

    Without a LOCK, nobody knows those that only some releases of Triton need.
    """
    triton = kernellayer.ENVIRONMENT if lock is None else kernellayer.environment(lock)
    return {
        "PATH": f"/{scheme(spec.base.python).prefix}/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        **(triton if spec.targets else {}),
        **spec.runtime.environment,
    }


def rules() -> dict[str, Json]:
    """Return the format versions of the code that makes layers."""
    return {
        "layer": tarlayer.FORMAT,
        "rootfs": rootfs.FORMAT,
        "wheel": wheel.FORMAT,
        "bytecode": bytecode.script_hash(),
    }


def base_factors(lock: Lock) -> Json:
    """Return the factors of the base layer."""
    if isinstance(lock.base, LockedDebianBase):
        return {
            "suite": lock.base.suite,
            "python": lock.base.python,
            "packages": {f"{p.name}:{p.architecture}": p.file.sha256 for p in lock.base.packages},
        }
    return {"image": lock.base.image, "python": lock.base.python, "interpreter": lock.base.interpreter}


def interpreter_factors(lock: Lock) -> Json:
    """Return the factors of bytecode: the packages of the interpreter. A registry base writes no bytecode."""
    if not isinstance(lock.base, LockedDebianBase):
        return {"path": lock.base.interpreter}
    minor = lock.base.python.partition(".")[2]
    names = {name.format(minor) for name in _INTERPRETER}
    return {package.name: package.file.sha256 for package in lock.base.packages if package.name in names}


def wheel_factors(lock: Lock) -> dict[str, Json]:
    """Return the wheels by name and version: the sha256, and behind it what is left out of the wheel."""
    return {f"{w.name}=={w.version}": [w.file.sha256, *w.omitted] if w.omitted else w.file.sha256 for w in lock.wheels}


def kernel_factors(lock: Lock) -> Json:
    """Return the factors of the kernels layer that are not among the other factors."""
    return {"rules": kernellayer.rules(lock), "tools": {wheel.name: wheel.version for wheel in lock.tools}}


def patch_factors(patches: Sequence[Patch]) -> list[Json]:
    """Return the factors of the patch set: ids and hashes, in the order in which the patches are applied."""
    return [{"id": patch.id, "sha256": patch.sha256} for patch in patches]


def runtime_paths() -> dict[str, Path]:
    """Return nvllm's own files that enter every image: path in the image to path on this host."""
    directory = Path(runtime.__file__).parent
    return {GATE_PATH: directory / "gate.py", SEED_PATH: directory / "seed.py"}


def identity(build: Build, diff_ids: Sequence[str]) -> dict[str, Json]:
    """Return the identity file of BUILD. DIFF_IDS are the layers that nvllm made, except the identity layer.

    The layers of a registry base are left out: the factors hold the digest of the base, which covers them.
    """
    return {
        "schema": "nvllm.identity/1",
        "image": build.spec.name,
        "build_hash": build.build_hash,
        "factors": build.factors,
        "layers": list(diff_ids),
    }
