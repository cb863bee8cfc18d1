"""A silent host is given up soon and is not asked again; one that is slow, or has answered before, is waited for."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

from nvllm.sources import client as clients
from nvllm.sources.client import IndexClient, SilentHostError
from support import silence
from support.loopback import Site, serving


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CONNECT", 0.3)
    monkeypatch.setattr(clients, "PATIENCE", 0.3)


def failed(client: IndexClient, url: str) -> tuple[str, float]:
    """Return how asking for URL failed, and how many seconds it took."""
    began = time.monotonic()
    with pytest.raises(httpx2.ConnectError) as caught:
        client.get(url)
    assert isinstance(caught.value, SilentHostError)
    return str(caught.value), time.monotonic() - began


def test_a_host_that_swallows_connections_is_asked_once() -> None:
    with silence.hole() as address, IndexClient(timeout=60) as client:
        said, took = failed(client, f"http://{address}/simple/a/")
        assert said == f"{address} takes no connection: timed out"
        assert 0.3 <= took < 5
        again, took = failed(client, f"http://{address}/simple/b/")
        assert again == said
        assert took < 0.1


def test_an_address_of_nobody_is_given_up() -> None:
    """192.0.2.1 is for documentation: its packets get lost, or there is no route."""
    with IndexClient(timeout=60) as client:
        for _ in range(2):
            try:
                client.get("http://192.0.2.1/simple/a/")
            except SilentHostError:
                break
            except httpx2.ConnectError:
                continue
        said, took = failed(client, "http://192.0.2.1/simple/a/")
        assert said.startswith("192.0.2.1 takes no connection: ")
        assert took < 5


def test_a_closed_port_is_asked_three_times() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with IndexClient(timeout=60) as client:
        for _ in range(2):
            with pytest.raises(httpx2.ConnectError) as caught:
                client.get(f"http://{address}/")
            assert not isinstance(caught.value, SilentHostError)
        said, _ = failed(client, f"http://{address}/")
        assert "refused" in said


def test_a_slow_answer_is_waited_for() -> None:
    with silence.slow(1.0) as address, IndexClient(timeout=60) as client:
        assert client.get(f"http://{address}/").text == "late"


def test_the_time_that_pip_allows_bounds_a_slow_answer_and_a_connection() -> None:
    with silence.slow(5.0) as address, IndexClient(timeout=0.2) as client, pytest.raises(httpx2.ReadTimeout):
        client.get(f"http://{address}/")
    with IndexClient(timeout=0.2) as client:
        assert (client.timeout.connect, client.timeout.read) == (0.2, 0.2)


@contextmanager
def counted(client: IndexClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let each connection of CLIENT fail within the context, and yield the URLs that are asked for."""
    asked: list[str] = []

    def fails(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        raise httpx2.ConnectError("no network", request=request)

    with monkeypatch.context() as patch:
        patch.setattr(client, "_transport", httpx2.MockTransport(fails))
        yield asked


def test_a_host_that_has_answered_is_asked_as_often_as_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as site, IndexClient(timeout=60) as client:
        assert client.get(f"{site.url}/none").status_code == 404
        with counted(client, monkeypatch) as asked:
            for _ in range(9):
                with pytest.raises(httpx2.ConnectError, match="no network"):
                    client.get(f"{site.url}/none")
        assert len(asked) == 9


def test_hosts_are_silent_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with silence.hole() as address, serving() as site, IndexClient(timeout=60) as client:
        failed(client, f"http://{address}/")
        assert client.get(f"{site.url}/none").status_code == 404


def test_threads_ask_a_silent_host_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with IndexClient(timeout=60) as client, counted(client, monkeypatch) as asked:

        def ask() -> None:
            for _ in range(20):
                with pytest.raises(httpx2.ConnectError):
                    client.get("http://nobody.test/")

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert 3 <= len(asked) <= 6  # three that failed, and what was under way


def test_a_redirect_to_a_silent_host_blames_that_host(site: Site) -> None:
    with silence.hole() as address, IndexClient(timeout=60) as client:
        client.event_hooks = {"response": [lambda response: redirected(response, f"http://{address}/")]}
        with pytest.raises(SilentHostError, match=address):
            client.get(f"{site.url}/none", follow_redirects=True)


def redirected(response: httpx2.Response, url: str) -> None:
    """Make RESPONSE a redirect to URL."""
    response.status_code = 302
    response.headers["Location"] = url
