"""Writes the seed of the stub for nixpkgs: ``seed.py SEED STUB``. Programs and libraries of this machine, as files.

In SEED:

::

    busybox            Debian's static one: the shell of every build
    bin/  lib/         bash, git, python3, and every shared library that they and Python's extensions load
    python/            Python's standard library
    libraries/         what pyproject.toml names, and what that needs, from this environment

In STUB, which Nix evaluates: ``libraries.json``, the names in pyproject.toml.
"""

from __future__ import annotations

import compileall
import importlib.metadata
import json
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LEFT_OUT = (
    *("__pycache__", "test", "tests", "*-packages", "config-*"),
    *("ensurepip", "idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo", "_tkinter*"),
)
ONLY_NAMED = ("fontTools", "hf_xet", "matplotlib", "numpy", "numpy.libs", "PIL", "pillow.libs", "uv")
"""What is large and not run."""


def wanted(names: list[str]) -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions NAMES and all that they require here, by normalized name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    while names:
        name = canonicalize_name(names.pop())
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        needed = map(Requirement, found[name].requires or [])
        names += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def libraries(program: Path) -> Iterator[Path]:
    """Yield the shared libraries that PROGRAM loads, and its loader."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    yield from map(Path, re.findall(r"(?:=> )?(/\S+) \(0x", listed))


def main(seed: Path, stub: Path) -> None:
    """Write the seed to the directory SEED, which must not exist, and its names to STUB."""
    for name in ("bin", "lib", "libraries"):
        (seed / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", seed / "busybox")
    programs = {"bash": shutil.which("bash"), "git": shutil.which("git"), "python3": Path(sys.executable).resolve()}
    loaded: set[Path] = set()
    for name, program in programs.items():
        assert program is not None, name
        shutil.copy(program, seed / "bin" / name)
        loaded |= set(libraries(Path(program)))
    standard = sysconfig.get_path("stdlib")
    shutil.copytree(standard, seed / "python", ignore=shutil.ignore_patterns(*LEFT_OUT))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [Requirement(one).name for one in project["dependencies"]]
    for distribution in wanted(list(direct)).values():
        for file in distribution.files or []:
            if ".." not in file.parts and file.suffix != ".pyc" and file.parts[0] not in ONLY_NAMED:
                place = seed / "libraries" / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), place)
    for code in (seed / "python", seed / "libraries"):  # the Nix store is read-only, and its times are all the same
        compileall.compile_dir(code, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    for extension in seed.rglob("*.so"):
        loaded |= set(libraries(extension))
    for library in loaded:
        name = "loader" if library.name.startswith("ld-linux") else library.name
        shutil.copy(library, seed / "lib" / name)
    (stub / "libraries.json").write_text(json.dumps(sorted(map(canonicalize_name, direct))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
