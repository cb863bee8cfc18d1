"""What each image needs on this host: what is lacking for each step, in order, and one next command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from nvllm.core.paths import Project
from nvllm.engine.engine import Engine
from nvllm.host.facts import EngineProblem
from nvllm.image import buildrecord, identity
from nvllm.image.buildrecord import Record
from nvllm.models import local
from nvllm.patches import proved, seriesfile
from nvllm.patches.proved import Arm, ProofRecord
from nvllm.serve import overview
from nvllm.serve.overview import ImageNeeds
from support.host_samples import HOST
from support.plansamples import TEXT, places, project

PROBLEM = EngineProblem("absent", "unix:///none", "no such file")
ANSWERS = cast("Engine", object())
"""An engine that answers; what it holds is `buildrecord.in_engine`'s, which the tests replace."""


@pytest.fixture
def mine(tmp_path: Path) -> Project:
    return project(tmp_path)


def look(found: Project, tmp_path: Path, engine: Engine | EngineProblem = ANSWERS) -> ImageNeeds:
    (one,) = overview.needs(found, places(tmp_path), engine, HOST)
    return one


def lacking(one: ImageNeeds) -> tuple[list[str], list[str]]:
    return [lack.code for lack in one.build], [lack.code for lack in one.serve or ()]


def test_without_a_lock_the_lock_comes_next(mine: Project, tmp_path: Path) -> None:
    mine.lock("demo").unlink()
    one = look(mine, tmp_path)
    assert (lacking(one), one.next) == ((["NV201"], ["NV201", "NV401"]), "nvllm lock demo")


def test_no_lock_is_written_into_the_project_that_nvllm_came_with(mine: Project, tmp_path: Path) -> None:
    mine.lock("demo").unlink()
    assert look(replace(mine, own=False), tmp_path).next == "nvllm init demo --target demo"


def test_an_engine_that_does_not_answer(mine: Project, tmp_path: Path) -> None:
    assert lacking(look(mine, tmp_path, PROBLEM)) == (["NV510"], ["NV510", "NV401"])


def test_what_is_locked_is_built_next(mine: Project, tmp_path: Path) -> None:
    one = look(mine, tmp_path)
    assert (one.built, lacking(one), one.next) == (False, ([], ["NV302", "NV401"]), "nvllm build demo")


def test_what_no_test_proves_is_shown_and_lacks_if_it_is_demanded(mine: Project, tmp_path: Path) -> None:
    assert look(mine, tmp_path).proofs == {}
    series = seriesfile.load(mine.series("v1"), "patches/v1")
    for patch in series.patches:
        arms = Arm("sha256:1", "failed"), Arm("sha256:2", "passed")
        made = ProofRecord(patch.id, "tests/a.py::b", "proved", *arms, str(patch.sha256), "0" * 64, "cpu", "2026-11-24")
        proved.write(mine, "v1", [made])
    assert look(mine, tmp_path).proofs == {"unproved": 1}  # the patch names another test
    spec = mine.spec("demo")
    spec.write_text(spec.read_text().replace("  series: v1\n", "  series: v1\n  proved: required\n"))
    demanded = look(mine, tmp_path)
    assert [lack.code for lack in demanded.build] == ["NV607"]
    assert demanded.next == "nvllm patch prove demo first"


def test_what_is_built_needs_its_model(mine: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = identity.load_build(mine, "demo", None)
    buildrecord.write(places(tmp_path).builds, Record("demo", made.build_hash, "sha256:" + "1" * 64, (), None, "built"))
    monkeypatch.setattr(buildrecord, "in_engine", lambda record, engine: object())
    one = look(mine, tmp_path)
    assert (one.built, lacking(one)) == (True, ([], ["NV401"]))
    assert one.next == (one.serve or ())[0].cure
    monkeypatch.setattr(local, "missing", lambda *_: [])
    assert look(mine, tmp_path).next == "nvllm serve demo --profile eager"


def test_a_profile_that_needs_a_gpu(mine: Project, tmp_path: Path) -> None:
    gpu = '    gpu:\n      capabilities: ["12.0"]\n      driver: 580.95.05\n'
    text = mine.spec("demo").read_text()
    mine.spec("demo").write_text(text.replace("    port:", f"{gpu}    port:"))
    assert "NV501" not in lacking(look(mine, tmp_path))[1]
    (one,) = overview.needs(mine, places(tmp_path), ANSWERS, replace(HOST, gpus=()))
    assert "NV501" in lacking(one)[1]


def test_an_image_of_another_platform(mine: Project, tmp_path: Path) -> None:
    one = look(replace(mine, platform="linux/arm64"), tmp_path)
    assert (lacking(one), one.next) == ((["NV108"], ["NV108"]), "nvllm --platform linux/amd64 doctor")


def test_a_spec_that_cannot_be_read(mine: Project, tmp_path: Path) -> None:
    mine.spec("demo").write_text(TEXT.replace("schema:", "scheme:"))
    assert lacking(look(mine, tmp_path))[0] == ["NV101", "NV101"]
