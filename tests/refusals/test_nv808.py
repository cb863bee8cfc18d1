"""NV808: the probe asked the whole bisect to stop."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nvllm.core import proc
from nvllm.core.refusal import Refused
from nvllm.trials import bench, probe


@pytest.mark.parametrize(
    ("ending", "found"), [("exit 128", "exit status 128"), ("exit 200", "exit status 200"), ("kill -9 $$", "signal 9")]
)
def test_a_probe_that_ends_above_127(tmp_path: Path, ending: str, found: str) -> None:
    path = tmp_path / "probe.sh"
    path.write_text(f"#!/bin/sh\n{ending}\n")
    path.chmod(0o755)
    test = probe.program(path, (), "", build_only=True)
    with pytest.raises(Refused) as caught:
        bench.run_probe(test, {}, tmp_path / "engine.log", time.monotonic(), proc.Programs())
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, caught.value.exit_code) == ("NV808", "the probe", 1)
    assert (refusal.expected, refusal.found) == ("an exit status below 128", found)
    assert refusal.cure.endswith("the same command again goes on")  # an ablation runs probes too
