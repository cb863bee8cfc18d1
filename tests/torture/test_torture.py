"""`make torture`: 2,196 requests and 477 connections to each of an eager, a compiled and a blessed engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.engine_world import IMAGE, ROOT, Worlds
from torture import cases, record
from torture.campaign import FLOODS, Campaign, drawn, send
from torture.drawing import Drawer
from torture.served import Served, schema

pytestmark = [pytest.mark.torture, pytest.mark.engine]

DRAWN = int(os.environ.get("CASES", "1200"))
SEED = int(os.environ.get("SEED", "26"))
CHANGES = {
    "    blessed: true": "    dev: true\n    blessed: true",
    "start-timeout: 300": "start-timeout: 1800",  # a cold compile takes longer than 300 s on a loaded host
}


@pytest.mark.parametrize("profile", ["eager", "compiled", "blessed"])
def test_no_request_ends_an_engine(worlds: Worlds, profile: str) -> None:
    world = worlds.make(CHANGES)
    if profile == "blessed":
        bless = world.start("bless", IMAGE, "--profile", world.profile(profile), "--unsafe-trials", "1")
        _, log = bless.communicate()  # each of its starts has a limit
        assert bless.returncode == 0, log
    served = Served(world, profile)
    served.restart()
    send(served.port, cases.completion(logprobs=1), 300)  # the first one compiles, unless the engine is a blessed one
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
