"""NV507, port taken: something else listens on the profile's port."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import pytest

from nvllm.core.spec import Access
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


def test_a_port_is_looked_for_at_every_address_that_it_is_published_on() -> None:
    """One listener on another address of the host is in the way only of a profile that publishes there."""
    facts = replace(host.probe([]), listeners=(host.Listener(8000, 7, "other", "192.0.2.7"),))
    where = {}
    for publish in ("127.0.0.1", "192.0.2.7", "192.0.2.8", "0.0.0.0"):
        plan = replace(PLAN, port=8000, access=Access(publish=publish))
        where[publish] = [one.where for one in refusals(checks.Subject(plan, facts)) if one.code == "NV507"]
    taken = ["192.0.2.7:8000"]
    assert where == {"127.0.0.1": [], "192.0.2.7": taken, "192.0.2.8": [], "0.0.0.0": taken}
