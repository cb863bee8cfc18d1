"""What `nvllm status`, `logs` and `stop` make of instances. The container engine is made up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.engine import engine
from nvllm.host.facts import INSTANCE_LABEL, RUN_LABEL, ContainerFact
from nvllm.serve import instances, owners
from nvllm.serve.rundir import CoveredKernels, Death, InstanceState, RunDirectory, Stage
from nvllm.serve.timeline import MissingKernel
from support.plansamples import PLAN, places, project
from support.serve_world import FakeEngine

KERNELS = (
    MissingKernel("ABC", "conv", 5.0, "n: 1", ("cmpl-a-0",)),
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
    assert [(one["key"], one["arguments"], one["requests"]) for one in instance["kernels"]] == [
        (one.key, one.arguments, list(one.requests)) for one in kernels
    ]


@pytest.mark.usefixtures("served")
def test_what_a_blessing_covers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, state = RunDirectory(places(tmp_path).runs / PLAN.instance), state_of(tmp_path)
    text = "nvllm-demo-eager: its cache has 7 variants of 2 kernels"
    never = "; never computed in one step: 16 at once, a prompt beside 32"
    table = [
        (None, False, False),
        (CoveredKernels(2, 7, ()), True, False),
        (CoveredKernels(2, 7, ("16 at once", "a prompt beside 32")), True, True),
    ]
    for coverage, has_text, has_unmet in table:
        run.write_state(replace(state, coverage=coverage))
        assert main(["status"]) == 0
        shown = capsys.readouterr().out
        assert (text in shown, never in shown) == (has_text, has_unmet), coverage


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


def state_of(tmp_path: Path) -> InstanceState:
    state = RunDirectory(places(tmp_path).runs / PLAN.instance).read_state()
    assert state is not None
    return state


@pytest.mark.usefixtures("served")
def test_the_deaths_of_earlier_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    death = Death(86_400.0, "NV703 engine died: exit status 139", ("Segmentation fault",))
    run = RunDirectory(places(tmp_path).runs / PLAN.instance)
    run.write_state(replace(state_of(tmp_path), stage="failed", deaths=(death,)))
    assert main(["status"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"{PLAN.instance}: an engine died at 1970-01-0")
    assert line.endswith(": NV703 engine died: exit status 139")
    assert main(["status", "--json"]) == 0
    (instance,) = json.loads(capsys.readouterr().out)["result"]["instances"]
    assert instance["deaths"] == [{"when": 86400.0, "reason": death.reason, "lines": ["Segmentation fault"]}]


@pytest.mark.usefixtures("served")
def test_an_instance_that_is_gone_is_stopped_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", PLAN.instance]) == 0
    assert capsys.readouterr().out == f"stopped {PLAN.instance}\n"
    assert (state_of(tmp_path).stage, state_of(tmp_path).reason) == ("stopped", "stopped; its container was gone")
    assert main(["stop", PLAN.instance, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["refusals"][0]["code"] == "NV107"


@pytest.mark.usefixtures("served")
def test_all_are_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nvllm-demo-other", "nvllm-demo-ended"):
        run = RunDirectory(places(tmp_path).runs / name)
        run.prepare({}, b"{}", ())
        ended = name.endswith("ended")
        run.write_state(replace(state_of(tmp_path), instance=name, stage="failed" if ended else "restarting"))
    assert main(["stop", "--all", "--json"]) == 0
    stopped = json.loads(capsys.readouterr().out)["result"]["instances"]
    assert stopped == [{"instance": name, "container": ""} for name in (PLAN.instance, "nvllm-demo-other")]
    assert main(["stop", "--all"]) == 0
    assert capsys.readouterr().out == "nothing is being served\n"
    assert main(["stop", "--all", PLAN.instance, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["refusals"][0]["code"] == "NV108"


@pytest.mark.usefixtures("served")
def test_a_trial_of_another_project_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither without a name, nor by --all, nor the engine of another state directory."""

    class WithOthers(FakeEngine):
        def containers(self) -> tuple[ContainerFact, ...]:
            labels = {INSTANCE_LABEL: "nvllm-elsewhere", RUN_LABEL: "/elsewhere/runs/nvllm-elsewhere"}
            return (ContainerFact("nvllm-elsewhere", labels, running=True, id="4f"),)

        def stop(self, container: str, patience: float) -> None:
            raise AssertionError("this engine is another's")

    monkeypatch.setattr(engine, "require", WithOthers)
    trial = f"{PLAN.instance}-bisect-0123456-1-1"
    run = RunDirectory(places(tmp_path).runs / trial)
    run.prepare({}, b"{}", ())
    run.write_state(replace(state_of(tmp_path), instance=trial))
    owners.claim(project(tmp_path / "other"), places(tmp_path), trial)
    assert main(["stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["instance"] == PLAN.instance
    assert main(["stop", "--json"]) == 2
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert refusal["found"] == f"nothing of this project; of others: {trial}"
    assert main(["stop", "--all"]) == 0
    assert capsys.readouterr().out == "nothing is being served\n"


@pytest.mark.usefixtures("served")
def test_one_that_cannot_be_stopped_does_not_keep_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck = RunDirectory(places(tmp_path).runs / "nvllm-demo-a")
    stuck.prepare({}, b"{}", ())
    stuck.write_state(replace(state_of(tmp_path), instance="nvllm-demo-a"))
    (stuck.path / "stop").symlink_to(tmp_path / "no such directory" / "stop")
    assert main(["stop", "--all", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in document["refusals"]] == ["NV920"]
    assert [one["instance"] for one in document["result"]["instances"]] == [PLAN.instance]
    assert state_of(tmp_path).stage == "stopped"


@pytest.mark.usefixtures("served")
def test_f_follows_a_log_until_the_instance_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(places(tmp_path).runs / PLAN.instance)
    run.keep([b"one", b"two"])
    run.write_state(replace(state_of(tmp_path), stage="stopped"))
    assert main(["logs", PLAN.instance, "-f", "--tail", "1"]) == 0
    assert capsys.readouterr().out == "two\n"


def test_what_a_stage_is_without_a_container_or_a_supervisor() -> None:
    """One list of all that are called otherwise."""
    state = InstanceState(PLAN.instance, "demo", "eager", False, "ready", "", "", 8000, 1, "", 1.0)
    table: list[tuple[Stage, bool, bool, str]] = [
        ("starting", True, False, "starting"),
        ("starting", False, True, "gone"),
        ("ready", False, True, "gone"),
        ("restarting", False, True, "restarting"),
        ("restarting", False, False, "gone"),
        ("failed", False, False, "failed"),
    ]
    wrong = [
        row
        for row in table
        if instances.current_stage(replace(state, stage=row[0]), running=row[1], supervised=row[2]) != row[3]
    ]
    assert wrong == []
