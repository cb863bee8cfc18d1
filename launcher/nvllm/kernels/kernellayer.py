"""The kernels layer: every Triton kernel of a patch set, compiled for every target, without a GPU.

Triton makes each cache key from a launch as the engine does it (`kernels/precompile.py`). It runs under the image's own
Python, with the libraries of its base, if that Python runs on this host. Otherwise it runs under the host's Python, and
the parts of a key that depend on the image's own Triton are read from its wheel. The layer holds Triton's cache entries
below `ROOT`, the C modules that Triton would otherwise compile at run time (`stubs.py`), and the cache manager that
reads them (`runtime/triton_cache.py`).
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nvllm import runtime
from nvllm.core import archives, canonical, proc
from nvllm.core.archives import ArchiveName
from nvllm.core.canonical import Json
from nvllm.core.lock import Lock, LockedWheel
from nvllm.core.plan import CACHE
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.kernels import releases, stubs, toolchain
from nvllm.kernels.stubs import Platform
from nvllm.layers import elf, tarlayer
from nvllm.layers.bytecode import Interpreter
from nvllm.layers.tarlayer import TarEntry
from nvllm.sources.store import Store

FORMAT = "1"
"""Version of the rules in this module, beside those of the layers in general. Part of the build hash."""

ROOT = "opt/nvllm/triton"
"""The directory of the layer's cache in the image, relative to its root."""

KEY = "triton.json"
"""The file below `ROOT` with the part of every key that comes from the files of the image's Triton."""

_MANAGER = Path(runtime.__file__).with_name("triton_cache.py")
_MODULE = "nvllm_triton_cache"

ENVIRONMENT: Mapping[str, str] = {
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TRITON_CACHE_MANAGER": f"{_MODULE}:LayeredCache",
    "TRITON_DISABLE_LINE_INFO": "1",
}
"""Triton's settings in an image with kernels. Line information would put paths of the build host into the code; the
setting is part of every key. Kernels that the engine compiles itself go to the engine's cache."""

_TIMEOUT = 600.0
"""Seconds for all kernels of a patch set, for all targets."""
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_LIBRARY = "triton/_C/libtriton.so"
_TOOLS = "triton/backends/nvidia"
_PTXAS = ("ptxas", "ptxas-blackwell")
_REPORTED = "report it with the version of Triton, whose ptxas is of an unknown form"
_RUN = re.compile(r"\.(py|c)$|^triton/_C/libtriton\.so$|nvidia/(bin/ptxas|include/cuda\.h|lib/libdevice)|\.dist-info/")
_ZIG = re.compile(
    r"^ziglang/(zig$|lib/(include|std|compiler_rt|c)/|lib/[a-z_]+\.zig$"
    r"|lib/libc/(glibc/|include/(generic-glibc|any-linux-any|(aarch64|x86|x86_64)-linux-(any|gnu))/))"
)
_KEYED = re.compile(r"^triton/(runtime|compiler|backends|language)/.*\.(py|c|bc)$|nvidia/include/cuda\.h$")
"""Members of wheels: of Triton's those that compile, of Zig's those that compile C for Linux, and those of Triton's of
which its keys have the bytes."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel: NAME for TARGET, in the cache directory KEY, SIZE bytes of code."""

    name: str
    target: str
    key: str
    size: int


def declared(files: Mapping[str, bytes | None]) -> tuple[str, ...]:
    """Return the paths of FILES (path to content) that define a Triton kernel (``@triton.jit``)."""
    return tuple(path for path, data in sorted(files.items()) if path.endswith(".py") and data and _has_kernel(data))


def _has_kernel(data: bytes) -> bool:
    functions = (node for node in ast.walk(ast.parse(data)) if isinstance(node, ast.FunctionDef))
    return any(
        ast.unparse(decorator).split("(")[0] == "triton.jit" for node in functions for decorator in node.decorator_list
    )


