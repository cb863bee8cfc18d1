"""A model, a port, a profile that is not as locked: everything that is wrong is said at once, and nothing starts."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from docker import DockerClient

from nvllm.cache.store import TreeStore
from nvllm.core.plan import CACHE, SEEDS
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.serve import planner, staged_cache, supervisor
from nvllm.serve.examination import Depth, examine
from nvllm.serve.rundir import RunDirectory
from nvllm.serve.startup import EngineStart
from support import tampering
from support.engine_world import IMAGE, MODEL, ROOT, Worlds

pytestmark = pytest.mark.engine

CURE = f"nvllm model make {IMAGE} {MODEL}"


def flip(path: Path) -> None:
    """Change one bit in the middle of PATH, and neither its size nor its times."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("tamper", "file", "found"),
    [
        (lambda model: flip(model / "model.safetensors"), "model.safetensors", "sha256 "),
        (lambda model: (model / "config.json").write_text("{}"), "config.json", "2 bytes"),
        (lambda model: (model / "modeling_lfm2.py").write_text("import os"), "modeling_lfm2.py", "an extra file"),
        (lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json", "no such file"),
        (
            lambda model: (
                ((model / "config.json").rename(model.parent / "c") and None)
                or (model / "config.json").symlink_to(model.parent / "c")
            ),
            "config.json",
            "a symbolic link",
        ),
    ],
    ids=["changed", "another size", "extra", "missing", "link"],
)
def test_a_file_of_the_model(
    worlds: Worlds, docker_client: DockerClient, tamper: Callable[[Path], object], file: str, found: str
) -> None:
    world = worlds.make()
    assert world.serve("--dry-run").code == 0  # as it was made; its hashes are remembered
    tamper(world.model)
    done = world.serve("--detach")
    assert (done.code, done.codes) == (3, ["NV403"])
    assert done.refusal["where"] == str(world.model / file)
    assert done.refusal["found"].startswith(found)
    assert world.containers(docker_client) == []
    assert not world.run_directory().exists()
    text = world.nvllm("serve", IMAGE, "--profile", world.profile())
    assert (text.code, text.out) == (3, "")
    for part in ("NV403", "model changed", str(world.model / file), done.refusal["cure"]):
        assert part in text.err


def test_every_file_that_is_wrong_is_named(worlds: Worlds) -> None:
    world = worlds.make()
    flip(world.model / "config.json")
    (world.model / "tokenizer.json").unlink()
    (world.model / "extra").touch()
    done = world.nvllm("model", "check", IMAGE, "--json")
    assert (done.code, done.codes) == (3, ["NV403"] * 3)
    assert [Path(one["where"]).name for one in done.refusals] == ["config.json", "extra", "tokenizer.json"]


def test_no_model_at_all(worlds: Worlds) -> None:
    world = worlds.make()
    world.model.rename(world.directory / "elsewhere")
    done = world.serve()
    assert (done.code, done.codes) == (3, ["NV401"])
    assert done.refusal["where"] == str(world.model)
    assert done.refusal["cure"] == CURE
    # The cure that is named makes the very same bytes again.
    assert world.nvllm("model", "make", IMAGE, MODEL).code == 0
    for path in sorted((world.directory / "elsewhere").iterdir()):
        assert (world.model / path.name).read_bytes() == path.read_bytes()
    assert world.serve("--dry-run").code == 0


SENTINELS = "sentinels: &every [page-zeroer, mamba-block-ids]"


def test_a_sentinel_that_no_patch_reads(worlds: Worlds) -> None:
    world = worlds.make({SENTINELS: "sentinels: &every [no-such-thing, nor-this]"})
    done = world.serve()
    assert (done.code, done.codes) == (3, ["NV602", "NV602"])
    assert {one["where"] for one in done.refusals} == {f"images/{IMAGE}.yaml: .profiles.{world.profile()}.sentinels"}
    assert [one["found"] for one in done.refusals] == ["no-such-thing", "nor-this"]
    read = "mamba-block-ids, page-zeroer"
    assert {one["expected"] for one in done.refusals} == {f"sentinels that the image's patch set reads: {read}"}


def test_sentinels_without_the_patch_that_reads_them(worlds: Worlds) -> None:
    world = worlds.make({"    - sentinels #": "    #"})
    done = world.serve()
    assert done.code == 3
    assert [one["found"] for one in done.refusals if one["code"] == "NV602"] == [
        "mamba-block-ids",
        "page-zeroer",
    ]
    assert {one["code"] for one in done.refusals} == {"NV302", "NV602"}, "the image of that set is not there either"


def test_everything_that_is_wrong_is_said_at_once(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make(
        {SENTINELS: "sentinels: &every [no-such-thing]", "memory-available: 3GiB": "memory-available: 900000GiB"}
    )
    flip(world.model / "config.json")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", world.port))
        listener.listen()
        done = world.serve("--detach")
        text = world.nvllm("serve", IMAGE, "--profile", world.profile())
        doctor = world.nvllm("doctor", IMAGE, "--profile", world.profile(), "--json")
    assert done.code == text.code == doctor.code == 3
    assert done.codes == ["NV403", "NV505", "NV507", "NV602"]
    # `doctor` runs the same objects; only the amount of memory moves from one look to the next.
    assert [{**one, "found": ""} for one in doctor.refusals] == [{**one, "found": ""} for one in done.refusals]
    assert text.out == ""
    for one in done.refusals:
        assert all(one[part] in text.err for part in ("code", "title", "where", "expected", "cure"))
    assert "pid" in done.refusals[2]["found"]
    schema = json.loads((ROOT / "docs/schemas/output.schema.json").read_bytes())
    for document in (done.document, doctor.document):
        jsonschema.validate(document, schema)
    assert world.containers(docker_client) == []


def test_a_blessed_cache_that_changes_between_the_staging_and_the_start(
    worlds: Worlds, docker_client: DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate reads the cache through its mount, before vLLM does; so here vLLM need not have made it.

    The window is forced open: the library is called as the command calls it, with the change in between. That a stored
    cache is refused before the start is in bless/test_blessing.py.
    """
    monkeypatch.delenv("NVLLM_MODELS", raising=False)
    world = worlds.make()
    profile = world.profile("blessed")
    found = examine(world.project, world.places, IMAGE, profile, Depth.UNBLESSED, paranoid=False, progress=Silent())
    assert found.refusals == ()
    assert found.engine is not None
    store = TreeStore(world.places.trees)
    tree = store.adopt(tampering.cache(tmp_path / "fresh"), CURE)
    with supervisor.hold_locks(found, world.places, "a test") as taken:
        staged = store.stage(tree, staged_cache.directory(world.places, found.plan.instance), CURE)
        plan = planner.mounting(planner.loading(found.plan, tree), staged.path)
        for path in tampering.SIZES:
            tampering.flip(staged.path / path, tmp_path)
        run = RunDirectory(world.run_directory("blessed"))
        start = EngineStart(found.engine, plan, found.models, run, taken, Silent(), tree)
        with pytest.raises(Refused) as caught:
            start.start()
    # What the engine gets as a copy is checked where it is copied from.
    tops = {
        path: SEEDS if any(path.startswith(f"{seed}/") for seed in tree.seeds) else CACHE for path in tampering.SIZES
    }
    assert set(tops.values()) == {SEEDS, CACHE}
    where = f"container {world.instance('blessed')}: "
    assert {(one.code, one.where) for one in caught.value.refusals} == {
        ("NV701", f"{where}{top}/{path}") for path, top in tops.items()
    }
    assert all(one.expected.startswith("sha256 ") for one in caught.value.refusals)
    assert world.containers(docker_client) == []
