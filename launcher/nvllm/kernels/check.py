"""Checking a kernels layer: it holds the code of every launch that an engine makes, for each target, and nothing else.

Triton itself launches the kernels from the layer, through the layer's cache manager, with compiling forbidden. Besides,
the target of each cubin is read, and each file is searched for paths of the build host.
"""

from __future__ import annotations

import json
import os
import re
import struct
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm.core.refusal import Refusal, refuse_any
from nvllm.kernels import kernellayer, stubs
from nvllm.kernels.kernellayer import Kernel, KernelCompiler, KernelSources
from nvllm.kernels.stubs import Platform
from nvllm.layers import elf

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_CUDA = 190  # e_machine, EM_CUDA
_VERSION, _MACHINE, _FLAGS = 8, 18, 48  # offsets: ABI version (1 byte), e_machine (2 bytes), e_flags (4 bytes)

_TOLD = re.compile(rb"[ \0]-arch (sm_\d+[a-z]?) ")

_CURE = "remove the layer cache and build again; report it if the refusal returns"


@dataclass(frozen=True, slots=True)
class LaunchProof:
    """The result of a check: LAUNCHES launches of KERNELS, and the STUBS (cache directory and file name) they need."""

    kernels: tuple[Kernel, ...]
    stubs: tuple[str, ...]
    launches: int


def content(layer: Path) -> dict[str, bytes]:
    """Return the files of the kernels LAYER, a tar, by their path below `layer.ROOT`."""
    files = {}
    with tarfile.open(layer) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is not None and member.name.startswith(f"{kernellayer.ROOT}/"):
                files[member.name.removeprefix(f"{kernellayer.ROOT}/")] = stream.read()
    return files


def listed(files: Mapping[str, bytes]) -> tuple[Kernel, ...]:
    """Return the kernels among FILES (see `content`), by name and then by target."""
    compiled = []
    for path, data in files.items():
        directory, _, name = path.rpartition("/")
        if name.endswith(".cubin"):
            compiled.append(Kernel(name.removesuffix(".cubin"), cubin_target(data) or "nothing", directory, len(data)))
    return tuple(sorted(compiled, key=lambda kernel: (kernel.name, kernel.target)))


def cubin_target(data: bytes) -> str | None:
    """Return the architecture of the cubin DATA as ptxas is told it, such as ``sm_120a``; None if it is no cubin.

    Code for a family of architectures (``f``) has the same header as plain code, and is returned as plain. NVIDIA does
    not document the fields of the header. They were read off what ptxas 12.8 and 12.9 write for sm_90, sm_100, sm_120
    and sm_121, each plain, with the suffix ``a`` and, where there is one, ``f``. What ptxas 13.3 writes has no flag for
    the suffix; its note, which the earlier ones write too, has the words that it was started with.
    """
    if len(data) < 64 or not data.startswith(_MAGIC) or struct.unpack_from("<H", data, _MACHINE)[0] != _CUDA:
        return None
    (flags,) = struct.unpack_from("<I", data, _FLAGS)
    if data[_VERSION] >= 8:  # from CUDA 12.8 on, for capability 10.0 and above
        number, specific = flags >> 8 & 0xFF, flags & 0x8
    else:
        number, specific = flags & 0xFF, flags & 0x800
    note = _TOLD.search(data)
    specific = specific or (note is not None and note[1].decode() == f"sm_{number}a")
    return f"sm_{number}{'a' if specific else ''}"


def check(files: Mapping[str, bytes], sources: KernelSources, compiler: KernelCompiler) -> LaunchProof:
    """Check that the layer with FILES (see `content`) is complete for SOURCES, with the entered COMPILER.

    Raises Refused: NV313 for a launch that would compile, NV315 for code that is wrong, missing or never launched.
    """
    base = compiler.scratch()
    for path, data in files.items():
        target = base / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    answer = compiler.run("check", sources, base)
    compiled = listed(files)
    needed = {(stub["name"], key): stub for stub in answer["stubs"] for key in compiler.stub_keys(stub["source"])}
    refuse_any(
        [
            *_wrong_kernels(answer["kernels"], compiled),
            *_wrong_stubs(needed, files, compiler.platform),
            *_not_needed(answer["kernels"], needed, files),
            *_wrong_key(answer["key"], files),
            *_paths(files, [str(compiler.directory), os.path.expanduser("~")]),
        ]
    )
    names = sorted(path for path in files if path.endswith(compiler.platform.suffix))
    return LaunchProof(compiled, tuple(names), answer["launches"])


def _refusal(where: str, expected: str, problem: str) -> Refusal:
    return Refusal("NV315", f"kernels layer: {where}", expected, problem, _CURE)


def _wrong_kernels(launched: Iterable[Mapping[str, Any]], compiled: Iterable[Kernel]) -> Iterator[Refusal]:
    """Yield a refusal for each kernel whose code is for another target than it was launched on."""
    code = {kernel.key: kernel.target for kernel in compiled}
    for launch in launched:
        key = stubs.base32(launch["hash"])
        if code.get(key) != launch["target"]:
            yield _refusal(f"{key}/{launch['name']}.cubin", f"code for {launch['target']}", f"for {code.get(key)}")


def _wrong_stubs(
    needed: Iterable[tuple[str, str]], files: Mapping[str, bytes], platform: Platform
) -> Iterator[Refusal]:
    expected = f"a module in C for Python {platform.python} on {platform.machine}"
    for name, key in needed:
        path = f"{key}/{name}{platform.suffix}"
        data = files.get(path)
        if data is None:
            yield _refusal(path, expected, "no such file")
        elif elf.machine(data) != platform.machine:
            yield _refusal(path, expected, "another file")


def _not_needed(
    launched: Iterable[Mapping[str, Any]], needed: Iterable[tuple[str, str]], files: Mapping[str, bytes]
) -> Iterator[Refusal]:
    keys = {stubs.base32(launch["hash"]) for launch in launched} | {key for _, key in needed}
    for path in sorted(files):
        if path != kernellayer.KEY and path.partition("/")[0] not in keys:
            yield _refusal(path, "only files that a launch loads", "a file that no launch loads")


def _wrong_key(key: str, files: Mapping[str, bytes]) -> Iterator[Refusal]:
    laid = json.loads(files.get(kernellayer.KEY, b"{}")).get("key")
    if laid != key:
        yield _refusal(kernellayer.KEY, f"key {key[:24]}..., as Triton makes it", str(laid)[:24])


def _paths(files: Mapping[str, bytes], directories: Iterable[str]) -> Iterator[Refusal]:
    """Yield a refusal for each file that contains one of DIRECTORIES, directories of this host."""
    for directory in directories:
        for path, data in files.items():
            if len(directory) > 1 and directory.encode() in data:  # `/`, the home of some users, is in any text
                yield _refusal(path, "no path of the host", directory)
