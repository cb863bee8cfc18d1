"""What each release of Triton needs to compile kernels ahead. Only this module says what differs between releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nvllm.core.refusal import refuse

_HERE = Path(__file__).parent
_PROGRAM, _HEADER = _HERE / "precompile.py", _HERE / "include/Python.h"

_LIBCUDA = "/usr/lib/{machine}-linux-gnu"
"""Where NVIDIA's container toolkit puts the driver's library in an image of Debian or Ubuntu."""


@dataclass(frozen=True, slots=True)
class TritonRelease:
    """A release of Triton.

    The first of PROGRAMS compiles and launches, the others are what it loads. The first of HEADERS stands for CPython's
    header, the others are what it includes.
    """

    version: str
    programs: tuple[Path, ...]
    headers: tuple[Path, ...]
    linking: str = ""
    """What the key of a C module says of its compiling, for an image of MACHINE with the back end in NVIDIA."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that an image needs so that Triton finds its C modules there, for MACHINE."""


_RELEASES = (
    TritonRelease("3.6", (_PROGRAM,), (_HEADER,)),
    TritonRelease(
        "3.8",
        (_HERE / "precompile38.py", _PROGRAM),
        (_HERE / "include/triton38/Python.h", _HEADER),
        # `_get_cache_manager` in triton/runtime/build.py. By itself, Triton takes the directories that the host's
        # ldconfig prints, which nobody knows when an image is built: the variable names one.
        linking=f"languagec:library_dirs{{nvidia}}/lib:{_LIBCUDA}:include_dirs{{nvidia}}/include:librarieslibcuda.so.1:",
        environment={"TRITON_LIBCUDA_PATH": _LIBCUDA},
    ),
)


def known(version: str) -> TritonRelease | None:
    """Return the release that Triton's VERSION (``3.6.0``) belongs to, None if it is not in the table."""
    return next((release for release in _RELEASES if f"{version}.".startswith(f"{release.version}.")), None)


def of(version: str) -> TritonRelease:
    """Return what `known` does. Raises Refused NV313 for a release that is not in the table."""
    release = known(version)
    if release is None:
        expected = (
            f"a release whose kernels nvllm compiles ahead: {', '.join(release.version for release in _RELEASES)}"
        )
        cure = "enable no patch with a kernel, or add the release to kernels/releases.py (docs/kernels.md)"
        raise refuse("NV313", "triton", expected, version, cure)
    return release


def environment(version: str, machine: str) -> dict[str, str]:
    """Return the variables that an image for MACHINE (``x86_64``) with Triton VERSION needs, none if it is unknown."""
    release = known(version)
    variables = {} if release is None else release.environment
    return {name: text.format(machine=machine) for name, text in variables.items()}
