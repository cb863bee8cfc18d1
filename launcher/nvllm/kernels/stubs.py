"""The C modules ("stubs") that Triton loads before its first launch, compiled ahead, so that no image needs a compiler.

By itself, Triton runs the host's C compiler for one module for the CUDA driver, and 3.6 for one for each signature of a
kernel too. Here the locked Zig compiles them, for any platform, with the locked `cuda.h` and a replacement for
CPython's header (`include/Python.h`), and links them to a library with only the symbol names of the driver. The source
has a relative path, so the bytes do not depend on the host.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import canonical, proc
from nvllm.core.refusal import refuse
from nvllm.kernels.releases import TritonRelease

FORMAT = "1"

_GLIBC = "2.31"  # the oldest C library of a base that the wheels of vLLM run on
_TIMEOUT = 300.0
"""Seconds for one module in C, with Zig's own library, which it compiles first."""
_DRIVER = re.compile(r"\bcu[A-Z][A-Za-z0-9]+(?=\()")
_LIBRARY = "libcuda.so.1"

_LINKAGES = ("", "ELF")
"""The results of Python's `platform.architecture` without and with the program `file` in the image. They are part of
Triton's key; an image that gets that program later must not begin to compile."""


@dataclass(frozen=True, slots=True)
class Platform:
    """The platform of stubs: MACHINE such as ``x86_64``, PYTHON such as ``3.12``."""

    machine: str
    python: str

    @property
    def suffix(self) -> str:
        """The end of the file name of an extension module."""
        return f".cpython-{self.python.replace('.', '')}-{self.machine}-linux-gnu.so"


def rules(release: TritonRelease | None) -> dict[str, canonical.Json]:
    """Return the format version and the hash of the headers for RELEASE, which decide the bytes of stubs."""
    headers = () if release is None else release.headers
    content = b"".join(path.read_bytes() for path in headers)
    return {"format": FORMAT, "header": hashlib.sha256(content).hexdigest()}


def base32(digest: str) -> str:
    """Return the name of the cache directory of the key with the hex DIGEST, as Triton makes it."""
    return base64.b32encode(bytes.fromhex(digest)).decode().rstrip("=")


def keys(source: str, platform: Platform, linking: str = "") -> list[str]:
    """Return the cache directories in which Triton looks for the module of SOURCE on PLATFORM.

    LINKING is what the release of Triton adds of how it would compile the module.
    """
    texts = [f"{source}{platform.machine},Linux,64bit,{linkage}{linking}" for linkage in _LINKAGES]
    return [base32(hashlib.sha256(text.encode()).hexdigest()) for text in texts]


class CCompiler:
    """Compiles for PLATFORM with the program ZIG, below SCRATCH; INCLUDE has `Python.h` and `cuda.h`, in this order."""

    def __init__(self, zig: Path, include: Sequence[Path], platform: Platform, scratch: Path) -> None:
        self.zig = zig
        self.include = include
        self.platform = platform
        self.scratch = scratch

    def module(self, name: str, source: str) -> bytes:
        """Return the extension module NAME, compiled from SOURCE. Raises Refused NV314 with the compiler's message."""
        work = self.scratch / hashlib.sha256(source.encode()).hexdigest()[:16]
        work.mkdir(parents=True)
        names = sorted(set(_DRIVER.findall(source)))
        (work / "names.c").write_text("".join(f"void {function}(void) {{}}\n" for function in names))
        self._run(work, "names.c", ["-Wl,-soname," + _LIBRARY, "-o", _LIBRARY, "names.c"])
        (work / f"{name}.c").write_text(source)
        headers = [word for directory in self.include for word in ("-I", str(directory))]
        self._run(work, f"{name}.c", [*headers, "-o", f"{name}.so", f"{name}.c", _LIBRARY])
        return (work / f"{name}.so").read_bytes()

    def _run(self, work: Path, module: str, arguments: list[str]) -> None:
        # baseline: not for the processor of this host, but for each of that machine.
        target = ["-target", f"{self.platform.machine}-linux-gnu.{_GLIBC}", "-mcpu=baseline"]
        argv = [str(self.zig), "cc", *target, "-shared", "-fPIC", "-O2", "-s", *arguments]
        cache = str(self.scratch / "zig")
        environment = {"PATH": "/", "HOME": cache, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        done = proc.run(argv, env=environment, timeout=_TIMEOUT, cwd=work)
        if done.returncode != 0:
            message = done.stderr.decode("utf-8", "replace").strip()[-600:]
            cure = "report it with the version of Triton: a stub needs something that include/Python.h lacks"
            raise refuse("NV314", module, "a module in C that compiles", message, cure)
