"""32 serves of one profile at once, on the real engine: one container, and 31 refusals that say why."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
from docker import DockerClient

from support.engine_world import IMAGE, Worlds, until

pytestmark = pytest.mark.engine

CONTENDERS = 32


def test_of_32_serves_one_starts_one_container(worlds: Worlds, docker_client: DockerClient) -> None:
    world = worlds.make()
    began = int(time.time())
    serves = [
        subprocess.Popen(
            world.argv("serve", IMAGE, "--profile", world.profile(), "--json"),
            env=world.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        for _ in range(CONTENDERS)
    ]
    world.started.extend(serves)
    until(lambda: sum(one.poll() is not None for one in serves) >= CONTENDERS - 1, "all but one have ended", 110)
    winners = [one for one in serves if one.poll() is None]
    assert len(winners) == 1
    world.started[:] = winners
    refused = [json.loads(one.communicate()[0]) for one in serves if one not in winners]
    assert [one.returncode for one in serves if one not in winners] == [3] * (CONTENDERS - 1)
    assert {refusal["code"] for one in refused for refusal in one["refusals"]} == {"NV508"}
    holders = {refusal["found"].split()[1] for one in refused for refusal in one["refusals"]}
    assert holders == {str(winners[0].pid)}

    until(lambda: world.containers(docker_client) != [], "the winner has a container")
    winners[0].send_signal(signal.SIGTERM)
    winners[0].wait(60)
    # Everything that the engine was asked for: one container, and no second one that went away again.
    events = docker_client.events(
        since=began,
        until=int(time.time()) + 1,
        filters={"type": "container", "event": "create", "container": world.instance()},
        decode=True,
    )
    assert len(list(events)) == 1
    assert world.containers(docker_client) == []
