"""NV855: fewer answers are correct than the floor asks for."""

from __future__ import annotations

from pathlib import Path

from nvllm.core.refusal import Refused
from nvllm.evidence import summary
from support.evidence_world import probe, world
from support.plansamples import FrontEnd


def test_below_the_floor_the_exit_status_is_1(tmp_path: Path, front: FrontEnd) -> None:
    made = world(tmp_path, front, probe(floor=50))
    refused = Refused(summary.refusals(made.runner.run(), made.directory))
    assert {one.code for one in refused.refusals} == {"NV855"}
    assert refused.refusals[0].found == "0.0 % correct"
    assert refused.exit_code == 1


def test_at_the_floor_it_is_0(tmp_path: Path, front: FrontEnd) -> None:
    made = world(tmp_path, front, probe(floor=0))
    assert summary.refusals(made.runner.run(), made.directory) == []
