"""`nvllm export`, where no engine answers: what it wants to be told. `tests/fleet` writes exports and runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.main import main
from nvllm.serve.examination import Examination
from support import plansamples

REGISTRY = ("--registry", "registry.example/nvllm")


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the command on the sample project and returns its refusals."""
    project, where = plansamples.project(tmp_path), plansamples.places(tmp_path)
    monkeypatch.setenv("NVLLM_HOME", str(where.cache.parent))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")

    def run(platform: str, *words: str) -> list[dict[str, str]]:
        main(["--project", str(project.root), "export", platform, "demo", "--profile", "eager", "--json", *words])
        found = json.loads(capsys.readouterr().out)["refusals"]
        assert isinstance(found, list)
        return found

    return run


@pytest.mark.parametrize(
    ("words", "where", "found"),
    [
        ((), "--registry", "none"),
        (("--registry", f"r.example/n@sha256:{'0' * 64}"), "--registry", f"r.example/n@sha256:{'0' * 64}"),
        ((*REGISTRY, "--models", "models"), "--models", "models"),
        ((*REGISTRY, "--server-version", "1.30"), "--server-version", "1.30"),
        ((*REGISTRY, "--out", "/"), "--out", "/"),
        ((*REGISTRY, "--out", "."), "--out", "."),
    ],
)
def test_it_says_which_option_is_wrong(refused: Any, words: tuple[str, ...], where: str, found: str) -> None:
    (one,) = refused("kubernetes", *words)
    assert (one["code"], one["where"], one["found"]) == ("NV108", where, found)
    assert "rm " not in one["cure"]


@pytest.mark.parametrize("platform", ["kubernetes", "quadlet", "compose", "systemd"])
def test_what_is_not_fit_to_be_served_is_not_exported(refused: Any, platform: str) -> None:
    """The engine does not answer, and the model is not there."""
    assert {"NV401", "NV510"} <= {one["code"] for one in refused(platform, *REGISTRY)}


def test_an_export_is_read_by_the_container_whatever_the_umask_and_whoever_copied_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root copies a Quadlet to /etc with the modes that it has; the container is of the operator's user."""
    project, where = plansamples.project(tmp_path), plansamples.places(tmp_path)
    monkeypatch.setenv("NVLLM_HOME", str(where.cache.parent))
    found = Examination(
        plansamples.SPEC.profiles["eager"], plansamples.PLAN, (plansamples.MODEL,), (), (), None, plansamples.build()
    )
    monkeypatch.setattr("nvllm.cli.export.examine", lambda *_arguments, **_options: found)
    out = tmp_path / "a place/deploy"
    before = os.umask(0o077)
    try:
        words = ["quadlet", "demo", "--profile", "eager", *REGISTRY, "--out", str(out)]
        assert main(["--project", str(project.root), "export", *words]) == 0
    finally:
        os.umask(before)
    modes = {path.relative_to(out).as_posix(): path.stat().st_mode & 0o777 for path in (out, *out.rglob("*"))}
    assert {modes[name] for name in (".", "run", "programs")} == {0o755}
    assert {modes[name] for name in ("run/launch.json", "programs/machine.py")} == {0o444}
    said = capsys.readouterr().out.splitlines()
    assert said[0] == str(out / "nvllm-demo-eager.container")
    assert said[-1] == "guarantees that are not held there: 5 of 27; --explain lists them"
