"""NV854: the harness of an arm failed."""

from __future__ import annotations

from pathlib import Path

from nvllm.core.refusal import Refused
from nvllm.evidence import summary
from support.evidence_world import probe, world
from support.plansamples import FrontEnd

INVALID = "a is invalid, and left out of every effect: sentinel a (enabled=true, no first_fire)"


def test_a_dead_sentinel_is_no_success(tmp_path: Path, front: FrontEnd) -> None:
    made = world(tmp_path, front, probe())
    made.engine.dead = {"a"}
    refused = Refused(summary.refusals(made.runner.run(), made.directory))
    assert [(one.code, one.where) for one in refused.refusals] == [("NV854", "arm a"), ("NV854", "arm a+b")]
    assert refused.refusals[0].found == INVALID
    assert refused.exit_code == 1
