"""`nvllm patch prove` from the command line. The images are a stand-in's: tests that run on the host need no engine."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvllm.cli.main import main
from nvllm.engine import engine
from nvllm.trials.bench import EngineBench
from nvllm.trials.trial import Built
from support import series_samples
from support.series_samples import changed, write_tree
from support.specs import OLDER_CPU

ROOT = Path(__file__).parents[3]
TESTS = """\
import os

import pytest

pytestmark = pytest.mark.nvllm_host


def test_its_own():
    assert "louder" in os.environ["NVLLM_PATCHES"].split(","), os.environ["NVLLM_IMAGE"]


def test_of_either():
    assert {"louder", "softer"} & {*os.environ["NVLLM_PATCHES"].split(",")}


def test_of_both(tmp_path):
    assert {"louder", "softer"} <= {*os.environ["NVLLM_PATCHES"].split(",")}, f"{tmp_path} {__file__}"


def test_of_anything():
    assert os.environ["NVLLM_IMAGE"]


def test_broken():
    raise KeyError("a fixture that is not there")


@pytest.mark.nvllm_engine
def test_asked():
    assert "louder" in os.environ["NVLLM_PATCHES"].split(","), os.environ["NVLLM_ADDRESS"]


@pytest.mark.nvllm_gpu
def test_on_a_gpu():
    assert False
