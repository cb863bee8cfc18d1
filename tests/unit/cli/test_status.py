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


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance that was served; its container is gone."""
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(engine, "require", FakeEngine)
    run = RunDirectory(places(tmp_path).runs / PLAN.instance)
    run.prepare({}, b"{}", ())
    run.write_state(InstanceState(PLAN.instance, "demo", "eager", False, "ready", "", "", 8000, 1, "", 1.0))


@pytest.mark.usefixtures("served")
def test_the_page_for_prometheus_and_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "nvllm.prom"
    file.write_text("old")
    assert main(["status", "--metrics", "--metrics-file", str(file)]) == 0
    page = capsys.readouterr().out
    assert file.read_text() == page
    assert 'nvllm_instance_up{instance_name="nvllm-demo-eager",image="demo",profile="eager"} 0.0\n' in page
    assert (file.stat().st_mode & 0o777, [one.name for one in tmp_path.glob("*.prom*")]) == (0o644, ["nvllm.prom"])


@pytest.mark.usefixtures("served")
def test_one_document_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--metrics", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["refusals"][0]["code"] == "NV108"
    assert main(["status", "--json", "--metrics-file", str(tmp_path / "nvllm.prom")]) == 0
    assert len(json.loads(capsys.readouterr().out)["result"]["instances"]) == 1
    assert main(["status", "--metrics-file", str(tmp_path / "no/such/nvllm.prom")]) == 1
    assert "NV920" in capsys.readouterr().err
