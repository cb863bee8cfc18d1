"""Where credentials come from: Docker's configuration and its helper programs, a real one of each kind of answer."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from nvllm.core.refusal import Refused
from nvllm.fleet import credentials
from nvllm.fleet.credentials import Credentials
from support.rows import each_row

HOST = "registry.example:5000"
ME = Credentials("me", "hun:ter2")
CODED = base64.b64encode(b"me:hun:ter2").decode()


def configured(home: Path, document: Any) -> dict[str, str]:
    """Write DOCUMENT as Docker's configuration of HOME; return the environment of its user."""
    (home / ".docker").mkdir(exist_ok=True)
    (home / ".docker/config.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return {"HOME": str(home), "PATH": str(home)}


def helper(home: Path, name: str, script: str) -> None:
    program = home / f"docker-credential-{name}"
    program.write_text(f'#!/bin/sh\nread -r asked\ntest "$1" = get && test "$asked" = {HOST} || exit 7\n{script}\n')
    program.chmod(0o755)


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@each_row(
    ("document", "found"),
    [
        ({}, None),
        ({"auths": {HOST: {"auth": CODED}}}, ME),
        ({"auths": {f"https://{HOST}": {"auth": CODED}}}, ME),
        ({"auths": {"registry.example": {"auth": CODED}}}, None),
        ({"auths": {HOST: {}}}, None),
        ({"auths": [], "credHelpers": "x"}, None),
    ],
)
def test_of_the_configuration(tmp_path: Path, document: Any, found: Credentials | None) -> None:
    assert credentials.find(HOST, configured(tmp_path, document)) == found


def test_another_directory_and_none(tmp_path: Path) -> None:
    configured(tmp_path, {"auths": {HOST: {"auth": CODED}}})
    assert credentials.find(HOST, {"HOME": "/", "DOCKER_CONFIG": str(tmp_path / ".docker")}) == ME
    assert credentials.find(HOST, {"HOME": str(tmp_path / "nobody")}) is None


@each_row("key", ["credsStore", "credHelpers"])
def test_of_a_helper(tmp_path: Path, key: str) -> None:
    env = configured(tmp_path, {key: "own-store" if key == "credsStore" else {HOST: "own-store"}})
    helper(tmp_path, "own-store", """echo '{"Username": "me", "Secret": "hun:ter2"}'""")
    assert credentials.find(HOST, env) == ME
    helper(tmp_path, "own-store", "echo credentials not found in native keychain; exit 1")
    assert credentials.find(HOST, env) is None


@each_row(
    ("document", "script", "said"),
    [
        ("{", "", "config.json"),
        ({"auths": {HOST: {"auth": "!"}}}, "", "something else"),
        ({"auths": {HOST: {"auth": "bWU6eAäö"}}}, "", "something else"),
        ({"auths": {HOST: {"identitytoken": "t0ken"}}}, "", "an identity token"),
        ({"credsStore": "../../bin/sh"}, "", "../../bin/sh"),
        ({"credsStore": "s"}, "echo the keyring is locked; exit 1", "the keyring is locked"),
        ({"credsStore": "s"}, "echo t0ken", "something else"),
        ({"credsStore": "s"}, """echo '{"Username": "<token>", "Secret": "t0ken"}'""", "an identity token"),
    ],
)
def test_what_cannot_be_used_is_said_without_the_secret(tmp_path: Path, document: Any, script: str, said: str) -> None:
    helper(tmp_path, "s", script)
    with pytest.raises(Refused) as refused:
        credentials.find(HOST, configured(tmp_path, document))
    (found,) = refused.value.refusals
    assert found.code == "NV331"
    assert said in f"{found.where} {found.found}"
    assert "t0ken" not in repr(found)


def test_a_helper_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        credentials.find(HOST, configured(tmp_path, {"credsStore": "missing"}))
    assert [one.code for one in refused.value.refusals] == ["NV512"]


def test_no_representation_shows_a_secret() -> None:
    assert "hun" not in repr(ME)
