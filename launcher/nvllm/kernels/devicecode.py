"""Whether the libraries in wheels have code for the GPUs of an image.

Without it an engine starts, and fails with "no kernel image is available for execution on the device" at the first
launch from that library. The binaries in the wheel show it at lock time.

Which code runs where is NVIDIA's rule (CUDA C++ Programming Guide, sections on binary, PTX and family-specific
compatibility): machine code for X.Y runs on X.Z with Z at least Y; with the suffix ``a`` on X.Y alone; with ``f`` on
the GPUs of its family, which are those of the same X from Y on. PTX is compiled by the driver for anything from its
architecture on, within the same limits if it has a suffix.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from nvllm.core import archives, canonical, durable, reading
from nvllm.core.archives import ArchiveName
from nvllm.core.canonical import Json
from nvllm.core.lock import CodeFor, LockedLibrary
from nvllm.core.refusal import Refusal
from nvllm.core.spec import DeviceCode
from nvllm.kernels import fatbin
from nvllm.kernels.fatbin import Code, Module

FORMAT = "1"
"""Version of the cached results."""

Reach = Literal["cubin", "ptx", "none"]


@dataclass(frozen=True, slots=True)
class Library:
    """A library with device code: its PATH in the wheel, and how often each kind of module is in it."""

    path: str
    modules: Mapping[Module, int]


def runs(code: Code, target: str) -> bool:
    """Return whether CODE runs on the GPUs of TARGET, an architecture such as ``sm_120a`` or ``sm_121``."""
    major, minor, suffix = _split(code.architecture)
    wanted_major, wanted_minor, _ = _split(target)
    if suffix == "a":
        return (major, minor) == (wanted_major, wanted_minor)
    if code.kind == "cubin" or suffix == "f":
        return major == wanted_major and minor <= wanted_minor
    return (major, minor) <= (wanted_major, wanted_minor)


def _split(architecture: str) -> tuple[int, int, str]:
    digits = architecture.removeprefix("sm_").rstrip("af")
    return int(digits[:-1]), int(digits[-1]), architecture[len("sm_") + len(digits) :]


def reach(module: Module, target: str) -> Reach:
    """Return how MODULE runs on TARGET: as machine code, compiled from PTX by the driver, or not at all."""
    kinds = {code.kind for code in module if runs(code, target)}
    return "cubin" if "cubin" in kinds else "ptx" if "ptx" in kinds else "none"


def libraries(wheel: Path, filename: str) -> tuple[Library, ...]:
    """Return the libraries with device code in the file WHEEL, which messages call FILENAME, sorted by path.

    One library at a time is unpacked, into a temporary file. Raises Refused NV212 for one that cannot be read,
    and NV306 if WHEEL is no whole wheel.
    """
    with_code: list[Library] = []
    whole = ArchiveName(filename, "a whole wheel", "nvllm lock --update wheels")
    with archives.zipped(wheel, whole) as archive, tempfile.TemporaryDirectory(prefix="nvllm-code-") as scratch:
        copy = Path(scratch, "library")
        for name in sorted(archive.namelist()):
            if not _is_library(name):
                continue
            with archive.open(name) as packed, copy.open("wb") as out:
                shutil.copyfileobj(packed, out, 2**20)
            modules = Counter(_modules(copy, f"{filename}: {name}"))
            if modules:
                with_code.append(Library(name, modules))
    return tuple(with_code)


def _is_library(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last.endswith(".so") or ".so." in last


def _modules(path: Path, library: str) -> tuple[Module, ...]:
    if not path.stat().st_size:  # which cannot be mapped
        return fatbin.modules(b"", library)
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return fatbin.modules(data, library)


def cached_libraries(wheel: Path, filename: str, sha256: str, cache: Path) -> tuple[Library, ...]:
    """Return `libraries` of WHEEL, which has SHA256, from the cache directory CACHE if they are in it.

    Raises Refused NV920 if the cache cannot be written, and as `libraries` does.
    """
    path = cache / f"{sha256}-{FORMAT}.json"
    try:
        return _decode(cast("Any", canonical.decode(reading.content(path, reading.STATE))))
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # damaged: read the wheel again
        read = libraries(wheel, filename)
    durable.keep(path, canonical.pretty(_encode(read)).encode())
    return read


def _encode(libraries: Sequence[Library]) -> Json:
    return [
        {
            "path": library.path,
            "modules": [
                [count, [[code.kind, code.architecture] for code in module]]
                for module, count in library.modules.items()
            ],
        }
        for library in libraries
    ]


def _decode(
    document: list[dict[str, list[tuple[int, list[tuple[Literal["ptx", "cubin"], str]]]]]],
) -> tuple[Library, ...]:
    return tuple(
        Library(
            str(library["path"]),
            {
                tuple(Code(kind, architecture) for kind, architecture in module): count
                for count, module in library["modules"]
            },
        )
        for library in document
    )


def locked(wheel: str, library: Library, targets: Sequence[str]) -> LockedLibrary:
    """Return the entry of the lock for LIBRARY in WHEEL, for TARGETS."""
    architectures: Counter[str] = Counter()
    for module, count in library.modules.items():
        for code in module:
            architectures[f"{code.kind} {code.architecture}"] += count
    return LockedLibrary(
        wheel, library.path, dict(sorted(architectures.items())), {target: _for(library, target) for target in targets}
    )


def _for(library: Library, target: str) -> CodeFor:
    counted: Counter[Reach] = Counter()
    for module, count in library.modules.items():
        counted[reach(module, target)] += count
    return CodeFor(counted["cubin"], counted["ptx"], counted["none"])


def lacking(libraries: Iterable[LockedLibrary], rules: DeviceCode, spec: str) -> Iterator[Refusal]:
    """Yield NV213 for each library of LIBRARIES and target without code, unless RULES, of the spec SPEC, lists it.

    Also yields NV214 for each listed library that is missing or has code for all targets: a list with needless entries
    would hide the next library that lacks code.
    """
    listed = {library.library for library in rules.lacking}
    without: set[str] = set()
    for library in libraries:
        for target, code in library.targets.items():
            if code.cubin or code.ptx:
                continue
            without.add(library.path)
            if library.path not in listed:
                has = ", ".join(library.architectures)
                cure = (
                    f"use a wheel that has it; if nothing calls this library on {target}, leave it out of the image "
                    f"with python.omit in {spec}, or list it with the reason in .device-code.lacking"
                )
                yield Refusal("NV213", f"{library.wheel}: {library.path}", f"code that runs on {target}", has, cure)
    for name in sorted(listed - without):
        cure = f"remove {name} from device-code.lacking"
        yield Refusal("NV214", f"{spec}: .device-code.lacking", "only libraries that lack code", name, cure)
