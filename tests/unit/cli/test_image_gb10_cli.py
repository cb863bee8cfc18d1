"""Image `gb10` on the command line: the plan is printed anywhere; without the hardware all is refused at once.

The host is bare: no lock, no model, no program of NVIDIA's. The engine is a site on loopback that answers what an idle
engine answers to questions and nothing to an order, so that it shows whether one came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvllm.cli.main import main
from support.loopback import Page, Site, serving

ROOT = Path(__file__).parents[3]
LOWER8 = ["serve", "gb10", "--profile", "lower8", "--platform", "linux/amd64"]
ANSWERS: dict[str, Any] = {
    "/version": {"ApiVersion": "1.41"},
    "/v1.41/version": {"ApiVersion": "1.41", "Version": "28.0.4"},
    "/v1.41/info": {"Driver": "overlay2"},
    "/v1.41/networks/bridge": {"Options": {}},
    "/v1.41/containers/json?limit=-1&all=1&size=0&trunc_cmd=0": [],
}
MISSING = {
    "NV108": "linux/amd64",  # a host that the image is not for
    "NV201": "no file",
    "NV302": "no such image",
    "NV401": "no revision of it",
    "NV501": "none",
    "NV504": "no nvidia-ctk on PATH",
    "NV516": "no such run",
    "NV901": "no lock of all its models, so the serve hash is not known",
}
"""What is found in the place of each thing that is not there."""

OF_THE_HOST = {"NV505", "NV507"}
"""Memory, and who listens on the profile's port: the host's own affair."""


@pytest.fixture
def engine() -> Iterator[Site]:
    with serving() as site:
        site.pages["/v1.41/_ping"] = Page(b"OK")
        for path, answer in ANSWERS.items():
            site.pages[path] = Page(json.dumps(answer).encode(), content_type="application/json")
        unknown = json.dumps({"message": "No such image: nvllm:gb10"}).encode()
        site.pages["/v1.41/images/nvllm:gb10/json"] = Page(unknown, 404, content_type="application/json")
        yield site


@pytest.fixture
def home(tmp_path: Path, engine: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with nothing on it but an idle engine, and the project without locks of gb10."""
    project = tmp_path / "project"
    (project / "manifests").mkdir(parents=True)
    for name in ("images", "patches"):
        (project / name).symlink_to(ROOT / name)
    monkeypatch.chdir(project)
    for name, value in {
        "DOCKER_HOST": engine.url.replace("http:", "tcp:"),
        "PATH": str(tmp_path),
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "NVLLM_HOME": str(tmp_path / "home"),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "home"


def found(refusals: list[dict[str, str]]) -> dict[str, str]:
    return {one["code"]: one["found"] for one in refusals if one["code"] not in OF_THE_HOST}


def nothing_was_started(home: Path, engine: Site) -> None:
    """No order came to the engine, which would have been refused as a crash, and no instance was made ready."""
    assert "/v1.41/containers/json?limit=-1&all=1&size=0&trunc_cmd=0" in [path for path, *_ in engine.served]
    assert [path.name for path in home.glob("state/*") if path.name in {"runs", "staged", "projects", "crashes"}] == []


def test_a_dry_run_prints_the_plan_and_all_that_is_missing(
    home: Path, engine: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*LOWER8, "--dry-run"]) == 3
    printed = capsys.readouterr()
    assert "nvllm-gb10-lower8" in printed.out
    assert "vllm serve /models/qwen35-27b-nvfp4" in printed.out
    assert "CUTE_PHASE_E_LAYERS=0,1,2,3,4,5,6,7" in printed.out
    codes = [line.split()[0] for line in printed.err.splitlines() if line.startswith("NV")]
    assert [code for code in codes if code not in OF_THE_HOST] == sorted(MISSING)
    assert f"{len(codes)} refusals" in printed.err
    nothing_was_started(home, engine)


def test_a_dry_run_as_json_is_one_document_with_both(
    home: Path, engine: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*LOWER8, "--dry-run", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert found(document["refusals"]) == MISSING
    plan = document["result"]
    assert (plan["instance"], plan["serve_hash"], plan["dev"]) == ("nvllm-gb10-lower8", "", False)
    assert "/models/qwen35-27b-nvfp4" in plan["command"]
    assert plan["environment"]["CUTE_PHASE_E_FUSION"] == "1"
    nothing_was_started(home, engine)


@pytest.mark.parametrize("way", [[], ["--detach"]])
def test_a_serve_refuses_with_all_of_it_and_starts_nothing(
    home: Path, engine: Site, capsys: pytest.CaptureFixture[str], way: list[str]
) -> None:
    assert main([*LOWER8, *way, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert found(document["refusals"]) == MISSING
    assert "result" not in document
    nothing_was_started(home, engine)


RUNBOOK = {
    found[1]: set(re.findall(r"NV\d+", found[2]))
    for found in re.finditer(
        r"^\| \d+ \| `nvllm ([^`]+)` \| ([^|]+) \|", (ROOT / "docs/gb10.md").read_text(), re.MULTILINE
    )
}
"""The commands of the page, and the refusals that it names for a host with nothing."""


@pytest.mark.parametrize("command", RUNBOOK)
def test_each_command_of_the_runbook_ends_where_the_page_says(
    command: str, home: Path, engine: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a network. What the page sums up as `what the host lacks` are the host's own refusals."""
    words = command.split()
    codes = {one["code"] for one in refusals([*words, "--platform", "linux/arm64", "--offline"], capsys)}
    assert codes >= RUNBOOK[command]
    extra = set(MISSING) | OF_THE_HOST if words[0] in {"serve", "doctor"} else set()
    assert codes <= RUNBOOK[command] | extra
    assert len(RUNBOOK) == 10


def refusals(argv: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """Run nvllm with ARGV and return its refusals: it must not succeed, and not crash."""
    assert main([*argv, "--json"]) in {1, 2, 3}
    document: list[dict[str, str]] = json.loads(capsys.readouterr().out)["refusals"]
    return document
