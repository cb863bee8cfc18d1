"""Build contexts: a directory from which `docker build` builds an image of a lock, with no network.

::

    Dockerfile                the project's, with the values of the image spec filled in
    SHA256SUMS                of everything below; the first RUN verifies it
    environment.json          path and Python version of the environment, the epoch, aliases
    requirements.txt          every locked wheel by sha256, without an index
    wheels/                   those wheels
    patches.tar identity.tar  the files that the patch set changes; the gate, identity file and SBOM
    kernels.tar               the kernels layer, of an image with targets
    native/                   source archive, patched files, the build requirements and their wheels
    nvllm/                    the modules of nvllm that the build runs, standard library only

It holds locked files only, so the same lock gives the same SHA256SUMS on every host.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from nvllm.core import archives, canonical, catalogue, durable, proc, progress, reading, refusal
from nvllm.core.lock import LockedFile, LockedWheel
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, refuse_any
from nvllm.image import assemble
from nvllm.image.identity import Build
from nvllm.layers import bytecompile, patchlayer, tarlayer, wheel
from nvllm.layers.tarlayer import Layer, TarEntry
from nvllm.layers.wheel import Wheel
from nvllm.patches import patching, seriesfile, source
from nvllm.patches.unified import Diff
from nvllm.sources.store import Store

SUMS = "SHA256SUMS"
REQUIREMENTS = "native-build-requirements.txt"
"""The file beside the image specs with the requirements to compile vLLM. An image of another platform, Python or vLLM
has its own, ``<image>-build-requirements.txt``. `tools/lock_native.py` writes them."""

FILLED = "# nvllm dockerfile: environment, label and entry point of the image spec"
"""The line of the Dockerfile that is replaced by the values of the image spec."""

MODULES: Sequence[ModuleType] = (
    archives,
    assemble,
    bytecompile,
    catalogue,
    proc,
    progress,
    reading,
    refusal,
    tarlayer,
    wheel,
)
"""The modules that a build runs: `assemble`, its imports from nvllm, and what their packages import."""

_LOCKED = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})"
    r" # (?P<filename>\S+\.whl) (?P<size>\d+) bytes"
)


@dataclass(frozen=True, slots=True)
class Item:
    """One file of a context: its path, its bytes or a file with them, and their sha256."""

    path: str
    source: Path | bytes
    sha256: str


def text(path: str, data: bytes) -> Item:
    """Return the item with the content DATA at PATH."""
    return Item(path, data, hashlib.sha256(data).hexdigest())


def requirements(wheels: Sequence[LockedWheel]) -> str:
    """Return WHEELS as a requirements file, one line each, for ``pip install --require-hashes`` and `assemble`."""
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.file.sha256}\n" for wheel in wheels)


def build_requirements(images: Path, image: str) -> Path:
    """Return the file in the directory IMAGES with the requirements to compile the vLLM of IMAGE."""
    own = images / f"{image}-build-requirements.txt"
    return own if own.is_file() else images / REQUIREMENTS


def locked_line(wheel: LockedWheel) -> str:
    """Return the line of the build requirements for WHEEL; for pip, the text after ``#`` is a comment."""
    return f"{requirements([wheel]).rstrip()} # {wheel.file.filename} {wheel.file.size} bytes\n"


def native_wheels(content: str, label: str) -> tuple[LockedWheel, ...]:
    """Return the locked wheels in CONTENT, a file of build requirements that messages call LABEL.

    Raises Refused NV101 for each line that `locked_line` would not write.
    """
    wheels: list[LockedWheel] = []
    refusals: list[Refusal] = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        match = _LOCKED.fullmatch(line)
        if match is None:
            expected = "NAME==VERSION --hash=sha256:HEX # FILE.whl SIZE bytes"
            cure = "python tools/lock_native.py"
            refusals.append(Refusal("NV101", f"{label}:{number}", expected, line, cure))
            continue
        file = LockedFile(match["filename"], match["sha256"], int(match["size"]), "pypi")
        wheels.append(LockedWheel(match["name"], match["version"], file))
    refuse_any(refusals)
    return tuple(wheels)


def whole(build: Build) -> bool:
    """Whether a context of BUILD builds an image. If vLLM or a patch has to be compiled, it builds only the wheel."""
    return not (build.uncompiled or any(seriesfile.native(patch) for patch in build.patches))


def dockerfile(content: str, build: Build, label: str) -> str:
    """Return the Dockerfile CONTENT with the values of BUILD filled in.

    Raises Refused NV101 if CONTENT, of the file that messages call LABEL, lacks a line that is to be replaced.
    """
    places = {
        "ARG PYTHON": f"ARG PYTHON={build.lock.base.python}",
        "ARG SOURCE_DATE_EPOCH": f"ARG SOURCE_DATE_EPOCH={build.lock.epoch}",
        "ARG VLLM_VERSION": f"ARG VLLM_VERSION={build.lock.vllm.version}",
        FILLED: "\n".join(
            [
                *(f"ENV {name}={_quoted(value)}" for name, value in sorted(build.environment.items())),
                f"LABEL nvllm.dockerfile={_quoted(build.build_hash)}",
                f"ENTRYPOINT {json.dumps(list(build.spec.runtime.entrypoint))}",
            ]
        ),
    }
    lines = content.splitlines()
    refuse_any(
        Refusal("NV101", label, f"the line {place!r}", "no such line", "restore it from version control")
        for place in places
        if place not in lines
    )
    return "\n".join(places.get(line, line) for line in lines) + "\n"


