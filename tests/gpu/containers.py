"""nvllm's own commands on Docker and Podman themselves, with a GPU in the container: `python -m gpu.containers PLACE`.

PLACE is what tests/gpu/lay.py laid out, with the engines. Nothing stands in for an engine. What stands in for NVIDIA's
container toolkit is `cdi.py`; the image is imported, with this machine's `/usr` and torch below what an image of nvllm
has (`project.py`), because the machine reaches no index. FILE is written after each step, and a step that fails ends
only those that need it. Needs root, and a network that has no other Docker: `unshare --net` gives one.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.types import DeviceRequest

from gpu import blessing, cdi, engines, project, rootfs, serving
from gpu.blessing import Bench, Seen
from gpu.engines import Engine
from gpu.machine import Place
from gpu.project import EAGER, FORKED, IMAGE, TINY, Ground
from nvllm.image.identity import Build

BLESSED = ("tiny-blessed", FORKED)
"""The profiles of which one is blessed and served."""
LOWERED = 256 << 20
"""Bytes of memory that a container is left with, less than an engine holds."""

BLESSING = 900.0
"""Seconds for a bless of five trials."""

LOOKS = 0.5


class FailedStepError(Exception):
    """A step did not come to what it must come to; the message says how."""


@dataclass
class Steps:
    """Steps of a run: each with its outcome and its seconds in RESULTS, which SAVE keeps after each of them.

    No step begins later than at the monotonic time UNTIL, and none that is given more than what is left of it.
    """

    results: dict[str, Any]
    save: Callable[[], None]
    until: float
    bench: Bench | None = None

    def step(self, name: str, seconds: float, action: Callable[[], Seen | None], needs: Sequence[str] = ()) -> bool:
        """Do ACTION within SECONDS if all of NEEDS were done; keep what it returns, and return whether it did it."""
        missing = [need for need in needs if self.results.get(need, {}).get("outcome") != "ok"]
        left = self.until - time.monotonic()
        kept: Seen = self.results.setdefault(name, {})
        if missing or left < LOOKS:
            kept["outcome"] = f"left out: {', '.join(missing)}" if missing else "left out: no time"
            return self._end(name)
        if self.bench is not None:
            self.bench.longest = min(seconds, left)
        kept["outcome"], began = "began", time.monotonic()
        self.save()
        try:
            kept.update(action() or {})
            kept["outcome"] = "ok"
        except subprocess.TimeoutExpired as error:
            kept["outcome"] = f"not within {error.timeout:.0f} s"
        except FailedStepError as error:
            kept["outcome"] = f"failed: {error}"
        except Exception as error:  # noqa: BLE001 - the steps that follow are worth more than a traceback
            kept["outcome"] = f"failed: {type(error).__name__}: {str(error)[-1500:]}"
        kept["seconds"] = round(time.monotonic() - began, 1)
        return self._end(name)

    def _end(self, name: str) -> bool:
        self.save()
        kept = self.results[name]
        print(f"{time.strftime('%H:%M:%S')} {name}: {kept['outcome'][:300]} ({kept.get('seconds', 0)} s)", flush=True)
        return bool(kept["outcome"] == "ok")


class Results:
    """The results of a run with the options ASKED, in their file from the first step on, and the time that it has."""

    def __init__(self, asked: argparse.Namespace, about: Seen) -> None:
        if asked.output.exists():
            raise SystemExit("--output names a new file: one file holds the results of one run")
        self.output, self.began, self._lock = asked.output, time.monotonic(), threading.RLock()
        self.until = self.began + asked.seconds
        self.parts: dict[str, Any] = {"run": {"commit": asked.commit, "machine": asked.machine, **about}}
        self.parts["run"] |= {"date": time.strftime("%Y-%m-%d", time.gmtime()), "python": sys.version.split()[0]}

    def save(self) -> None:
        with self._lock:
            self.parts["run"]["seconds"] = round(time.monotonic() - self.began, 1)
            scratch = self.output.with_suffix(".new")
            with contextlib.suppress(RuntimeError):  # the other lane has just added to it: it saves too
                scratch.write_text(json.dumps(self.parts, indent=1, default=str) + "\n", encoding="utf-8")
                scratch.replace(self.output)

    def steps(self, part: str) -> Steps:
        self.parts[part] = {}
        return Steps(self.parts[part], self.save, self.until)

    def end(self) -> int:
        """Print the steps that did not do what they must, and return the exit status."""
        self.save()
        wrong = [
            f"{part}: {name}: {each['outcome']}"
            for part, steps in self.parts.items()
            if part != "run"
            for name, each in steps.items()
            if name != "commands" and each["outcome"] != "ok"
        ]
        print("\n".join(wrong) or "every step did what it must")
        return 1 if wrong else 0


@dataclass
class Lane:
    """All that is tried on one ENGINE: its STEPS by way of a BENCH, on the image of BUILD, described by FILE."""

    engine: Engine
    bench: Bench
    steps: Steps
    leave_out: Sequence[str] = ()
    blessed: str = BLESSED[0]
    """The profile that is blessed."""
    build: Build | None = None
    file: Path = Path()
    loading: Future[Seen] | None = None
    room: int = 0
    """Bytes that must be free on the disk for its image."""

    def nvllm(self, step: str, *words: str, status: int = 0) -> Seen:
        """Run nvllm with WORDS as STEP and return its result. Raises FailedStepError unless it ends with STATUS."""
        result = self.bench.nvllm(step, *words)
        ended = self.bench.results[step]["status"]
        if ended != status:
            codes = [refusal["code"] for refusal in self.bench.results[step].get("refusals", [])]
            raise FailedStepError(f"nvllm {words[0]} ended with {ended} and {codes}, not with {status}")
        return result

    def refused(self, step: str, code: str) -> None:
        """Raise FailedStepError unless STEP of nvllm was refused with CODE."""
        codes = [refusal["code"] for refusal in self.bench.results[step].get("refusals", [])]
        if code not in codes:
            raise FailedStepError(f"refused by {codes}, not {code}")

    def instance(self, profile: str) -> Seen:
        """Return what `nvllm status` says of the instance of PROFILE; nothing if it does not name it."""
        named = self.bench.nvllm(f"status of {profile}", "status").get("instances", [])
        return next((each for each in named if each["instance"] == f"nvllm-{IMAGE}-{profile}"), {})

    def container(self, profile: str) -> Seen:
        """Return what the engine says of the container of PROFILE."""
        with self.engine.client() as client:
            described: Seen = client.api.inspect_container(f"nvllm-{IMAGE}-{profile}")
        return described

    # The steps

    def write(self) -> Seen:
        """Write the project, the model, the image's own files and the description of its file system."""
        build = blessing.prepare(self.bench)
        of_image = project.root(self.bench.ground, build)
        machines = {path: path for path in ("/usr", "/etc", *outside([sys.base_prefix, *project.packages()]))}
        self.file = self.bench.ground.engine / "rootfs.json"
        self.file.write_text(json.dumps({"root": machines | of_image, "left_out": [*self.leave_out]}), encoding="utf-8")
        self.build = build
        return {
            "build": build.build_hash,
            "of the machine": sorted(machines),
            "left out of it": [*rootfs.LEFT_OUT, *self.leave_out],
            "of nvllm's image": sorted(of_image),
            "files": {name: hashed(Path(source)) for name, source in of_image.items() if Path(source).is_dir()},
        }

    def load(self) -> Seen:
        """Import the image into the engine, and record it as built."""
        assert self.build is not None
        labels = {"nvllm.image": IMAGE, "nvllm.build-hash": self.build.build_hash}
        free = shutil.disk_usage(self.engine.root).free
        if free < self.room:
            raise FailedStepError(f"{free >> 30} GiB free on the disk, and {self.room >> 30} needed")
        scratch = self.bench.ground.engine / "rootfs"
        image = self.engine.load(rootfs.command(self.file, scratch), self.build.tags, labels)
        project.record(self.bench.ground, self.build, image)
        with self.engine.client() as client:
            return {"image": image, "bytes": client.api.inspect_image(image)["Size"], "free before": free}

    def loaded(self) -> Seen:
        assert self.loading is not None
        return self.loading.result(max(1.0, self.steps.until - time.monotonic()))

    def device(self, command: Sequence[str], request: DeviceRequest) -> Seen:
        """Run COMMAND in a container that gets the GPU by REQUEST, and return what it prints."""
        assert self.build is not None
        with self.engine.client(120) as client:
            made = client.containers.create(
                self.build.tags[0], entrypoint=[command[0]], command=[*command[1:]], device_requests=[request]
            )
            try:
                made.start()
                status = made.wait(timeout=100)["StatusCode"]
                printed = made.logs().decode(errors="replace")[-3000:]
            finally:
                made.remove(force=True)
        if status != 0:
            raise FailedStepError(f"ended with {status}: {printed}")
        return {"printed": printed}

    def doctor(self) -> Seen:
        result = self.nvllm("doctor", "doctor", IMAGE, "--profile", EAGER)
        checks = result.get("checks", [])
        return {"checks": [f"{each.get('code')}: {str(each.get('detail'))[:160]}" for each in checks]}

    def serve(self, profile: str) -> Seen:
        """Serve PROFILE, ask for one completion, and look at its container from outside."""
        result = self.nvllm(f"serve {profile}", "serve", IMAGE, "--profile", profile, "--detach")
        answer = serving.ask(8000, serving.prompt(16, 1), model=TINY)
        if answer["status"] != 200:
            raise FailedStepError(f"no completion: {answer}")
        described = self.container(profile)
        host = described["HostConfig"]
        first = Path("/proc", str(described["State"]["Pid"]))
        return {
            "tokens": len(answer["tokens"]),
            "address": result.get("address"),
            "guard": result.get("guard"),
            "container": {name: host.get(name) for name in LIMITS},
            "user": described["Config"].get("User"),
            "process": status_of(first),
            "control group": limits_of(first),
            "gpu": gpu_memory(),
        }

    def stop(self, profile: str) -> Seen:
        self.nvllm(f"stop {profile}", "stop", f"nvllm-{IMAGE}-{profile}")
        if left := self.left():
            raise FailedStepError(f"left after the stop: {left}")
        return {}

    def bless(self) -> Seen:
        if not self.bench.bless("bless", self.blessed, *self.bench.trials):
            raise FailedStepError(f"refused: {self.bench.results['bless'].get('refusals')}")
        return dict(self.bench.results["bless"])

    def flipped(self) -> Seen:
        """Change one bit of the blessed cache: the serve is refused, and with the bit as it was it is not."""
        self.bench.tampered("flipped bit", self.blessed)
        self.refused("flipped bit", "NV907")
        if self.bench.results["flipped bit: mended"]["status"] != 0:
            raise FailedStepError("refused with the bit as it was")
        return {"file": self.bench.results["flipped bit"]["file"]}

    def removed(self) -> Seen:
        """Take a kernel out of the blessed cache: the serve is refused."""
        kernel = max(self.bench.ground.places.trees.rglob("*.cubin"), key=lambda path: path.stat().st_size)
        beside = kernel.parent.stat().st_mode
        kernel.parent.chmod(0o700)
        taken = self.bench.ground.home / "taken"
        os.rename(kernel, taken)
        try:
            self.bench.nvllm("removed kernel", "serve", IMAGE, "--profile", self.blessed, "--dry-run")
        finally:
            os.rename(taken, kernel)
            kernel.parent.chmod(beside)
        self.refused("removed kernel", "NV907")
        return {"file": kernel.name}

    def killed(self, profile: str) -> Seen:
        """Kill the engine's process that holds the GPU, or the first one, and wait until nvllm says so."""
        with self.engine.client() as client:
            top = client.api.top(f"nvllm-{IMAGE}-{profile}")
        rows = [dict(zip(top["Titles"], row, strict=False)) for row in top["Processes"]]
        chosen = next((row for row in rows if "EngineCore" in row.get("CMD", row.get("COMMAND", ""))), None)
        pid = int(self.container(profile)["State"]["Pid"]) if chosen is None else int(chosen["PID"])
        command = Path("/proc", str(pid), "cmdline").read_text().replace("\0", " ").strip()[:100]
        os.kill(pid, signal.SIGKILL)
        return {"killed": command, **self.ended(profile, 60)}

    def starved(self, profile: str) -> Seen:
        """Lower the limit of memory below what the engine holds, ask, and wait until nvllm says what happened."""
        with self.engine.client() as client:
            name = f"nvllm-{IMAGE}-{profile}"
            client.api.update_container(name, mem_limit=LOWERED, memswap_limit=LOWERED)
        serving.ask(8000, serving.prompt(32, 3), model=TINY)
        return {"limit": LOWERED, **self.ended(profile, 60)}

    def ended(self, profile: str, seconds: float) -> Seen:
        """Return how long it took until PROFILE is no longer ready, and what nvllm says of it then."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            seen = self.instance(profile)
            if seen.get("stage") != "ready" and not seen.get("supervised"):
                after = round(time.monotonic() - began, 1)
                return {"noticed after": after, "status": kept(seen), "left": self.left()}
            time.sleep(LOOKS)
        still = kept(self.instance(profile))
        self.bench.nvllm(f"stop {profile} that did not end", "stop", f"nvllm-{IMAGE}-{profile}")
        raise FailedStepError(f"still {still} after {seconds:.0f} s")

    def left(self) -> list[str]:
        """Return the names of the containers that the engine has."""
        with self.engine.client() as client:
            return [name for each in client.api.containers(all=True) for name in each["Names"]]

    def collected(self) -> Seen:
        result = self.nvllm("gc", "gc", "--dry-run", "--keep-younger", "0")
        return {"pieces": [f"{each.get('kind')}: {each.get('size')}" for each in result.get("pieces", [])][:40]}


LIMITS = (
    "Memory",
    "MemorySwap",
    "PidsLimit",
    "ReadonlyRootfs",
    "CapDrop",
    "SecurityOpt",
    "NetworkMode",
    "RestartPolicy",
    "LogConfig",
    "ShmSize",
    "Runtime",
    "DeviceRequests",
)
"""What is kept of a container's configuration, as the engine has it."""


