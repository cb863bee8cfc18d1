"""Completion: what the shell is offered for a half-written command line, as click asks for it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nvllm.cli.frame import COMPLETE_VARIABLE
from nvllm.cli.main import main
from support.plansamples import project

Offers = Callable[[str], list[str]]


@pytest.fixture
def offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offers:
    """Returns what is offered for a line of words whose last one is not complete, in a project with the image demo."""
    root = project(tmp_path).root
    monkeypatch.chdir(root)
    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")

    def ask(line: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        assert main([]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return [row.partition(",")[2] for row in out.split()]

    return ask


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nvllm comp", ["completion"]),
        ("nvllm build ", ["demo"]),
        ("nvllm build x", []),
        ("nvllm serve demo --profile ea", ["eager"]),
        ("nvllm serve --profile ea", ["eager"]),
        ("nvllm serve other --profile ea", ["eager"]),
        ("nvllm patch list --series v", ["v1"]),
        ("nvllm patch refresh fi", ["first"]),
        ("nvllm explain nv10", [f"NV10{digit}" for digit in range(1, 10)]),
    ],
)
def test_what_is_offered(offers: Offers, line: str, expected: list[str]) -> None:
    assert offers(line) == expected


@pytest.mark.parametrize("text", ["", "- a list\n", "profiles: [\n", "profiles: 3\npatches: 3\n", "\0"])
def test_a_file_that_cannot_be_read_offers_nothing(offers: Offers, text: str) -> None:
    for path in (Path("images/demo.yaml"), Path("patches/v1/series.yaml")):
        path.write_text(text)
    assert offers("nvllm serve demo --profile ") == []
    assert offers("nvllm patch refresh ") == []


@pytest.mark.parametrize("rest", ["build ", "serve demo --profile ", "patch refresh ", "patch list --series "])
def test_where_no_project_is_nothing_is_offered(offers: Offers, tmp_path: Path, rest: str) -> None:
    (tmp_path / "none").mkdir()
    assert offers(f"nvllm --project {tmp_path}/none {rest}") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_nvllm(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETE_VARIABLE}={shell}_complete" in script
    if found := shutil.which(shell):
        done = subprocess.run([found, "-n"], input=script, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
