"""vLLM's extensions, compiled from the pinned source with the native patches of a set.

A container with the image's own base and wheels compiles the CMake targets that the spec names, with locked tools and
no network. Where it happens has a directory of its own on the host, mounted at one path, so that no path of the host is
in the result::

    vllm/                     the source of the extensions, as the last set has it
    sources/<variable>/       the sources of other projects
    objects/                  what CMake and ninja keep
    out/                      the extensions, as CMake installs them
    scratch/                  temporary files of the compiler
    log                       what CMake, compiler and linker wrote

A file whose content stays keeps its time: ninja then compiles only the objects that a changed file reaches.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import canonical, reading
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedNative
from nvllm.core.refusal import Refused, refuse
from nvllm.engine.container import Container
from nvllm.engine.engine import Engine
from nvllm.host.facts import INSTANCE_LABEL
from nvllm.layers.wheel import Scheme, Wheel
from nvllm.patches import seriesfile, source
from nvllm.sources.store import Store

FORMAT = "1"
"""Version of the rules by which extensions are compiled. Part of the build hash."""

INSIDE = "/native"
"""Where the container has the directory."""

LOG = "log"

TIMEOUT = 12 * 3600.0

_SHARED_MEMORY = 1 << 26
_PROCESSES = 4096
_SHOWN = 600
"""How many characters of the log's end a refusal shows."""

# vLLM's own build optimizes with -O2 and adds 300 MB of debugging information. After the first configuration ninja runs
# CMake when one of its files changed; doing it each time would write a generated header anew.
_SCRIPT = f"""
exec > {INSIDE}/{LOG} 2>&1
set -ex
cd {INSIDE}
test -f objects/build.ninja || cmake -G Ninja -S vllm -B objects -DCMAKE_BUILD_TYPE=RelWithDebInfo \\
    '-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG' "-DVLLM_PYTHON_EXECUTABLE=$PYTHON" \\
    "-DVLLM_TARGET_DEVICE=$VLLM_TARGET_DEVICE"
ninja -C objects -j "$JOBS" "$@"
for target; do cmake --install objects --component "$target" --prefix partial; done
mv partial out
"""


@dataclass(frozen=True, slots=True)
class Compiler:
    """An ENGINE and the id of its image with base, wheels and tools, which the environment of SCHEME has."""

    engine: Engine
    image_id: str
    scheme: Scheme


def factors(locked: LockedNative) -> dict[str, Json]:
    """Return the factors of every extension that LOCKED compiles, beside base, wheels and source."""
    return {
        "format": FORMAT,
        "device": locked.device,
        "tools": {f"{tool.name}=={tool.version}": tool.file.sha256 for tool in locked.tools},
        "sources": {name: file.sha256 for name, file in sorted(locked.sources.items())},
    }


def prepare(
    directory: Path, archive: Path, changed: Mapping[str, bytes | None], locked: LockedNative, store: Store
) -> None:
    """Make DIRECTORY ready to compile: the source of ARCHIVE with the CHANGED files, and the sources of LOCKED."""
    for name, file in locked.sources.items():
        unpacked = directory / "sources" / name
        if not unpacked.is_dir():
            partial = directory / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            _lay(source.texts(store.path(file.sha256), ("",)), partial)
            unpacked.parent.mkdir(exist_ok=True)
            partial.rename(unpacked)
    whole: Mapping[str, bytes | None] = {**source.texts(archive, ("",)), **changed}
    files = {path: data for path, data in whole.items() if path.startswith(seriesfile.EXTENSIONS) and data is not None}
    listing, tree = directory / "files", directory / "vllm"
    before = reading.content(listing, reading.STATE).decode().splitlines() if listing.exists() else []
    # Before the files, so that a build that was ended leaves none that is not listed.
    listing.write_text("".join(f"{path}\n" for path in sorted({*before, *files})))
    for path in sorted({*before} - files.keys()):
        (tree / path).unlink(missing_ok=True)
    _lay(files, tree)


def _lay(files: Mapping[str, bytes], tree: Path) -> None:
    """Write FILES below TREE, but for those that are there with the same content: they keep their time."""
    for path, data in files.items():
        file = tree / path
        if not file.is_file() or reading.content(file, reading.SOURCE) != data:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


def compiled(directory: Path, targets: Sequence[str], locked: LockedNative, compiler: Compiler) -> dict[str, Path]:
    """Compile TARGETS in the prepared DIRECTORY; return the extensions, by their paths below site-packages.

    Raises Refused NV318 if CMake, the compiler or the linker fails, and as `Containers.run_to_end` does.
    """
    out, log = directory / "out", directory / LOG
    for left in (out, directory / "partial"):
        shutil.rmtree(left, ignore_errors=True)
    (directory / "scratch").mkdir(exist_ok=True)
    name = f"nvllm-native-{canonical.digest('nvllm.native/1', str(directory))[:12]}"
    container = Container(
        name=name,
        command=("/bin/sh", "-c", _SCRIPT, "sh", *targets),
        environment={
            "PATH": f"/{compiler.scheme.prefix}/bin:/usr/bin:/bin",
            "PYTHON": compiler.scheme.interpreter,
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
            "TMPDIR": f"{INSIDE}/scratch",
            "SOURCE_DATE_EPOCH": "0",
            "JOBS": str(len(os.sched_getaffinity(0))),
            "VLLM_TARGET_DEVICE": locked.device,
            **{variable: f"{INSIDE}/sources/{variable}" for variable in locked.sources},
        },
        labels={INSTANCE_LABEL: name},
        user=f"{os.getuid()}:{os.getgid()}",
        memory=0,  # no limit: what a compiler needs is not known
        shared_memory=_SHARED_MEMORY,
        pids=_PROCESSES,
        ulimits={},
        addresses=(),
        port=0,
        mounts=(),
        scratch=(),
        gpus=(),
        read_only=True,
        filtered=True,
        host_ipc=False,
        host_network=False,
    )
    output = compiler.engine.run_to_end(compiler.image_id, container, TIMEOUT, {INSIDE: str(directory)})
    if not out.is_dir():
        raise _failed(log, output)
    return {str(path.relative_to(out)): path for path in sorted(out.rglob("*")) if path.is_file()}


def require_known(made: Collection[str], wheel: Wheel) -> None:
    """Raise Refused NV318 if one of MADE is not in WHEEL: the engine would then load the wheel's own extension."""
    lacking = sorted(set(made) - set(wheel.zip.namelist()))
    if lacking:
        cure = "name targets in .vllm.native.targets of the spec whose files the wheel has"
        raise refuse("NV318", ".vllm.native.targets", f"files of {wheel.filename}", ", ".join(lacking), cure)


def _failed(log: Path, output: str) -> Refused:
    lines = reading.content(log, reading.LOG).decode("utf-8", "replace").splitlines() if log.exists() else [output]
    cure = shlex.join(["less", str(log)])
    errors = [line for line in lines if "error" in line.lower()] or lines
    return refuse("NV318", str(log), "extensions that compile and link", "\n".join(errors)[-_SHOWN:], cure)
