"""Building again where as much as possible is different, for `nvllm build --check`.

The second build is the same command in another process: with a cache of its own that holds the locked files and nothing
else, in another directory, with another umask, time zone, locale, hash seed, clock and number of processors, with
directories listed in another order, and as another user if this one is root.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nvllm.core import durable, proc
from nvllm.core.lock import LockedFile
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import refuse
from nvllm.image import contents, difference, recording
from nvllm.image.contents import Contents
from nvllm.image.difference import ImageDifference
from nvllm.image.identity import Build
from nvllm.kernels import toolchain
from nvllm.layers.tarlayer import Layer
from nvllm.sources.store import Store

_SCRIPT = Path(__file__).with_name("variation.py")

_TIMEOUT = 4 * 3600.0
"""Seconds for a whole image under an emulator."""

_NOBODY = 65534
"""The user and the group `nobody` of Debian: somebody who owns nothing here."""
_LATER = 400 * 86400 + 12345
"""Seconds by which the clock of the second build is ahead: another year, month, day and hour."""

COMMAND = "nvllm.cli.main:main"
"""What the second build runs, ``module:function``; it is given a command line."""


@dataclass(frozen=True, slots=True)
class Variation:
    """What was different in the second build, as name and value; and what could not be, with the reason."""

    varied: Mapping[str, str]
    same: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where and how the second build runs: the interpreter, settings of `variation.py`, and environment variables."""

    python: str
    settings: Mapping[str, object]
    environment: Mapping[str, str]
    variation: Variation


@contextmanager
def rebuilt(
    project: Project, places: Places, build: Build, arguments: Sequence[str]
) -> Iterator[tuple[Path, Variation]]:
    """Build BUILD again with `nvllm build ARGUMENTS`; yield the layout that it wrote, and what was varied.

    The store of PLACES must hold what `files` names; without base, what the patch set's layers are made from. Raises
    Refused NV310 if the second build fails.
    """
    with tempfile.TemporaryDirectory(prefix="nvllm-check-") as name:
        scratch = Path(name)
        copy, home, layout = scratch / "another project", scratch / "another home", scratch / "out/layout"
        for directory in (home / "cache", home / "tmp", layout.parent):
            directory.mkdir(parents=True)
        _copy_project(project, build, copy)
        _link_files(files(build), Store(places.store), Store(home / "cache/store"))
        around = _surroundings(home)
        _give(scratch, copy, around.settings["user"])
        words = ["--project", str(copy), "--platform", project.platform, "--offline", "--quiet", "build", *arguments]
        done = _run(around, [*words, "--layout", str(layout)])
        if done.returncode != 0:
            problem = done.stderr.decode("utf-8", "replace").strip()[-600:] or f"exit status {done.returncode}"
            cure = "find which of these the build depends on: " + ", ".join(around.variation.varied)
            raise refuse("NV310", f"second build of {build.spec.name}", "a build that ends as the first", problem, cure)
        yield layout, around.variation


def files(build: Build) -> tuple[LockedFile, ...]:
    """Return the locked files that building BUILD from nothing needs."""
    native = () if build.native is None else build.native.files
    return (*build.lock.files, *toolchain.files(build.lock), *native)


def compare(first: Contents, layout: Path, kept: Path) -> list[ImageDifference]:
    """Return how FIRST, the first build, differs from the second one in LAYOUT.

    Layers that differ are kept in the directory KEPT, as ``first`` and ``second``.
    """
    with tempfile.TemporaryDirectory(prefix="nvllm-check-") as scratch:
        second = contents.stored(str(layout), Path(scratch))
        assert second is not None  # the build ended well
        differing = list(difference.images(first, second))
        names = {image_difference.layer for image_difference in differing}
        if differing:
            recording.keep(kept, {"first": _layers(first, names), "second": _layers(second, names)})
    return differing


def _layers(image: Contents, names: Collection[str]) -> list[Layer]:
    """Return the layers of IMAGE with NAMES, each of which is a file of its own."""
    blobs = [(layer, layer.tar()) for layer in image.layers if layer.name in names]
    return [Layer(layer.name, layer.diff_id, blob.size, blob.path) for layer, blob in blobs]


