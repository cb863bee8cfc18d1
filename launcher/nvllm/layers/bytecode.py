"""Bytecode, compiled by the image's own interpreter, which runs on the host without a container.

The interpreter is started from the unpacked base tree by that tree's dynamic loader, so the host's Python version has
no influence, and no privilege is needed. An interpreter for another machine is run by QEMU's user mode. It is started
by name, because registering it with the kernel (binfmt_misc) needs root.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nvllm.core import canonical, proc
from nvllm.core.progress import Progress
from nvllm.core.refusal import refuse
from nvllm.layers import bytecompile, elf
from nvllm.layers.tarlayer import TarEntry, blob

_SCRIPT = Path(bytecompile.__file__)
_TIMEOUT = 3600.0
"""Seconds for one wheel: an emulator needs minutes for the largest."""

_EMULATORS = ("qemu-{}-static", "qemu-{}")
"""The names of QEMU's user mode in Debian and its derivatives."""


def script_hash() -> str:
    """Return the hash of the script that compiles, a factor of every layer with bytecode."""
    return canonical.sha256_file(_SCRIPT)


class BytecodeCompiler(Protocol):
    """Compiles the bytecode of an image, or nothing."""

    def cached(self, module: str) -> str:
        """Return the path of the bytecode that the image's interpreter loads for the module at MODULE."""
        ...

    def compile(self, archive: Path | None, files: Mapping[str, str], out: Path) -> None:
        """Write the bytecode of FILES, image path to member of ARCHIVE or to a path, as the zip OUT."""
        ...


def _cached(module: str, python: str) -> str:
    directory, _, name = module.rpartition("/")
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.cpython-{python.replace('.', '')}.pyc"


@dataclass(frozen=True, slots=True)
class NoBytecode:
    """Compiles nothing, for a registry base with the interpreter version PYTHON.

    Layers must have the same bytes whether the base is at hand or not, so its interpreter is never run.
    """

    python: str

    def cached(self, module: str) -> str:
        return _cached(module, self.python)

    def compile(self, archive: Path | None, files: Mapping[str, str], out: Path) -> None:
        """Write an empty zip as OUT."""
        with zipfile.ZipFile(out, "w"):
            return


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python of an unpacked base TREE, version PYTHON (``3.11``)."""

    tree: Path
    python: str

    @property
    def libraries(self) -> str:
        """The directories of the tree with shared libraries, as a path for the dynamic loader."""
        return ":".join(map(str, self._directories()))

    def _directories(self) -> list[Path]:
        return sorted((self.tree / "usr/lib").glob("*-linux-gnu"))

    def loader(self) -> Path:
        """Return the path of the tree's dynamic loader. Raises Refused NV512 if it has none."""
        loaders = [path for directory in self._directories() for path in sorted(directory.glob("ld-linux-*.so.*"))]
        if not loaders:
            raise refuse(
                "NV512", str(self.tree), "a dynamic loader in the base tree", "none", "add libc6 to base.packages"
            )
        return loaders[0]

    def command(self) -> list[str]:
        """Return the command line that starts it. Raises Refused NV512 if the tree has no dynamic loader."""
        loader = self.loader()
        program = str(self.tree / f"usr/bin/python{self.python}")
        # Started by the tree's own loader: the one that the program names lies at a path of the host.
        return [*_emulator(loader), str(loader), "--library-path", self.libraries, program]

    def cached(self, module: str) -> str:
        """Return the path of the bytecode that this interpreter loads for the module at MODULE."""
        return _cached(module, self.python)

    def compile(self, archive: Path | None, files: Mapping[str, str], out: Path) -> None:
        """Write the bytecode of FILES, image path to member of ARCHIVE or to a path, as the zip OUT.

        Raises Refused NV512 if the interpreter cannot run on this host.
        """
        partial = out.with_name(f"{out.name}.{os.getpid()}.partial")  # two builds may compile one wheel at once
        job = {"archive": str(archive) if archive else None, "files": dict(files), "out": str(partial)}
        environment = {"PYTHONHOME": str(self.tree / "usr"), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PATH": "/"}
        # The standard library alone; -B: nothing is written into the tree, of which the base layer is made.
        argv = [*self.command(), "-S", "-s", "-P", "-B", str(_SCRIPT)]
        try:
            done = proc.run(argv, env=environment, timeout=_TIMEOUT, stdin=json.dumps(job).encode())
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        else:
            if done.returncode == 0:
                partial.replace(out)
                return
            # A process that was killed by a signal prints nothing.
            problem = done.stderr.decode("utf-8", "replace").strip()[-300:] or f"exit status {done.returncode}"
        finally:
            partial.unlink(missing_ok=True)
        cure = "sudo apt-get install qemu-user-static"
        raise refuse("NV512", argv[0], "a host that runs the image's interpreter", problem, cure)


def _emulator(loader: Path) -> list[str]:
    """Return the emulator that runs LOADER, as a list; empty if LOADER is for this machine or none is installed.

    Without one in PATH the program is still started: the kernel may have one registered (binfmt_misc).
    """
    with loader.open("rb") as stream:
        machine = elf.machine(stream.read(64))
    if machine is None or machine == os.uname().machine:
        return []
    programs = filter(None, (shutil.which(name.format(machine)) for name in _EMULATORS))
    return list(itertools.islice(programs, 1))


def compile_all(
    interpreter: BytecodeCompiler,
    jobs: Mapping[str, tuple[Path | None, Mapping[str, str]]],
    cache: Path,
    progress: Progress,
) -> list[Path]:
    """Return the bytecode archives of JOBS, key to (archive, files), in the order of the keys.

    An archive that is in CACHE under its key is not compiled again. A key covers everything that decides the bytes.
    """
    cache.mkdir(parents=True, exist_ok=True)
    # The longest first, so that no processor is idle while the last one works on a long job.
    longest = sorted(jobs, key=lambda key: (-len(jobs[key][1]), key))
    # A power cut may have left the name of an archive, and none of its bytes.
    missing = [key for key in longest if not zipfile.is_zipfile(cache / f"{key}.zip")]
    with progress.task("bytecode", len(missing), "files") as task, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compile_one(key: str) -> None:
            archive, files = jobs[key]
            interpreter.compile(archive, files, cache / f"{key}.zip")
            task.advance(1)

        for future in [pool.submit(compile_one, key) for key in missing]:
            future.result()
    return [cache / f"{key}.zip" for key in sorted(jobs)]


def entries(archive: Path) -> Iterator[TarEntry]:
    """Yield the entries of the bytecode ARCHIVE."""
    with zipfile.ZipFile(archive) as stored:
        for name in stored.namelist():
            yield blob(name, stored.read(name))