def sources(files: Mapping[str, bytes | None]) -> dict[str, bytes]:
    """Return those of FILES, which a patch set changes, that decide the kernels: all in a directory with a kernel."""
    directories = {path.rpartition("/")[0] for path in declared(files)}
    return {path: data for path, data in files.items() if data is not None and path.rpartition("/")[0] in directories}


def rules(lock: Lock) -> dict[str, Json]:
    """Return the versions and hashes of the code that makes the kernels layer of an image of LOCK."""
    release = releases.known(toolchain.triton_version(lock))
    programs = () if release is None else release.programs
    scripts = {path.name: canonical.sha256_file(path) for path in (*programs, _MANAGER)}
    return {"format": FORMAT, "scripts": scripts, "stubs": stubs.rules(release)}


def environment(lock: Lock) -> dict[str, str]:
    """Return Triton's settings in an image of LOCK with kernels."""
    return {**ENVIRONMENT, **releases.environment(toolchain.triton_version(lock), _MACHINES[lock.platform])}


def factors(lock: Lock, sources: KernelSources) -> dict[str, Json]:
    """Return the factors of the kernels layer with SOURCES of an image of LOCK.

    The host's wheel of Triton is no factor: all its files that matter must equal those of the image's wheel.
    """
    return {
        "kernels": rules(lock),
        "targets": list(sources.targets),
        "platform": lock.platform,
        "python": lock.base.python,
        "triton": toolchain.of_image(lock).file.sha256,
        "tools": {wheel.name: wheel.version for wheel in lock.tools},
        "files": {path: hashlib.sha256(data).hexdigest() for path, data in sources.files.items()},
    }


def manager(site: str) -> TarEntry:
    """Return the cache manager, which Triton needs in every image with targets, for packages in SITE."""
    return tarlayer.blob(f"{site}/{_MODULE}.py", _MANAGER.read_bytes())


@dataclass(frozen=True, slots=True)
class KernelSources:
    """The modules to compile: FILES (see `sources`), path to patched content, for TARGETS such as ``sm_120a``."""

    targets: tuple[str, ...]
    files: Mapping[str, bytes]


