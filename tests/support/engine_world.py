"""What the tests on the real engine share: worlds of their own over the user's store, layers and image.

A world is a copy of the project, with profiles of other names and a free port, and a state directory of its
own. So a test serves, tampers and is killed beside whatever the user serves, and nothing is built twice. What
a world started is stopped when its test, or the session, ends, in whichever way it ends.

Docker is imported where it is used: the unit tests load this module too, and must not need it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from nvllm.core.paths import Places, Project, places
from nvllm.host.facts import INSTANCE_LABEL
from nvllm.image import buildrecord

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

ROOT = Path(__file__).parents[2]
IMAGE = "cpu"
MODEL = "tiny-lfm2"
SECRETS = {"HF_TOKEN": "hf_ofTheOperator", "VLLM_API_KEY": "sk-of-the-operator", "DB_PASSWORD": "of-the-operator"}
"""What the operator's environment holds while the suite serves; none of it may be seen anywhere else."""

_PLACES = {"NVLLM_HOME", "NVLLM_MODELS"}
_LONGEST = 900
_PATIENCE = 60
NOBODY = 65534
_numbers = itertools.count(1)
_claims: list[socket.socket] = []


@dataclass(frozen=True, slots=True)
class Done:
    """What a run of nvllm left; SECONDS is its wall time."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float

    @property
    def document(self) -> dict[str, Any]:
        """What ``--json`` printed, and nothing but that."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def result(self) -> dict[str, Any]:
        assert self.code == 0, self
        result = self.document["result"]
        assert isinstance(result, dict)
        return result

    @property
    def refusals(self) -> list[dict[str, str]]:
        listed = self.document["refusals"]
        assert isinstance(listed, list)
        return listed

    @property
    def codes(self) -> list[str]:
        return [one["code"] for one in self.refusals]

    @property
    def refusal(self) -> dict[str, str]:
        """The only refusal."""
        (only,) = self.refusals
        return only


def run(argv: Sequence[str], env: Mapping[str, str], **options: Any) -> Done:
    """Run ARGV in ENV to its end; OPTIONS are those of `subprocess.run`."""
    began = time.monotonic()
    done = subprocess.run(
        argv,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
        **options,
    )
    return Done(tuple(argv), done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def until(met: Callable[[], bool], what: str, patience: float = _PATIENCE) -> None:
    """Wait until MET says true; fail, naming WHAT, if it does not within PATIENCE seconds."""
    deadline = time.monotonic() + patience
    while not met():
        assert time.monotonic() < deadline, f"{patience} s passed, and not: {what}"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    """Return whether PID is a process that has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def dead(pid: int) -> bool:
    return not alive(pid)


def free_port() -> int:
    """Return a port that nothing listens on, and that no other process of these tests is given until this one ends."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0port {port} of a test of nvllm")  # a name without a file, which the kernel frees
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port


def _runs_nvllm(argv: list[str], env: dict[str, str], user: int) -> bool:
    """Return whether USER can run nvllm by ARGV."""
    try:
        return run([*argv, "--version"], env, user=user, group=user, extra_groups=[], cwd="/").code == 0
    except OSError:
        return False


def another_user() -> tuple[list[str], dict[str, str], int]:
    """Return how to run nvllm as another user: the argument list, what the environment needs, and the user.

    Only root can become somebody else. A virtual environment may belong to an interpreter below a home directory
    that others cannot enter; the host's own interpreter of the same version then runs the same packages. Where
    neither works the user stays the present one, and the other differences remain.
    """
    packages = f"{ROOT / 'launcher'}:{sysconfig.get_path('purelib')}"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if os.geteuid() == 0:
        for python, env in ((sys.executable, {}), (f"/usr/bin/{version}", {"PYTHONPATH": packages})):
            argv = [python, "-m", "nvllm"]
            if _runs_nvllm(argv, env, NOBODY):
                return argv, env, NOBODY
    return [sys.executable, "-m", "nvllm"], {}, os.geteuid()


