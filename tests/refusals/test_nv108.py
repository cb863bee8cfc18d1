"""NV108, bad argument: a value on the command line is unusable; exit 2, as text and as one JSON document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nvllm.cli.main import main
from nvllm.serve.rundir import RunDirectory
from support.plansamples import places, project

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schemas/output.schema.json").read_text())


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a project with the image `demo`, with a home of its own and no engine."""
    root = project(tmp_path).root
    monkeypatch.chdir(root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    return tmp_path


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """Run ARGV with --json, which must be a usage error, and return its only refusal."""
    assert main([*argv, "--json"]) == 2
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    assert document["ok"] is False
    (only,) = document["refusals"]
    assert (only["code"], only["title"], only["kind"]) == ("NV108", "bad argument", "usage")
    return dict(only)


def test_two_hashes_that_are_not_of_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    found = refusal(capsys, "explain", "demo", "demo/eager")
    assert (found["where"], found["expected"]) == ("demo demo/eager", "two hashes of the same kind")
    assert found["found"] == "a build hash and a serve hash"
    assert found["cure"] == "compare two images, or two of IMAGE/PROFILE and instances"


def test_the_same_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "demo", "demo/eager"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("NV108 bad argument\n  where     demo demo/eager\n")


def test_a_pull_request_whose_file_says_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    found = refusal(capsys, "patch", "add", "demo", "--from-pr", "fix.patch")
    assert (found["where"], found["found"]) == ("--from-pr", "fix.patch")
    assert found["cure"].endswith("mv FILE NUMBER.patch")
    assert refusal(capsys, "patch", "add", "demo", "a.patch", "--from-pr", "7.patch")["found"] == "a.patch too"


def test_a_profile_that_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = refusal(capsys, "serve", "demo")
    assert (found["where"], found["found"]) == ("--profile", "none")
    assert (found["expected"], found["cure"]) == ("a profile: demo has eager", "nvllm serve demo --profile eager")
    assert refusal(capsys, "bless", "demo")["cure"] == "write `blessed: true` into a profile"


def test_a_profile_that_is_not_named_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "demo"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("NV108 bad argument\n  where     --profile\n")


def test_half_of_what_doctor_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "doctor", "demo")["cure"] == "nvllm doctor demo --profile eager"


def test_a_number_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'soon'" in refusal(capsys, "gc", "--keep-younger", "soon")["found"]
    assert "-1" in refusal(capsys, "gc", "--keep-younger", "-1")["found"]
    assert "0" in refusal(capsys, "logs", "--tail", "0")["found"]


def test_an_instance_whose_plan_is_of_another_version(capsys: pytest.CaptureFixture[str], world: Path) -> None:
    run = RunDirectory(places(world).runs / "nvllm-demo-eager")
    run.prepare({"schema": "nvllm.plan/0"}, b"{}", ())
    found = refusal(capsys, "explain", "demo/eager", "nvllm-demo-eager")
    assert found["where"] == str(run.path / "plan.json")
    assert found["expected"] == "a launch plan of this version of nvllm"
    assert found["cure"] == "nvllm gc"


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000])
def test_an_instance_whose_plan_is_damaged(capsys: pytest.CaptureFixture[str], world: Path, text: bytes) -> None:
    run = RunDirectory(places(world).runs / "nvllm-demo-eager")
    run.prepare({}, b"{}", ())
    (run.path / "plan.json").write_bytes(text)
    assert refusal(capsys, "explain", "demo/eager", "nvllm-demo-eager")["where"] == str(run.path / "plan.json")


@pytest.mark.parametrize("name", ["../../e/cpu", "/etc/passwd", "..", "", "a.b", "A", "x" * 201, "a/../b", "cpu\n"])
@pytest.mark.parametrize("command", [["lock"], ["build"], ["doctor", "--profile", "eager"], ["dockerfile"]])
def test_what_is_no_name_of_an_image_becomes_no_path(
    world: Path, capsys: pytest.CaptureFixture[str], command: list[str], name: str
) -> None:
    (world.parent / "e").mkdir(exist_ok=True)
    before = sorted(world.rglob("*"))
    more = ["--context", str(world / "context")] if command == ["dockerfile"] else []
    found = refusal(capsys, *command, *more, name)
    assert found["where"] == "IMAGE"
    assert sorted(world.rglob("*")) == before


@pytest.mark.parametrize("command", [["logs", "../x"], ["logs", "a/b"]])
def test_what_is_no_name_of_an_instance_becomes_no_path(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert refusal(capsys, *command)["where"] == "INSTANCE"


def test_one_document_is_not_followed(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "logs", "nvllm-demo-eager", "--follow")["where"] == "--follow"


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
def test_a_number_that_json_lacks(capsys: pytest.CaptureFixture[str], number: str) -> None:
    for option in ("--confidence", "--build-price"):
        assert option in refusal(capsys, "bisect", "start", "demo", f"{option}={number}")["found"]
    assert refusal(capsys, "bless", "demo", "--profile", "eager", f"--claim={number}")["where"] == "--claim"


def test_a_load_of_more_tokens_than_a_request_of_the_profile_may_have(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = world / "project/images/demo.yaml"
    text = spec.read_text()
    assert text.count("max-model-len: ") == 1
    length = int(text.partition("max-model-len: ")[2].split()[0].rstrip(",}"))
    wrong = refusal(capsys, "bench", "demo", "--profile", "eager", "--prompt-len", str(length), "--output-len", "1")
    assert wrong["expected"] == f"at most {length} tokens together, the max-model-len of profile eager"
    assert wrong["found"] == f"{length} and 1"
    assert wrong["cure"] == f"--prompt-len {length // 2} --output-len {length // 2}"