class KernelCompiler:
    """Compiles kernels with the tools of LOCK, for an image with its packages in SITE; STORE has the wheels.

    INTERPRETER is the image's own Python if that runs Triton here (`toolchain.runs_in_base`); None stands for the
    Python that runs nvllm. A context manager: entering unpacks the tools. It raises Refused NV311 if none of them runs
    on this host, NV312 if Triton's wheel for the host and the image's are not the same compiler, and NV313 if nobody
    knows what its release needs.
    """

    def __init__(self, lock: Lock, site: str, store: Store, interpreter: Interpreter | None = None) -> None:
        self.lock = lock
        self.site = site
        self.store = store
        self.interpreter = interpreter
        self.platform = Platform(_MACHINES[lock.platform], lock.base.python)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> KernelCompiler:
        with self._stack as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nvllm-kernels-")))
            of_host, zig = toolchain.for_host(self.lock)
            of_image = toolchain.of_image(self.lock)
            self.release = releases.of(of_image.version)
            with self._wheel(of_host) as host, self._wheel(of_image) as image:
                refuse_any(_disagreements(host, image, of_image.file.filename))
                self._libraries = [_sha256(host, _LIBRARY), _sha256(image, _LIBRARY)]
                self._library_size = _member(image, _LIBRARY).file_size
                self._ptxas = {"own": _versions(host), "image": _versions(image)}
                _unpack(host, _RUN, self.directory / "triton")
                if self.interpreter is not None:
                    _start_by(self.interpreter.loader(), self.directory / "triton" / _TOOLS / "bin")
            with self._wheel(zig) as archive:
                _unpack(archive, _ZIG, self.directory / "zig")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _wheel(self, wheel: LockedWheel) -> contextlib.AbstractContextManager[zipfile.ZipFile]:
        return archives.zipped(self.store.path(wheel.file.sha256), ArchiveName(wheel.file.filename))

    def scratch(self) -> Path:
        """Return a new directory, removed on exit."""
        return Path(tempfile.mkdtemp(dir=self.directory))

    def run(self, action: Literal["build", "check"], sources: KernelSources, base: Path) -> dict[str, Any]:
        """Let Triton compile the kernels of SOURCES into BASE, or check many launches of them with only BASE as cache.

        Returns the document that `kernels/precompile.py` prints. Raises Refused NV313 if that fails.
        """
        tree = self.scratch()
        for path, data in sources.files.items():
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        job = {
            "action": action,
            "tree": str(tree),
            "paths": list(declared(sources.files)),
            "targets": list(sources.targets),
            "libraries": self._libraries,
            "ptxas": self._ptxas,
            "base": str(base),
            "manager": str(_MANAGER),
        }
        own = base if action == "build" else tree / "overlay"
        environment = {
            "PATH": "/",
            "HOME": str(self.directory),
            "TMPDIR": str(self.directory),
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(self.directory / "triton"),
            "PYTHONHASHSEED": "0",
            "CUDA_VISIBLE_DEVICES": "",
            "TRITON_STORE_BINARY_ONLY": "1",
            "TRITON_DISABLE_LINE_INFO": ENVIRONMENT["TRITON_DISABLE_LINE_INFO"],
            "TRITON_CACHE_DIR": str(own),
        }
        python = [sys.executable]
        if self.interpreter is not None:
            python = self.interpreter.command()
            home, libraries = self.interpreter.tree / "usr", self.interpreter.libraries  # the latter for ptxas
            environment |= {"PYTHONHOME": str(home), "LD_LIBRARY_PATH": libraries}
        # Nothing but the standard library and what PYTHONPATH has: Triton of the locked wheel.
        argv = [*python, "-S", "-s", "-P", "-B", str(self.release.programs[0])]
        cure = "see docs/kernels.md for the launches that a kernel of a series may have"
        try:
            done = proc.run(argv, env=environment, timeout=_TIMEOUT, stdin=json.dumps(job).encode())
        except subprocess.TimeoutExpired as error:
            raise refuse("NV313", "triton", "kernels", f"nothing in {error.timeout:.0f} s", cure) from error
        if done.returncode != 0:
            message = done.stderr.decode("utf-8", "replace").strip()[-600:]
            raise refuse("NV313", "triton", "kernels that compile", message, cure)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        refuse_any(
            Refusal("NV313", problem["where"], problem["expected"], problem["found"], cure)
            for problem in answer["problems"]
        )
        return answer

    def entries(self, sources: KernelSources) -> Iterator[TarEntry]:
        """Yield the entries of the layer for SOURCES. Raises Refused NV313 and NV314 for code that does not compile."""
        yield manager(self.site)
        cache = self.scratch()
        answer = self.run("build", sources, cache)
        known: Json = {"key": answer["key"], "library_size": self._library_size, "ptxas": self._ptxas["image"]}
        yield tarlayer.blob(f"{ROOT}/{KEY}", _json(known))
        for kernel in answer["kernels"]:
            yield from self._kernel(cache / stubs.base32(kernel["hash"]), kernel["name"])
        include = (self.release.headers[0].parent, self.directory / "triton" / _TOOLS / "include")
        compiler = stubs.CCompiler(self.directory / "zig/ziglang/zig", include, self.platform, self.scratch())
        for stub in answer["stubs"]:
            data = compiler.module(stub["name"], stub["source"])
            for key in self.stub_keys(stub["source"]):
                yield tarlayer.blob(f"{ROOT}/{key}/{stub['name']}{self.platform.suffix}", data)

    def stub_keys(self, source: str) -> list[str]:
        """Return the cache directories in which the image's Triton looks for the C module of SOURCE."""
        linking = self.release.linking.format(nvidia=f"/{self.site}/{_TOOLS}", machine=self.platform.machine)
        return stubs.keys(source, self.platform, linking)

    def _kernel(self, directory: Path, name: str) -> Iterator[TarEntry]:
        """Yield the files of one kernel; the paths in its description are changed to those of the image."""
        path_in_image = f"{ROOT}/{directory.name}"
        about = json.loads((directory / f"{name}.json").read_bytes())
        about["extern_libs"] = [
            [library, f"/{self.site}/{Path(path).relative_to(self.directory / 'triton')}"]
            for library, path in about["extern_libs"]
        ]
        children = {f"{name}.cubin": (directory / f"{name}.cubin").read_bytes(), f"{name}.json": _json(about)}
        group = {"child_paths": {child: f"/{path_in_image}/{child}" for child in children}}
        for child, data in {**children, f"__grp__{name}.json": _json(group)}.items():
            yield tarlayer.blob(f"{path_in_image}/{child}", data)


