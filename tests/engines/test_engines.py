"""nvllm on every engine that packages give: build, toggle, model, serve, status, stop, gc, and what is never ignored.

`make test-engines` runs this. Each engine is one test: its steps need each other, and an image takes minutes to send.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from nvllm.core.paths import places
from support import private_engines
from support.engine_world import IMAGE, MODEL, ROOT, Done, own_nvllm, run
from support.private_engines import KINDS, ROWS, Kind, PrivateEngine, Row, sent

pytestmark = pytest.mark.engines

PROFILE = "tiny-eager"
INSTANCE = f"nvllm-{IMAGE}-{PROFILE}"
LEFT_OUT = "page-zeroer"
"""The patch that the toggle leaves out; its layer lies below those of most others, which are sent again."""

TOGGLE_BYTES, TOGGLE_SECONDS = 1_000_000, 5.0
"""Of the layers that are new, and of the whole command."""

RESENT_BYTES = 4_000_000
"""Of an archive that has every layer above the first new one, and none of base and wheels, which are a thousand times
as large. A layer of the classic store is known by those below it, so it is sent again when one of these changes."""

SMALL = ("e2e/test_loading.py", "e2e/test_registry_base.py", "refusals/test_nv307.py")
"""The tests of loading, whose images take no time."""

SLACK = 3.0
"""What a loaded machine may take longer than the bound; what it took is printed."""


@pytest.fixture(scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's own store and layers, filled for the image: no engine here reaches a network."""
    layout = tmp_path_factory.mktemp("layout") / IMAGE
    done = own_nvllm("build", IMAGE, "--layout", str(layout), "--json")
    assert done.code == 0, done
    return layout


def _home(home: Path) -> None:
    """Make HOME, with a link to each file of the user's own store and layers."""
    own = places(dict(os.environ))
    for source, target in ((own.store / "sha256", "cache/store/sha256"), (own.layers, "cache/layers")):
        for path in source.rglob("*"):
            inside = path.relative_to(source)
            in_tree = any(one.endswith(".tree") for one in inside.parts[:-1])
            if in_tree or path.suffix == ".lock" or (path.is_dir() and path.suffix != ".tree"):
                continue
            link = home / target / inside
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            link.symlink_to(path)


def _step(row: Row, name: str, done: Done) -> dict[str, Any]:
    row.cells[name] = "FAILED"
    assert done.code == 0, done
    row.cells[name] = f"{done.seconds:.1f} s"
    return done.result


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_everything_works_on(kind: Kind, layers: Path) -> None:
    row = Row(kind.name)
    ROWS.append(row)
    assert layers.is_dir()
    with private_engines.engine(kind) as held:
        _home(held.home)
        _loads_small_images(held, row)
        _says_what_it_is(held, row)
        _builds(held, row)
        _toggles(held, row)
        _step(row, "model", held.nvllm("model", "make", IMAGE, MODEL))
        _serves(held, row)
        _begins_scratch_empty(held, row)
        # After the serve: Podman's service keeps the port of a container that could not be started until it ends.
        _never_ignores_gpus(held, row)
        _clears_up(held, row)


def _says_what_it_is(held: PrivateEngine, row: Row) -> None:
    done = held.nvllm("doctor")
    result = _step(row, "doctor", done)
    (said,) = [one["detail"] for one in result["checks"] if one["code"] == "NV510"]
    row.version = str(said.partition(",")[0])
    assert said.startswith(f"{held.kind.product} ")
    assert ("containerd image store" in said) is (held.kind.store == "containerd")
    assert ("GPUs only by" in said) is (held.kind.product == "Podman")


def _loads_small_images(held: PrivateEngine, row: Row) -> None:
    """Run the tests of loading beside this engine: short archives, names, refusals, a base of a registry."""
    files = [str(ROOT / "tests" / name) for name in SMALL]
    argv = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", *files]
    done = run(held.spaces.argv(*argv), held.env)
    row.cells["loading"] = f"{done.seconds:.1f} s" if done.code == 0 else "FAILED"
    assert done.code == 0, done.out


def _record(held: PrivateEngine, build_hash: str) -> dict[str, Any]:
    found = json.loads((held.home / "state/builds" / f"{build_hash}.json").read_bytes())
    assert isinstance(found, dict)
    return found


def _holds(held: PrivateEngine, result: dict[str, Any]) -> None:
    """Look at the engine itself: the image under its tag has an id and all the layers that are on record."""
    record, found = _record(held, result["build_hash"]), held.api(f"/images/{result['tag']}/json")
    assert found["Id"] in {record["image_id"], record["manifest_id"]}
    assert found["Id"] == record["manifest_id" if held.kind.store == "containerd" else "image_id"]
    assert found["RootFS"]["Layers"] == [one["diff_id"] for one in record["layers"]]


def _builds(held: PrivateEngine, row: Row) -> None:
    done = held.nvllm("build", IMAGE)
    result = _step(row, "build", done)
    assert result["outcome"] == "built"
    _holds(held, result)
    assert held.nvllm("build", IMAGE).result["outcome"] == "already there"


def _toggles(held: PrivateEngine, row: Row) -> None:
    whole = held.nvllm("build", IMAGE, "--dry-run").result
    patches = [one for one in whole["patches"] if one != LEFT_OUT]
    assert len(patches) == len(whole["patches"]) - 1
    done = held.nvllm("build", IMAGE, "--patches", ",".join(patches))
    result = _step(row, "toggle", done)
    assert result["outcome"] == "built"
    before = {one["diff_id"] for one in _record(held, whole["build_hash"])["layers"]}
    layers = _record(held, result["build_hash"])["layers"]
    new = sum(one["size"] for one in layers if one["diff_id"] not in before)
    row.cells["toggle"] = f"{done.seconds:.1f} s, {new / 1000:.0f} kB new, {sent(done) / 1000:.0f} kB sent"
    _holds(held, result)
    assert new <= TOGGLE_BYTES
    assert sent(done) <= RESENT_BYTES
    assert done.seconds <= TOGGLE_SECONDS * SLACK
    assert held.nvllm("build", IMAGE).result["outcome"] == "already there"


