"""What the tests of serving start from: a small build, what is wanted of it, its launch plan, and a whole project.

Nothing here is on a real host: paths of mounts are never opened unless a test puts something there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from nvllm.core.lock import Lock, LockedModel, LockedPatch, LockedSeries, ModelFile
from nvllm.core.paths import Places, Project
from nvllm.core.plan import LaunchPlan
from nvllm.core.spec import ImageSpec, Profile
from nvllm.host.facts import Gpu
from nvllm.image.identity import Build
from nvllm.lock import lockdoc
from nvllm.models import modeltree
from nvllm.models.local import LocalModel
from nvllm.patches import seriesfile
from nvllm.patches.series import Series
from nvllm.serve import planner
from nvllm.serve.planner import PlannedImage, PlanRequest
from nvllm.spec import specfile
from support import locks, series_samples
from support.host_samples import CPU
from support.specs import GOOD as SPEC_TEXT
from support.specs import SHOWN

_NO_GPU = SPEC_TEXT.replace('    gpu:\n      capabilities: ["12.0", "12.1"]\n      driver: 580.95.05\n', "")
_NO_WAIVER = _NO_GPU.replace("    waivers:\n      - {name: host-ipc, reason: the test wants it}\n", "")
TEXT = _NO_WAIVER.replace("    sentinels: [drain]\n", "    sentinels: [zeroer, drain]\n")
"""A spec whose one profile `eager` needs no GPU and waives nothing."""

SPEC = specfile.parse(TEXT, SHOWN)

MODEL_FILES = {"config.json": b"{}", "sub/weights": b"weights"}
_LOCKED_FILES = tuple(
    ModelFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in MODEL_FILES.items()
)
MODEL = LockedModel("directory", modeltree.tree_hash(_LOCKED_FILES), _LOCKED_FILES)

LOCAL = LocalModel(
    MODEL,
    (
        ("config.json", Path("/host/models/tiny/config.json")),
        ("sub/weights", Path("/host/models/tiny/sub/weights")),
    ),
)

GPUS = (
    Gpu(0, "GPU-6f1c", "NVIDIA GB10", "12.1", "580.95.05"),
    Gpu(1, "GPU-77aa", "NVIDIA GB10", "12.1", "580.95.05"),
)


def with_profile(spec: ImageSpec, **changes: Any) -> ImageSpec:
    """Return SPEC with CHANGES to its profile `eager`."""
    profile: Profile = dataclasses.replace(spec.profiles["eager"], **changes)
    return dataclasses.replace(spec, profiles={**spec.profiles, "eager": profile})


def build(spec: ImageSpec = SPEC) -> Build:
    """Return the sample image that SPEC and the sample lock describe, without patches."""
    return Build(spec, locks.GOOD, ())


def planned_image(spec: ImageSpec = SPEC) -> PlannedImage:
    """Return the sample image of SPEC as it is planned."""
    of = build(spec)
    return PlannedImage(spec, of.build_hash, of.scheme, of.environment, ("sha256:" + "1" * 64, "sha256:" + "5" * 64))


def wanted(spec: ImageSpec = SPEC, **changes: Any) -> PlanRequest:
    """Return the profile `eager` of SPEC as it is wanted, with CHANGES to the fields of `PlanRequest`."""
    base = PlanRequest(
        image=planned_image(spec),
        profile_name="eager",
        model=LOCAL,
        draft=None,
        user=(1234, 1235),
        gpus=(),
        cpu=CPU,
        run_directory=Path("/host/state/runs/nvllm-demo-eager/run"),
    )
    return dataclasses.replace(base, **changes)


def plan(spec: ImageSpec = SPEC, **changes: Any) -> LaunchPlan:
    """Return the launch plan of `wanted`."""
    return planner.plan(wanted(spec, **changes))


PLAN = plan()


# A project on disk

PROJECT_TEXT = TEXT.replace("series: v0.28.0", "series: v1").replace("enable: [aot-load-guard]", "enable: [first]")


def project(tmp_path: Path) -> Project:
    """Write a project with the image `demo`, a series of two patches, and a lock that fits both."""
    root = tmp_path / "project"
    (root / "images").mkdir(parents=True)
    series_samples.two_patches(root)
    (root / "images" / "demo.yaml").write_text(PROJECT_TEXT)
    found = Project(root)
    write_lock(found)
    return found


def write_lock(found: Project, **changes: Any) -> Lock:
    """Write the lock of the image `demo` as its spec and series stand, with CHANGES to its fields."""
    spec = specfile.load(found.spec("demo"), SHOWN)
    series = seriesfile.load(found.series("v1"), "patches/v1")
    sample = dataclasses.replace(
        locks.GOOD,
        inputs=specfile.inputs(spec, "linux/amd64"),
        series=_locked(series),
        models={**locks.GOOD.models, "tiny": MODEL},
    )
    lock: Lock = dataclasses.replace(sample, **changes)
    lockdoc.write(found.lock("demo"), lock)
    return lock


def _locked(series: Series) -> LockedSeries:
    return LockedSeries(series.base, tuple(LockedPatch(one.id, one.status, one.sha256) for one in series.patches))


def places(tmp_path: Path) -> Places:
    """Return the places that NVLLM_HOME below TMP_PATH makes."""
    return Places(tmp_path / "home/cache", tmp_path / "home/state")


def put_model(where: Places, name: str = "tiny") -> Path:
    """Put the files of `MODEL` where a model that was made lies."""
    directory = where.models / name
    for path, data in MODEL_FILES.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
        (directory / path).chmod(0o644)  # whatever the umask is, as `nvllm model make` does
    return directory


def edit(path: Path, old: str, new: str) -> None:
    """Replace OLD, which stands once in the file PATH, by NEW."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def shorten_series(found: Project) -> None:
    """Take the second patch out of the series on disk, so that the lock names one too many."""
    directory = found.series("v1")
    text = (directory / "series.yaml").read_text()
    (directory / "series.yaml").write_text(text[: text.index("  - id: second")])
    (directory / "0002-second.patch").unlink()