def kept(instance: Seen) -> Seen:
    """Return what is kept of what nvllm says of an INSTANCE."""
    return {name: instance[name] for name in ("stage", "reason", "supervised", "deaths") if name in instance}


def status_of(process: Path) -> Seen:
    """Return what the kernel says of the rights of PROCESS, a directory of /proc."""
    names = ("Uid", "CapEff", "NoNewPrivs", "Seccomp")
    lines = (line.partition(":") for line in (process / "status").read_text().splitlines())
    return {name: value.strip() for name, _, value in lines if name in names}


def limits_of(process: Path) -> Seen:
    """Return the limits of the control group of PROCESS, where they are of version 2."""
    group = next((line[3:] for line in (process / "cgroup").read_text().splitlines() if line.startswith("0::")), "")
    directory = Path("/sys/fs/cgroup", group.lstrip("/"))
    names = ("memory.max", "memory.peak", "memory.swap.max", "pids.max")
    return {name: (directory / name).read_text().strip() for name in names if (directory / name).is_file()}


def gpu_memory() -> str:
    """Return what the driver says of the GPU's memory in use."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=False, timeout=20).stdout.strip()


def outside(paths: Sequence[str]) -> list[str]:
    """Return those of PATHS that are not in /usr, which an image gets whole."""
    return [path for path in paths if not f"{path}/".startswith("/usr/")]


def hashed(directory: Path) -> Seen:
    """Return how many files DIRECTORY has, and one sha256 over their paths and sizes."""
    listed = sorted(
        [str(path.relative_to(directory)), path.stat().st_size]
        for path in directory.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    return {"files": len(listed), "sha256": hashlib.sha256(json.dumps(listed).encode()).hexdigest()}


def gpus() -> tuple[dict[str, cdi.Node], list[cdi.Node]]:
    """Return the nodes of this machine's GPUs by uuid, and those that all of them share."""
    asked = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    uuids = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    numbers = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*"))
    every = {node.path: node for node in cdi.nodes(sorted(Path("/dev").glob("nvidia*")))}
    # Where some GPUs are hidden, nvidia-smi counts those that are left from 0, and their nodes keep their numbers.
    own = {uuid: every.pop(f"/dev/nvidia{number}") for uuid, number in zip(uuids, numbers, strict=True)}
    return own, [*every.values()]


