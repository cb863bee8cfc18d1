"""Blessing on the real engine, from the compile to the refusals: blessed, served, asked, tampered with, revoked.

Where the profile is a development one, that is so that one trial is enough to serve it; `make test-long` has five.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from docker import DockerClient
from docker.models.containers import Container

from nvllm.cache.blessings import Blessings
from nvllm.cache.manifest import Manifest
from nvllm.cache.store import TreeStore
from nvllm.core import canonical, workload
from nvllm.core.canonical import Json
from nvllm.core.paths import places
from nvllm.core.plan import CACHE
from nvllm.host.facts import TREE_LABEL
from nvllm.serve import health, slow_start, staged_cache
from support import question_samples
from support.engine_world import IMAGE, BuiltImage, Done, World, Worlds, another_user, run, until
from torture import campaign, cases

pytestmark = pytest.mark.engine

EVALUATION = "{evaluation: {kind: questions, file: sums.jsonl, floor: 0%, length: 16}}"
LOADED = "Directly load AOT compilation from path"
SAVED = "saved AOT compiled function to"
GREEDY: dict[str, Json] = {"prompt": "hello world the quick", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
ORDINARY: tuple[dict[str, Json], ...] = (
    {"logprobs": 1},
    {"prompt_logprobs": 1},
    {"logprobs": 5, "prompt_logprobs": 3, "n": 2, "temperature": 0.7},
    {"structured_outputs": {"regex": "(yes|no)+"}, "logprobs": 1},
    {"structured_outputs": {"json": {"type": "array", "items": {"type": "string"}}}},
)
"""Requests that no bless has asked."""


def owners(directory: Path) -> set[int]:
    return {path.lstat().st_uid for path in (directory, *directory.rglob("*"))}


def post(world: World, path: str, **fields: Json) -> httpx2.Response:
    question = {"model": "tiny-lfm2", **fields}
    return httpx2.post(f"http://127.0.0.1:{world.port}/v1/{path}", json=question, timeout=120, trust_env=False)


def greedy(world: World) -> str:
    document: dict[str, Any] = post(world, "completions", **GREEDY).json()
    return str(document["choices"][0]["text"])


def nothing_ends_it_or_makes_it_compile(world: World, container: Container, manifest: Manifest) -> None:
    """Ask the blessed engine of WORLD with every sampling option, and what the torture knows: it answers as before."""
    assert manifest.coverage is not None
    assert manifest.coverage.new[-1] == 0
    assert sum(manifest.coverage.new) > 0  # with one probe alone, a request compiles later
    before = greedy(world)
    fields: dict[str, Json] = {"prompt": "one two three", "max_tokens": 4}
    wrong = []
    for settings in (*workload.SETTINGS, *ORDINARY):
        answer = post(world, "completions", **{**fields, **settings})
        if answer.status_code != 200:
            wrong.append((settings, answer.status_code, answer.text[:300]))
    chat: list[Json] = [{"role": "user", "content": "hello"}]
    answer = post(world, "chat/completions", messages=chat, max_tokens=4, logprobs=True, top_logprobs=2)
    assert (wrong, answer.status_code) == ([], 200)
    outcomes = [campaign.send(world.port, case, 120) for case in cases.known()]
    assert [campaign.shown(outcome.case) + outcome.wrong for outcome in outcomes if outcome.wrong] == []
    assert greedy(world) == before
    container.reload()
    assert container.status == "running"
    listed = container.exec_run(["find", "/home/nvllm", "-type", "f"])
    assert isinstance(listed.output, bytes)
    blessed = {file.path.rpartition("/")[2] for file in manifest.tree.files}
    graphs = staged_cache.graphs(listed.output.decode().splitlines())
    assert {path.rpartition("/")[2] for path in graphs} <= blessed


def is_evaluated(world: World, manifest: Manifest, answers: Path) -> None:
    """The evaluation was asked; and where the profile asks for more than came out, or for another one, none is served.

    The model has random weights: the floor is 0 %, and all that is shown is that it was asked and counted.
    """
    (record,) = manifest.evaluations
    assert (record.asked, record.floor, record.timeouts) == (3, "0%", 0)
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert record.correct == sum(row["correct"] for row in rows)
    assert [(row["id"], row.get("problem", ""), row["tokens"] > 0) for row in rows] == [
        (n, "", True) for n in (1, 2, 3)
    ]
    assert record.answers == canonical.sha256_file(answers)
    assert world.serve("--dry-run", profile="blessed").code == 0
    world.edit({"floor: 0%": "floor: 3/3"})
    assert world.serve("--dry-run", profile="blessed").codes == ["NV919"]
    world.edit({"floor: 3/3": "floor: 0%", "length: 16": "length: 17"})
    assert world.serve("--dry-run", profile="blessed").codes == ["NV919"]
    world.edit({"length: 17": "length: 16"})


def test_bless_serve_tamper_revoke(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make({"    blessed: true": f"    dev: true\n    bless: {EVALUATION}\n    blessed: true"})
    profile = world.profile("blessed")
    question_samples.write(world.project.root / "sums.jsonl", 3)
    assert world.serve("--dry-run", profile="blessed").codes == ["NV901"]

    done = world.nvllm("bless", IMAGE, "--profile", profile, "--unsafe-trials", "1", "--json")
    assert done.result["boots"] == 1
    assert done.result["unsafe"] is True
    assert world.containers(docker_client) == []
    held = Blessings.of_project(world.project, world.places)
    (blessing,) = held.all()
    assert blessing.manifest is not None
    assert [(one.replays, one.compiles) for one in blessing.manifest.trials] == [(12, 0)]
    evidence = world.places.blessing / world.instance("blessed") / "1"
    is_evaluated(world, blessing.manifest, evidence / "trial-1/answers.jsonl")
    assert SAVED in (evidence / "bootstrap/engine.log").read_text()
    log = (evidence / "trial-1/engine.log").read_text()
    assert LOADED in log
    assert SAVED not in log
    store = TreeStore(world.places.trees)
    store.verify(blessing.manifest.tree, "")
    # Whatever user the engine was, nothing that stays is another one's than the operator's.
    assert owners(world.places.state) | owners(world.places.trees) | owners(held.directory) == {os.geteuid()}

    again = world.nvllm("bless", IMAGE, "--profile", profile, "--unsafe-trials", "1", "--json")
    assert (again.code, again.codes) == (3, ["NV902"])

    served = world.serve("--detach", profile="blessed")
    assert served.result["tree"] == blessing.manifest.tree_hash
    container = docker_client.containers.get(served.result["container"])
    (mount,) = [one for one in container.attrs["Mounts"] if one["Destination"] == CACHE]
    assert mount["RW"] is False
    assert container.labels[TREE_LABEL] == blessing.manifest.tree_hash
    assert LOADED in (world.run_directory("blessed") / "engine.log").read_text()
    # The profile's environment says so: to precompile a header took most of the time of a load, for nothing.
    listed = container.exec_run(["ls", "-R", "/tmp"])
    assert listed.exit_code == 0
    assert isinstance(listed.output, bytes)
    assert "precompiled_headers" not in listed.output.decode()
    nothing_ends_it_or_makes_it_compile(world, container, blessing.manifest)
    rows = json.loads(world.nvllm("status", "--json").out)["result"]["instances"]
    assert [row["blessed"] for row in rows if row["instance"] == world.instance("blessed")] == [blessing.manifest.label]
    assert world.nvllm("stop", world.instance("blessed")).code == 0
    assert list((world.places.staged / world.instance("blessed")).iterdir()) == []

    (model,) = store.path(blessing.manifest.tree_hash).rglob("rank_0_0/model")
    original = model.read_bytes()
    model.chmod(0o600)
    model.write_bytes(original[:1000] + bytes([original[1000] ^ 1]) + original[1001:])
    model.chmod(0o444)
    tampered = world.serve(profile="blessed")
    assert (tampered.code, tampered.codes) == (3, ["NV907"])
    assert tampered.refusal["where"] == str(model)
    assert world.containers(docker_client) == []

    model.chmod(0o600)
    model.write_bytes(original)
    model.chmod(0o444)
    assert world.serve("--dry-run", profile="blessed").code == 0
    assert world.nvllm("manifest", "revoke", blessing.manifest.label, "--reason", "a test").code == 0
    revoked = world.serve(profile="blessed")
    assert (revoked.code, revoked.codes) == (3, ["NV903"])


RULES = {
    "    blessed: true": "    bless: {signers: manifests/allowed_signers, valid-days: 30}\n    blessed: true",
    "      start-timeout: 300": "      start-timeout: 600\n      stall-timeout: 60",
}
LATER = """
import sys, time
now, days = time.time, float(sys.argv.pop(1))
time.time = lambda: now() + days * 86400
from nvllm.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""nvllm, on a day that is so many days from now."""

SEND = """
import os, signal, sys
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        os.kill(int(name), signal.Signals[sys.argv[1]])
"""
"""Sends a signal to every process of a container but its front end."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who is not root, where the suite is, and may use the engine; everything in WORLD is theirs."""

    world: World
    python: tuple[str, ...]
    env: dict[str, str]
    user: int

    def nvllm(self, *args: str, later: float | None = None) -> Done:
        """Run nvllm as the operator, LATER being how many days from now."""
        start = [*self.python, "-m", "nvllm"] if later is None else [*self.python, "-c", LATER, str(later)]
        options: dict[str, Any] = {"cwd": self.world.directory, "umask": 0o022}
        if self.user != os.geteuid():
            docker = Path("/var/run/docker.sock").stat().st_gid
            options.update(user=self.user, group=self.user, extra_groups=[docker])
        return run([*start, "--project", str(self.world.project.root), "--json", *args], self.env, **options)


