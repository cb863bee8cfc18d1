"""NV701, gate refused: between the launcher's last look and the start, something changed.

The launcher examines the host and then starts; a model file that changes between the two is what the gate is
for. The window is forced open here: the library is called as the command calls it, with the change in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from docker import DockerClient

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine import containers
from nvllm.host import locks
from nvllm.serve import planner
from nvllm.serve import supervisor as serve
from nvllm.serve.examination import Depth, Examination, examine
from support.engine_world import IMAGE, World, Worlds

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def _no_models_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVLLM_MODELS", raising=False)


def examined(world: World) -> Examination:
    found = examine(world.project, world.places, IMAGE, world.profile(), Depth.WHOLE, paranoid=False, progress=Silent())
    assert found.refusals == ()
    return found


def start(world: World, found: Examination) -> Refused:
    """Start what was FOUND, and return how it was refused."""
    with serve.hold_locks(found, world.places, "a test") as taken:
        supervisor = serve.Supervisor(found, world.places, taken, Silent())
        with pytest.raises(Refused) as caught:
            supervisor.start()
    return caught.value


def test_a_model_that_changes_while_the_container_starts(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    found = examined(world)
    config, weights = world.model / "config.json", world.model / "model.safetensors"
    config.write_text(config.read_text().replace("64", "65", 1))
    with weights.open("ab") as stream:
        stream.write(b"!")
    refused = start(world, found)
    assert refused.exit_code == 3
    assert [one.code for one in refused.refusals] == ["NV701", "NV701"]
    first, second = refused.refusals
    where = f"container {world.instance()}: /models/tiny-lfm2"
    (locked,) = [one for one in found.models[0].files if one.path == "config.json"]
    assert (first.where, first.expected) == (f"{where}/config.json", f"sha256 {locked.sha256}")
    assert len(first.found) == 64
    assert first.found != locked.sha256
    assert second.where == f"{where}/model.safetensors"
    assert second.found == f"{weights.stat().st_size} bytes"
    assert first.cure == f"nvllm doctor {IMAGE} --profile {world.profile()}"
    # Nothing is left but the evidence.
    assert world.containers(docker_client) == []
    assert locks.status(world.places.locks) == ()
    assert (world.state()["stage"], world.state()["reason"]) == (
        "failed",
        "NV701 gate refused; NV701 gate refused",
    )
    # The cure that is named finds it.
    doctor = world.nvllm("doctor", IMAGE, "--profile", world.profile(), "--json")
    assert (doctor.code, doctor.codes) == (3, ["NV403", "NV403"])


def test_an_engine_that_gives_more_than_was_planned(
    worlds: Worlds, docker_client: DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the gate expects is taken from one plan, what the engine is told from another, as if it were broken."""
    world = worlds.make()
    found = examined(world)
    wanted = planner.expectations(found.plan, found.models)
    monkeypatch.setattr(planner, "expectations", lambda *_: wanted)
    plan = found.plan
    more = replace(plan, user="1001:1001", environment={**plan.environment, "LD_PRELOAD_TOO": "x"})
    command = replace(plan.command, engine=(*plan.command.engine, "--trust-remote-code"))
    refused = start(world, replace(found, plan=replace(more, command=command)))
    where = f"container {world.instance()}: "
    seen = {one.where.removeprefix(where): (one.expected, one.found) for one in refused.refusals}
    assert seen["user"] == (plan.user, "1001:1001")
    assert seen["environment"] == ("the variables of the plan", "missing [], extra ['LD_PRELOAD_TOO']")
    assert seen["command"][1] == seen["command"][0] + " --trust-remote-code"
    assert len(seen) == 3
    assert world.containers(docker_client) == []


def test_an_engine_that_filters_no_system_calls(
    worlds: Worlds, docker_client: DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine does whose own default is ``seccomp=unconfined``."""
    world = worlds.make()
    options = containers.options

    def unconfined(*values: Any) -> dict[str, Any]:
        return {**options(*values), "security_opt": ["no-new-privileges", "seccomp=unconfined"]}

    monkeypatch.setattr(containers, "options", unconfined)
    (refusal,) = start(world, examined(world)).refusals
    assert (refusal.code, refusal.expected, refusal.found) == ("NV701", "2, a filter of system calls", "0")
    assert refusal.where == f"container {world.instance()}: /proc/self/status Seccomp"
    assert world.containers(docker_client) == []