def _copy_project(project: Project, build: Build, copy: Path) -> None:
    """Copy what a build reads of PROJECT to COPY, without the recorded digests: the builds are compared directly."""
    shutil.copytree(project.root / "images", copy / "images")
    series = build.spec.patches.series
    shutil.copytree(project.series(series), Project(copy).series(series))
    lock = Project(copy, project.platform).lock(build.spec.name)
    lock.parent.mkdir()
    shutil.copyfile(project.lock(build.spec.name), lock)


def _link_files(files: Sequence[LockedFile], store: Store, other: Store) -> None:
    for sha256 in sorted({file.sha256 for file in files}):
        copy, source = other.path(sha256), store.path(sha256)
        if source.exists():  # one that no layer of the patch set is made from may never have been fetched
            copy.parent.mkdir(parents=True, exist_ok=True)
            durable.link(source, copy)


def _give(scratch: Path, copy: Path, user: object) -> None:
    """Let USER write to the directories below SCRATCH and read the project COPY; None leaves all as it is."""
    if not isinstance(user, int):
        return
    for directory, _, names in os.walk(scratch):
        os.chown(directory, user, user)
        if Path(directory).is_relative_to(copy):  # what lies in the store may be a link to the store's own file
            for name in names:
                os.chown(Path(directory, name), user, user)


def _surroundings(home: Path) -> Surroundings:
    now = os.umask(0o077)  # only setting it tells what it was
    os.umask(now)
    umask = 0o077 if now != 0o077 else 0o027
    processors = (os.cpu_count() or 1) + 1
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": os.pathsep.join(_packages()),
        "PYTHONDONTWRITEBYTECODE": "1",
        # The second value is for a process that has the first one itself; TZ has two for the same reason.
        "PYTHONHASHSEED": "4711" if os.environ.get("PYTHONHASHSEED") != "4711" else "4712",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "NVLLM_HOME": str(home),
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "USER": "another",
        "LOGNAME": "another",
        "TZ": "NVL-13:45" if os.environ.get("TZ") != "NVL-13:45" else "NVL+11:15",
        "LC_ALL": "C",
        "LANG": "de_DE.UTF-8",
        "SOURCE_DATE_EPOCH": "1",
    }
    settings: dict[str, object] = {
        "program": COMMAND,
        "cwd": str(home),
        "umask": umask,
        "clock": _LATER,
        "processors": processors,
        "user": None,
    }
    varied = {
        "directory": "another for project, cache, home and temporary files",
        "umask": f"{umask:04o}",
        "time zone": environment["TZ"],
        "locale": "C, without UTF-8",
        "file order": "reversed",
        "clock": f"{_LATER // 86400} days later",
        "processors": f"{processors} as Python counts them",
        "hash seed": environment["PYTHONHASHSEED"],
        "environment": "HOME, USER, LANG, SOURCE_DATE_EPOCH and nothing of this one but PATH",
    }
    if os.geteuid() != 0:
        same = {"user": "only root can become somebody else"}
        return Surroundings(sys.executable, settings, environment, Variation(varied, same))
    # An interpreter below a home directory can be read by its owner alone; the system's of that version may do.
    system = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    for python in filter(None, (sys.executable, system)):
        around = Surroundings(
            python, {**settings, "user": _NOBODY}, environment, Variation({**varied, "user": "nobody"}, {})
        )
        tried = {**around.settings, "cwd": "/"}
        if _run(replace(around, settings=tried), ["--version"]).returncode == 0:
            return around
    same = {"user": "nobody cannot read this Python, or nvllm"}
    return Surroundings(sys.executable, settings, environment, Variation(varied, same))


def _packages() -> list[str]:
    """Return the directories of this process's packages, nvllm among them, without the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    folders = [Path(path) for path in sys.path if path]
    return [
        str(path)
        for path in folders
        if path.is_dir() and (path.name.endswith("-packages") or not path.is_relative_to(library))
    ]


def _run(around: Surroundings, arguments: Sequence[str]) -> proc.Completed:
    # -P: what lies beside the script, the modules of this room, is not imported in place of others of their names.
    argv = [around.python, "-B", "-P", str(_SCRIPT), json.dumps(around.settings), *arguments]
    try:
        return proc.run(argv, env=around.environment, timeout=_TIMEOUT)
    except OSError as error:
        return subprocess.CompletedProcess(argv, 126, b"", str(error).encode())