@pytest.fixture
def operator(built_image: BuiltImage, tiny_model: Path, elsewhere: Path) -> Iterator[Operator]:
    made = Worlds(elsewhere, places(dict(os.environ)), built_image)
    try:
        world = made.make(RULES)
        argv, env, user = another_user()
        if user != os.geteuid():
            for path in (world.directory, *world.directory.rglob("*")):
                os.chown(path, user, user, follow_symlinks=False)
        yield Operator(world, tuple(argv[:-2]), {**world.env, **env, "HOME": str(world.directory)}, user)
    finally:
        made.end()


def key(operator: Operator) -> Path:
    """Make a key of the operator, and let it alone sign."""
    place = operator.world.directory / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.fspath(place)], check=True)
    signers = operator.world.project.root / "manifests/allowed_signers"
    signers.write_text(f"operator {place.with_suffix('.pub').read_text()}")
    for path in (place, place.with_suffix(".pub"), signers):
        os.chown(path, operator.user, -1)
    signers.chmod(0o644)
    return place


@contextlib.contextmanager
def asked(port: int) -> Iterator[None]:
    """Ask the engine on PORT for long answers, several at a time, for the duration of the context."""
    over = threading.Event()

    def ask() -> None:
        question = {"model": "tiny-lfm2", "prompt": "hello", "max_tokens": 110, "ignore_eos": True}
        while not over.is_set():
            with contextlib.suppress(httpx2.HTTPError):
                httpx2.post(f"http://127.0.0.1:{port}/v1/completions", json=question, timeout=5, trust_env=False)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def hang(container: Container, interpreter: str, port: int) -> None:
    """Let the engine's core hang while it has requests, and no other part of it: every page still answers."""

    def send(name: str) -> None:
        status, said = container.exec_run([interpreter, "-I", "-c", SEND, name])
        assert status == 0, said

    def stopped_at_work() -> bool:
        """A core that stopped between two requests said last that none runs; then it is let go once more."""
        send("SIGSTOP")
        time.sleep(1)  # until what it said last is on the page
        if any(one.running > 0 for one in health.read_metrics(port).values()):
            return True
        send("SIGCONT")
        return False

    with asked(port):
        until(lambda: any(one.running > 0 for one in health.read_metrics(port).values()), "requests run")
        until(stopped_at_work, "the core stops in the middle of its work")
    assert any(one.running > 0 for one in health.read_metrics(port).values())
    assert httpx2.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).status_code == 200


