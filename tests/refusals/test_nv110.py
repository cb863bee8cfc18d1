"""NV110, no project of yours: what writes into a project refuses where the only one is that which nvllm came with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nvllm.cache.blessings import Blessings
from nvllm.cli.main import main
from nvllm.core import paths
from nvllm.core.paths import Places, find_project

ROOT = Path(__file__).parents[2]

WRITING = (
    "lock cpu",
    "build cpu --record",
    "patch new mine before after --summary s --proved-by tests/test_a.py::test_a --series v0.28.0",
    "patch refresh aot-load-guard --series v0.28.0",
)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a directory that is no project; return the project of an installed nvllm."""
    inside = tmp_path / "site-packages/nvllm/project"
    for part in ("images", "manifests", "patches"):
        shutil.copytree(ROOT / part, inside / part)
    monkeypatch.setattr(paths, "INSIDE", inside)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    return inside


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize("named", [False, True])
def test_what_would_write_refuses_and_writes_nothing(
    installed: Path, capsys: pytest.CaptureFixture[str], command: str, named: bool
) -> None:
    before = contents(installed)
    project = ["--project", str(installed)] if named else []
    assert main([*project, "--platform", "linux/amd64", "--offline", *command.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"NV110 no project of yours\n  where     {installed}/")
    assert "--project DIR" in said
    assert "  cure      nvllm init mine && cd mine\n" in said
    assert contents(installed) == before


def test_what_only_reads_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--platform", "linux/amd64", "build", "cpu", "--dry-run"]) == 0
    assert main(["--platform", "linux/amd64", "lock", "cpu", "--check", "--offline"]) == 0
    assert main(["patch", "list"]) == 0


def test_its_blessings_and_revocations_are_the_hosts(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, home = contents(installed), Path("../home").resolve()
    assert main(["manifest", "revoke", "a" * 64, "--reason", "it crashed"]) == 0
    record = home / f"state/packaged/blessed/revoked/{'a' * 64}.json"
    assert record.is_file()
    assert f"on this host: {record}" in capsys.readouterr().out
    assert contents(installed) == before
    here = Blessings.of_project(find_project(None, Path.cwd()), Places(home / "cache", home / "state"))
    assert here.revocations.reason("a" * 64) == "it crashed"