# The front end of an engine

COMPLETION = b'{"choices": [{"text": " fox"}], "usage": {"completion_tokens": 16}}'


@dataclass
class FrontEnd:
    """What a fake engine's HTTP server answers; change it at any time."""

    port: int = 0
    health: int = 200
    status: int = 200
    body: bytes = COMPLETION
    metrics: str | None = None
    """What /metrics answers; without it there is no such page."""
    longest: int | None = None
    """The most tokens of a request, on /v1/models; without it there is no such page."""
    at_request: Callable[[bytes], None] | None = None
    """What happens when a generation is asked for."""
    pause: float = 0.0
    """Seconds before a generation is answered."""
    part: bytes = b'data: {"choices": [{"text": "x"}]}\n\n'
    """A part of an answer that is streamed, one for each token."""
    asked: list[bytes] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)


def _stream(write: Callable[[bytes], int], part: bytes, tokens: int, released: Event) -> None:
    """Write an answer of so many TOKENS, PART by part."""
    with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked has seen enough
        for _ in range(tokens):
            write(part)
            released.wait(0.002)
        write(b"data: [DONE]\n\n")


@contextmanager
def front_end() -> Iterator[FrontEnd]:
    """Serve what a `FrontEnd` says on a free port of 127.0.0.1, for the duration of the context."""
    said = FrontEnd()
    released = Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/metrics" and said.metrics is not None:
                self._answer(200, said.metrics.encode())
                return
            if self.path == "/v1/models" and said.longest is not None:
                self._answer(200, json.dumps({"data": [{"max_model_len": said.longest}]}).encode())
                return
            self._answer(said.health if self.path == "/health" else 404, b"")

        def do_POST(self) -> None:
            said.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            said.headers.append(dict(self.headers))
            if said.at_request is not None:
                said.at_request(said.asked[-1])
            released.wait(said.pause)
            asked = json.loads(said.asked[-1])
            if asked.get("stream") and said.status == 200:
                self.send_response(200)
                self.end_headers()
                _stream(self.wfile.write, said.part, asked["max_tokens"], released)
                return
            self._answer(said.status if self.path == "/v1/completions" else 404, said.body)

        def _answer(self, status: int, body: bytes) -> None:
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        request_queue_size = 256  # a bless asks that many at once

    server = Server(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    said.port = server.server_address[1]
    try:
        yield said
    finally:
        released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def front() -> Iterator[FrontEnd]:
    """A front end that is up for the duration of a test."""
    with front_end() as said:
        yield said
