"""What is asked of a commit and of a release: subjects, the release check, the matrix of interpreters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PARTS = (
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "Dockerfile",
    "nvllm.yaml",
    ".gitignore",
    "images",
    "manifests",
    "patches",
    "launcher",
    "docs",
    "tools",
)
"""What a wheel is built from, and what the release check reads."""


def git(directory: Path, *argv: str) -> None:
    names = ["-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, *argv], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Anything, from before there was a rule")
    return tmp_path


# Subjects


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("cache: a revoked tree is not served", ""),
        ("docs: " + "x" * 66, ""),
        ("Merge: two branches of a very long story that nobody wants to have in one line of 72", ""),
        ("docs: " + "x" * 67, "73 characters, and 72 are allowed: docs: " + "x" * 67),
        ("The cache is not served", "not `room: what`: The cache is not served"),
        ("Cache: is not served", "not `room: what`: Cache: is not served"),
        ("cache:  is not served", "not `room: what`: cache:  is not served"),
    ],
)
def test_a_subject_is_a_room_and_what(repository: Path, subject: str, said: str) -> None:
    message = repository / "message"
    message.write_text(f"\n{subject}\n\nA body of any length, which says why and is not read by this.\n# a comment\n")
    git(repository, "commit", "-q", "--allow-empty", "-F", str(message))
    for argv in (["--message", str(message)], ["HEAD~1"]):
        done = subprocess.run(
            [ROOT / "tools/subjects.sh", *argv], cwd=repository, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr.rstrip("\n")) == (int(bool(said)), said)


def test_a_hook_checks_the_message() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert "commit-msg" in config["default_install_hook_types"]
    (hook,) = (one for one in config["repos"][0]["hooks"] if one.get("stages") == ["commit-msg"])
    assert hook["entry"] == "tools/subjects.sh --message"


# Release


def release_check(directory: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DOCKER_HOST": f"unix://{directory}/none"}
    argv = ["tools/release-check.sh", "--offline"]
    return subprocess.run(argv, cwd=directory, env=env, capture_output=True, text=True, check=False)


def recorded(repository: Path) -> None:
    """Commit a row for each suite, as if each had been run on the commit of REPOSITORY."""
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.strip()
    with (repository / "docs/records.md").open("a") as page:
        for suite in ("long", "engines", "fleet", "gpu", "matrix", "fuzz"):
            page.write(f"| `{suite}` | 2026-01-01 | `{head}` | a machine | 1 | 0 | 0 | 1 s |\n")
    git(repository, "commit", "-q", "-a", "-m", "docs: records")


@pytest.mark.thorough
def test_a_release_is_built_installed_and_run(repository: Path) -> None:
    for name in PARTS:
        copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copied(ROOT / name, repository / name)
    (repository / ".venv").symlink_to(sys.prefix)
    (repository / ".git/info").mkdir(exist_ok=True)
    (repository / ".git/info/exclude").write_text(".venv\n")
    assert "the tree is not clean" in release_check(repository).stderr
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "release: this one")
    assert "a suite that the CI never runs was not run" in release_check(repository).stderr
    recorded(repository)
    done = release_check(repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok: installed: --version, patch list, doctor (exit status 3) and the manual page" in done.stdout
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    git(repository, "tag", f"v{version}", "HEAD~1")
    assert f"the tag v{version} is on another commit" in release_check(repository).stderr
    git(repository, "tag", "--force", f"v{version}")
    assert f"the tag v{version} has no signature" in release_check(repository).stderr
    key = repository.parent / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signers = repository.parent / "signers"
    signers.write_text(f"* {key.with_suffix('.pub').read_text()}")
    git(repository, "config", "gpg.format", "ssh")
    git(repository, "config", "user.signingkey", str(key))
    git(repository, "config", "gpg.ssh.allowedSignersFile", str(signers))
    git(repository, "tag", "--force", "-s", "-m", "this one", f"v{version}")
    done = release_check(repository)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_changelog_has_every_version_newest_first() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)", text, re.MULTILINE)
    versions = [tuple(map(int, one.split("."))) for one in headings[1:]]
    assert headings[0] == "Unreleased"
    assert versions == sorted(versions, reverse=True)
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert {*kinds} <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_matrix_is_that_of_the_supported_versions() -> None:
    text = (ROOT / "tools/matrix.sh").read_text(encoding="utf-8")
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    (versions,) = re.findall(r"set -- (3[\d. ]+)$", text, re.MULTILINE)
    assert requires == f">={versions.split()[0]}"


def test_the_matrix_says_which_interpreter_could_not_be_had(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "env", "id", "head"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    (programs / "apt-get").chmod(0o755)
    env = {"HOME": str(tmp_path), "PATH": str(programs)}
    done = subprocess.run(
        [ROOT / "tools/matrix.sh", "3.99"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "3.99  not run: no interpreter, as said above\n"
    assert "matrix: Debian: " in done.stderr
    assert done.returncode == 0
