"""The compilers of kernels: which wheels a lock names, and which of them run on this host.

Triton compiles the kernels. Where the image's own Python runs on this host, it is the image's Triton; otherwise, and on
a registry base, it is a wheel of the same version for the Python that runs nvllm. Zig, a static program that targets
every platform, compiles Triton's C modules. Both are locked for every Python and machine that nvllm supports; only the
wheels for this host are fetched.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Sequence

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from nvllm.core.lock import Lock, LockedDebianBase, LockedFile, LockedWheel, Offered
from nvllm.core.refusal import refuse

TRITON, ZIG = "triton", "ziglang"

ZIG_VERSION = "0.17.0"
"""A factor of every kernels layer; a new version is used only after `nvllm lock`."""

_PYTHONS = ("cp311", "cp312", "cp313", "cp314")
_MACHINES = ("x86_64", "aarch64")


def resolve(
    wheels: Sequence[LockedWheel],
    image: str,
    offered: Callable[[str, str], Iterable[Offered]],
    size: Callable[[str], int],
) -> tuple[LockedWheel, ...]:
    """Return the tools for an image of WHEELS, sorted by filename: the wheels for any host in OFFERED (name, version).

    Raises Refused NV311 if the image has no Triton, or if no index has a wheel for any host.
    """
    triton = next((wheel for wheel in wheels if wheel.name == TRITON), None)
    if triton is None:
        cure = f"add triton to python.requirements of images/{image}.yaml, or remove its targets"
        raise refuse("NV311", f"images/{image}.yaml", "triton among the wheels", "none", cure)
    tools: list[LockedWheel] = []
    for name, version in ((TRITON, triton.version), (ZIG, ZIG_VERSION)):
        hosts = [(python, machine) for python in _PYTHONS for machine in _MACHINES]
        usable = [file for file in offered(name, version) if any(_fits(file.filename, *host) for host in hosts)]
        if not usable:
            expected = f"wheels of {name} {version} for Python 3.11 and later on Linux"
            cure = f"configure an index that offers them: pip index versions {name}"
            raise refuse("NV311", f"index: {name}", expected, "none", cure)
        tools += [
            LockedWheel(name, version, LockedFile(file.filename, file.sha256, size(file.url), "pypi"))
            for file in usable
        ]
    return tuple(sorted(tools, key=lambda wheel: wheel.file.filename))


def runs_in_base(lock: Lock) -> bool:
    """Return whether the image's own Python runs its Triton on this host, so that nothing of the host is used."""
    base = lock.base
    return isinstance(base, LockedDebianBase) and _runs(of_image(lock).file.filename, _tag(base.python))


def for_host(lock: Lock) -> tuple[LockedWheel, LockedWheel]:
    """Return the wheels of Triton and Zig of LOCK that run on this host. Raises Refused NV311 if there is none."""
    if runs_in_base(lock):
        return of_image(lock), _tool(lock, ZIG)
    return _tool(lock, TRITON), _tool(lock, ZIG)


def _tool(lock: Lock, name: str) -> LockedWheel:
    python = _tag(f"{sys.version_info.major}.{sys.version_info.minor}")
    fitting = [wheel for wheel in lock.tools if wheel.name == name and _runs(wheel.file.filename, python)]
    if not fitting:
        known = ", ".join(wheel.file.filename for wheel in lock.tools if wheel.name == name) or "none at all"
        expected = f"a locked wheel of {name} for {python} on {platform.machine()}"
        cure = f"nvllm lock {lock.image} --update wheels"
        raise refuse("NV311", f"manifests/: tools of {lock.image}", expected, known, cure)
    return fitting[0]


def of_image(lock: Lock) -> LockedWheel:
    """Return the wheel of Triton that is in the image of LOCK."""
    return next(wheel for wheel in lock.wheels if wheel.name == TRITON)


def triton_version(lock: Lock) -> str:
    """Return the version of Triton in the image of LOCK, empty if it has none."""
    return next((wheel.version for wheel in lock.wheels if wheel.name == TRITON), "")


def files(lock: Lock) -> tuple[LockedFile, ...]:
    """Return the files, besides those of the image, that compiling the kernels of LOCK on this host needs."""
    if not lock.tools:
        return ()
    of_the_image = {wheel.file for wheel in lock.wheels}
    return tuple(wheel.file for wheel in for_host(lock) if wheel.file not in of_the_image)


def inputs(lock: Lock) -> tuple[LockedFile, ...]:
    """Return every file that compiling the kernels of LOCK on this host needs, but for the modules with the kernels."""
    return (*(lock.base_files if runs_in_base(lock) else ()), of_image(lock).file, *files(lock))


def _tag(python: str) -> str:
    return f"cp{python.replace('.', '')}"


def _runs(filename: str, python: str) -> bool:
    return _fits(filename, python, platform.machine())


def _fits(filename: str, python: str, machine: str) -> bool:
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return False
    return any(
        tag.platform.startswith("manylinux")
        and tag.platform.endswith(f"_{machine}")
        and ((tag.interpreter, tag.abi) in {(python, python), ("py3", "none")})
        for tag in tags
    )