"""
COMMIT = "2cf0a6915ce544dc493a0990f2ea38d81601128a"


class NoEngine:
    """An engine that runs nothing: what is asked of it here needs no container."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a project with the real spec and an empty series, beside two copies of a little source, and tests."""
    (tmp_path / "images").mkdir()
    (tmp_path / "manifests").mkdir()
    shutil.copy(OLDER_CPU, tmp_path / "images/cpu.yaml")
    (tmp_path / "patches/v0.28.0").mkdir(parents=True)
    head = f"schema: nvllm.series/1\nbase: v0.28.0\nversion: 0.28.0\ncommit: {COMMIT}\npatches: []\n"
    (tmp_path / "patches/v0.28.0/series.yaml").write_text(head)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_greet.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --disable-plugin-autoload\n")
    write_tree(tmp_path / "before", series_samples.SOURCE)
    write_tree(tmp_path / "after", changed(one=(b"one 20\n", b"one twenty\n")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")

    def built(self: EngineBench, chosen: tuple[str, ...]) -> Built:
        return Built(chosen, "", "0" * 64, f"sha256:image-of-{'-'.join(chosen)}", 0.0)

    monkeypatch.setattr(EngineBench, "built", built)
    monkeypatch.setattr(EngineBench, "clear", lambda self: None)
    monkeypatch.setattr(engine, "require", NoEngine)
    return tmp_path


def add(project: Path, *tests: str, name: str = "louder") -> None:
    nodes = [word for test in tests for word in ("--proved-by", f"tests/test_greet.py::{test}")]
    assert main(["patch", "new", name, "before", "after", "--summary", "Greet", *nodes]) == 0
    spec = project / "images/cpu.yaml"
    spec.write_text(re.sub(r"  enable:.*\n(    - .*\n)*", f"  enable: [{name}]\n", spec.read_text()))


def prove(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["patch", "prove", "cpu", *args, "--json"]) == code
    (only,) = json.loads(capsys.readouterr().out)["result"]["patches"]
    assert isinstance(only, dict)
    return only


def verdicts(answer: dict[str, Any]) -> Sequence[str | None]:
    return [one["record"] and one["record"]["verdict"] for one in answer["tests"]]


def test_a_patch_is_proved_once_and_again_when_its_test_changes(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(project, "test_its_own")
    planned = prove(capsys, "--dry-run")
    assert (planned["state"], planned["without"], planned["whole"]) == ("unproved", [], ["louder"])
    assert [(one["where"], one["to_run"]) for one in planned["tests"]] == [("host", True)]
    proved = prove(capsys)
    assert (proved["state"], verdicts(proved)) == ("proved", ["proved"])
    record = proved["tests"][0]["record"]
    assert record["without"] == {"image": "sha256:image-of-", "outcome": "failed", "text": record["without"]["text"]}
    assert record["without"]["text"].startswith("AssertionError: sha256:image-of-")
    assert [one["to_run"] for one in prove(capsys)["tests"]] == [False]  # nothing is left to do
    assert [one["to_run"] for one in prove(capsys, "--again", "--dry-run")["tests"]] == [True]
    test = project / "tests/test_greet.py"
    test.write_text(test.read_text() + "\n# changed\n")
    planned = prove(capsys, "--dry-run")
    assert (planned["state"], planned["tests"][0]["to_run"]) == ("stale", True)
    assert main(["patch", "list", "--json"]) == 0
    assert [one["proved"] for one in json.loads(capsys.readouterr().out)["result"]["patches"]] == ["stale"]


@pytest.mark.thorough
def test_what_proves_nothing_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(project, "test_of_anything", "test_broken", "test_on_a_gpu", "test_its_own")
    capsys.readouterr()
    assert main(["patch", "prove", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "passes without the patch: it proves nothing" in out
    assert "needs a GPU, which this host or the profile lacks" in out
    assert "with:    error: KeyError" in out
    answer = prove(capsys, "--dry-run")  # the records of that run
    assert answer["state"] == "unproved"
    assert verdicts(answer) == ["passes-without", "fails-with", None, "proved"]
    assert [one["left"] for one in answer["tests"]] == [
        None,
        None,
        "needs a GPU, which this host or the profile lacks",
        None,
    ]


@pytest.mark.thorough
def test_a_proof_that_is_not_in_the_project_is_left_out_unless_its_patch_is_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A project of `nvllm init` has nvllm's patches, and not the tests of nvllm's own repository."""
    add(project, "test_its_own", "test_of_either")
    series, elsewhere = project / "patches/v0.28.0/series.yaml", "tests/series/test_elsewhere.py::test_it"
    series.write_text(series.read_text().replace("tests/test_greet.py::test_of_either", elsewhere))
    answer = prove(capsys, code=1)
    assert (answer["state"], verdicts(answer)) == ("unproved", ["proved", None])
    assert [one["left"] for one in answer["tests"]] == [None, "its file is not in this project"]
    assert main(["patch", "prove", "cpu", "louder", "--json"]) == 2
    (refusal,) = json.loads(capsys.readouterr().out)["refusals"]
    assert (refusal["code"], refusal["found"]) == ("NV108", "no file tests/series/test_elsewhere.py")


def test_a_patch_that_is_not_carried_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(project, "test_its_own")
    capsys.readouterr()
    assert main(["patch", "prove", "cpu", "softer", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["refusals"][0]["code"] == "NV107"


def test_an_engine_is_served_for_a_test_that_asks_one(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def serving(self: EngineBench, built: Built) -> Iterator[Any]:
        yield SimpleNamespace(plan=SimpleNamespace(port=8123))

    monkeypatch.setattr(EngineBench, "serving", serving)
    add(project, "test_asked")
    (test,) = prove(capsys)["tests"]
    assert (test["where"], test["record"]["verdict"]) == ("engine", "proved")
    assert test["record"]["without"]["text"].startswith("AssertionError: http://127.0.0.1:8123\n")


@pytest.mark.thorough
def test_all_tests_run_without_a_patch_that_is_left_out(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(project, "test_of_either", "test_of_anything")
    write_tree(project / "after", changed(one=(b"one 30\n", b"one thirty\n")))
    add(project, "test_of_both", name="softer")
    spec = project / "images/cpu.yaml"
    spec.write_text(spec.read_text().replace("enable: [softer]", "enable: [louder, softer]"))

    def each(*args: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main(["patch", "prove", "cpu", "louder", "--each", "--json", *args]) == code
        (only,) = json.loads(capsys.readouterr().out)["result"]["each"]
        return only

    planned = each("--dry-run")
    assert (planned["left_out"], planned["without"], len(planned["tests"])) == (["louder"], ["softer"], 3)
    assert planned["to_run"]
    record = each(code=1)["record"]
    assert (record["image"], record["tests"], record["holds"]) == ("sha256:image-of-softer", 3, True)
    either, both, anything = (f"tests/test_greet.py::test_of_{word}" for word in ("either", "both", "anything"))
    assert record["covered"] == [
        {"patch": "louder", "node": either, "by": ["softer"]},
        {"patch": "louder", "node": anything, "by": []},
    ]
    (broken,) = record["broken"]
    assert (broken["patch"], broken["node"]) == ("softer", both)
    # A record does not say where the project and the files of a run lie.
    assert broken["text"].startswith("AssertionError: TMP/tests/test_of_both0 tests/test_greet.py\n")
    assert not each("--dry-run")["to_run"]
    assert main(["patch", "prove", "cpu", "louder", "--each", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert f"{either} passes without louder: softer covers it" in out
    assert f"{both} fails, though softer is there: AssertionError" in out
    assert f"{anything} passes without louder, and without any patch" in out
