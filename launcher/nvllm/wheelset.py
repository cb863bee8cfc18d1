"""The wheels of an image, resolved by pip's own resolver for the image's Python and C library."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from nvllm import pipfor, proc
from nvllm.canonical import sha256_file
from nvllm.indexes import index_cure, pip_environment
from nvllm.lock import COMPILED, LockedFile, LockedWheel
from nvllm.refusal import Refusal, Refused
from nvllm.store import Store

_TIMEOUT = 1800.0

# Names that manylinux wheels carried before PEP 600 gave them numbers, by the C library that they stand for.
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True, slots=True)
class Target:
    """What the wheels must run on: Python FULL such as ``3.11.2``, MACHINE such as ``x86_64``, glibc 2.GLIBC."""

    full: str
    machine: str
    glibc: int

    @property
    def python(self) -> str:
        """Return the minor version, such as ``3.11``."""
        return ".".join(self.full.split(".")[:2])


@dataclass(frozen=True, slots=True)
class Resolved:
    """One wheel that pip chose, and the URL that offers it now."""

    name: str
    version: str
    filename: str
    sha256: str
    url: str


def platform_tags(target: Target) -> list[str]:
    """Return the platform tags that TARGET can load, best first."""
    tags: list[str] = []
    for minor in range(target.glibc, 4, -1):
        tags.append(f"manylinux_2_{minor}_{target.machine}")
        if minor in _OLD_NAMES:
            tags.append(f"{_OLD_NAMES[minor]}_{target.machine}")
    return [*tags, f"linux_{target.machine}"]


def resolve(
    requirements: Sequence[str], target: Target, kept: Mapping[str, str], elsewhere: Mapping[str, str]
) -> tuple[Resolved, ...]:
    """Return the wheels that REQUIREMENTS need on TARGET, sorted by name, as the indexes have them now.

    KEPT maps distributions to the versions that they must stay at, if they are needed; ELSEWHERE maps those that the
    default index does not carry to the index that does. Which Python and machine this runs on does not matter.
    Raises Refused NV209 with pip's words if it finds no solution.
    """
    with TemporaryDirectory(prefix="nvllm-pip-") as directory:
        report = Path(directory) / "report.json"
        constraints = Path(directory) / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(kept.items())))
        argv = [sys.executable, "-P", pipfor.__file__, json.dumps(environment(target))]
        argv += ["--disable-pip-version-check", "install", "--quiet"]
        argv += ["--dry-run", "--ignore-installed", "--no-input", "--report", str(report)]
        argv += ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python]
        argv += ["--target", str(Path(directory) / "never-written"), "--constraint", str(constraints)]
        argv += [word for tag in platform_tags(target) for word in ("--platform", tag)]
        try:
            done = proc.run([*argv, *requirements], env=pip_environment(), timeout=_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise Refused([_unresolved(f"no answer in {error.timeout:.0f} s", kept, elsewhere)]) from error
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").splitlines()
            said = [line for line in lines if line.startswith("ERROR")] or lines[-5:]
            raise Refused([_unresolved(" / ".join(said) or f"exit status {done.returncode}", kept, elsewhere)])
        document = json.loads(report.read_bytes())
    return tuple(sorted((_resolved(entry) for entry in document["install"]), key=lambda wheel: wheel.name))


def environment(target: Target) -> dict[str, str]:
    """Return what environment markers see on TARGET. Nothing is known there of the kernel that will run."""
    return {
        "implementation_name": "cpython",
        "implementation_version": target.full,
        "os_name": "posix",
        "platform_machine": target.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": target.full,
        "python_version": target.python,
        "sys_platform": "linux",
    }


def _unresolved(found: str, kept: Mapping[str, str], elsewhere: Mapping[str, str]) -> Refusal:
    cure = "change python.requirements of the spec, or pip's indexes (`pip config list`), so that they can be met"
    lacking = [index for name, index in elsewhere.items() if f"No matching distribution found for {name}==" in found]
    if lacking:
        cure = index_cure(lacking[0])
    elif kept:
        cure = "let the locked versions move: nvllm lock IMAGE --update wheels"
    return Refusal("NV209", "pip", "wheels that meet python.requirements of the spec", found, cure)


def _resolved(entry: Mapping[str, object]) -> Resolved:
    download = entry["download_info"]
    metadata = entry["metadata"]
    assert isinstance(download, dict)
    assert isinstance(metadata, dict)
    url = str(download["url"])
    parts = urlsplit(url)
    sha256 = download.get("archive_info", {}).get("hashes", {}).get("sha256")
    if sha256 is None and parts.scheme == "file":
        sha256 = sha256_file(Path(unquote(parts.path)))
    filename = unquote(parts.path).rsplit("/", 1)[-1]
    name = canonicalize_name(metadata["name"])
    if sha256 is None:
        raise Refused(
            [
                Refusal(
                    "NV209",
                    f"index: {filename}",
                    "a sha256 beside the file",
                    "an index that gives none",
                    "use an index that gives hashes, or download the wheel and name its directory in find-links",
                )
            ]
        )
    return Resolved(name, str(metadata["version"]), filename, str(sha256), url)


def adopted(wheel: Path, store: Store) -> LockedWheel:
    """Copy WHEEL, which was compiled, into STORE, and return it as a lock names it.

    Raises Refused NV108 if its name is none of a wheel.
    """
    try:
        name, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        cure = "name the file as the compiler left it: NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
        raise Refused([Refusal("NV108", "--compiled", "a wheel", str(error), cure)]) from error
    sha256 = sha256_file(wheel)
    shutil.copyfile(wheel, store.partial(sha256))
    place = store.adopt(store.partial(sha256), sha256)
    return LockedWheel(name, str(version), LockedFile(wheel.name, sha256, place.stat().st_size, COMPILED))
