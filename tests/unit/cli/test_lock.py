"""`nvllm lock` on a copy of the project, offline: what is kept, what is drift, what would need the network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.lock import cell
from nvllm.cli.main import main
from nvllm.core.paths import Project
from nvllm.patches import proved, seriesfile
from nvllm.patches.proved import Arm, ProofRecord
from support.plansamples import edit

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a copy of the project without its records of proofs, with an empty home."""
    for directory in ("images", "manifests", "patches"):
        shutil.copytree(ROOT / directory, tmp_path / directory, ignore=shutil.ignore_patterns(proved.NAME))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_lock_that_fits_needs_no_network_and_is_not_written(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (project / "manifests/cpu.lock.json").stat().st_mtime_ns
    assert main(["lock", "cpu", "--offline", "--json"]) == 0
    assert answer(capsys)["result"] == {
        "image": "cpu",
        "platform": "linux/amd64",
        "lock": "manifests/cpu.lock.json",
        "changed": False,
        "drift": [],
    }
    assert (project / "manifests/cpu.lock.json").stat().st_mtime_ns == before


def test_check_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lock", "cpu", "--check", "--offline"]) == 0
    head, *_, reminder = capsys.readouterr().out.splitlines()
    assert head.startswith("manifests/cpu.lock.json: unchanged, ")
    assert reminder == "security updates: unknown: --offline"


def test_check_names_drift_by_kind_and_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(project / "patches/v0.32.0/series.yaml", "id: scheduler-drain", "id: scheduler-drained")
    before = (project / "manifests/cpu.lock.json").read_bytes()
    assert main(["lock", "cpu", "--check", "--offline", "--json"]) == 1
    kinds = [(one["kind"], one["name"]) for one in answer(capsys)["result"]["drift"]]
    assert kinds == [("patch-added", "scheduler-drained"), ("patch-removed", "scheduler-drain")]
    assert (project / "manifests/cpu.lock.json").read_bytes() == before
    assert main(["lock", "cpu", "--offline"]) == 0
    assert "patch-added" in capsys.readouterr().out
    assert main(["lock", "cpu", "--check", "--offline"]) == 0


def test_a_long_list_does_not_make_the_table_wide() -> None:
    assert (cell(None), cell("short")) == ("-", "short")
    assert cell(6092 * "x") == f"{100 * 'x'}... (6092 characters; --json has all)"


def test_the_records_of_proofs_are_counted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    patch = seriesfile.load(project / "patches/v0.32.0", "v0.32.0").patches[0]
    arms = Arm("sha256:1", "failed"), Arm("sha256:2", "passed")
    proof = ProofRecord(patch.id, patch.proved_by[0], "proved", *arms, 64 * "0", 64 * "0", machine="cpu", made="now")
    proved.write(Project(project), "v0.32.0", [proof])
    assert main(["lock", "cpu", "--check", "--offline", "--json"]) == 0
    counted = answer(capsys)["result"]["proofs"]
    assert counted == {"stale": 1, "unproved": sum(counted.values()) - 1}
    assert main(["lock", "cpu", "--check", "--offline"]) == 0
    assert f"\npatches: 1 stale, {counted['unproved']} unproved\n" in capsys.readouterr().out


def test_what_must_be_asked_is_refused_offline(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(project / "images/cpu.yaml", "epoch: 1760000000", "epoch: 1760000001")
    assert main(["lock", "cpu", "--offline"]) == 1
    err = capsys.readouterr().err
    assert "NV209 cannot resolve" in err
    assert "found     --offline" in err


def test_a_lock_that_is_missing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "manifests/cpu.lock.json").unlink()
    assert main(["lock", "cpu", "--check", "--offline"]) == 3
    assert "NV201 lock missing" in capsys.readouterr().err
    assert main(["lock", "cpu", "--offline"]) == 1
    assert "NV209" in capsys.readouterr().err


def test_a_damaged_lock_keeps_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "manifests/cpu.lock.json").write_text("{")
    assert main(["lock", "cpu", "--check", "--offline"]) == 3
    assert "NV210 lock damaged" in capsys.readouterr().err
    assert main(["lock", "cpu", "--offline"]) == 1
    assert "manifests/cpu.lock.json is damaged; nothing of it is kept" in capsys.readouterr().err
    assert (project / "manifests/cpu.lock.json").read_text() == "{"


@pytest.mark.parametrize(("argv", "code"), [(["gpu"], "NV107"), (["cpu", "--update", "hats"], "NV108")])
def test_names_that_do_not_exist(argv: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lock", "--offline", *argv]) == 2
    assert capsys.readouterr().err.startswith(code)
