"""A shell as a new machine has it: no apt lists, a HOME with a space, a dumb terminal, locale C, umask 077, no input.

`make test-bare` makes a whole machine of that kind. This is what every run of the tests can ask.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.engine_world import IMAGE, ROOT, Done, run

pytestmark = pytest.mark.engine

KEPT = ("PATH", "DOCKER_HOST", "SSL_CERT_FILE")
"""What of the environment stays: where programs, the engine and certificates are, as a new machine has them too."""


class Shell:
    """A new shell, whose home is below DIRECTORY."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "a home"
        self.home.mkdir(mode=0o700)
        lists = directory / "lists"
        (lists / "partial").mkdir(parents=True)
        apt = directory / "apt.conf"
        apt.write_text(f'Dir::State::lists "{lists}";\n')
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.env = {**kept, "HOME": str(self.home), "TERM": "dumb", "LANG": "C", "APT_CONFIG": str(apt)}

    def nvllm(self, *args: str) -> Done:
        argv = [sys.executable, "-m", "nvllm", "--project", str(ROOT), *args]
        done = run(argv, self.env, umask=0o077, start_new_session=True)
        assert "Traceback" not in done.err, done
        assert "\x1b" not in done.out + done.err, done
        return done


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_apt_has_no_list_there(shell: Shell) -> None:
    """Or nothing here would be shown."""
    if shutil.which("apt-get") is None:  # a host without apt has none anyhow
        return
    said = subprocess.run(["apt-get", "indextargets"], env=shell.env, capture_output=True, text=True, check=True)
    assert said.stdout == ""


def test_what_would_be_built(shell: Shell) -> None:
    done = shell.nvllm("build", IMAGE, "--dry-run", "--json")
    usual = run(
        [sys.executable, "-m", "nvllm", "--project", str(ROOT), "build", IMAGE, "--dry-run", "--json"], os.environ
    )
    assert done.result["build_hash"] == usual.result["build_hash"]
    assert shell.nvllm("build", IMAGE, "--dry-run").code == 0


def test_the_patches(shell: Shell) -> None:
    done = shell.nvllm("patch", "list")
    assert done.code == 0, done
    assert "aot-load-guard" in done.out


def test_the_doctor(shell: Shell) -> None:
    done = shell.nvllm("doctor")
    assert done.code == 0, done


def test_what_it_wrote_is_its_own_alone(shell: Shell) -> None:
    for args in (("build", IMAGE, "--dry-run"), ("patch", "list"), ("doctor",), ("status",)):
        assert shell.nvllm(*args).code == 0
    for path in shell.home.rglob("*"):
        assert path.lstat().st_mode & 0o077 == 0 or path.is_symlink(), path
