"""Which engine is asked: that of DOCKER_HOST, of DOCKER_CONTEXT, of the context in use, or the socket of this host."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.engine import endpoint, engine
from nvllm.engine.endpoint import LOCAL, Endpoint
from nvllm.host.facts import EngineProblem
from support.engine_socket import answering

REMOTE = "tcp://there:2376"


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    """A directory of Docker's configuration, with a context of each kind in its store."""
    for name, host in (("there", REMOTE), ("far", "ssh://me@far"), ("mine", f"unix://{tmp_path}/mine.sock")):
        context(tmp_path, name, {"Name": name, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}})
    return tmp_path


def context(directory: Path, name: str, document: object) -> Path:
    """Write DOCUMENT as the context NAME, and return the file."""
    path = directory / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))
    return path


def use(directory: Path, name: object) -> None:
    (directory / "config.json").write_text(json.dumps({"currentContext": name}))


def test_without_a_context_it_is_the_socket_of_this_host(docker: Path) -> None:
    assert endpoint.find({"DOCKER_CONFIG": str(docker)}) == Endpoint(LOCAL)
    assert endpoint.find({"HOME": str(docker)}) == Endpoint(LOCAL)


@pytest.mark.parametrize(
    ("env", "url"),
    [
        ({}, REMOTE),
        ({"DOCKER_CONTEXT": "default"}, LOCAL),
        ({"DOCKER_HOST": "unix:///a"}, "unix:///a"),
        ({"DOCKER_HOST": "unix:///a", "DOCKER_CONTEXT": "there"}, "unix:///a"),
        ({"DOCKER_HOST": "", "DOCKER_CONTEXT": ""}, REMOTE),
    ],
)
def test_the_variables_come_before_the_context_in_use(docker: Path, env: dict[str, str], url: str) -> None:
    use(docker, "there")
    found = endpoint.find({"DOCKER_CONFIG": str(docker), **env})
    assert isinstance(found, Endpoint)
    assert found.url == url
    assert found.stored == (url == REMOTE)


def test_the_configuration_of_the_home(tmp_path: Path) -> None:
    context(tmp_path / ".docker", "there", {"Endpoints": {"docker": {"Host": REMOTE}}})
    use(tmp_path / ".docker", "there")
    assert endpoint.find({"HOME": str(tmp_path)}) == Endpoint(REMOTE, stored=True)


def test_the_certificates_of_a_context(docker: Path) -> None:
    key = hashlib.sha256(b"there").hexdigest()
    place = docker / "contexts/tls" / key / "docker"
    place.mkdir(parents=True)
    found = endpoint.find({"DOCKER_CONFIG": str(docker), "DOCKER_CONTEXT": "there"})
    assert found == Endpoint(REMOTE, stored=True, certificates=place)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere", "no such context in "),
        ("far", "ssh://me@far: nvllm mounts files of this host, and does not connect by ssh"),
        ("kubernetes", "the context names no Docker engine"),
        ("torn", "its meta.json cannot be used: "),
    ],
)
def test_a_context_that_leads_nowhere_is_no_engine_and_never_another_one(docker: Path, name: str, text: str) -> None:
    context(docker, "kubernetes", {"Endpoints": {"kubernetes": {}}})
    context(docker, "torn", {}).write_text("{")
    use(docker, name)
    found = endpoint.find({"DOCKER_CONFIG": str(docker)})
    assert isinstance(found, EngineProblem)
    assert (found.kind, found.endpoint) == ("context", f"docker context {name}")
    assert found.text.startswith(text)


@pytest.mark.parametrize("text", ["{", "[]", '{"currentContext": 1}', "[" * 100_000])
def test_a_configuration_that_names_no_context(docker: Path, text: str) -> None:
    (docker / "config.json").write_text(text)
    found = endpoint.find({"DOCKER_CONFIG": str(docker)})
    assert isinstance(found, EngineProblem)
    assert (found.kind, found.endpoint) == ("context", str(docker / "config.json"))


def test_the_engine_of_the_context_is_the_one_that_answers(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(docker))
    monkeypatch.setenv("DOCKER_CONTEXT", "mine")
    with answering(docker / "mine.sock", lambda *_: (200, [], {})):
        assert engine.require().containers() == ()
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere")
    with pytest.raises(Refused) as caught:
        engine.require()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV510", "docker context nowhere")
    assert refusal.cure == "export DOCKER_CONTEXT=default"
