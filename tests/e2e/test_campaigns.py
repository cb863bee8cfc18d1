"""docs/campaigns.md on the real engine: each command with the tiny model, and the form of what comes out.

memtester is a stand-in: it tests nothing here, and a band of the page needs gigabytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from docker import DockerClient

from support import campaign_page
from support.engine_world import IMAGE, Worlds
from support.gate_samples import OK, put_memtester

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.mark.parametrize("words", campaign_page.lines(), ids=campaign_page.named)
def test_a_campaign_ends_with_what_the_page_promises(
    worlds: Worlds, docker_client: DockerClient, tmp_path: Path, words: list[str]
) -> None:
    world, name = worlds.make(), campaign_page.named(words)
    profiles = dict.fromkeys(("lower8", "piecewise", "all-beta"), world.profile())
    profiles["phaseE-off"] = world.profile("ablation")
    if "--artifacts" in words:
        profiles["lower8"] = world.profile("compiled")
    line = campaign_page.fewer(words, IMAGE, profiles, "mamba-block-ids", tmp_path)
    if words[0] == "bless":
        line = ["bless", IMAGE, "--profile", world.profile("blessed"), "--unsafe-trials", "1"]
    put_memtester(tmp_path, OK)
    done = world.nvllm(*line, "--json", env={"PATH": f"{tmp_path}:{world.env['PATH']}"})
    if words[0] == "gate":  # a host without GPU and sensors has passed no thermal gate
        assert done.codes == ["NV518"] if done.code else done.result["gates"][0]["outcome"] == "passed"
    elif words[0] == "bless":
        assert done.result["boots"] == 1
    else:
        assert campaign_page.misshapen(name, done.result) == []
        assert (tmp_path / name / "report.html").stat().st_size > 10_000
        assert [*(tmp_path / name).glob("arms/*/run-1/memory.jsonl")]
    assert world.containers(docker_client) == []
