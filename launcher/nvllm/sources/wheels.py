"""The wheels of an image: uv resolves them for the image's Python and C library, at the indexes that pip knows."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import BuildTag, InvalidWheelFilename, parse_wheel_filename

from nvllm.core import proc
from nvllm.core.canonical import sha256_file
from nvllm.core.lock import COMPILED, LockedFile, LockedWheel
from nvllm.core.refusal import Refusal, Refused, refuse
from nvllm.sources.indexes import Configuration, index_cure
from nvllm.sources.store import Store

_TIMEOUT = 1800.0
"""Seconds in which uv resolves: it may have to download metadata of hundreds of releases over a slow line."""

_SHA256 = re.compile(r"[0-9a-f]{64}")

# The C libraries that uv can resolve for, as minor versions of glibc 2.
_UV_GLIBC = (17, 28, *range(31, 41))

# How uv says that no index offers the version of a distribution that is asked for, or none for this platform.
_LACKING = r"no version of {name}==|{name} was not found|{name}==\S+ has no wheels"

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
    """One wheel that was chosen, and the URL that offers it now."""

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
    requirements: Sequence[str],
    target: Target,
    kept: Mapping[str, str],
    elsewhere: Mapping[str, str],
    configuration: Configuration,
) -> tuple[Resolved, ...]:
    """Return the wheels that REQUIREMENTS need on TARGET, sorted by name, as the indexes of CONFIGURATION offer them.

    KEPT maps distributions to the versions that they must stay at, if they are needed; ELSEWHERE maps those that the
    default index does not carry to the index that does. The Python and the machine that run this do not matter.
    Raises Refused NV209 with the words of uv if it finds no solution.
    """
    argv = [sys.executable, "-P", "-m", "uv", "pip", "compile", "-", "--quiet", "--no-header"]
    # uv wants some Python, and would download one; for which one it resolves, the options after these say.
    argv += ["--format", "pylock.toml", "--python", sys.executable, "--no-python-downloads"]
    argv += ["--python-version", target.full, "--python-platform", uv_platform(target)]
    if configuration.certificates is not None:
        argv += ["--cert", os.path.abspath(configuration.certificates)]
    with TemporaryDirectory(prefix="nvllm-uv-") as directory:
        constraints, settings = Path(directory) / "constraints.txt", Path(directory) / "uv.toml"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(kept.items())))
        # A file and not options: a URL may hold a password, and every user can read the arguments of a process.
        settings.write_text(uv_settings(configuration))
        argv += ["--constraints", str(constraints), "--config-file", str(settings), "--cache-dir", f"{directory}/cache"]
        patience = {
            "UV_HTTP_TIMEOUT": str(math.ceil(configuration.timeout)),
            "UV_HTTP_RETRIES": str(configuration.retries),
        }
        env = proc.environment(patience)
        try:
            done = proc.run(
                argv, env=env, timeout=_TIMEOUT, cwd=Path(directory), stdin="\n".join(requirements).encode()
            )
        except subprocess.TimeoutExpired as error:
            raise Refused([_unresolved(f"no answer in {error.timeout:.0f} s", kept, elsewhere)]) from error
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
        output = " / ".join(line for line in lines if line)
        raise Refused([_unresolved(output or f"exit status {done.returncode}", kept, elsewhere)])
    packages = tomllib.loads(done.stdout.decode())["packages"]
    ranks = _ranks(target)
    return tuple(sorted((_resolved(package, ranks) for package in packages), key=lambda wheel: wheel.name))


def uv_platform(target: Target) -> str:
    """Return uv's name for the platform of TARGET, or for the one with the next older C library that uv knows."""
    known = max((minor for minor in _UV_GLIBC if minor <= target.glibc), default=target.glibc)
    return f"{target.machine}-manylinux_2_{known}"


