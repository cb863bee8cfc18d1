"""The walk of docs/own-models.md on the real engine: a user's own directory, with an adapter, a key, on every address.

The model is a tiny Llama of random weights in a directory of its own, the adapter a few random matrices in the form of
peft.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from nvllm.runtime import tiny_models
from support import lora
from support.engine_world import IMAGE, World, Worlds, until

pytestmark = pytest.mark.engine

KEY = "e2e-0123456789abcdef0123456789abcdef"
QUESTION = {"prompt": "hello world the quick", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def readable(directory: Path) -> None:
    """Let every user read DIRECTORY and its files, whatever the umask: the engine runs as another one than root."""
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o644)


@dataclass(frozen=True)
class Walk:
    world: World
    model: Path
    key_file: Path

    def ask(self, path: str, document: dict[str, Any] | None = None, key: str | None = KEY) -> tuple[int, str]:
        """Return status and text of the answer to PATH, asked with KEY on an address of this host."""
        headers = {"content-type": "application/json", **({} if key is None else {"authorization": f"Bearer {key}"})}
        data = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.world.port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def back(self, container: str | None) -> bool:
        """Say whether another engine than that in CONTAINER is ready."""
        state = self.world.state()
        return bool(state["stage"] == "ready" and state["container"] != container)

    def complete(self, model: str, **settings: int) -> str:
        status, text = self.ask("/v1/completions", {"model": model, **QUESTION, **settings})
        assert status == 200, text
        return str(json.loads(text)["choices"][0]["text"])

    def scored(self, model: str) -> str:
        return self.complete(model, prompt_logprobs=1)


def own_model(worlds: Worlds, elsewhere: Path, profile: str, fields: str) -> World:
    """A world whose PROFILE serves the model in a directory of ELSEWHERE, with FIELDS, locked by `nvllm lock`."""
    for name in ("tuned", "adapter"):
        (elsewhere / name).mkdir()
    for path, data in tiny_models.files(tiny_models.ARCHITECTURES["tiny-llama"]).items():
        (elsewhere / "tuned" / path).write_bytes(data)
    lora.write(elsewhere / "adapter")
    readable(elsewhere / "tuned")
    readable(elsewhere / "adapter")
    models = "".join(
        f"  {name}:\n    kind: directory\n    path: {elsewhere / place}\n"
        for name, place in (("tuned", "tuned"), ("support", "adapter"))
    )
    world = worlds.make()
    before, name, after = world.spec.read_text().partition(f"  {world.profile(profile)}:\n")
    after = after.replace("    model: tiny-lfm2\n", f"    model: tuned\n    adapters: [support]\n{fields}", 1)
    world.spec.write_text(before.replace("\nprofiles:\n", f"\n{models}\nprofiles:\n") + name + after)
    (world.project.root / "templates").mkdir()
    (world.project.root / "templates/chat.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    readable(world.project.root / "templates")
    locked = world.nvllm("lock", IMAGE, "--json")
    assert locked.code == 0, locked
    return world


@pytest.fixture
def walk(worlds: Worlds, elsewhere: Path) -> Walk:
    """A world whose eager profile is that of the walk."""
    key_file = elsewhere / "key"
    key_file.write_text(f"{KEY}\n")
    key_file.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(key_file, 1000, 1000)  # as whom the engine runs then
    fields = (
        "    served-name: our/Model\n    chat-template: templates/chat.jinja\n"
        f"    access: {{key-file: {key_file}, publish: 0.0.0.0}}\n"
        "    restart: {attempts: 2, within: 3600, pause: 1}\n"
    )
    return Walk(own_model(worlds, elsewhere, "eager", fields), elsewhere / "tuned", key_file)


def test_ones_own_model_with_an_adapter_and_a_key(walk: Walk, docker_client: DockerClient) -> None:
    world = walk.world
    done = world.serve("--detach")
    assert done.code == 0, done
    assert (done.result["model"], done.result["adapters"]) == ("our/Model", ["support"])

    # Who has no key gets nothing but what says how the engine is.
    asked = {
        path: walk.ask(path, key=None)[0] for path in ("/v1/models", "/invocations", "/tokenize", "/health", "/metrics")
    }
    assert asked == {"/v1/models": 401, "/invocations": 401, "/tokenize": 401, "/health": 200, "/metrics": 200}
    assert walk.ask("/v1/models", key=f"{KEY}x")[0] == 401
    names = [one["id"] for one in json.loads(walk.ask("/v1/models")[1])["data"]]
    assert names == ["our/Model", "support"]

    # The adapter answers otherwise than the model, and the template is the project's.
    plain, adapted = walk.complete("our/Model"), walk.complete("support")
    assert plain == walk.complete("our/Model")
    assert plain != adapted
    # Also where one step computes both, and scores their prompts.
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(walk.scored, ("our/Model", "support", "our/Model", "support")))
    assert answers == [plain, adapted, plain, adapted]
    messages = [{"role": "user", "content": "hello"}]
    text = walk.ask("/tokenize", {"model": "our/Model", "messages": messages, "return_token_strs": True})[1]
    assert "".join(json.loads(text)["token_strs"]) == "[hello]"

    # The key is in its file and in the memory of the HTTP server.
    container = docker_client.containers.get(done.result["container"])
    ports = container.attrs["HostConfig"]["PortBindings"]["8000/tcp"]
    assert ports == [{"HostIp": "0.0.0.0", "HostPort": str(world.port)}]
    assert KEY not in json.dumps(container.attrs)
    processes = container.exec_run(["sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline"])
    assert isinstance(processes.output, bytes)
    assert KEY.encode() not in processes.output
    assert b"nvllm_access.ApiKey" in processes.output

    # It comes back by itself, asks for the key again, and answers as before.
    container.kill()
    until(lambda: walk.back(container.id), "the engine is started again and ready", 200)
    assert walk.ask("/v1/models", key=None)[0] == 401
    assert (walk.complete("our/Model"), walk.complete("support")) == (plain, adapted)
    assert world.nvllm("stop", world.instance()).code == 0
    written = [path for path in world.directory.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(written) > 20
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []

    # Another run of the fine-tuning: it is not served before it is pinned.
    config = json.loads((walk.model / "generation_config.json").read_text())
    (walk.model / "generation_config.json").write_text(json.dumps({**config, "temperature": 0.5}))
    refused = world.serve("--detach")
    cure = f"nvllm lock {IMAGE} --model tuned"
    assert (refused.codes, refused.refusal["cure"]) == (["NV403"], cure)
    pinned = world.nvllm(*cure.split()[1:], "--json").result
    assert [one["name"] for one in pinned["drift"]] == ["tuned"]
    plan = world.serve("--dry-run")
    assert plan.code == 0, plan
    assert plan.result["serve_hash"] != done.result["serve_hash"]
