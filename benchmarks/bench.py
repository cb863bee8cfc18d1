"""Measure what the README says: ``python -m benchmarks [SECTION]...``, of `SECTIONS`; without any, all but `LONG`.

Every figure is the median of runs of the real command, beside its target, and where there is another way to do
the same, beside that, in the same run on the same machine. A target that is missed is printed as missed. The
exit status is 1 if a section could not run. The image that is built is called `bench`, from images/cpu.yaml, so
that no image of yours changes; what is loaded or built here is removed at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks import start_bench, verify_bench

from nvllm.cache import promotion
from nvllm.cache.blessings import Blessings
from nvllm.cache.store import TreeStore
from nvllm.cli import terminal
from nvllm.core import archives, catalogue, clock, paths, reading, refusal
from nvllm.core.plan import CACHE
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.core.spec import ImageSpec
from nvllm.engine import engine
from nvllm.host.facts import EngineProblem
from nvllm.image import buildrecord, dockerfiles
from nvllm.layers import patchlayer
from nvllm.layers.wheel import Scheme, Wheel
from nvllm.lock import lockdoc
from nvllm.patches import patching, seriesfile, source, unified
from nvllm.patches.series import Patch
from nvllm.serve.examination import Depth, examine
from nvllm.sources.store import Store
from nvllm.spec import specfile

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support import blessings_world

ROOT = Path(__file__).parents[1]
NVLLM = [str(Path(sys.executable).with_name("nvllm"))]
IMAGE = "bench"
OFF = "request-shapes"
"""The patch that docker build makes too: one Python file."""

APPLIER = (archives, catalogue, patching, reading, refusal, source, unified)
"""What `apply_patches.py` needs of nvllm beside it."""

SLOW, QUICK, INSTANT = 3, 7, 21
"""How often something is run, by how long it takes."""

_ID = re.compile(r"^ ---> ([0-9a-f]{12})$", re.MULTILINE)


class CannotRunError(Exception):
    """A section lacks what it needs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: seconds, and bytes of new layer data where there is such a thing. BESIDE is the row it is held to."""

    figure: str
    seconds: Sequence[float]
    data: int | None = None
    target_seconds: float | None = None
    target_data: int | None = None
    beside: Row | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def cells(self) -> list[str]:
        targets = []
        met = True
        if self.target_seconds is not None:
            targets.append(f"<= {_time(self.target_seconds)}")
            met = met and self.median <= self.target_seconds
        if self.target_data is not None and self.data is not None:
            targets.append(f"<= {terminal.size(self.target_data)}")
            met = met and self.data <= self.target_data
        verdict = ("met" if met else "MISSED") if targets else ""
        ratio = f"{self.median / self.beside.median:.1f} x" if self.beside else ""
        if self.beside and self.beside.data and self.data is not None:
            ratio += f", {self.data / self.beside.data:.1f} x data"
        spread = f"{_time(min(self.seconds))} to {_time(max(self.seconds))}"
        data = terminal.size(self.data) if self.data is not None else ""
        runs = f"{len(self.seconds)}: {spread}" if len(self.seconds) > 1 else "1"
        return [self.figure, _time(self.median), data, ratio, ", ".join(targets), verdict, runs]


COLUMNS = ["figure", "median", "new data", "to nvllm", "target", "verdict", "runs"]


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(argv: Sequence[str], **environment: str) -> str:
    """Run ARGV and return its stdout. Raises CannotRunError with its words if it fails."""
    done = subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        printed = [text.strip()[-400:] for text in (done.stdout, done.stderr)]  # Docker's client warns on one of them
        raise CannotRunError(f"{' '.join(argv[:4])} ...: {' '.join(filter(None, printed))}")
    return done.stdout


def timed(argv: Sequence[str], **environment: str) -> float:
    """Run ARGV and return how many seconds it took."""
    started = time.perf_counter()
    run(argv, **environment)
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Builder:
    """One of Docker's builders: its NAME, the CLIENT that has it, and how DOCKER_BUILDKIT chooses it."""

    name: str
    client: str
    switch: Literal["0", "1"]


CLASSIC = Builder("the classic builder", "docker", "0")
"""Debian 12's default, which every client still has."""


