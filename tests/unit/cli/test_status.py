"""What `nvllm status` says of a blessed instance whose cache lacked a kernel. The container engine is made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.image import engine
from nvllm.serve.rundir import InstanceState, RunDirectory
from nvllm.serve.timeline import MissingKernel
from support.plansamples import PLAN, places
from support.serve_world import FakeEngine

KERNELS = (
    MissingKernel("ABC", "conv", 5.0, "n: 1"),
    MissingKernel("DEF", "conv", 6.0, "n: i32"),
    MissingKernel("GHI", "slots.autotune.json", 7.0),
)


@pytest.mark.parametrize("kernels", [KERNELS, ()])
def test_the_kernels_that_a_blessed_cache_lacked(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kernels: tuple[MissingKernel, ...],
) -> None:
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(engine, "require", FakeEngine)
    run = RunDirectory(places(tmp_path).runs / PLAN.instance)
    run.prepare({}, b"{}", ())
    state = InstanceState(
        PLAN.instance, "demo", "eager", False, "ready", "", "", 8000, 1, "", 1.0, blessed="demo-eager", kernels=kernels
    )
    run.write_state(state)
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    said = (
        "nvllm-demo-eager: 3 kernels were not in the blessed cache, so requests waited for a compile: "
        "conv, slots.autotune.json. Add them: nvllm bless demo --profile eager --extend"
    )
    assert (said in shown) is bool(kernels)
    assert main(["status", "--json"]) == 0
    (instance,) = json.loads(capsys.readouterr().out)["result"]["instances"]
    assert [(one["key"], one["arguments"]) for one in instance["kernels"]] == [
        (one.key, one.arguments) for one in kernels
    ]
