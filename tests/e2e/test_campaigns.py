"""docs/campaigns.md on the real engine: each command with the tiny model, and the form of what comes out.

memtester is a stand-in: it tests nothing here, and a band of the page needs gigabytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from support import campaign_page
from support.engine_world import IMAGE, Worlds
from support.gate_samples import OK, put_memtester

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_each_campaign_ends_with_what_the_page_promises(
    worlds: Worlds, docker_client: DockerClient, tmp_path: Path
) -> None:
    world = worlds.make()
    profiles = {"lower8": world.profile("compiled"), "phaseE-off": world.profile("ablation")}
    profiles |= {"all-beta": world.profile(), "piecewise": world.profile("compiled")}
    put_memtester(tmp_path, OK)
    path = {"PATH": f"{tmp_path}:{world.env['PATH']}"}
    results = dict[str, Any]()
    for words in campaign_page.lines():
        line = campaign_page.fewer(words, IMAGE, profiles, "mamba-block-ids", tmp_path)
        if words[0] == "bless":
            of_bless = ["--profile", world.profile("blessed"), "--unsafe-trials", "1"]
            line = ["bless", IMAGE, *of_bless]
        done = world.nvllm(*line, "--json", env=path)
        if words[:2] == ["gate", "thermal"] and done.codes == ["NV518"]:  # a host without GPU and sensors
            continue
        results[campaign_page.named(words)] = done.result
    (gate,) = results.pop("gate memory")["gates"]
    assert (gate["outcome"], [one["faults"] for one in gate["bands"]]) == ("passed", [0, 0])
    assert results.pop("bless gb10")["boots"] == 1
    results.pop("gate thermal", None)
    assert campaign_page.misshapen(results) == []
    assert world.containers(docker_client) == []
