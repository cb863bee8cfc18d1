"""Readiness, asked of a real HTTP server on loopback: what a generation is, and what will never become one."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread

import pytest

from nvllm.core.canonical import Json
from nvllm.core.plan import LaunchPlan
from nvllm.serve import health
from support.plansamples import PLAN, FrontEnd


@pytest.fixture
def closed() -> Iterator[int]:
    """Yield a port on which nobody listens, and which nobody else can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def served(port: int) -> LaunchPlan:
    return replace(PLAN, port=port)


def not_ready(port: int, timeout: float = 5.0) -> health.NotReady:
    with pytest.raises(health.NotReady) as caught:
        health.generate(served(port), timeout)
    return caught.value


# Health


@pytest.mark.parametrize(("status", "well"), [(200, True), (500, False), (503, False), (204, False), (302, False)])
def test_health_is_200_and_nothing_else(front: FrontEnd, status: int, well: bool) -> None:
    front.health = status
    assert health.healthy(front.port) is well


def test_nobody_who_listens_is_not_healthy(closed: int) -> None:
    assert health.healthy(closed) is False


def test_a_server_of_another_protocol_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail ready\r\n")

        thread = Thread(target=answer)
        thread.start()
        assert health.healthy(server.getsockname()[1]) is False
        thread.join()


def test_a_proxy_of_the_environment_is_not_asked(front: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert health.healthy(front.port) is True
    assert health.generate(served(front.port), 5).tokens == 16


# A generation


def test_a_generation(front: FrontEnd) -> None:
    found = health.generate(served(front.port), 5)
    assert (found.text, found.tokens) == (" fox", 16)
    assert 0 < found.seconds < 5


def test_the_question_is_the_probe_at_the_served_settings(front: FrontEnd) -> None:
    """No temperature and no seed: what is asked is what a client who says nothing gets."""
    health.generate(served(front.port), 5)
    (asked,) = front.asked
    assert json.loads(asked) == {"model": "tiny", "prompt": "hello", "max_tokens": 16, "ignore_eos": True}
    assert {name.lower() for name in front.headers[0]} & {"authorization", "cookie"} == set()


def test_too_few_tokens_are_final(front: FrontEnd) -> None:
    front.body = b'{"choices": [{"text": ""}], "usage": {"completion_tokens": 1}}'
    found = not_ready(front.port)
    assert (found.problem, found.final) == ("1 tokens of 16", True)


def test_a_server_error_is_final_and_quoted(front: FrontEnd) -> None:
    """An engine whose core died answers so for ever, while its health page is still well."""
    front.status = 500
    front.body = b'{"error": {"message": "EngineCore encountered an issue. See stack trace (above)."}}' + b" " * 500
    found = not_ready(front.port)
    assert found.final is True
    assert found.problem.startswith('HTTP 500: {"error": {"message": "EngineCore encountered an issue.')
    assert len(found.problem) < 250


def test_an_answer_that_does_not_come_is_final(front: FrontEnd) -> None:
    front.pause = 30
    started = time.monotonic()
    found = not_ready(front.port, 0.6)
    assert (found.problem, found.final) == ("no generation within 1 s", True)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"text": "x"}], "usage": null}',
        b'{"choices": [{"text": "x"}], "usage": {"completion_tokens": null}}',
        b'{"choices": [{"text": "x"}], "usage": {"completion_tokens": "many"}}',
        b'{"choices": [{"text": "x"}], "usage": {"completion_tokens": Infinity}}',
        b"[" * 100_000,
    ],
)
def test_an_answer_that_is_no_completion_is_final(front: FrontEnd, body: bytes) -> None:
    front.body = body
    found = not_ready(front.port)
    assert found.final is True
    assert found.problem.startswith("no completion: ")


def test_a_connection_that_is_refused_may_still_come(closed: int) -> None:
    found = not_ready(closed)
    assert found.final is False
    assert found.problem


def test_a_connection_that_breaks_may_still_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)

        thread = Thread(target=answer)
        thread.start()
        assert not_ready(server.getsockname()[1]).final is False
        thread.join()


