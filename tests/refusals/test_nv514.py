"""NV514, engine network broken: the engine's default bridge has no network interface.

Taking the interface away from a running engine would break every other container of the machine; instead the
engine's facts name an interface that this machine does not have.
"""

from __future__ import annotations

from dataclasses import replace

from nvllm.host import checks
from nvllm.host import facts as host
from support.host_samples import ENGINE, refusals


def test_a_bridge_whose_interface_is_gone() -> None:
    facts = replace(host.probe([]), engine=replace(ENGINE, bridge_interface="nvllm-gone0"))
    (found,) = (r for r in refusals(checks.Subject(None, facts)) if r.code == "NV514")
    assert found.where == "docker engine: network bridge"
    assert found.expected == "the network interface nvllm-gone0"
    assert found.found.startswith("no interface of that name on this host")
    assert found.cure == "sudo systemctl restart docker"


def test_an_interface_that_is_there() -> None:
    facts = replace(host.probe([]), engine=replace(ENGINE, bridge_interface="lo"))
    assert [r for r in refusals(checks.Subject(None, facts)) if r.code == "NV514"] == []
