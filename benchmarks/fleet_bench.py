"""Measure what a push and a pull of image `cpu` take, beside skopeo and docker: ``python benchmarks/fleet_bench.py``.

Everything runs in one network, that of an engine of the bench's own, with Debian's docker-registry on its loopback. A
push begins with an empty registry, a pull with an engine and a home that have no layer. The column `to nvllm` has
ratios to the first row of its kind; seconds depend on the machine. Needs root, docker-registry, skopeo and 20 GB.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nvllm.cli import terminal
from nvllm.core import paths

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support import private_engines
from support.engine_world import ROOT, run
from support.private_engines import Kind, PrivateEngine
from support.real_registry import RealRegistry

IMAGE = "cpu"
NVLLM = [sys.executable, "-m", "nvllm", "--project", str(ROOT), "--quiet", "--json"]
COLUMNS = ["what", "seconds", "to nvllm", "in the registry, or sent", "runs"]


@dataclass
class Figure:
    """The SECONDS of WHAT, `push: ...` or `pull: ...`, for each run.

    BYTES is what the registry, empty before, holds afterwards; of what is pushed again, what nvllm sent.
    """

    what: str
    bytes: int | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.what.partition(":")[0]


@dataclass
class Bench:
    """What the steps share: an ENGINE, a DIRECTORY for registries and homes, and the FIGURES so far."""

    engine: PrivateEngine
    directory: Path
    figures: dict[str, Figure] = field(default_factory=dict)
    _numbers: int = 0

    def fresh(self, name: str) -> Path:
        """Return a directory that there was not."""
        self._numbers += 1
        path = self.directory / f"{name}{self._numbers}"
        path.mkdir()
        return path

    def registry(self) -> RealRegistry:
        empty = RealRegistry(self.fresh("registry"), self.engine.spaces.argv)
        empty.start()
        return empty

    def home(self, *, layers: bool) -> Path:
        """Return a fresh NVLLM_HOME; with LAYERS it has the store and the layers of the user."""
        home, own = self.fresh("home"), paths.places(dict(os.environ))
        (home / "cache/layers").mkdir(parents=True, mode=0o700)
        if layers:
            (home / "cache/store").symlink_to(own.store)
            for path in (file for file in own.layers.iterdir() if file.suffix != ".lock"):
                (home / "cache/layers" / path.name).symlink_to(path)
        return home

    def done(self, *words: str, home: Path | None = None) -> str:
        """Run WORDS beside the engine; return what it prints. Ends the bench if it fails."""
        env = {**self.engine.env, **({} if home is None else {"NVLLM_HOME": str(home)})}
        done = run(self.engine.spaces.argv(*words), env)
        if done.code != 0:
            sys.exit(f"{' '.join(words[:6])} ...: {done.out[-500:]} {done.err[-500:]}")
        return done.out

    def timed(self, what: str, *words: str, home: Path | None = None) -> str:
        """Add to the figure WHAT how long WORDS run."""
        os.sync()  # what the step before has written is not written in this one's time
        began = time.perf_counter()
        printed = self.done(*words, home=home)
        took = time.perf_counter() - began
        print(f"{what}: {took:.1f} s", file=sys.stderr, flush=True)
        self.figures.setdefault(what, Figure(what)).seconds.append(took)
        return printed

    def pushed(
        self, what: str, push: Callable[[RealRegistry], Sequence[str]], home: Path | None = None
    ) -> RealRegistry:
        """Time PUSH to an empty registry, and return that."""
        registry = self.registry()
        self.timed(what, *push(registry), home=home)
        self.figures[what].bytes = registry.stored()
        return registry

    def emptied(self) -> None:
        """Remove every image of the engine."""
        ids = set(self.done("docker", "image", "ls", "--quiet", "--no-trunc").split())
        if ids:
            self.done("docker", "image", "rm", "--force", *ids)


def discard(registry: RealRegistry) -> None:
    registry.kill()
    shutil.rmtree(registry.directory)


def round_of(bench: Bench) -> None:
    """Push and pull the image once in each way."""
    bench.emptied()
    home, layout = bench.home(layers=True), bench.fresh("layout") / "image"
    bench.done(*NVLLM, "build", IMAGE, "--layout", str(layout), home=home)
    source = f"oci:{layout}"

    def copy(*options: str) -> Callable[[RealRegistry], list[str]]:
        return lambda registry: [
            *["skopeo", "copy", "--quiet", "--dest-tls-verify=false", *options],
            *[source, f"docker://{registry.name}:copied"],
        ]

    own = bench.pushed("push: nvllm", lambda registry: [*NVLLM, "push", registry.name, IMAGE], home)
    again = json.loads(bench.timed("push: nvllm, again", *NVLLM, "push", own.name, IMAGE, home=home))["result"]
    bench.figures["push: nvllm, again"].bytes = again["bytes"]
    same = bench.pushed("push: skopeo copy, the same layers", copy("--preserve-digests"))
    bench.timed("push: skopeo copy, again", *copy("--preserve-digests")(same))
    discard(same)
    for kind in ("gzip", "zstd"):
        discard(bench.pushed(f"push: skopeo copy, {kind}", copy("--dest-compress-format", kind)))
    shutil.rmtree(layout)

    fresh = bench.home(layers=False)
    pulled = json.loads(bench.timed("pull: nvllm", *NVLLM, "pull", own.name, IMAGE, home=fresh))["result"]
    shutil.rmtree(fresh)
    gzip = RealRegistry(bench.fresh("registry"), bench.engine.spaces.argv)
    gzip.start()
    tag = f"{gzip.name}:pushed"
    bench.done("docker", "tag", pulled["image_id"], tag)
    bench.timed("push: docker, gzip", "docker", "push", "--quiet", tag)
    bench.figures["push: docker, gzip"].bytes = gzip.stored()
    bench.emptied()
    named = f"{own.name}:{pulled['tag'].partition(':')[2]}"
    bench.timed("pull: docker, the same layers", "docker", "pull", "--quiet", named)
    bench.emptied()
    bench.timed("pull: docker, gzip", "docker", "pull", "--quiet", tag)
    bench.emptied()
    discard(gzip)
    daemon = ["--dest-daemon-host", f"unix://{bench.engine.socket}", "--src-tls-verify=false"]
    target = [f"docker://{own.name}@{pulled['manifest']}", "docker-daemon:copied:latest"]
    bench.timed("pull: skopeo copy, the same layers", "skopeo", "copy", "--quiet", *daemon, *target)
    discard(own)


def main(argv: Sequence[str]) -> int:
    needed = ("docker-registry", "skopeo", "docker", "dockerd")
    if os.geteuid() != 0 or not all(map(shutil.which, needed)):
        print(f"needs root, {', '.join(needed)}", file=sys.stderr)
        return 1
    with (
        private_engines.engine(Kind("bench", None)) as engine,
        tempfile.TemporaryDirectory(prefix="nvllm-fleet-") as name,
    ):
        bench = Bench(engine, Path(name))
        for _ in range(int(argv[0]) if argv else 1):
            round_of(bench)
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    print(f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}, load {load}\n")
    print_table(list(bench.figures.values()))
    return 0


def print_table(figures: Sequence[Figure]) -> None:
    """Print FIGURES, each beside what nvllm takes for its kind, which is the first word of its name."""
    own = {figure.what: statistics.median(figure.seconds) for figure in figures}
    rows = []
    for figure in sorted(figures, key=lambda figure: figure.kind, reverse=True):  # pushes, then pulls
        median = statistics.median(figure.seconds)
        size = terminal.size(figure.bytes) if figure.bytes is not None else ""
        spread = f"{len(figure.seconds)}: {min(figure.seconds):.1f} to {max(figure.seconds):.1f} s"
        rows.append([figure.what, f"{median:.1f} s", f"{median / own[f'{figure.kind}: nvllm']:.2f} x", size, spread])
    terminal.print_table(COLUMNS, rows, color=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
