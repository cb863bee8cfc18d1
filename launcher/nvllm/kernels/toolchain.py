"""The programs that compile kernels on the host: which of them a lock names, and which of those this host runs.

Kernels are compiled by Triton, from a wheel of the image's own version for the Python that runs nvllm; and the
modules in C that Triton has compiled at its first launch, by the C compiler of Zig, which is one static program that
knows every platform. Each is locked for every Python and machine that nvllm runs on, and fetched for one.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Sequence

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from nvllm.core.lock import Lock, LockedFile, LockedWheel, Offered
from nvllm.core.refusal import refuse

TRITON, ZIG = "triton", "ziglang"

ZIG_VERSION = "0.17.0"
"""A factor of every kernels layer: `nvllm lock` takes another one to where locks name it."""

_PYTHONS = ("cp311", "cp312", "cp313", "cp314")
_MACHINES = ("x86_64", "aarch64")


def resolve(
    wheels: Sequence[LockedWheel],
    image: str,
    offered: Callable[[str, str], Iterable[Offered]],
    size: Callable[[str], int],
) -> tuple[LockedWheel, ...]:
    """Return the tools for an image of WHEELS, sorted by filename: what OFFERED (name, version) has for any host.

    Raises Refused NV311 if the image has no Triton, or an index no wheel that some host could run.
    """
    triton = next((wheel for wheel in wheels if wheel.name == TRITON), None)
    if triton is None:
        cure = f"add triton to python.requirements of images/{image}.yaml, or take its targets away"
        raise refuse("NV311", f"images/{image}.yaml", "triton among the wheels", "none", cure)
    found: list[LockedWheel] = []
    for name, version in ((TRITON, triton.version), (ZIG, ZIG_VERSION)):
        usable = [one for one in offered(name, version) if _hosts(one.filename)]
        if not usable:
            expected = f"wheels of {name} {version} for Python 3.11 and later on Linux"
            cure = f"configure an index that offers them: pip index versions {name}"
            raise refuse("NV311", f"index: {name}", expected, "none", cure)
        found += [
            LockedWheel(name, version, LockedFile(one.filename, one.sha256, size(one.url), "pypi")) for one in usable
        ]
    return tuple(sorted(found, key=lambda wheel: wheel.file.filename))


def for_host(lock: Lock) -> tuple[LockedWheel, LockedWheel]:
    """Return Triton and Zig of LOCK for the Python and the machine that run this. Raises Refused NV311."""
    python, machine = f"cp{sys.version_info.major}{sys.version_info.minor}", platform.machine()
    found: list[LockedWheel] = []
    for name in (TRITON, ZIG):
        fitting = [wheel for wheel in lock.tools if wheel.name == name and _runs(wheel.file.filename, python, machine)]
        if not fitting:
            known = ", ".join(wheel.file.filename for wheel in lock.tools if wheel.name == name) or "none at all"
            expected = f"a locked wheel of {name} for {python} on {machine}"
            cure = "run nvllm with Python 3.11 to 3.14 on Linux, or lock again: nvllm lock IMAGE --update wheels"
            raise refuse("NV311", f"manifests/: tools of {lock.image}", expected, known, cure)
        found.append(fitting[0])
    return found[0], found[1]


def of_image(lock: Lock) -> LockedWheel:
    """Return the wheel of Triton that is in the image of LOCK."""
    return next(wheel for wheel in lock.wheels if wheel.name == TRITON)


def files(lock: Lock) -> tuple[LockedFile, ...]:
    """Return what has to be fetched to make the kernels of LOCK on this host, besides what the image is made of."""
    return tuple(wheel.file for wheel in for_host(lock)) if lock.tools else ()


def _tags(filename: str) -> frozenset[Tag]:
    try:
        return parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return frozenset()


def _runs(filename: str, python: str, machine: str) -> bool:
    return any(
        tag.platform.startswith("manylinux")
        and tag.platform.endswith(f"_{machine}")
        and ((tag.interpreter, tag.abi) in {(python, python), ("py3", "none")})
        for tag in _tags(filename)
    )


def _hosts(filename: str) -> bool:
    return any(_runs(filename, python, machine) for python in _PYTHONS for machine in _MACHINES)