def driver() -> list[str]:
    """Return the directory of the driver's libraries and programs."""
    named = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/usr/local/nvidia/lib64"]
    directories = [Path(name) for name in named if name and Path(name, "libcuda.so.1").exists()]
    return [str(path.parent if path.name.startswith("lib") else path) for path in directories[:1]]


def bench(place: Place, at: Path, steps: Steps, trials: tuple[str, ...] = ()) -> Bench:
    """Return the bench of a lane whose files are below AT; what its commands print goes into STEPS too."""
    commands: dict[str, Any] = {}
    steps.results["commands"] = commands

    def say(results: Seen) -> None:
        commands.update(results)
        steps.save()

    steps.bench = Bench(Ground(place, at / "project", at / "home", at / "engine"), trials, say)
    return steps.bench


PYTHON = "/opt/venv/bin/python"
LOOK = """import json, torch, vllm, vllm._C, triton
print(json.dumps({"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "triton": triton.__version__,
    "vllm": vllm.__version__, "sum": float(torch.ones(1000, device="cuda").sum())}))"""


def prepared(lane: Lane, specification: Seen) -> None:
    """Start the engine of LANE and write what its image is made of, side by side."""
    steps = lane.steps
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lane.write)
        steps.step("engine", 60, lambda: lane.engine.start(specification, 60))
        steps.step("image's files", 120, lambda: writing.result(120))