# Requests of any kind


def test_any_request_is_sent_as_it_is_and_its_status_returned(front: FrontEnd) -> None:
    front.status, front.body = 400, b"no such setting"
    assert health.ask(served(front.port), {"prompt": [1, 2], "min_p": 0.5}, 5.0) == (400, "no such setting")
    assert json.loads(front.asked[-1]) == {"model": "tiny", "prompt": [1, 2], "min_p": 0.5}


def test_a_request_to_nobody_is_not_answered(closed: int) -> None:
    with pytest.raises(health.NotReady):
        health.ask(served(closed), {"prompt": [1]}, 5.0)


def test_an_answer_is_read_part_by_part_until_enough_came(front: FrontEnd) -> None:
    parts: list[int] = []

    def more() -> bool:
        parts.append(len(parts))
        return len(parts) < 3

    assert health.stream(served(front.port), {"prompt": [1], "max_tokens": 2}, 5.0, more) == (200, "")
    assert len(parts) == 2
    assert json.loads(front.asked[-1]) == {"model": "tiny", "prompt": [1], "max_tokens": 2, "stream": True}
    assert health.stream(served(front.port), {"prompt": [1], "max_tokens": 100_000}, 5.0, more) == (200, "")
    assert len(parts) == 3


def test_an_answer_in_parts_may_be_refused_fail_or_be_too_much(
    front: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "MOST", 2 << 20)
    plan = served(front.port)
    fields: dict[str, Json] = {"prompt": [1], "max_tokens": 100_000}
    front.part = b'data: {"error": {"message": "no"}}\n\n'
    with pytest.raises(health.NotReady, match="no"):
        health.stream(plan, fields, 5.0, lambda: True)
    front.part = b"x" * (1 << 20)
    with pytest.raises(health.NotReady, match="more than"):
        health.stream(plan, fields, 20.0, lambda: True)
    front.part = b"data: {}\n"
    with pytest.raises(health.NotInTime):
        health.stream(plan, fields, 0.1, lambda: True)
    front.status, front.body = 400, b"no such setting"
    assert health.stream(plan, fields, 5.0, lambda: True) == (400, "no such setting")


def test_how_long_requests_may_be(front: FrontEnd) -> None:
    with pytest.raises(health.NotReady, match="no list of models"):
        health.longest(front.port)
    front.longest = 4096
    assert health.longest(front.port) == 4096


@pytest.mark.parametrize("tokens", [0, -1, 2**24 + 1, 2**60])
def test_a_length_that_no_engine_takes(front: FrontEnd, tokens: int) -> None:
    """Prompts of that length are made, and a list of 2**60 tokens would fill the memory."""
    front.longest = tokens
    with pytest.raises(health.NotReady, match="no list of models"):
        health.longest(front.port)


@contextmanager
def pouring(head: bytes, chunk: bytes, pause: float) -> Iterator[int]:
    """Answer one request with HEAD and then CHUNK for ever, PAUSE seconds between two; yield the port."""
    ended = Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pour() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(head)
                while not ended.wait(pause):
                    connection.sendall(chunk)

        thread = Thread(target=pour)
        thread.start()
        yield server.getsockname()[1]
        ended.set()
        thread.join()


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MOST", 1 << 16)
    with pouring(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 8192, 0) as port:
        assert "more than 65536 bytes" in not_ready(port, 30.0).problem
    with pouring(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 8192, 0) as port:
        assert health.read_metrics(port) == {}


def test_an_answer_that_drips_takes_no_longer_than_it_may() -> None:
    started = time.monotonic()
    with pouring(b"HTTP/1.1 200 OK\r\n\r\n", b" ", 0.05) as port:
        assert not_ready(port, 0.6).problem == "no generation within 1 s"
    assert time.monotonic() - started < 5


def test_a_content_coding_is_not_undone(front: FrontEnd) -> None:
    with pouring(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", b"", 0.1) as port:
        assert not_ready(port).problem == "no completion: {}"
