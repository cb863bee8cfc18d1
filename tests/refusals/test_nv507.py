"""NV507, port taken: something else listens on the profile's port."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import pytest

from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import PLAN, refusals


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_on_which_this_process_listens(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        facts = host.probe([])
    (found,) = (r for r in refusals(checks.Subject(replace(PLAN, port=port), facts)) if r.code == "NV507")
    assert found.where == f"127.0.0.1:{port}"
    assert found.expected == "a free port"
    assert found.found.startswith(f"pid {os.getpid()} (")
    assert found.cure == f"sudo ss -ltnp 'sport = :{port}'"


def test_a_port_of_which_nobody_says_who_listens() -> None:
    """Another user's socket is out of reach for a test that may run as root: its holder is taken out of the facts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        facts = host.probe([])
    hidden = tuple(replace(listener, pid=None, program=None) for listener in facts.listeners)
    subject = checks.Subject(replace(PLAN, port=port), replace(facts, listeners=hidden))
    (found,) = (r for r in refusals(subject) if r.code == "NV507")
    assert found.found == "a program of another user"