@dataclass(frozen=True, slots=True)
class BuiltImage:
    tag: str
    id: str
    build_hash: str
    patches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class World:
    """A project and a state below DIRECTORY. TOKEN starts the names of its profiles, and no others'."""

    directory: Path
    token: str
    port: int
    secrets: Mapping[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def project(self) -> Project:
        return Project(self.directory / "project")

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _PLACES}
        own = {"XDG_CACHE_HOME": str(self.directory / "cache"), "XDG_STATE_HOME": str(self.directory / "state")}
        return {**kept, **self.secrets, **own}

    @property
    def places(self) -> Places:
        return places(self.env)

    @property
    def spec(self) -> Path:
        return self.project.spec(IMAGE)

    @property
    def model(self) -> Path:
        return self.places.models / MODEL

    def profile(self, name: str = "eager") -> str:
        return f"{self.token}-{name}"

    def instance(self, name: str = "eager") -> str:
        return f"nvllm-{IMAGE}-{self.profile(name)}"

    def run_directory(self, name: str = "eager") -> Path:
        return self.places.runs / self.instance(name)

    def state(self, name: str = "eager") -> dict[str, Any]:
        """How far the instance is, by its state file."""
        found = json.loads((self.run_directory(name) / "state.json").read_bytes())
        assert isinstance(found, dict)
        return found

    def edit(self, changes: Mapping[str, str]) -> None:
        """Replace text of the image spec, everywhere it stands."""
        text = self.spec.read_text()
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        self.spec.write_text(text)

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "nvllm", "--project", str(self.project.root), *args]

    def nvllm(self, *args: str, env: Mapping[str, str] | None = None) -> Done:
        """Run nvllm with ARGS in this world, with ENV on top of its environment."""
        return run(self.argv(*args), {**self.env, **(env or {})})

    def serve(self, *args: str, profile: str = "eager") -> Done:
        return self.nvllm("serve", IMAGE, "--profile", self.profile(profile), "--json", *args)

    def start(self, *args: str, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start nvllm with ARGS, as a terminal would, in a process group of its own."""
        process = subprocess.Popen(
            self.argv(*args),
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def supervisor(self, profile: str = "eager") -> subprocess.Popen[str]:
        """Start a supervisor in the foreground."""
        return self.start("serve", IMAGE, "--profile", self.profile(profile))

    def containers(self, client: DockerClient) -> list[Container]:
        """Return the containers that carry this world's names, running or not."""
        mine = f"nvllm-{IMAGE}-{self.token}-"
        return [one for one in client.containers.list(all=True, ignore_removed=True) if str(one.name).startswith(mine)]

    def end(self) -> None:
        """Stop whatever this world started."""
        import docker

        for process in self.started:
            process.kill()
            process.communicate()
        with contextlib.closing(docker.from_env()) as client:
            for container in self.containers(client):
                container.remove(force=True)
        ours = {os.getpid(), *(process.pid for process in self.started)}  # a test may supervise by itself
        for document in self.places.runs.glob("*/state.json"):
            pid = int(json.loads(document.read_bytes())["supervisor"])
            if pid in ours:
                continue
            try:  # it notices by itself that its container is gone
                until(partial(dead, pid), "the supervisor ends", 15)
            except AssertionError:
                os.kill(pid, signal.SIGKILL)


class Worlds:
    """Makes worlds below DIRECTORY over what the user's own places OWN hold, with the record of BUILT alone.

    Every file of the store and of the layer cache is a link, so that a world adds nothing there, and removes
    nothing.
    """

    def __init__(self, directory: Path, own: Places, built: BuiltImage) -> None:
        self.directory = directory
        self.own = own
        self.built = built
        self.made: list[World] = []

    def make(self, changes: Mapping[str, str] | None = None, secrets: Mapping[str, str] | None = None) -> World:
        """Return a new world with the CHANGES in the text of its image spec."""
        number = next(_numbers)
        world = World(self.directory / f"world{number}", f"t{os.getpid()}n{number}", free_port(), secrets or {})
        self.made.append(world)
        for part in ("images", "manifests", "patches"):
            shutil.copytree(ROOT / part, world.project.root / part)
        world.edit({"  tiny-eager:": f"  {world.profile('eager')}:"})
        world.edit({"  tiny-compiled:": f"  {world.profile('compiled')}:", "port: 8000": f"port: {world.port}"})
        for name in ("blessed", "ablation"):
            world.edit({f"  tiny-{name}:": f"  {world.profile(name)}:"})
        world.edit(changes or {})
        _link(self.own.store / "sha256", world.places.store / "sha256")
        _link(self.own.layers, world.places.layers)
        shutil.copytree(self.own.models / MODEL, world.model)
        world.places.builds.mkdir(parents=True, mode=0o700)
        shutil.copy2(self.own.builds / f"{self.built.build_hash}.json", world.places.builds)
        return world

    def end(self) -> None:
        for world in self.made:
            world.end()


def _link(source: Path, target: Path) -> None:
    """Fill TARGET with links to the files below SOURCE; a base tree is one link, and locks are nobody else's."""
    target.mkdir(mode=0o700, parents=True)
    for path in source.iterdir():
        if path.is_dir() and path.suffix != ".tree":
            _link(path, target / path.name)
        elif path.suffix != ".lock":
            (target / path.name).symlink_to(path)


def own_nvllm(*args: str) -> Done:
    """Run nvllm on the real project, in the user's own cache and state."""
    env = {name: value for name, value in os.environ.items() if name != "NVLLM_MODELS"}
    return run([sys.executable, "-m", "nvllm", "--project", str(ROOT), *args], env)


@pytest.fixture(scope="session")
def docker_client() -> Iterator[DockerClient]:
    import docker

    with contextlib.closing(docker.from_env(timeout=120)) as client:
        yield client


@pytest.fixture(scope="session")
def built_image() -> BuiltImage:
    """The image of the real project, built in the user's own cache if it is not there."""
    done = own_nvllm("build", IMAGE, "--json")
    assert done.code == 0, done
    found = done.result
    return BuiltImage(found["tag"], found["image_id"], found["build_hash"], tuple(found["patches"]))


@pytest.fixture(scope="session")
def tiny_model(built_image: BuiltImage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the real project, made in the user's own cache if it is not there as pinned."""
    with FileLock(tmp_path_factory.getbasetemp().with_name("model.lock")):  # the other worker asks as well
        if own_nvllm("model", "check", IMAGE, MODEL).code != 0:
            made = own_nvllm("model", "make", IMAGE, MODEL)
            assert made.code == 0, made
    return places(dict(os.environ)).models / MODEL


@pytest.fixture(scope="session")
def session_worlds(
    built_image: BuiltImage, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worlds]:
    made = Worlds(tmp_path_factory.mktemp("worlds"), places(dict(os.environ)), built_image)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory that every user can enter; pytest's own is for one user alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def worlds(built_image: BuiltImage, tiny_model: Path, tmp_path: Path) -> Iterator[Worlds]:
    """Worlds of one test."""
    made = Worlds(tmp_path, places(dict(os.environ)), built_image)
    try:
        yield made
    finally:
        made.end()


@dataclass(frozen=True, slots=True)
class Served:
    """An instance that is ready, for the whole session: look, do not touch."""

    world: World
    done: Done
    container: Container


@pytest.fixture(scope="session")
def served(session_worlds: Worlds, docker_client: DockerClient) -> Served:
    world = session_worlds.make(secrets=SECRETS)
    done = world.serve("--detach")
    assert done.code == 0, done
    container = docker_client.containers.get(done.result["container"])
    assert container.labels[INSTANCE_LABEL] == world.instance()
    return Served(world, done, container)


OTHER_BUILD = {"    VLLM_TARGET_DEVICE: cpu": "    VLLM_TARGET_DEVICE: cpu\n    OF_A_TEST: 'yes'"}
"""A change after which the image has another build hash, from the same locked inputs."""


def build_hash(world: World) -> str:
    """Return the build hash of the image of WORLD."""
    return str(world.nvllm("build", IMAGE, "--dry-run", "--json").result["build_hash"])


def record(world: World, image_id: str) -> None:
    """Put on record in WORLD, and there alone, that its image came to IMAGE_ID."""
    buildrecord.write(world.places.builds, buildrecord.Record(IMAGE, build_hash(world), image_id, (), None, "built"))


@contextlib.contextmanager
def tagged(client: DockerClient, image_id: str, world: World) -> Iterator[str]:
    """Give the image IMAGE_ID the tag that the image of WORLD would have; yield it and take it away again.

    WORLD must have another build hash than the real project, so that the tag is nobody's.
    """
    tag = f"{IMAGE}-{build_hash(world)[:12]}"
    assert not client.images.list(filters={"reference": f"nvllm:{tag}"})
    client.api.tag(image_id, "nvllm", tag)
    try:
        yield f"nvllm:{tag}"
    finally:
        client.api.remove_image(f"nvllm:{tag}", noprune=True)
