"""Runs tests with pytest in a container of an image: by its own Python, on its vLLM, without network.

The image has no pytest. All of pytest is Python: it comes from the Python that runs nvllm.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from nvllm.core.plan import ENGINE_ENVIRONMENT, HOME, RUN_DIRECTORY, Mount, Scratch
from nvllm.core.refusal import refuse
from nvllm.engine.container import Container
from nvllm.host import locks
from nvllm.host.facts import INSTANCE_LABEL
from nvllm.host.locks import Key
from nvllm.image.identity import Build
from nvllm.runtime import proving
from nvllm.serve import planner
from nvllm.trials.bench import EngineBench
from nvllm.trials.trial import Built

INSIDE = "/nvllm"
TIMEOUT = 3600.0
"""Seconds of one run of pytest."""

PLUGIN = "nvllm_proving"
OPTIONS = ("-q", "-s", "-p", "no:cacheprovider", "--import-mode=importlib", "--continue-on-collection-errors")
"""Options of pytest. -s: it would keep what the plugin prints. Tests lie in no package and may have one name; one that
cannot be imported ends no other."""
_WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""A container that gets no GPU sees none, also where the engine gives them to every container."""


@dataclass(frozen=True, slots=True)
class ImageTests:
    """Runs tests in the image of BUILD, as a container of the profile of BENCH. GPUS are the uuids that it gets.

    OPTIONS are more options of pytest.
    """

    bench: EngineBench
    build: Build
    gpus: tuple[str, ...]
    options: tuple[str, ...] = ()

    def run(self, built: Built, nodes: Mapping[str, Path], sentinels: Collection[str]) -> str:
        """Run NODES, each below the directory that it is named with, and return what pytest wrote.

        A container sees those directories and the sentinels SENTINELS. The name of a node in the output is that of
        `names`. Raises Refused as `Containers.run_to_end` does, NV508 if a GPU is in use, and NV608 without pytest.
        """
        named = names(nodes)
        numbers = {_directory(node, root): named[node].partition("/")[0] for node, root in nodes.items()}
        with tempfile.TemporaryDirectory(prefix="nvllm-tests-") as name, contextlib.ExitStack() as stack:
            scratch = Path(name)
            for part in ("python", "sentinels", "copies"):
                (scratch / part).mkdir()
            shutil.copyfile(proving.__file__, scratch / "python" / f"{PLUGIN}.py")
            for sentinel in sentinels:
                (scratch / "sentinels" / sentinel).touch()
            targets = {path: f"proofs/{number}" for path, number in numbers.items()}
            targets |= {path: f"pytest/{path.name}" for path in pytest_files()}
            mounts = [
                Mount(str(_readable(path, scratch / "copies" / target)), f"{INSIDE}/{target}")
                for path, target in targets.items()
            ]
            mounts.append(Mount(str(scratch / "python"), f"{INSIDE}/python"))
            mounts.append(Mount(str(scratch / "sentinels"), RUN_DIRECTORY))
            _open(scratch)
            if self.gpus:
                keys, holder = [Key("gpu", uuid) for uuid in self.gpus], locks.this_process(self.bench.command)
                stack.enter_context(locks.acquire_all(self.bench.places.locks, keys, holder))
            container = self._container(mounts, [*named.values()])
            return self.bench.engine.run_to_end(built.image, container, TIMEOUT)

    def _container(self, mounts: Sequence[Mount], named: Sequence[str]) -> Container:
        profile, name = self.build.spec.profiles[self.bench.profile], self.bench.container_name()
        own = {
            "PYTHONPATH": f"{INSIDE}/python:{INSIDE}/pytest",
            "PYTHONDONTWRITEBYTECODE": "1",
            proving.NODES: json.dumps(named),
        }
        tests = [f"{INSIDE}/proofs/{file}" for file in files(named)]
        # -c: no file of configuration counts, for the image has none of the project's.
        options = ["-c", os.devnull, "--rootdir", f"{INSIDE}/proofs", "-p", PLUGIN, *self.options]
        return Container(
            name=name,
            command=(self.build.scheme.interpreter, "-m", "pytest", *OPTIONS, *options, *tests),
            environment={
                **self.build.environment,
                **ENGINE_ENVIRONMENT,
                **own,
                **({} if self.gpus else _WITHOUT_GPU),
            },
            labels={INSTANCE_LABEL: name},
            user=planner.container_user(os.getuid(), os.getgid()),
            memory=profile.limits.memory,
            shared_memory=profile.limits.shared_memory,
            pids=profile.limits.pids,
            ulimits={"core": 0, "nofile": profile.limits.open_files},
            addresses=(),
            port=0,
            mounts=tuple(mounts),
            scratch=(Scratch("/tmp", profile.limits.temporary), Scratch(HOME, profile.limits.temporary)),  # noqa: S108
            gpus=self.gpus,
            read_only=True,
            filtered=True,
            host_ipc=False,
            host_network=False,
        )


def names(nodes: Mapping[str, Path]) -> dict[str, str]:
    """Return what pytest calls each of NODES in a container: the number of its directory, its file, and its test."""
    numbers = {path: number for number, path in enumerate(dict.fromkeys(_directory(*pair) for pair in nodes.items()))}
    named: dict[str, str] = {}
    for node, root in nodes.items():
        file, mark, test = node.partition("::")
        named[node] = f"{numbers[_directory(node, root)]}/{Path(file).name}{mark}{test}"
    return named


def _readable(path: Path, copy: Path) -> Path:
    """Return PATH if every user can read it, else COPY, made of it: after a checkout with the umask 077, say.

    Where nvllm runs as root, the tests run as another user. Hidden files are not copied.
    """
    if all(_is_open(below) for below in (path, *path.rglob("*"))):
        return path
    copy.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        return Path(shutil.copytree(path, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__")))
    return Path(shutil.copyfile(path, copy))


def _is_open(path: Path) -> bool:
    status = path.lstat()
    needed = 0o005 if stat.S_ISDIR(status.st_mode) else 0o004
    return stat.S_ISLNK(status.st_mode) or status.st_mode & needed == needed


def _open(top: Path) -> None:
    """Let every user read TOP and what is below it."""
    for path in (top, *top.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))


def _directory(node: str, root: Path) -> Path:
    return (root / node.partition("::")[0]).absolute().parent


def files(nodes: Sequence[str]) -> list[str]:
    """Return the files of NODES, each once."""
    return [*dict.fromkeys(node.partition("::")[0] for node in nodes)]


def pytest_files() -> tuple[Path, ...]:
    """Return what pytest and its requirements have in the directory of their packages, all of it Python.

    Raises Refused NV608 if the Python that runs nvllm has no pytest.
    """
    waiting, paths, seen = ["pytest"], dict[Path, None](), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            cure = "install pytest for the Python that runs nvllm"
            raise refuse("NV608", "pytest", f"the distribution {name}", "not installed", cure) from None
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__"):
                paths[Path(str(distribution.locate_file(top)))] = None
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return tuple(paths)