def _json(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _unpack(archive: zipfile.ZipFile, pattern: re.Pattern[str], directory: Path) -> None:
    for info in archive.infolist():
        if not info.is_dir() and pattern.search(info.filename):
            path = Path(archive.extract(info, directory))
            path.chmod(0o755 if info.external_attr >> 16 & 0o100 else 0o644)


def _start_by(loader: Path, directory: Path) -> None:
    """Have each ptxas in DIRECTORY started by LOADER: Triton starts them, each as a program with a path and no more.

    Raises Refused NV312 for one that no loader starts.
    """
    for name in _PTXAS:
        program = directory / name
        try:
            changed = elf.with_loader(program.read_bytes(), str(loader))
        except ValueError as error:
            raise refuse("NV312", name, "a program that is linked to the C library", str(error), _REPORTED) from error
        program.write_bytes(changed)


def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Return the member NAME of ARCHIVE. Raises zipfile.BadZipFile if there is none."""
    try:
        return archive.getinfo(name)
    except KeyError as error:
        raise zipfile.BadZipFile(f"no file {name}") from error


def _sha256(archive: zipfile.ZipFile, name: str) -> str:
    with archive.open(_member(archive, name)) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def _disagreements(host: zipfile.ZipFile, image: zipfile.ZipFile, wheel: str) -> Iterator[Refusal]:
    """Yield NV312 for each file that is part of the keys and differs between the two wheels of Triton."""
    sides = [
        {member.filename: member for member in side.infolist() if _KEYED.search(member.filename)}
        for side in (host, image)
    ]
    for name in sorted(sides[0].keys() | sides[1].keys()):
        digests = [
            _sha256(side, name) if name in names else "no such file"
            for side, names in zip((host, image), sides, strict=True)
        ]
        if digests[0] != digests[1]:
            cure = "lock again, so that both wheels are of one release: nvllm lock IMAGE --update wheels"
            yield Refusal("NV312", f"{wheel}: {name}", f"sha256 {digests[0]}, as in the host's wheel", digests[1], cure)


def _versions(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return the version text of each ptxas in a wheel of Triton, read from its bytes: it may be for another host."""
    programs = {name: archives.member(archive, _member(archive, f"{_TOOLS}/bin/{name}")) for name in _PTXAS}
    return {name: version(program, name) for name, program in programs.items()}


def version(program: bytes, name: str) -> str:
    """Return the output of ``NAME --version``; PROGRAM is the content of that ptxas."""

    def only(pattern: bytes) -> str:
        texts = {match.group().decode() for match in re.finditer(pattern, program)}
        if len(texts) != 1:
            raise refuse("NV312", name, f"one text like {pattern.decode()}", str(sorted(texts)), _REPORTED)
        return texts.pop()

    built = only(rb"[A-Z][a-z]{2}_[A-Z][a-z]{2}_[0-9_]\d_\d\d:\d\d:\d\d(?:_[AP]M)?_P[DS]T_\d{4}")
    lines = [
        f"{name}: NVIDIA (R) Ptx optimizing assembler",
        f"Copyright (c) 2005-{built[-4:]} NVIDIA Corporation",
        f"Built on {built}",
        only(rb"Cuda compilation tools, release \d+\.\d+, V\d+\.\d+\.\d+"),
        only(rb"Build cuda_[\w.]+/compiler\.\w+"),
    ]
    return "".join(f"{line}\n" for line in lines)