def on_docker(lane: Lane, look: str, meanwhile: Callable[[], None]) -> None:
    """Try all of nvllm on Docker; MEANWHILE is called when the engine has less to do."""
    step, needs = lane.steps.step, ("image",)
    step("image", 240, lane.load, ("engine", "image's files"))
    by_name, by_flag = (
        DeviceRequest(driver="cdi", device_ids=[f"{cdi.KIND}=all"]),
        DeviceRequest(count=-1, capabilities=[["gpu"]]),
    )
    program = shutil.which("nvidia-smi") or "nvidia-smi"
    step("nvidia-smi by CDI", 60, lambda: lane.device([program, "-L"], by_name), needs)
    step("doctor", 60, lane.doctor, needs)
    step("torch by --gpus", 100, lambda: lane.device([PYTHON, "-c", look], by_flag), needs)
    eager = f"serve {EAGER}"
    if step(eager, 150, lambda: lane.serve(EAGER), needs):
        step(f"stop {EAGER}", 40, lambda: lane.stop(EAGER), (eager,))
    meanwhile()
    step("bless", BLESSING, lane.bless, needs)
    step("flipped bit", 40, lane.flipped, ("bless",))
    step("removed kernel", 30, lane.removed, ("bless",))
    blessed = f"serve {lane.blessed}"
    step(blessed, 120, lambda: lane.serve(lane.blessed), ("bless",))
    step("engine killed", 70, lambda: lane.killed(lane.blessed), (blessed,))
    step("gc", 60, lane.collected, needs)


