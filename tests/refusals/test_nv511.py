"""NV511, engine too old: the Docker engine lacks what nvllm relies on. On facts: old engines are out of reach."""

from __future__ import annotations

from dataclasses import replace

from nvllm.host import checks
from support.host_samples import ENGINE, HOST, PLAN, refusals


def test_docker_19() -> None:
    facts = replace(HOST, engine=replace(ENGINE, version="19.03.15", api_version="1.40"))
    (found,) = refusals(checks.Subject(PLAN, facts))
    assert (found.code, found.where) == ("NV511", "docker engine")
    assert found.expected == "API 1.41 or newer (Docker 20.10)"
    assert found.found == "API 1.40 (Docker 19.03.15)"
    assert found.cure == "sudo apt-get install docker.io"


def test_podman_4() -> None:
    """It says the same old version of Docker's API as every other, and drops requests for GPUs."""
    facts = replace(HOST, engine=replace(ENGINE, product="Podman", version="4.9.3"))
    (found,) = refusals(checks.Subject(PLAN, facts))
    assert (found.code, found.expected, found.found) == ("NV511", "Podman 5.0 or newer", "Podman 4.9.3")
    assert (
        refusals(checks.Subject(PLAN, replace(HOST, engine=replace(ENGINE, product="Podman", version="5.4.2")))) == ()
    )
