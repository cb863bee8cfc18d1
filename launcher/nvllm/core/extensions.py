"""How vLLM's extensions are compiled for patches of their source: the part of an image spec that says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from nvllm.core.fields import NOT_EMPTY, Positive, Requirement, Rule, Sha256

CMakeTarget = Annotated[str, Rule("^[A-Za-z0-9_]+$", "the name of a CMake target, such as _C")]
SourceVariable = Annotated[
    str, Rule("^[A-Z][A-Z0-9_]*$", "a variable of vLLM's CMake files, such as FETCHCONTENT_SOURCE_DIR_ONEDNN")
]


@dataclass(frozen=True, slots=True)
class SourceArchive:
    """The source of another project, which vLLM's CMake files would fetch by themselves: one file of an index."""

    index: Annotated[str, Rule(choices=("debian", "github", "pypi"))]
    """The index that has it: Debian's archive, a host of git repositories, or the default index of pip."""
    path: Annotated[
        str,
        Rule(
            "^[A-Za-z0-9_][A-Za-z0-9_.+~-]*(/[A-Za-z0-9_][A-Za-z0-9_.+~-]*)*$",
            "a path below the index, such as pool/main/o/onednn/onednn_3.7.2+ds.orig.tar.xz",
        ),
    ]
    """Its path below the mirror or the host (``owner/name/archive/COMMIT.tar.gz``); of ``pypi``, its name."""
    sha256: Sha256
    """Its sha256."""
    size: Positive
    """Its size in bytes."""


@dataclass(frozen=True, slots=True)
class NativeBuild:
    """How vLLM's extensions are compiled when a patch of the set changes ``csrc/``, ``cmake/`` or ``CMakeLists.txt``.

    The compiler is the base's. A set without such patches compiles nothing.
    """

    device: Annotated[str, Rule(choices=("cpu",))]
    """What they are compiled for: ``VLLM_TARGET_DEVICE`` of vLLM's CMake files."""
    targets: Annotated[tuple[CMakeTarget, ...], NOT_EMPTY]
    """The extensions that are compiled, by the names of their CMake targets. The others stay the wheel's."""
    tools: Annotated[tuple[Requirement, ...], NOT_EMPTY]
    """The distributions that bring ``cmake`` and ``ninja``. They are not in the image."""
    sources: Mapping[SourceVariable, SourceArchive] = field(default_factory=dict)
    """Sources of other projects, by the variable that tells vLLM's CMake files where each lies unpacked."""