def on_podman(lane: Lane) -> None:
    """Try on Podman what an engine decides."""
    step, eager = lane.steps.step, f"serve {EAGER}"
    step("image", 200, lane.loaded, ("engine", "image's files"))
    step("doctor", 60, lane.doctor, ("image",))
    step(eager, 120, lambda: lane.serve(EAGER), ("image",))
    step(f"stop {EAGER}", 40, lambda: lane.stop(EAGER), (eager,))
    step("bless", BLESSING, lane.bless, ("image",))
    blessed = f"serve {lane.blessed}"
    step(blessed, 120, lambda: lane.serve(lane.blessed), ("bless",))
    step(f"stop {lane.blessed}", 40, lambda: lane.stop(lane.blessed), (blessed,))


def memory(lane: Lane) -> None:
    """Let an engine reach its limit of memory."""
    step, again = lane.steps.step, f"serve {EAGER} again"
    step(again, 150, lambda: lane.serve(EAGER), ("image",))
    step("memory", 100, lambda: lane.starved(EAGER), (again,))


@contextlib.contextmanager
def ending(lanes: Sequence[Lane]) -> Iterator[None]:
    """End the engines of LANES, whatever happens."""
    try:
        yield
    finally:
        for lane in lanes:
            lane.engine.end()


def run(asked: argparse.Namespace) -> int:
    place = Place(asked.place.resolve())
    at = place.root / "scratch" / str(os.getpid())
    at.mkdir(parents=True)
    results = Results(asked, {"trials": asked.trials or "those of nvllm"})
    own, shared = gpus()
    specification = cdi.specification(own, shared, asked.driver or driver())
    first = results.steps("machine")
    first.step("card", 30, lambda: {"says": card(), "specification": specification, "kernel": os.uname().release})
    visible = [place.root / "scratch", *map(Path, asked.driver or driver())]
    blessing.raise_loopback()
    trials = ("--unsafe-trials", asked.trials) if asked.trials else ()
    lanes = {}
    for product in engines.PRODUCTS:
        engine, steps = Engine.below(place.root, visible, product, at / product.lower()), results.steps(product)
        made = bench(place, at / product.lower(), steps, trials)
        lanes[product] = Lane(engine, made, steps, asked.leave_out, asked.blessed)
    docker, podman = lanes["Docker"], lanes["Podman"]
    with ending([*lanes.values()]), ThreadPoolExecutor(2) as pool:
        compiling = pool.submit(compiled, place)
        prepared(docker, specification)
        first.step("bytecode", 120, lambda: compiling.result(120))

        def other() -> Seen:
            prepared(podman, specification)
            podman.room = 3 * int(docker.steps.results["image"].get("bytes", 0))  # Podman keeps the archive meanwhile
            return podman.load()

        def meanwhile() -> None:
            if "Podman" in asked.engines:
                podman.loading = pool.submit(other)

        on_docker(docker, asked.look, meanwhile)
        if "Podman" in asked.engines:
            on_podman(podman)
        memory(docker)
    return results.end()


