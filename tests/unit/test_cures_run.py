"""Every cure that is a command is run where it works; `support/cured.py` says in which world, and up to where."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core.progress import Silent
from nvllm.layers import oci, tarlayer
from support import cured, cures, readme


def commands() -> list[str]:
    """Return the commands of all cures, one by one; to find them takes a second."""
    return sorted(
        {part.strip() for one in cures.written() if one.is_command for part in re.split("&&|;|\\|\\|", one.text)}
    )


def _program(line: str) -> str:
    words = line.split()
    return words[1] if words[0] == "sudo" else words[0]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Stand in a copy of the packaged project, with a made model, a bisect whose probe was changed, and an SSH key."""
    root = readme.project(tmp_path / "project")
    monkeypatch.chdir(root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    probe = root / "probe.sh"
    probe.write_text("#!/bin/sh\n")
    probe.chmod(0o755)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"], check=True)
    for line in ("model make cpu tiny-lfm2", "bisect start cpu --build-only --test ./probe.sh"):
        assert main(["--platform", "linux/amd64", *line.split()]) == 0, capsys.readouterr().err
    capsys.readouterr()
    probe.write_text("#!/bin/sh\n# another probe than the bisect began with\n")
    layer = tarlayer.write("top", [tarlayer.blob("opt/a", b"a")], epoch=1, path=tmp_path / "top.tar", progress=Silent())
    built = oci.assemble([layer], platform="linux/amd64", epoch=1, entrypoint=["x"], environment={}, labels={})
    for name in ("first", "second"):  # two builds that `nvllm build --check` compared and kept
        oci.write_layout(built, "cpu", root / "kept" / name)
    return root


def test_every_command_of_a_cure_has_a_row() -> None:
    lines = commands()
    assert [*cured.NVLLM] == [line for line in lines if line.startswith("nvllm ")]
    other = [line for line in lines if not line.startswith("nvllm ") and line.removeprefix("sudo ") != cures.SAMPLE]
    looked_at = [line for line in other if _program(line) in cured.STAND_INS]
    rows = {*cured.FILES, *cured.CHECKED_BY_NAME}
    assert [line for line in other if line not in {*rows, *looked_at}] == []
    assert sorted(rows - {*other}) == []


def test_a_command_has_no_place_for_a_word_of_the_reader() -> None:
    """IMAGE or REPO in a line that is pasted is a name. Such a line stands behind words that say what to do."""
    assert [line for line in commands() if re.search(r"(?<=\s)(?!HEAD)[A-Z]+(?=\s|$)", line)] == []


def test_every_line_of_nvllm_works(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {}
    for written, (line, short) in cured.NVLLM.items():
        capsys.readouterr()
        status = main(["--json", "--offline", "--platform", "linux/amd64", *shlex.split(line)[1:]])
        document = json.loads(capsys.readouterr().out)
        codes = {one["code"] for one in document.get("refusals", [])}
        if not codes <= short or (status != 0) != bool(codes):
            wrong[written] = [(one["code"], one["found"]) for one in document.get("refusals", [])]
    assert wrong == {}


def test_every_line_of_a_program_of_the_host_works(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("one\ntwo\n")
    (tmp_path / "mails").write_text("From nobody Mon Sep 17 00:00:00 2001\nSubject: a\n\nbody\n")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path), "PAGER": "cat"}
    made = (
        "git init -q repository && cd repository && git config user.name a && git config user.email a@b.example"
        " && touch file && git add file && git commit -qm a && echo changed > file"
    )
    wrong = {}
    for line in (made, *cured.FILES.values()):
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode != 0:
            wrong[line] = done.stderr
    assert wrong == {}
