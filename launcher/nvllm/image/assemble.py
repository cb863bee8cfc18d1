"""The script that the Dockerfile runs: it writes an environment, or a patched source tree, from a build context.

It runs on the image's own interpreter before anything is installed, so it and its imports use the standard library
only; `dockerfiles.py` copies exactly these modules into the context. The files are the same as those of `nvllm build`,
because the code that unpacks a wheel is the same.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from nvllm.core import proc
from nvllm.core.refusal import refuse
from nvllm.layers import bytecompile, tarlayer, wheel
from nvllm.layers.tarlayer import TarEntry
from nvllm.layers.wheel import Scheme, Wheel

_COMPILE_TIMEOUT = 600.0
"""Seconds for the bytecode of one wheel."""
_WHITEOUT = ".wh."
"""What the name of an entry begins with that removes a file (OCI image specification)."""


def main(argv: Sequence[str]) -> None:
    """Carry out ``environment CONTEXT ROOT`` or ``source CONTEXT TREE``."""
    what, context, target = argv
    actions = {"environment": environment, "source": source}
    actions[what](Path(context), Path(target))


def listed(context: Path) -> dict[str, Path]:
    """Return the files in SHA256SUMS of CONTEXT, by sha256. A file that is not in that list is never used."""
    lines = (context / "SHA256SUMS").read_text().splitlines()
    return {sha256: context / name for sha256, _, name in (line.partition("  ") for line in lines)}


def hashes(requirements: str) -> list[str]:
    """Return the sha256 of each line of REQUIREMENTS, in order: one wheel each, by ``--hash=sha256:``."""
    return [
        line.partition("--hash=sha256:")[2].split()[0]
        for line in requirements.splitlines()
        if line and not line.startswith("#")
    ]


def environment(context: Path, root: Path) -> None:
    """Write the environment that CONTEXT describes below ROOT: wheels, bytecode, patches, identity.

    Raises Refused NV306 for a wheel that leaves its place, FileExistsError for two wheels with one file.
    """
    about = json.loads((context / "environment.json").read_bytes())
    scheme, epoch = Scheme(about["prefix"], about["python"]), int(about["epoch"])
    files = listed(context)
    wheels = hashes((context / "requirements.txt").read_text())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        omitted = about["omitted"]
        for done in [pool.submit(_install, files[sha256], omitted.get(sha256, ()), scheme, root) for sha256 in wheels]:
            done.result()
    for entry in wheel.environment(scheme, f"/usr/bin/python{scheme.python}"):
        write(entry, root)
    for name, version, of in about["aliases"]:
        for entry in wheel.alias(name, version, of, scheme):
            write(entry, root)
    known = set(files.values())
    if context / "patches.tar" in known:
        for path in unpack_overlay(context / "patches.tar", root):
            if path.endswith(".py"):  # one process for each, as `patched.entries` does
                _compile(None, {path: str(root / path)}, root, scheme)
    for name in ("kernels.tar", "identity.tar"):
        if context / name in known:
            unpack_overlay(context / name, root)
    _set_times(root / scheme.prefix, epoch)


def source(context: Path, tree: Path) -> None:
    """Unpack the source archive of CONTEXT at TREE, and unpack_overlay the patched files over it."""
    about = json.loads((context / "environment.json").read_bytes())
    with tarfile.open(context / about["source"], "r|*") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is not None:
                _file(tree, member.name.partition("/")[2], member.mode, stream)
    unpack_overlay(context / "native/patched.tar", tree)


def write(entry: TarEntry, root: Path) -> None:
    """Write ENTRY below ROOT. Raises FileExistsError if something is there, Refused NV306 for an unsafe path."""
    if entry.kind == "link":
        path = _place(root, entry.path)
        path.symlink_to(entry.target)
    elif entry.kind == "file":
        with entry.content() as stream:
            _file(root, entry.path, entry.mode, stream)


def _file(root: Path, inside: str, mode: int, stream: IO[bytes]) -> None:
    path = _place(root, inside)
    with path.open("xb") as out:
        shutil.copyfileobj(stream, out, 1 << 20)
    path.chmod(0o755 if mode & 0o100 else 0o644)


def _place(root: Path, inside: str) -> Path:
    if not tarlayer.safe(inside):
        cure = "make the context again: nvllm dockerfile IMAGE --context DIR"
        raise refuse("NV306", inside, "a relative path without . or ..", "an unsafe path", cure)
    path = root / inside
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def unpack_overlay(overlay: Path, root: Path) -> list[str]:
    """Unpack the tar OVERLAY over ROOT and return the paths of its files.

    Its files replace existing ones; ``.wh.NAME`` removes NAME and its bytecode (OCI image specification).
    """
    brought: list[str] = []
    with tarfile.open(overlay, "r|") as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None:
                continue  # directories are created with their files
            directory, _, name = member.name.rpartition("/")
            if name.startswith(_WHITEOUT):
                gone = f"{directory}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
                (root / gone).unlink()
                if gone.endswith(".py"):
                    (root / bytecompile.cached(gone).lstrip("/")).unlink(missing_ok=True)
                continue
            (root / member.name).unlink(missing_ok=True)
            _file(root, member.name, member.mode, stream)
            brought.append(member.name)
    return brought


def _install(path: Path, omitted: Sequence[str], scheme: Scheme, root: Path) -> None:
    with Wheel(path, omitted=omitted) as opened:
        for entry in opened.entries(scheme):
            write(entry, root)
        modules = {place: info.filename for place, info in opened.placed(scheme).items() if place.endswith(".py")}
    _compile(path, modules, root, scheme)


def _compile(archive: Path | None, files: Mapping[str, str], root: Path, scheme: Scheme) -> None:
    """Write the bytecode of FILES (path below ROOT to member of ARCHIVE, or to a path) beside them.

    In a new process, as `bytecode.Interpreter.compile` does: the bytes may depend on what a process compiled before.
    """
    if not files:
        return
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "bytecode.zip")
        job = {"archive": str(archive) if archive else None, "files": dict(files), "out": str(out)}
        # The standard library alone, as `bytecode.Interpreter.compile` has it.
        argv = [sys.executable, "-S", "-s", "-P", "-B", bytecompile.__file__]
        environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PATH": "/"}
        done = proc.run(argv, env=environment, timeout=_COMPILE_TIMEOUT, stdin=json.dumps(job).encode())
        if done.returncode != 0:
            cure = "use a BASE whose interpreter is the one that the lock names"
            problem = done.stderr.decode("utf-8", "replace").strip()[-300:]
            where = f"bytecode for {scheme.interpreter}"
            raise refuse("NV512", where, "an interpreter that compiles", problem, cure)
        with zipfile.ZipFile(out) as compiled:
            for name in compiled.namelist():
                (root / name).unlink(missing_ok=True)
                write(tarlayer.blob(name, compiled.read(name)), root)


def _set_times(tree: Path, epoch: int) -> None:
    """Set the times in TREE to EPOCH, of directories after their files, and the mode of directories to 0755."""
    for directory, directories, names in os.walk(tree, topdown=False):
        for name in (*names, *directories):
            os.utime(os.path.join(directory, name), (epoch, epoch), follow_symlinks=False)
        Path(directory).chmod(0o755)
    os.utime(tree, (epoch, epoch))


if __name__ == "__main__":
    main(sys.argv[1:])
