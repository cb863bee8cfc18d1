"""`make torture`: 2,170 requests and 477 connections to each of an eager, a compiled and a blessed engine."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.engine_world import IMAGE, ROOT, World, Worlds
from torture import cases, record
from torture.campaign import FLOODS, Campaign, drawn
from torture.drawing import Drawer

pytestmark = [pytest.mark.torture, pytest.mark.engine]

DRAWN = int(os.environ.get("CASES", "1200"))
SEED = int(os.environ.get("SEED", "26"))
DEV = {"    blessed: true": "    dev: true\n    blessed: true"}


@dataclass(frozen=True, slots=True)
class Served:
    """The profile PROFILE of WORLD, served."""

    world: World
    profile: str

    @property
    def port(self) -> int:
        return self.world.port

    def alive(self) -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{self.port}/health", timeout=60, trust_env=False).status_code == 200
        except httpx2.HTTPError:
            return False

    def trace(self) -> str:
        log = (self.world.run_directory(self.profile) / "engine.log").read_text(errors="replace")
        files = re.findall(r'File "[^"]*/(vllm/[^"]+", line \d+)', log)
        errors = re.findall(r"\b(\w+(?:Error|Exception): .*)", log)
        return f"{errors[0] if errors else 'no error in the log'} at {files[-1] if files else 'no line'}"

    def restart(self) -> None:
        self.world.nvllm("stop", self.world.instance(self.profile))
        done = self.world.serve("--detach", profile=self.profile)
        assert done.code == 0, done


def schema(port: int) -> Any:
    return json.loads(httpx2.get(f"http://127.0.0.1:{port}/openapi.json", timeout=60, trust_env=False).text)


@pytest.mark.parametrize("profile", ["eager", "compiled", "blessed"])
def test_no_request_ends_an_engine(worlds: Worlds, profile: str) -> None:
    world = worlds.make(DEV)
    if profile == "blessed":
        done = world.nvllm("bless", IMAGE, "--profile", world.profile(profile), "--unsafe-trials", "1", "--json")
        assert done.code == 0, done
    served = Served(world, profile)
    served.restart()
    campaign = Campaign(served, profile)
    try:
        campaign.run(cases.every())
        campaign.run(drawn(Drawer(schema(served.port), SEED), DRAWN, SEED))
        for what, connect in FLOODS.items():
            campaign.flood(what, connect)
    finally:
        record.keep(ROOT / ".torture", campaign.result)
        print(record.tables(ROOT / ".torture"))  # noqa: T201 - the campaign's result, for whoever runs it with -s
    record.write(Path(ROOT / "docs/torture.md"), ROOT / ".torture")
    assert campaign.result.findings == {}
    assert campaign.result.requests >= 2000
