"""NV525, not an address here: the profile publishes its port on an address that this host lacks."""

from __future__ import annotations

from pathlib import Path

from nvllm.core.spec import Access
from nvllm.serve import access


def codes(address: str) -> list[str]:
    return [one.code for one in access.refusals(Access(publish=address), "1:1", Path("/nowhere"))]


def test_an_address_of_another_host() -> None:
    assert codes("192.0.2.7") == ["NV525"]  # of the documentation's network, which no host has


def test_addresses_of_this_host() -> None:
    assert [codes(address) for address in ("127.0.0.1", "127.0.0.9", "0.0.0.0")] == [[], [], []]