NEVER_IGNORED = """
from dataclasses import replace
import json, sys
from support.host_samples import NEED
from nvllm.engine import engine
from nvllm.core.plan import PlannedGpu, decode
from nvllm.core.refusal import Refused
plan = decode(json.loads({plan!r}))
gpus = (PlannedGpu("GPU-00000000-1111-2222-3333-444444444444", "a GPU", "12.1", "580.95.05"),)
held = engine.require()
try:
    held.start(replace(plan, instance="nvllm-gpu", mounts=(), gpu=NEED, gpus=gpus), {{"nvllm.instance": "nvllm-gpu"}})
except Refused as refused:
    print(json.dumps([[one.code, one.found] for one in refused.refusals]))
assert not [one.name for one in held.containers() if one.name == "nvllm-gpu"]
"""


def _never_ignores_gpus(held: PrivateEngine, row: Row) -> None:
    """Ask for a GPU that is not there: an engine that drops the request would start without one."""
    plan = held.nvllm("serve", IMAGE, "--profile", PROFILE, "--dry-run").result
    done = held.python(NEVER_IGNORED.format(plan=json.dumps(plan)))
    row.cells["gpu"] = "FAILED"
    assert done.code == 0, done
    ((code, found),) = json.loads(done.out)
    assert code == "NV703"
    assert any(word in found for word in ("could not select device driver", "CDI", "nvidia.com/gpu")), found
    row.cells["gpu"] = "refused"


SCRATCH = """
from dataclasses import replace
import json, pathlib, sys, time
from nvllm.engine import engine
from nvllm.core.plan import Mount, PlannedCommand, Scratch, decode
plan, below = decode(json.loads({plan!r})), pathlib.Path({below!r})
(below / "inductor_cache").mkdir(parents=True)
(below / "inductor_cache/compiled").touch()
for path in (below, *below.parents[:1], below / "inductor_cache"):
    path.chmod(0o755)
script = "import os; print(os.listdir('/below/inductor_cache')); open('/below/inductor_cache/own', 'w').close()"
command = PlannedCommand((), (plan.command.interpreter, "-I", "-c", script))
mounts, scratch = (Mount(str(below), "/below"),), (Scratch("/below/inductor_cache", 1 << 20),)
docker = engine.require()
plan = replace(plan, instance="nvllm-scratch", command=command, mounts=mounts, scratch=scratch)
container = docker.start(plan, {{"nvllm.instance": "nvllm-scratch"}})
while (status := docker.state(container).exit_code) is None:
    time.sleep(0.1)
log = b"".join(docker.logs(container, follow=False)).decode()
print(log.partition(" ")[2].strip(), status)
docker.remove(container)
"""


def _begins_scratch_empty(held: PrivateEngine, row: Row) -> None:
    """Mount a scratch over a directory that has files: it begins empty, and the engine's user can write into it."""
    plan = held.nvllm("serve", IMAGE, "--profile", PROFILE, "--dry-run").result
    done = held.python(SCRATCH.format(plan=json.dumps(plan), below=str(held.home / "below/cache")))
    row.cells["scratch"] = "FAILED"
    assert (done.code, done.out.strip()) == (0, "[] 0"), done
    row.cells["scratch"] = "empty"


def _serves(held: PrivateEngine, row: Row) -> None:
    result = _step(row, "serve", held.nvllm("serve", IMAGE, "--profile", PROFILE, "--detach"))
    assert result["instance"] == INSTANCE
    (instance,) = held.nvllm("status").result["instances"]
    assert (instance["stage"], instance["supervised"]) == ("ready", True)
    ask = ["--data", json.dumps({"model": MODEL, "prompt": "hello world", "max_tokens": 8, "temperature": 0})]
    headers = ["--header", "Content-Type: application/json", "--silent", "--fail", "--max-time", "60"]
    said = held.spaces.argv("curl", *headers, *ask, f"{result['address']}/v1/completions")
    answer = run(said, held.env)
    assert answer.code == 0, answer
    assert json.loads(answer.out)["usage"]["completion_tokens"] == 8
    again = held.nvllm("serve", IMAGE, "--profile", PROFILE)
    assert (again.code, {"NV508"} <= set(again.codes)) == (3, True), again
    _step(row, "stop", held.nvllm("stop", INSTANCE))
    (ended,) = held.nvllm("status").result["instances"]
    assert ended["stage"] == "stopped", ended
    assert held.api("/containers/json?all=true") == []


def _clears_up(held: PrivateEngine, row: Row) -> None:
    current = held.nvllm("build", IMAGE, "--dry-run").result
    done = held.nvllm("gc", "--keep-younger", "0")
    result = _step(row, "gc", done)
    assert [one["kind"] for one in result["pieces"]].count("image") == 1
    tags = {tag.removeprefix("docker.io/library/") for one in held.api("/images/json") for tag in one["RepoTags"] or ()}
    assert tags == {current["tag"], f"nvllm:{IMAGE}"}
    again = held.nvllm("gc", "--dry-run", "--keep-younger", "0").result["pieces"]
    assert [one for one in again if one["kind"] == "image"] == []
    assert held.nvllm("build", IMAGE).result["outcome"] == "already there"
