"""A served instance: it answers, its start is on record, and every command tells the same of it."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from nvllm.host.facts import INSTANCE_LABEL
from support.engine_world import IMAGE, MODEL, SECRETS, BuiltImage, Served

pytestmark = pytest.mark.engine

PHASES = ["gate", "import", "weights", "warm-up", "server", "first token"]
KV_TOKENS = 52_428


def complete(served: Served, prompt: str) -> dict[str, Any]:
    question = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{served.world.port}/v1/completions",
        json.dumps(question).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = json.load(answer)
    assert isinstance(found, dict)
    return found


def test_it_answers_the_same_twice_with_another_prompt_between(served: Served) -> None:
    first = complete(served, "hello world the quick")
    assert first["usage"]["completion_tokens"] == 12
    assert first["choices"][0]["text"]
    other = complete(served, "a quite different prompt")
    again = complete(served, "hello world the quick")
    assert again["choices"][0]["text"] == first["choices"][0]["text"] != other["choices"][0]["text"]


def test_what_serve_said(served: Served) -> None:
    said = served.done.result
    assert said["instance"] == served.world.instance()
    assert said["address"] == f"http://127.0.0.1:{served.world.port}"
    assert (said["model"], said["dev"], said["waivers"]) == (MODEL, False, [])
    assert "start" in served.done.err or served.done.err == ""  # progress, if any, is on stderr


def test_the_phases_of_the_start_are_on_record(served: Served) -> None:
    state = served.world.state()
    assert state["stage"] == "ready"
    assert [name for name, _ in state["phases"]] == PHASES
    assert all(seconds >= 0 for _, seconds in state["phases"])
    assert sum(seconds for _, seconds in state["phases"]) == pytest.approx(state["ready"] - state["started"], abs=2)
    assert state["kv_tokens"] == KV_TOKENS
    lines = (served.world.run_directory() / "evidence.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [one["event"] for one in events] == ["started", *(["phase"] * len(PHASES)), "ready"]
    assert [one["name"] for one in events if one["event"] == "phase"] == PHASES
    assert events[0]["container"] == served.container.id
    assert events[-1]["tokens"] == 16
    assert [one["time"] for one in events] == sorted(one["time"] for one in events)


def test_an_eager_start_compiles_nothing(served: Served) -> None:
    # The readiness probe was sampled, and what Inductor compiles it puts here; its directory is made by an import.
    listed = served.container.exec_run(["ls", "-R", "/tmp"])
    assert listed.exit_code == 0
    assert isinstance(listed.output, bytes)
    assert [name for name in listed.output.decode().split() if name.endswith((".cpp", ".so", ".gch"))] == []


def test_a_start_imports_vllm_twice(served: Served) -> None:
    # Every process that imports it says this once. The core of the engine is forked from the server, and the model
    # was inspected in it; the worker is a program of its own.
    lines = served.world.nvllm("logs", served.world.instance(), "--json").result["lines"]
    assert sum("Triton not available, find_triton_kernels" in line for line in lines) == 2


def test_the_container_carries_its_labels(served: Served) -> None:
    said, labels = served.done.result, served.container.labels
    assert labels[INSTANCE_LABEL] == served.container.name == served.world.instance()
    assert labels["nvllm.image"] == IMAGE
    assert labels["nvllm.profile"] == served.world.profile()
    assert labels["nvllm.build-hash"] == said["build_hash"]
    assert labels["nvllm.serve-hash"] == said["serve_hash"]
    assert labels["nvllm.dev"] == "false"


def test_status(served: Served) -> None:
    listed = served.world.nvllm("status", "--json").result["instances"]
    (mine,) = [one for one in listed if one["instance"] == served.world.instance()]
    assert (mine["stage"], mine["supervised"], mine["port"]) == ("ready", True, served.world.port)
    assert (mine["kv_tokens"], mine["container"]) == (KV_TOKENS, served.container.id)
    text = served.world.nvllm("status").out
    (row,) = [line for line in text.splitlines() if served.world.instance() in line]
    assert "ready" in row
    assert f"127.0.0.1:{served.world.port}" in row
    assert "52,428" in row
    assert row.rstrip().endswith("yes")


def test_logs(served: Served) -> None:
    instance = served.world.instance()
    lines = served.world.nvllm("logs", instance, "--json").result["lines"]
    assert sum('nvllm.gate {"event": "passed"' in line for line in lines) == 1
    assert any("Application startup complete." in line for line in lines)
    tail = served.world.nvllm("logs", instance, "--tail", "3")
    assert tail.code == 0
    assert len(tail.out.splitlines()) == 3


def test_explain_says_that_the_instance_is_the_profile(served: Served, built_image: BuiltImage) -> None:
    profile = f"{IMAGE}/{served.world.profile()}"
    done = served.world.nvllm("explain", profile, served.world.instance())
    assert (done.code, done.out) == (0, f"the same serve hash: {served.done.result['serve_hash']}\n")
    other = served.world.nvllm("explain", profile, f"{IMAGE}/{served.world.profile('compiled')}", "--json").result
    assert sorted(one["path"] for one in other["factors"]) == [".command", ".dev"]
    image = served.world.nvllm("explain", IMAGE, built_image.tag, "--json").result
    assert (image["kind"], image["factors"]) == ("build", [])


def test_no_secret_of_the_operator_is_written_anywhere(served: Served) -> None:
    files = [path for path in served.world.places.state.rglob("*") if path.is_file()]
    assert any(path.name == "plan.json" for path in files)
    for path in files:
        text = path.read_bytes()
        assert not any(secret.encode() in text for secret in SECRETS.values()), path
