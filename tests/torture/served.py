"""The engine of a campaign: a profile of a world, served by nvllm."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import httpx2

from support.engine_world import World


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
        ended = str(self.world.state(self.profile)["reason"]).partition("; its last lines")[0]
        log = (self.world.run_directory(self.profile) / "engine.log").read_text(errors="replace")
        files = re.findall(r'File "[^"]*/(vllm/[^"]+)", line (\d+)', log)
        errors = [line for line in re.findall(r"\b(\w+(?:Error|Exception): .*)", log) if "ulimit" not in line]
        return ": ".join([ended, *errors[-1:], *(":".join(place) for place in files[-1:])])

    def restart(self) -> None:
        self.world.nvllm("stop", self.world.instance(self.profile))
        done = self.world.serve("--detach", profile=self.profile)
        assert done.code == 0, done


def schema(port: int) -> Any:
    return json.loads(httpx2.get(f"http://127.0.0.1:{port}/openapi.json", timeout=60, trust_env=False).text)