def _buildkit() -> Builder | None:
    """Return BuildKit by the first client of PATH that has it, None if none has.

    A client before 23 has it within; a later one needs the plugin buildx, which packages of clients leave out.
    """
    for directory in os.get_exec_path():
        client = Path(directory, "docker")
        if not os.access(client, os.X_OK):
            continue
        version = run([str(client), "version", "--format", "{{.Client.Version}}"])
        if int(version.partition(".")[0]) < _WITHOUT_BUILDKIT or _succeeds([str(client), "buildx", "version"]):
            return Builder(f"BuildKit, client {version.strip()}", str(client), "1")
    return None


_WITHOUT_BUILDKIT = 23
"""The first major version of Docker's client that has BuildKit only as a plugin."""


def _succeeds(argv: Sequence[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _build_cache() -> frozenset[str]:
    """Return the ids of the records in BuildKit's cache; none without an engine."""
    answer = subprocess.run(
        ["docker", "system", "df", "--verbose", "--format", "{{json .BuildCache}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return frozenset(record["ID"] for record in json.loads(answer.stdout or "null") or ())


@dataclass
class Bench:
    """What the sections share: a project with the image `bench`, and what has to be removed again."""

    directory: Path
    images: list[str] = field(default_factory=list)
    cache_before: frozenset[str] = field(default_factory=_build_cache)
    """The records of BuildKit's cache that are not the bench's."""
    _homes: int = 0

    @property
    def project(self) -> Path:
        """The project: this one's patches, and its image `cpu` under the name `bench`."""
        path = self.directory / "project"
        if not path.exists():
            checkout = paths.Project(ROOT)
            (path / "images").mkdir(parents=True)
            for name in ("patches", "Dockerfile", "images/native-build-requirements.txt"):
                (path / name).symlink_to(ROOT / name)
            text = checkout.spec("cpu").read_text().replace("\nname: cpu\n", f"\nname: {IMAGE}\n")
            text = text.replace("port: 8000", f"port: {_free_port()}")
            (path / f"images/{IMAGE}.yaml").write_text(text)
            lock = lockdoc.read(checkout.lock("cpu"), "manifests/cpu.lock.json")
            lock = dataclasses.replace(lock, image=IMAGE, inputs=specfile.inputs(self.spec, lock.platform))
            lockdoc.write(paths.Project(path).lock(IMAGE), lock)
        return path

    @property
    def spec(self) -> ImageSpec:
        return specfile.load(self.directory / f"project/images/{IMAGE}.yaml", f"images/{IMAGE}.yaml")

    @property
    def series(self) -> Path:
        return self.project / "patches" / self.spec.patches.series

    def patch(self, name: str) -> Patch:
        return next(patch for patch in seriesfile.load(self.series, "patches").patches if patch.id == name)

    def nvllm(self, *arguments: str) -> list[str]:
        return [*NVLLM, "--project", str(self.project), "--quiet", *arguments]

    def home(self, *kinds: str) -> Path:
        """Return a fresh NVLLM_HOME: the store of the user, of the layer cache only KINDS, no record of any build."""
        self._homes += 1
        home = self.directory / f"home{self._homes}"
        mine, user_places = home / "cache", paths.places(dict(os.environ))
        (mine / "layers").mkdir(parents=True)
        (mine / "store").symlink_to(user_places.store)
        for note in user_places.layers.glob("*.json"):
            if json.loads(note.read_bytes())["kind"] in kinds:
                for path in (note, note.with_suffix(".tar")):
                    (mine / "layers" / path.name).symlink_to(path)
        for tree in user_places.layers.glob("*.tree") if kinds else ():
            (mine / "layers" / tree.name).symlink_to(tree)
        return home

    def copy(self, home: Path) -> Path:
        """Return a fresh home with the layers and the records of HOME."""
        self._homes += 1
        return shutil.copytree(home, self.directory / f"home{self._homes}", symlinks=True)

    def warm(self) -> None:
        """Fill the user's store and layer cache, so that what is cold afterwards is cold by intention."""
        run(self.nvllm("build", IMAGE, "--layout", str(self.directory / "warm")))
        shutil.rmtree(self.directory / "warm")

    def built(self, home: Path, *arguments: str) -> buildrecord.Record:
        """Run `nvllm build` with HOME, note the image for removal, and return the record of the build."""
        result = json.loads(run(self.nvllm("--json", "build", IMAGE, *arguments), NVLLM_HOME=str(home)))["result"]
        record = buildrecord.read(home / "state/builds", result["build_hash"])
        assert record is not None
        self.images += record.tags or ()
        return record

    def docker_build(self, builder: Builder, context: Path, *options: str) -> tuple[float, str]:
        """Run `docker build` by BUILDER without its cache; return seconds and the image's id."""
        wrote = self.directory / "image-id"
        argv = [builder.client, "build", "--no-cache", "--force-rm", "--network=none", f"--iidfile={wrote}", *options]
        started = time.perf_counter()
        printed = run([*argv, str(context)], DOCKER_BUILDKIT=builder.switch)
        seconds = time.perf_counter() - started
        self.images += [*_ID.findall(printed)[1:], wrote.read_text()]  # the first one is what it was built from
        return seconds, wrote.read_text()

    def remove(self) -> None:
        for image in reversed(dict.fromkeys(self.images)):
            subprocess.run(["docker", "rmi", "--no-prune", image], capture_output=True, check=False)
        for record in _build_cache() - self.cache_before:
            prune = ["docker", "builder", "prune", "--force", "--all", "--filter", f"id={record}"]
            subprocess.run(prune, capture_output=True, check=False)


def _engine() -> engine.Engine:
    connected = engine.connect()
    if isinstance(connected, EngineProblem):
        raise CannotRunError(f"no Docker engine answers at {connected.endpoint}: {connected.text}")
    if shutil.which("docker") is None:
        raise CannotRunError("no docker client in PATH")
    return connected


def toggle(bench: Bench) -> list[Row]:
    """Each patch that no other requires, alone: switched on by nvllm, with the image of all others in the engine.

    On is what costs: off, all layers but the identity are there. What is made for the others is made before.
    """
    _engine()
    bench.warm()
    enable = bench.spec.patches.enable
    needed = {required for name in enable for required in bench.patch(name).requires}
    return [_toggled(bench, name)[0] for name in enable if name not in needed]


def builders(bench: Bench) -> list[Row]:
    """One patch switched on by nvllm, and by each of Docker's builders, on top of the image of all others."""
    _engine()
    bench.warm()
    row, without = _toggled(bench, OFF)
    base = f"nvllm-without:{IMAGE}"  # BuildKit looks an image up by a name, and not by its id
    run(["docker", "tag", without, base])
    bench.images.append(base)
    copying, applying = _copying(bench, base), _applying(bench, base)
    mounted = _mounting(bench, base, applying)
    ways = [(CLASSIC, "COPY of the patched file", copying), (CLASSIC, "RUN applies the patch", applying)]
    buildkit = _buildkit()
    if buildkit is None:
        print("builders: no client in PATH has BuildKit: install buildx, or a client before 23", file=sys.stderr)
    else:
        new = [(buildkit, "COPY of the patched file", copying), (buildkit, "RUN with bind and cache mounts", mounted)]
        ways = [*new, *ways]
    figures = ((f"{OFF}: {builder.name}, {what}", builder, context) for builder, what, context in ways)
    return [row, *(_docker_row(figure, bench, builder, context, base, row) for figure, builder, context in figures)]


def _toggled(bench: Bench, name: str) -> tuple[Row, str]:
    """Return the row of the patch NAME, and the id of the image that has all others."""
    patches = ",".join(patch for patch in bench.spec.patches.enable if patch != name)
    there = bench.home("base", "wheels")
    without = bench.built(there, "--patches", patches)
    diff_ids = {layer.diff_id for layer in without.layers}
    seconds, data = [], 0
    for _ in range(SLOW):
        home = bench.copy(there)
        seconds.append(timed(bench.nvllm("build", IMAGE), NVLLM_HOME=str(home)))
        record = bench.built(home)  # there already: says what it came to
        data = sum(layer.size for layer in record.layers if layer.diff_id not in diff_ids)
        named = run(["docker", "inspect", "--format", "{{.Id}}", *(record.tags or ())[:1]]).strip()
        run(
            ["docker", "rmi", "--force", named]
        )  # with the names that other homes gave it: the next load is a whole one
    return Row(f"{name}: nvllm build", seconds, data, 5.0, 1_000_000), without.image_id


def _docker_row(figure: str, bench: Bench, builder: Builder, context: Path, base: str, row: Row) -> Row:
    seconds, data = [], 0
    for _ in range(SLOW):
        took, image = bench.docker_build(builder, context)
        seconds.append(took)
        sizes = [
            int(run(["docker", "image", "inspect", "--format", "{{.Size}}", reference])) for reference in (image, base)
        ]
        data = sizes[0] - sizes[1]
    return Row(figure, seconds, data, beside=row)


def _context(bench: Bench, name: str, base: str, lines: Sequence[str]) -> Path:
    context = bench.directory / name
    context.mkdir()
    text = [f"FROM {base}", "USER 0:0", *lines, "USER 65534:65534"]
    (context / "Dockerfile").write_text("\n".join(text) + "\n")
    return context


def _copying(bench: Bench, base: str) -> Path:
    """Return a context for the best that a plain Dockerfile can do: only the patched file, and its bytecode."""
    lock = lockdoc.read(paths.Project(bench.project).lock(IMAGE), f"manifests/{IMAGE}.lock.json")
    store = Store(paths.places(dict(os.environ)).store)
    wheel = next(wheel for wheel in lock.wheels if wheel.name == lock.vllm.distribution)
    with Wheel(store.path(wheel.file.sha256)) as opened:
        diff = seriesfile.diff(bench.series, bench.patch(OFF), "patches")
        changed = patchlayer.patched(store.path(lock.vllm.source.sha256), [diff], opened).files
    site = f"/{Scheme('opt/venv', lock.base.python).site}"
    compiled = json.dumps(
        ["python", "-m", "compileall", "-q", "-f", "--invalidation-mode", "checked-hash"]
        + [f"{site}/{path}" for path in changed]
    )
    context = _context(bench, "copying", base, [f"COPY site/ {site}/", f"RUN {compiled}"])
    for path, data in changed.items():
        assert data is not None
        (context / "site" / path).parent.mkdir(parents=True, exist_ok=True)
        (context / "site" / path).write_bytes(data)
    return context


def _applying(bench: Bench, base: str) -> Path:
    """Return a context for what people write first: COPY the patch file, apply it, compile the package."""
    python = lockdoc.read(paths.Project(bench.project).lock(IMAGE), f"manifests/{IMAGE}.lock.json").base.python
    site, file = f"/{Scheme('opt/venv', python).site}", str(bench.patch(OFF).file)
    compiled = f"python -m compileall -q -f --invalidation-mode checked-hash {site}/vllm"
    lines = ["COPY patches/ /patches/", f"RUN python /patches/apply_patches.py {site} /patches/{file} && {compiled}"]
    context = _context(bench, "applying", base, lines)
    (context / "patches").mkdir(parents=True)
    shutil.copy(bench.series / file, context / "patches")
    shutil.copy(Path(__file__).with_name("apply_patches.py"), context / "patches")
    for path, module in dockerfiles.module_files(APPLIER).items():
        (context / "patches" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, context / "patches" / path)
    return context


def _mounting(bench: Bench, base: str, applying: Path) -> Path:
    """Return a context for what BuildKit adds: the RUN of APPLYING, with its files mounted and no layer of them."""
    (command,) = re.findall("^RUN .*$", (applying / "Dockerfile").read_text(), re.MULTILINE)
    mounts = "--mount=type=bind,source=patches,target=/patches --mount=type=cache,target=/root/.cache"
    context = _context(bench, "mounting", base, [command.replace("RUN ", f"RUN {mounts} ", 1)])
    shutil.copytree(applying / "patches", context / "patches")
    return context


def again(bench: Bench) -> list[Row]:
    """The image is there: its build hash says so."""
    _engine()
    bench.warm()
    home = bench.home("base", "wheels")
    bench.built(home)
    argv = bench.nvllm("build", IMAGE)
    return [Row("nvllm build, image is there", [timed(argv, NVLLM_HOME=str(home)) for _ in range(QUICK)], None, 1.0)]


def serve(bench: Bench) -> list[Row]:
    """From the command to the start of the container, beside the client's own command for the same container.

    Once for a profile that loads nothing, and once for one that is served from a blessed cache, which is staged and
    hashed before the container starts. What that cache holds does not matter until the engine loads it, and here it
    is ended before: it is one of the prior art's shape, and its manifest is made up, see `_blessed`.
    """
    docker = _engine()
    bench.warm()
    home = bench.home("base", "wheels")
    bench.built(home)
    (home / "cache/models").symlink_to(paths.places(dict(os.environ)).models)
    run(bench.nvllm("model", "check", IMAGE, "tiny-lfm2"), NVLLM_HOME=str(home))
    rows = _serving(bench, docker, home, "tiny-eager", None)
    return [*rows, *_serving(bench, docker, home, "tiny-blessed", _blessed(bench, home))]


def _serving(bench: Bench, docker: engine.Engine, home: Path, profile: str, copy: Path | None) -> list[Row]:
    """Return the rows of PROFILE with HOME; COPY of its cache is for the client, since nvllm's goes with its engine."""
    argv, served, plain = bench.nvllm("serve", IMAGE, "--profile", profile), [], []
    for _ in range(QUICK):
        began = time.time()
        process = subprocess.Popen(
            argv,
            env={**os.environ, "NVLLM_HOME": str(home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            name = _started(docker, process, f"nvllm-{IMAGE}-{profile}")
            served.append(_since(name, began))
            command = _docker_run(name, copy)
        finally:
            process.terminate()
            process.communicate()
        began = time.time()
        container = run(command).strip()
        try:
            plain.append(_since(container, began))
        finally:
            run(["docker", "rm", "-f", container])
    target = statistics.median(plain) + 1.0
    row = Row(f"nvllm serve of {profile}, to the start of the container", served, target_seconds=target)
    return [row, Row(f"{profile}: docker run of the same container", plain, beside=row)]


def _blessed(bench: Bench, home: Path) -> Path:
    """Bring a manifest for the profile tiny-blessed into force with HOME, and return a copy of its cache to mount.

    Nothing was compiled and nothing tried: the cache is that of `verify_bench`, random bytes, and the manifest says
    of it what a bless would. It is in the bench's own project, and goes with it.
    """
    project, places = paths.Project(bench.project), paths.Places(home / "cache", home / "state")
    store = TreeStore(places.trees)
    tree = store.adopt(verify_bench.make(bench.directory / "compiled"), "bless again")
    plan = examine(project, places, IMAGE, "tiny-blessed", Depth.UNBLESSED, paranoid=False, progress=Silent()).plan
    made = blessings_world.bless(
        tree, plan, label=f"{IMAGE}-tiny-blessed", created=clock.stamp(time.time()), kv_tokens=1
    )
    promotion.promote(Blessings(project.blessed, places.blessings), made)
    return store.stage(tree, bench.directory / "copies", made.cure).path


def _started(docker: engine.Engine, process: subprocess.Popen[bytes], name: str) -> str:
    """Wait until the container NAME that PROCESS starts is running. Raises CannotRunError if that ends before."""
    while not any(container.name == name and container.running for container in docker.containers()):
        if process.poll() is not None:
            raise CannotRunError(process.communicate()[1].decode()[-400:])
        time.sleep(0.05)
    return name


def _since(container: str, began: float) -> float:
    """Return the seconds from BEGAN, since 1970, to when the engine started CONTAINER."""
    text = run(["docker", "inspect", "--format", "{{.State.StartedAt}}", container]).strip()
    whole, _, fraction = text.removesuffix("Z").partition(".")
    start = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.UTC).timestamp()
    return start + float(f"0.{fraction}") - began


def _docker_run(container: str, copy: Path | None) -> list[str]:
    """Return the `docker run` that makes another container like CONTAINER, which is nvllm's; COPY is its cache."""
    inspected = json.loads(run(["docker", "inspect", container]))[0]
    config, host = inspected["Config"], inspected["HostConfig"]
    (binding,) = host["PortBindings"]["8000/tcp"]
    flags = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--ipc={host['IpcMode']}"]
    flags += [f"--shm-size={host['ShmSize']}", f"--memory={host['Memory']}", f"--memory-swap={host['MemorySwap']}"]
    flags += [f"--pids-limit={host['PidsLimit']}", f"--user={config['User']}", "--log-driver=json-file"]
    flags += [f"--publish={binding['HostIp']}:{_free_port()}:8000", f"--entrypoint={config['Entrypoint'][0]}"]
    flags += [f"--env={variable}" for variable in config["Env"]]
    flags += [f"--tmpfs={target}:{options}" for target, options in host["Tmpfs"].items()]
    assert copy is None or any(mount["Target"] == CACHE for mount in host["Mounts"]), "it is not served from a cache"
    for mount in host["Mounts"]:
        source = copy if copy is not None and mount["Target"] == CACHE else mount["Source"]
        flags.append(f"--mount=type=bind,source={source},target={mount['Target']},readonly")
    return ["docker", "run", "--detach", *flags, inspected["Image"], *config["Cmd"]]


def verify(_: Bench) -> list[Row]:
    """Print how long a blessed cache takes to verify, by the table of its own command."""
    print(run([sys.executable, str(ROOT / "benchmarks" / "verify_bench.py")]))
    return []


def help_(_: Bench) -> list[Row]:
    """The help, in turns with an interpreter that does nothing: seconds depend on the machine, their ratio less."""
    plain = [sys.executable, "-c", "pass"]
    help_seconds, plain_seconds = zip(*((timed([*NVLLM, "--help"]), timed(plain)) for _ in range(INSTANT)), strict=True)
    ratio = statistics.median(help_seconds) / statistics.median(plain_seconds)
    row = Row(f"nvllm --help, {ratio:.1f} times python -c pass", help_seconds, None, 0.15)
    return [row, Row("python -c pass", plain_seconds, beside=row)]


def start(bench: Bench) -> list[Row]:
    """Print the phases of real starts without and with the patches that make them shorter, by a table of its own."""
    _engine()
    bench.warm()
    home = bench.home("base", "wheels")
    (home / "cache/models").symlink_to(paths.places(dict(os.environ)).models)
    spec = bench.project / f"images/{IMAGE}.yaml"
    instance = f"nvllm-{IMAGE}-tiny-eager"

    def started() -> start_bench.Phases:
        bench.built(home)
        run(bench.nvllm("model", "check", IMAGE, "tiny-lfm2"), NVLLM_HOME=str(home))
        try:
            run(bench.nvllm("serve", IMAGE, "--profile", "tiny-eager", "--detach"), NVLLM_HOME=str(home))
            return start_bench.read(home / "state/runs" / instance / "state.json")
        finally:
            run(bench.nvllm("stop", instance), NVLLM_HOME=str(home))

    start_bench.compare(spec, started, SLOW)
    return []


def full(bench: Bench) -> list[Row]:
    """Everything from locked files: the store warm, no layer, no bytecode. No load: the engine may hold layers."""
    _engine()
    bench.warm()
    seconds = []
    for number in range(SLOW):
        home, layout = bench.home(), bench.directory / f"layout{number}"
        seconds.append(timed(bench.nvllm("build", IMAGE, "--layout", str(layout)), NVLLM_HOME=str(home)))
        shutil.rmtree(layout)
        shutil.rmtree(home / "cache/layers")
    row = Row("full build, warm store, no layer: nvllm build --layout", seconds)
    context, tag = bench.directory / "context", f"nvllm-base:{IMAGE}"
    run(bench.nvllm("dockerfile", IMAGE, "--context", str(context), "--base-image", tag))
    bench.images.append(tag)
    took, _ = bench.docker_build(CLASSIC, context, "--target", "image", "--build-arg", f"BASE={tag}")
    return [row, Row("the same lock: docker build --target image, base there", [took], beside=row)]


def bisect(_: Bench) -> list[Row]:
    """Print the tables of simulated bisects, on one machine and on several: no seconds and no rows."""
    for name in ("bisect_tables.py", "machine_tables.py"):
        print(run([sys.executable, str(ROOT / "benchmarks" / name)]))
    return []


def attacks(_: Bench) -> list[Row]:
    """Print the tables of what nvllm survives and refuses: points and outcomes, which are no rows either."""
    print(run([sys.executable, str(ROOT / "benchmarks" / "attack_tables.py")]))
    return []


def fleet(_: Bench) -> list[Row]:
    """Print what a push and a pull take beside skopeo and docker, by the table of its own command."""
    print(run([sys.executable, str(ROOT / "benchmarks" / "fleet_bench.py")]))
    return []


SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    "toggle": toggle,
    "builders": builders,
    "again": again,
    "help": help_,
    "serve": serve,
    "start": start,
    "verify": verify,
    "bisect": bisect,
    "attacks": attacks,
    "full": full,
    "fleet": fleet,
}

LONG = ("full", "fleet")
"""The sections that run only if they are named."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "section", nargs="*", help=f"of {', '.join(SECTIONS)}; without any: all but {' and '.join(LONG)}"
    )
    sections = parser.parse_args(argv).section or [name for name in SECTIONS if name not in LONG]
    for name in sections:
        if name not in SECTIONS:
            parser.error(f"no section {name}; there are {', '.join(SECTIONS)}")
    rows: list[Row] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="nvllm-bench-") as directory:
        bench = Bench(Path(directory))
        try:
            for name in sections:
                print(f"{name} ...", file=sys.stderr, flush=True)
                try:
                    rows += SECTIONS[name](bench)
                except (CannotRunError, Refused) as error:
                    failed = True
                    print(f"{name}: cannot run: {error}", file=sys.stderr)
        finally:
            bench.remove()
    if rows:
        load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
        print(f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}, load {load}\n")
        terminal.print_table(COLUMNS, [row.cells() for row in rows], color=terminal.wants_color(os.environ, tty=True))
    return 1 if failed else 0
