"""What `make test-gpu` blesses and serves by: the whole of it here, with a program in vLLM's place and no GPU.

The commands, the checks of the host, the gate, the trials and the manifest are the real ones, and so is the client of
the engine; the stand-in for an engine runs the containers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu import benching, checks, pretended_vllm
from support.namespaces import allowed

ROOT = Path(__file__).parents[2]
CARD = "0, GPU-5f, A card of nobody, 9.0, 580.159.04"

pytestmark = [pytest.mark.long, pytest.mark.skipif(not allowed(), reason="only root makes containers of its own")]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What `lay.py` would have laid out, with a program in vLLM's place, and a machine with a card."""
    place = tmp_path / "place"
    for name in ("kernels/cache", "kernels/site", "site", "tool", "bin"):
        (place / name).mkdir(parents=True)
    (place / "repository").symlink_to(ROOT)
    pretended_vllm.lay(place / "trees/patched")
    nvidia = place / "bin/nvidia-smi"
    nvidia.write_text(f"#!/bin/sh\necho '{CARD}'\n")
    nvidia.chmod(0o755)
    return place


def run(place: Path, *words: str, part: str = "blessing") -> dict[str, Any]:
    """Run the case of PART that WORDS begin with to its end, and return the results with what was seen."""
    scratch = place.parent / "scratch"
    scratch.mkdir()
    argv = ["unshare", "--net", sys.executable, "-m", f"gpu.{part}", str(place), str(scratch), *words]
    paths = ("launcher", "tests", "tests/series/probes", "launcher/nvllm/runtime", ".")
    env = {**os.environ, "PYTHONPATH": ":".join(str(ROOT / path) for path in paths)}
    env["PATH"] = f"{place}/bin:{env['PATH']}"
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    return {part: json.loads(done.stdout.splitlines()[-1])}


def wrong(results: dict[str, Any], case: str, *chosen: checks.Check) -> list[str]:
    """Return what CHOSEN say is wrong with CASE in RESULTS."""
    return [one for check in chosen for one in check(results) if one.startswith(f"{case}")]


def test_a_blessing_is_made_tried_and_served_and_a_changed_bit_is_refused(place: Path) -> None:
    results = run(place, "blessed")
    assert wrong(results, "blessed", checks.by_nvllm, checks.unseen) == []
    assert list(checks.tampered(results)) == []
    steps = results["blessing"]["blessed"]
    assert [one["code"] for one in steps["unblessed"]["refusals"]] == ["NV901"]
    assert len(steps["bless"]["manifest"]["trials"]) == 5
    assert [one["name"] for one in steps["bless"]["manifest"]["coverage"]["kernels"]] == ["any", "divisible", "one"]


def test_a_blessing_that_lacks_a_kernel_serves_and_is_extended(place: Path) -> None:
    results = run(place, "extended")
    assert wrong(results, "extended", checks.by_nvllm, checks.unseen) == []
    assert list(checks.extension(results)) == []
    assert results["blessing"]["extended"]["serve"]["missing"] == {"one": 1}


@pytest.mark.parametrize("case", benching.CASES)
def test_a_bench_compares_profiles_and_their_traces(place: Path, case: str) -> None:
    results = run(place, case, part="benching")
    assert wrong(results, case, checks.traced, checks.series_kernel) == []
