"""What an image is: the factors that decide its bytes, the build hash over them, and the file that says so.

The build hash is known before anything is built, so an image that is already there is not built again. The
identity file, inside the image, carries the factors themselves: `nvllm explain` compares them, and the gate
compares its own copy with what the launcher expects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm import bytecode, canonical, kernels, patchlayer, rootfs, tarlayer, wheel
from nvllm.canonical import Json
from nvllm.lock import Lock, LockedDebianBase
from nvllm.series import Patch
from nvllm.spec import ImageSpec

DOMAIN = "nvllm.build/1"
FORMAT = "1"
"""Version of the identity file, of the bill of materials, and of the image's configuration."""

IDENTITY_PATH = "opt/nvllm/identity.json"
"""Where the identity file lies in the image, relative to its root."""

GATE_PATH = "opt/nvllm/gate.py"
_RUNTIME = {GATE_PATH: "gate.py"}
"""Our own files in the image: where they lie, and their name below ``runtime/``."""

_INTERPRETER = ("libc6", "libpython3.{}-minimal", "libpython3.{}-stdlib", "python3.{}-minimal")


@dataclass(frozen=True, slots=True)
class Build:
    """One image about to exist: everything that decides its bytes."""

    spec: ImageSpec
    lock: Lock
    patches: tuple[Patch, ...]

    @property
    def factors(self) -> Mapping[str, Json]:
        """Return the factors of the build hash, as JSON. What is not in here must not reach the image."""
        return {
            "image": self.spec.name,
            "platform": self.lock.platform,
            # An image for the CPU has no such factors.
            **({"targets": list(self.spec.targets), "kernels": kernel_factors(self.lock)} if self.spec.targets else {}),
            "epoch": self.lock.epoch,
            "rules": {**rules(), "patches": patchlayer.FORMAT, "image": FORMAT},
            "base": base_factors(self.lock),
            "vllm": {"commit": self.lock.vllm.commit, "source": self.lock.vllm.source.sha256},
            "wheels": wheel_factors(self.lock),
            "aliases": {name: [version, of] for name, version, of in self.lock.aliases},
            "patches": patch_factors(self.patches),
            "runtime": runtime_files(),
            "entrypoint": list(self.spec.runtime.entrypoint),
            "environment": dict(self.environment),
        }

    @property
    def build_hash(self) -> str:
        """Return the build hash: hex sha256 of the canonical form of the factors."""
        return canonical.digest(DOMAIN, self.factors)

    @property
    def uncompiled(self) -> bool:
        """Whether the lock has no wheel of vLLM yet, because nobody has compiled it."""
        return self.lock.vllm.distribution not in {wheel.name for wheel in self.lock.wheels}

    @property
    def scheme(self) -> wheel.Scheme:
        return scheme(self.lock.base.python)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the image's environment: the search path, then what the spec says."""
        return environment(self.spec)

    @property
    def tags(self) -> tuple[str, str]:
        """Return the image's two names: one for this build hash, one for the newest build."""
        return f"nvllm:{self.spec.name}-{self.build_hash[:12]}", f"nvllm:{self.spec.name}"


def scheme(python: str) -> wheel.Scheme:
    """Return where an image has its Python packages, for its interpreter's minor version PYTHON."""
    return wheel.Scheme("opt/venv", python)


def environment(spec: ImageSpec) -> Mapping[str, str]:
    """Return the environment of an image of SPEC: the search path, then what the spec says."""
    return {
        "PATH": f"/{scheme(spec.base.python).prefix}/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        **(kernels.ENVIRONMENT if spec.targets else {}),
        **spec.runtime.environment,
    }


def rules() -> dict[str, Json]:
    """Return the versions of the rules by which every layer is made."""
    return {
        "layer": tarlayer.FORMAT,
        "rootfs": rootfs.FORMAT,
        "wheel": wheel.FORMAT,
        "bytecode": bytecode.script_hash(),
    }


def base_factors(lock: Lock) -> Json:
    """Return what decides the base layer."""
    if isinstance(lock.base, LockedDebianBase):
        return {
            "suite": lock.base.suite,
            "python": lock.base.python,
            "packages": {f"{p.name}:{p.architecture}": p.file.sha256 for p in lock.base.packages},
        }
    return {"image": lock.base.image, "python": lock.base.python, "interpreter": lock.base.interpreter}


def interpreter_factors(lock: Lock) -> Json:
    """Return what decides the bytecode that the image's interpreter writes: of a registry's image, none."""
    if not isinstance(lock.base, LockedDebianBase):
        return {"path": lock.base.interpreter}
    minor = lock.base.python.partition(".")[2]
    names = {name.format(minor) for name in _INTERPRETER}
    return {package.name: package.file.sha256 for package in lock.base.packages if package.name in names}


def wheel_factors(lock: Lock) -> dict[str, Json]:
    return {f"{w.name}=={w.version}": w.file.sha256 for w in lock.wheels}


def kernel_factors(lock: Lock) -> Json:
    """Return what decides the kernels layer besides what other factors say."""
    return {"rules": kernels.rules(), "tools": {wheel.name: wheel.version for wheel in lock.tools}}


def patch_factors(patches: Sequence[Patch]) -> list[Json]:
    """Return the patch set as the hash sees it: ids and hashes, in the order in which they are applied."""
    return [{"id": patch.id, "sha256": patch.sha256} for patch in patches]


def runtime_files() -> dict[str, Json]:
    """Return the hashes of our own files that enter the image, by where they lie."""
    return {place: canonical.sha256_file(path) for place, path in runtime_paths().items()}


def runtime_paths() -> dict[str, Path]:
    """Return our own files that enter the image: place in the image to path here."""
    directory = Path(bytecode.__file__).parent / "runtime"
    return {place: directory / name for place, name in _RUNTIME.items()}


def identity(build: Build, diff_ids: Sequence[str]) -> dict[str, Json]:
    """Return the identity file of BUILD, of whose layers those that nvllm made are DIFF_IDS, but for its own.

    The layers of a registry's base are not there: the base stands in the factors by its digest, which covers them.
    """
    return {
        "schema": "nvllm.identity/1",
        "image": build.spec.name,
        "build_hash": build.build_hash,
        "factors": build.factors,
        "layers": list(diff_ids),
    }