@pytest.mark.long
def test_five_trials_by_an_operator_who_is_not_root(operator: Operator, docker_client: DockerClient) -> None:
    """A production profile that requires a signature: blessed, served until its core hangs, and too old at last."""
    world, profile = operator.world, operator.world.profile("blessed")
    serve = ("serve", IMAGE, "--profile", profile)
    ours = key(operator)
    assert operator.nvllm("bless", IMAGE, "--profile", profile).codes == ["NV909"]
    done = operator.nvllm(
        "bless", IMAGE, "--profile", profile, "--trials", "5", "--sign", str(ours), "--expires", "20d"
    )
    assert (done.result["boots"], done.result["unsafe"], done.result["signed"]) == (5, False, True)
    assert done.result["expires"] is not None
    label = f"{IMAGE}-{profile}"
    shown = operator.nvllm("manifest", "show", label).result["manifest"]
    assert [trial["number"] for trial in shown["trials"]] == [1, 2, 3, 4, 5]
    assert len({trial["boot"] for trial in shown["trials"]}) == 5
    assert {(trial["replays"], trial["compiles"]) for trial in shown["trials"]} == {(12, 0)}
    for trial in shown["trials"]:
        assert trial["kv_tokens"] == shown["kv_tokens"]
        assert trial["peak_memory"] is None or trial["peak_memory"] > 0
    names = [[one["name"] for one in phases] for phases in (shown["cold"]["phases"], shown["phases"])]
    assert names[0] == names[1]
    assert {"import", "compile", "server", "first token"} <= set(names[0])
    assert shown["cold"]["saved"] >= 1
    # What tells a compile from a load on a host that does other work at the same time.
    assert shown["cold"]["processor"] > slow_start.MORE * max(trial["processor"] for trial in shown["trials"])
    signers = str(world.project.root / "manifests/allowed_signers")
    assert operator.nvllm("manifest", "verify", label, "--signers", signers).result["signer"] == "operator"

    assert operator.nvllm(*serve, "--dry-run", later=19).code == 0
    assert operator.nvllm(*serve, "--dry-run", later=21).codes == ["NV905"]
    (signature,) = (world.project.blessed / "signatures").iterdir()
    signature.rename(signature.with_suffix(".aside"))
    assert operator.nvllm(*serve, "--dry-run").codes == ["NV909"]
    signature.with_suffix(".aside").rename(signature)

    served = operator.nvllm(*serve, "--detach")
    assert served.result["guard"] in {"staged", "fs-verity"}
    container = docker_client.containers.get(served.result["container"])
    hang(container, "/usr/bin/python3.11", world.port)
    until(lambda: world.state("blessed")["stage"] == "failed", "the engine that hangs is ended", 150)
    assert world.state("blessed")["reason"].startswith("requests are running, but made no progress for ")
    log = world.places.state / "supervisors" / f"{world.instance('blessed')}.log"
    until(lambda: "NV913" in log.read_text(), "the supervisor says why")
    assert world.containers(docker_client) == []

    # Not even a container of the bootstrap, which may write, leaves anything of another user.
    mine = [world.places.state, world.places.cache / "trees", world.project.root]
    assert set().union(*map(owners, mine)) == {operator.user}
