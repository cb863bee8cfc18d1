"""NV858: the profiler of vLLM left no trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.evidence.load import LoadProbe
from support.evidence_world import probe, world
from support.plansamples import FrontEnd


def test_an_image_whose_load_generator_knows_no_profiler(tmp_path: Path, front: FrontEnd) -> None:
    made = world(tmp_path, front, probe())
    vars(made.engine)["run_in"] = lambda *_: (2, "unrecognized arguments: --profile")
    with pytest.raises(Refused) as caught:
        replace(made.runner, traced=LoadProbe("vllm", 8, 2, 64, 16, 42)).run()
    (refusal,) = caught.value.refusals
    assert refusal.code == "NV858"
    assert "unrecognized arguments: --profile" in refusal.found
    assert caught.value.exit_code == 1
