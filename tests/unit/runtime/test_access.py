"""The program that asks for the API key, as an HTTP server calls it."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from nvllm.core import plan
from nvllm.runtime import access
from nvllm.runtime.access import ApiKey

KEY = "0123456789abcdef"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(f"{KEY}\n")
    return tmp_path / "key"


def asked(key_file: Path, kind: str = "http", path: str = "/v1/models", method: str = "GET", *given: str) -> list[Any]:
    """Return what is sent back for a request with the Authorization headers GIVEN."""
    sent: list[Any] = []

    async def application(*_: Any) -> None:
        sent.append("answered")

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("status", message["type"]))

    headers = [(b"authorization", one.encode()) for one in given]
    scope = {"type": kind, "path": path, "method": method, "headers": headers}
    asyncio.run(ApiKey(app=application, key_file=str(key_file))(scope, receive, send))
    return sent


def test_who_may_ask(key_file: Path) -> None:
    refused = [401, "http.response.body"]
    table: list[tuple[tuple[str, ...], list[Any]]] = [
        (("http", "/v1/models", "GET"), refused),
        (("http", "/v1/models", "GET", f"Bearer {KEY}"), ["answered"]),
        (("http", "/v1/models", "GET", f"bearer {KEY}"), ["answered"]),
        (("http", "/v1/models", "GET", f"Bearer {KEY}x"), refused),
        (("http", "/v1/models", "GET", f"Bearer {KEY[:-1]}"), refused),
        (("http", "/v1/models", "GET", "Bearer "), refused),
        (("http", "/v1/models", "GET", "Bearer"), refused),
        (("http", "/v1/models", "GET", KEY), refused),
        (("http", "/v1/models", "GET", f"Basic {KEY}"), refused),
        (("http", "/v1/models", "GET", "Bearer wrong", f"Bearer {KEY}"), refused),
        (("http", "/invocations", "POST"), refused),
        (("http", "/tokenize", "POST"), refused),
        (("http", "/health/", "GET"), refused),
        (("http", "//metrics", "GET"), refused),
        (("http", "/health", "GET"), ["answered"]),
        (("http", "/metrics", "GET"), ["answered"]),
        (("http", "/v1/models", "OPTIONS"), ["answered"]),
        (("websocket", "/v1/realtime", ""), ["websocket.close"]),
        (("websocket", "/health", ""), ["websocket.close"]),
        (("websocket", "/v1/realtime", "", f"Bearer {KEY}"), ["answered"]),
        (("lifespan", "", ""), ["answered"]),
    ]
    assert [(request, asked(key_file, *request)) for request, _ in table] == table


def test_a_key_that_cannot_be_read_ends_the_engine(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        asked(tmp_path / "absent")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        asked(tmp_path / "empty")


def test_the_names_of_the_plan_are_its_own() -> None:
    """It runs alone in the container, so it cannot import them."""
    assert access.KEY_FILE == plan.KEY_FILE
    assert ("--middleware", f"{Path(plan.ACCESS_PROGRAM).stem}.{ApiKey.__name__}") == plan.ACCESS_ARGUMENTS