def _quoted(value: str) -> str:  # `$`: a Dockerfile replaces variables in quotes too
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def items(build: Build, store: Store, native: Sequence[LockedWheel], dockerfile: str) -> list[Item]:
    """Return the files of the context except the tar files of `overlays`. STORE holds every locked file."""
    lock = build.lock
    wheels = [wheel for wheel in lock.wheels if whole(build) or wheel.name != lock.vllm.distribution]
    about: Mapping[str, canonical.Json] = {
        "prefix": build.scheme.prefix,
        "python": build.scheme.python,
        "epoch": lock.epoch,
        "aliases": [list(alias) for alias in lock.aliases] if whole(build) else [],
        "omitted": {wheel.file.sha256: list(wheel.omitted) for wheel in wheels if wheel.omitted},
        "source": f"native/{lock.vllm.source.filename}",
    }
    return [
        text("Dockerfile", dockerfile.encode()),
        text("environment.json", canonical.pretty(about).encode()),
        text("requirements.txt", requirements(wheels).encode()),
        text("native/requirements.txt", requirements(native).encode()),
        _stored(f"native/{lock.vllm.source.filename}", lock.vllm.source, store),
        *(_stored(f"wheels/{wheel.file.filename}", wheel.file, store) for wheel in wheels),
        *(_stored(f"native/wheels/{wheel.file.filename}", wheel.file, store) for wheel in native),
        *(text(path, file.read_bytes()) for path, file in module_files(MODULES).items()),
    ]


def module_files(modules: Iterable[ModuleType]) -> dict[str, Path]:
    """Return the files of MODULES and of their packages, by their path for an import."""
    files: dict[str, Path] = {}
    for module in modules:
        assert module.__file__ is not None
        *packages, name = module.__name__.split(".")
        root = Path(module.__file__).parents[len(packages)]
        paths = ["/".join([*packages[:depth], "__init__.py"]) for depth in range(1, len(packages) + 1)]
        paths.append("/".join([*packages, f"{name}.py"]))
        files.update((path, root / path) for path in paths)
    return files


def _stored(path: str, file: LockedFile, store: Store) -> Item:
    return Item(path, store.path(file.sha256), file.sha256)


def overlays(build: Build, diffs: Sequence[Diff], store: Store) -> dict[str, list[TarEntry]]:
    """Return the entries of the tar files of a context, by name: source and package with DIFFS applied, in order.

    Raises Refused NV301 for a patch that does not apply, NV208 for a wheel that is not of the commit.
    """
    archive = store.path(build.lock.vllm.source.sha256)
    pristine = source.archive(archive, sorted({path for diff in diffs for path in diff.paths}))
    modes = {path: mode for diff in diffs for path, mode in patching.modes(diff).items()}
    entries = {"native/patched.tar": overlay(patching.apply_all(pristine, diffs), modes, "")}
    if whole(build) and diffs:
        with Wheel(store.path(build.lock.vllm_wheel.file.sha256)) as opened:
            changed = patchlayer.patched(archive, diffs, opened)
            record = patchlayer.record(opened.text("RECORD"), changed.files).encode()
            files = {**changed.files, f"{opened.dist_info}/RECORD": record}
        entries["patches.tar"] = overlay(files, changed.modes, f"{build.scheme.site}/")
    return entries


def overlay(files: Mapping[str, bytes | None], modes: Mapping[str, int], below: str) -> list[TarEntry]:
    """Return FILES, each path prefixed with BELOW, as entries; None becomes a whiteout, which removes the file."""
    entries: list[TarEntry] = []
    for path, data in sorted(files.items()):
        if data is None:
            entries.append(patchlayer.whiteout(f"{below}{path}"))
        else:
            entries.append(tarlayer.blob(f"{below}{path}", data, executable=modes.get(path) == 0o755))
    return entries


def tar(path: str, entries: Sequence[TarEntry], epoch: int, scratch: Path, progress: Progress) -> Item:
    """Write ENTRIES as a tar in the directory SCRATCH, and return it as the item PATH."""
    written = tarlayer.write(path, entries, epoch=epoch, path=scratch / path.replace("/", "-"), progress=progress)
    return layer(path, written)


def layer(path: str, written: Layer) -> Item:
    """Return the layer WRITTEN as the item PATH."""
    return Item(path, written.path, written.diff_id.removeprefix("sha256:"))


def sums(context: Iterable[Item]) -> str:
    """Return the text of SHA256SUMS for CONTEXT, for ``sha256sum --check``."""
    return "".join(f"{item.sha256}  {item.path}\n" for item in sorted(context, key=lambda item: item.path))


def write(context: Sequence[Item], directory: Path) -> str:
    """Write CONTEXT at DIRECTORY and return the sha256 of its SHA256SUMS.

    DIRECTORY appears only when it is complete. Locked files are hard links where the file system allows, else
    copies. Raises Refused as `durable.appearing` does.
    """
    listing = text(SUMS, sums(context).encode())
    with durable.appearing(directory, "--context") as partial:
        for item in (*context, listing):
            path = partial / item.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(item.source, bytes):
                path.write_bytes(item.source)
            else:
                durable.link(item.source, path)
    return listing.sha256
