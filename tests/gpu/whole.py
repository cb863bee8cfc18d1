"""The image itself in containers with a GPU, and its way from Docker to Podman: `python -m gpu.whole PLACE PIECES...`.

PLACE is what lay.py laid out of `engines`, `registry` and `tool`; PIECES are the directories of `pack_layers.py`, whose
layers come into PLACE first. Then `nvllm build` on Docker makes image sm120 from them, which must get the id that it
got elsewhere, and which nvllm refuses to serve where the GPU has compute capability 9.0. `project.whole` is the same
image for that GPU: pushed to a registry of this machine, pulled on Podman while Docker blesses. The blessing goes the
same way, and Podman tries it and serves from it. A step that fails ends only those that need it. Needs root, and a
network that has no other Docker: `unshare --net` gives one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from docker.types import DeviceRequest

from gpu import blessing, cdi, containers, lay_layers, project
from gpu.blessing import Seen
from gpu.containers import FailedStepError, Lane, Results
from gpu.engines import PRODUCTS, Engine
from gpu.machine import Place
from gpu.project import EAGER, IMAGE, OF, TINY
from nvllm.core.paths import Project
from nvllm.core.refusal import refuse_any
from nvllm.image import builder, identity
from nvllm.layers.cache import LayerCache

BLESSED = "tiny-blessed"
PORT = 5000
REPOSITORY = f"127.0.0.1:{PORT}/nvllm"


def layers(place: Place, pieces: Sequence[Path]) -> Seen:
    """Write the layers of PIECES into PLACE."""
    lines: list[str] = []
    lay_layers.lay(pieces, cached(place), lines.append)
    return {"told": lines, "free": shutil.disk_usage(place.root).free}


def cached(place: Place) -> Path:
    return place.root / "layers"


def libraries(base: Path, directory: Path, driver: Path) -> Path:
    """Return the list of libraries that the image with the layer BASE has with those of DRIVER; DIRECTORY is made.

    NVIDIA's container toolkit writes it in each container, whose loader and Triton find the driver by it.
    """
    inside = directory / driver.relative_to("/")
    inside.mkdir(parents=True)
    subprocess.run(["tar", "-C", directory, "-xf", base], check=True)
    named = next(path.parent for path in driver.glob("lib*/libcuda.so.1"))
    script = 'mount --bind "$1" "$2" && ldconfig -r "$3" "$4"'
    subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", driver, inside, directory, named], check=True)
    return directory / "etc/ld.so.cache"


@contextlib.contextmanager
def registry(place: Place, directory: Path) -> Iterator[None]:
    """Run a registry on loopback, with its storage in DIRECTORY, which is made."""
    directory.mkdir()
    storage = {"filesystem": {"rootdirectory": str(directory / "data")}}
    config = {"version": 0.1, "log": {"level": "error"}, "storage": storage, "http": {"addr": f"127.0.0.1:{PORT}"}}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    argv = [str(place.root / "registry/usr/bin/docker-registry"), "serve", str(directory / "config.json")]
    with (directory / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            until = time.monotonic() + 30
            while not answers() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v2/", timeout=5):
            return True
    except urllib.error.URLError:
        return False


def begin(lane: Lane, home: Path | None, specification: Seen) -> Seen:
    """Start the engine of LANE; its home gets the model, and the layers of HOME if it is named."""
    ground = lane.bench.ground
    for directory in (ground.engine / "bin", ground.places.layers.parent):
        directory.mkdir(parents=True)
    blessing.write_toolkit(ground)
    if home is not None:
        ground.places.layers.symlink_to(home)
    lane.nvllm("model", "model", "make", IMAGE, TINY)
    return lane.engine.start(specification, 60)


def built(lane: Lane, image: str, elsewhere: str, *words: str) -> Seen:
    """Build IMAGE, and compare its id with the one that it got ELSEWHERE."""
    result = lane.nvllm(f"build {image}", "build", image, *words)
    if result["image_id"] != elsewhere:
        raise FailedStepError(f"image id {result['image_id']}, elsewhere {elsewhere}")
    with lane.engine.client() as client:
        size = client.api.inspect_image(result["tag"])["Size"]
    return {name: result[name] for name in ("build_hash", "image_id", "record")} | {"bytes": size}


def refused(lane: Lane, step: str) -> Seen:
    """Serve the image that has no kernels for this GPU."""
    lane.bench.nvllm(step, "serve", OF, "--profile", EAGER, "--detach")
    lane.refused(step, "NV502")
    return {"refusals": lane.bench.results[step]["refusals"]}


def pushed(lane: Lane, step: str, *words: str) -> Seen:
    result = lane.nvllm(step, "push", REPOSITORY, IMAGE, *words)
    return {name: result[name] for name in ("manifest", "bytes", "blessings")}


def pulled(lane: Lane, step: str, image_id: str, *words: str) -> Seen:
    """Pull the image, which must be the one with IMAGE_ID."""
    result = lane.nvllm(step, "pull", REPOSITORY, IMAGE, *words)
    if result["image_id"] != image_id:
        raise FailedStepError(f"image id {result['image_id']}, pushed was {image_id}")
    return {name: result[name] for name in ("manifest", "image_id", "blessings")}


def tried(lane: Lane, pull: str) -> Seen:
    """Try the candidate that the step PULL brought."""
    (brought,) = lane.steps.results[pull]["blessings"]
    if not lane.bench.bless("candidate", BLESSED, "--candidate", brought["candidate"][:12]):
        raise FailedStepError(f"refused: {lane.bench.results['candidate'].get('refusals')}")
    return dict(lane.bench.results["candidate"])


def served(lane: Lane, profile: str, needs: Sequence[str]) -> None:
    """Serve PROFILE, and stop it."""
    serve = f"serve {profile}"
    lane.steps.step(serve, 240, lambda: lane.serve(profile), needs)
    lane.steps.step(f"stop {profile}", 40, lambda: lane.stop(profile), (serve,))


def first(lane: Lane, place: Place, ids: Mapping[str, str], specification: Seen) -> None:
    """Build both images on the engine of LANE, and push the one that this GPU can run."""
    step, build = lane.steps.step, f"build {IMAGE}"
    step("engine", 90, lambda: begin(lane, cached(place), specification))
    step(f"build {OF}", 400, lambda: built(lane, OF, ids[OF]), ("engine",))
    step("card is refused", 60, lambda: refused(lane, "card is refused"), (f"build {OF}",))
    step(build, 300, lambda: built(lane, IMAGE, ids[IMAGE], "--record"), ("engine",))
    by_flag, look = DeviceRequest(count=-1, capabilities=[["gpu"]]), containers.LOOK
    step("torch by --gpus", 120, lambda: lane.device([containers.PYTHON, "-c", look], by_flag), (build,))
    step("doctor", 60, lane.doctor, (build,))
    step("push", 300, lambda: pushed(lane, "push"), (build,))


def second(lane: Lane, ids: Mapping[str, str], specification: Seen) -> None:
    """Pull the image on the engine of LANE."""
    lane.steps.step("engine", 90, lambda: begin(lane, None, specification))
    lane.steps.step("pull", 500, lambda: pulled(lane, "pull", ids[IMAGE]), ("engine",))


def moved(sender: Lane, receiver: Lane, ids: Mapping[str, str]) -> None:
    """Send the blessing from the engine of SENDER to that of RECEIVER, and try it there."""
    push, pull = "push the blessing", "pull the blessing"
    if sender.steps.step(push, 120, lambda: pushed(sender, push, "--blessing", BLESSED), ("bless", "push")):
        receiver.steps.step(pull, 120, lambda: pulled(receiver, pull, ids[IMAGE], "--blessing", BLESSED), ("pull",))
        receiver.steps.step("candidate", containers.BLESSING, lambda: tried(receiver, pull), (pull,))


def run(asked: argparse.Namespace) -> int:
    place, results = Place(asked.place.resolve()), Results(asked, {"attention": asked.attention or "as in sm120"})
    at = place.root / "scratch" / str(os.getpid())
    at.mkdir(parents=True)
    machine, ids = results.steps("machine"), lay_layers.packed(asked.pieces)["images"]
    if not machine.step("layers", 400, lambda: layers(place, asked.pieces)):
        return results.end()
    made = project.whole(at / "docker/project", {"attention-backend": asked.attention} if asked.attention else {})
    build, stale = identity.load_build(made, IMAGE, None)
    refuse_any(stale)
    shutil.copytree(made.root, at / "podman/project")
    directories = asked.driver or containers.driver()
    base = LayerCache(cached(place)).made("base", builder.base_factors(build.lock))
    assert base is not None
    listed = libraries(base.path, at / "base", Path(directories[0]))
    own, shared = containers.gpus()
    specification = cdi.specification(own, shared, directories, {"/etc/ld.so.cache": str(listed)})
    machine.step("card", 30, lambda: {"says": containers.card(), "specification": specification})
    blessing.raise_loopback()
    lanes = []
    for product in PRODUCTS:
        below, steps = at / product.lower(), results.steps(product)
        engine = Engine.below(place.root, [place.root / "scratch", *map(Path, directories)], product, below)
        lanes.append(Lane(engine, containers.bench(place, below, steps), steps, build=build))
    docker, podman = lanes
    with containers.ending(lanes), registry(place, at / "registry"), ThreadPoolExecutor(1) as pool:
        first(docker, place, ids, specification)
        recorded = made.digests(IMAGE)
        if recorded.is_file():  # as git would bring it
            shutil.copy(recorded, Project(at / "podman/project").digests(IMAGE))
        pulling = pool.submit(second, podman, ids, specification)
        docker.steps.step("bless", containers.BLESSING, docker.bless, (f"build {IMAGE}",))
        pulling.result()
        moved(docker, podman, ids)
        served(podman, BLESSED, ("candidate",))
        served(docker, BLESSED, ("bless",))
        served(podman, EAGER, ("pull",))
        served(docker, EAGER, (f"build {IMAGE}",))
    return results.end()


def main(argv: Sequence[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m gpu.whole", description=__doc__.split("\n\n")[0])
    parser.add_argument("place", type=Path, metavar="PLACE")
    parser.add_argument("pieces", type=Path, nargs="+", metavar="PIECES")
    parser.add_argument("--attention", metavar="NAME", help="vLLM's attention backend (default: vLLM chooses)")
    containers.add_options(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
