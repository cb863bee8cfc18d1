"""NV509, foreign container: a container that nvllm did not create has the name. On facts, without an engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvllm.host import checks
from nvllm.host.facts import ContainerFact
from support.host_samples import HOST, PLAN, refusals


@pytest.mark.parametrize("running", [True, False])
def test_a_container_without_our_label(running: bool) -> None:
    foreign = ContainerFact(PLAN.instance, {"com.docker.compose.project": "x"}, running, "cd" * 32)
    (found,) = refusals(checks.Subject(PLAN, replace(HOST, containers=(foreign,))))
    assert (found.code, found.where) == ("NV509", "docker engine: container nvllm-sm120-lower8")
    assert found.expected == "no container of that name, or one labelled nvllm.instance=nvllm-sm120-lower8"
    assert found.found == "container cdcdcdcdcdcd, which nvllm did not create"
    assert found.cure == "docker rename cdcdcdcdcdcd nvllm-sm120-lower8-foreign"