def uv_settings(configuration: Configuration) -> str:
    """Return a uv.toml that makes uv ask where pip with CONFIGURATION asks, and choose as pip chooses."""
    urls = list(dict.fromkeys(configuration.secure_index_urls))
    # By default uv takes the first index that has a distribution; pip takes the best version of all (decision 8).
    settings: dict[str, bool | str | Sequence[str]] = {
        "system-certs": configuration.certificates is None,
        "index-strategy": "unsafe-best-match",
        "prerelease": "if-necessary",
        "no-build": True,
        "no-index": not urls,
        "find-links": configuration.link_urls,
        "allow-insecure-host": configuration.trusted_hosts,
        "keyring-provider": "subprocess" if configuration.keyring else "disabled",
    }
    if configuration.proxy is not None:
        settings |= {"http-proxy": configuration.proxy, "https-proxy": configuration.proxy}
    # These values are written in TOML as they are in JSON.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()]
    for url in urls:
        # uv prefers the first index that has a wheel of a version for the target, and puts the default one last.
        lines += ["[[index]]", f"url = {json.dumps(url)}", f"default = {json.dumps(url == urls[-1])}"]
    return "\n".join(lines)


def _unresolved(output: str, kept: Mapping[str, str], elsewhere: Mapping[str, str]) -> Refusal:
    cure = "change python.requirements of the spec, or pip's indexes (`pip config list`), so that they can be met"
    lacking = [index for name, index in elsewhere.items() if re.search(_LACKING.format(name=re.escape(name)), output)]
    if lacking:
        cure = index_cure(lacking[0])
    elif kept:
        cure = "let the locked versions move: nvllm lock IMAGE --update wheels"
    return Refusal("NV209", "uv pip compile", "wheels that meet python.requirements of the spec", output, cure)


def _ranks(target: Target) -> Mapping[Tag, int]:
    """Return the tags of the wheels that TARGET can load; the lowest number is pip's first choice."""
    minor, interpreter = [int(part) for part in target.python.split(".")], "cp" + target.python.replace(".", "")
    platforms = platform_tags(target)
    tags = [*cpython_tags(minor, [interpreter], platforms), *compatible_tags(minor, interpreter, platforms)]
    return {tag: rank for rank, tag in enumerate(tags)}


def _resolved(package: Mapping[str, Any], ranks: Mapping[Tag, int]) -> Resolved:
    """Return what PACKAGE, an entry of a pylock.toml, offers: of its wheels the one that pip would take, by RANKS."""
    urls = {unquote(urlsplit(wheel["url"]).path).rsplit("/", 1)[-1]: wheel for wheel in package["wheels"]}

    def fitness(filename: str) -> tuple[int, BuildTag]:
        _, _, build, fits = parse_wheel_filename(filename)
        return -min((ranks[tag] for tag in fits if tag in ranks), default=len(ranks)), build

    filename = max(urls, key=fitness)
    sha256 = urls[filename]["hashes"].get("sha256")
    if sha256 is None or not _SHA256.fullmatch(sha256):
        where, expected, problem = f"index: {filename}", "a sha256 for the file", "an index that gives another hash"
        cure = "use an index that gives sha256, or download the wheel and name its directory in find-links"
        raise refuse("NV209", where, expected, problem, cure)
    return Resolved(package["name"], package["version"], filename, sha256, urls[filename]["url"])


def adopted(wheel: Path, store: Store) -> LockedWheel:
    """Copy WHEEL, which was compiled, into STORE, and return it as a lock names it.

    Raises Refused NV108 if its name is none of a wheel.
    """
    try:
        name, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        cure = "name the file as the compiler left it: NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
        raise refuse("NV108", "--compiled", "a wheel", str(error), cure) from error
    sha256 = sha256_file(wheel)
    shutil.copyfile(wheel, store.partial(sha256))
    path = store.adopt(store.partial(sha256), sha256)
    return LockedWheel(name, str(version), LockedFile(wheel.name, sha256, path.stat().st_size, COMPILED))