def compiled(place: Place) -> Seen:
    """Compile Python's files of the image: it has their bytecode, and no process in a container can write any."""
    argv = [
        sys.executable,
        "-m",
        "compileall",
        "-qq",
        "-j",
        "0",
        *map(str, (place.tree("patched"), place.root / "site")),
    ]
    return {"status": subprocess.run(argv, check=False, timeout=120).returncode}


def card() -> str:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add to PARSER the options of each run."""
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="where to keep what was seen")
    parser.add_argument("--commit", default="not recorded", help="what is run, as `git rev-parse HEAD` says it")
    parser.add_argument("--machine", default=f"{os.cpu_count()} processors", help="what it runs on, in words")
    parser.add_argument("--seconds", type=float, default=2400.0, help="of the whole run (default 2400)")
    parser.add_argument("--driver", nargs="*", metavar="DIR", help="the driver's directories, if not where it is found")


def main(argv: Sequence[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m gpu.containers", description=__doc__.split("\n\n")[0])
    parser.add_argument("place", type=Path, metavar="PLACE")
    add_options(parser)
    parser.add_argument("--trials", metavar="N", help="of a bless (default: those of nvllm)")
    parser.add_argument("--blessed", choices=BLESSED, default=BLESSED[0], help="the profile that is blessed")
    parser.add_argument("--engines", nargs="+", choices=engines.PRODUCTS, default=engines.PRODUCTS)
    parser.add_argument("--leave-out", nargs="*", default=[], metavar="PATTERN", help="of the machine, for tar")
    parser.add_argument("--look", default=LOOK, help=argparse.SUPPRESS)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
