"""A program `ssh` that is none: it runs the command on this machine, as a host with a HOME and a PATH of its own.

It stands for ssh where a test is about the two ends of the pipe; `tests/fleet/test_ssh.py` has OpenSSH and sshd.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from nvllm import __version__
from nvllm.fleet import tasks
from nvllm.fleet.tasks import HelloAnswer
from support.task_samples import HOST

_SSH = """#!/bin/sh
while [ "$1" != "${1#-}" ]; do
  case $1 in -o) shift 2;; *) shift;; esac
done
home=HOSTS/${1#ssh://}
if [ ! -d "$home" ]; then
  echo "ssh: Could not resolve hostname ${1#ssh://}" >&2
  exit 255
fi
cd "$home" && HOME=$home NVLLM_HOME=$home PATH=$home/bin:$PATH exec sh -c "exec $2"
"""

HELLO = tasks.answer_line(HelloAnswer(__version__, HOST)).decode().strip()
SAYS_HELLO = f"echo {shlex.quote(HELLO)}"
READS = "read -r task"


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts that the stand-in reaches: each is a directory below DIRECTORY."""

    directory: Path

    @property
    def bin(self) -> Path:
        """The directory of the stand-in, for the PATH."""
        return self.directory / "bin"

    def install(self) -> None:
        self.bin.mkdir(parents=True)
        _program(self.bin / "ssh", _SSH.replace("HOSTS", shlex.quote(str(self.directory / "hosts"))))

    def add(self, name: str, *lines: str) -> Path:
        """Add a host called NAME, whose `nvllm` is a shell script of LINES; return its home."""
        home = self.directory / "hosts" / name
        (home / "bin").mkdir(parents=True, exist_ok=True)
        _program(home / "bin/nvllm", "\n".join(["#!/bin/sh", *lines, ""]))
        return home


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
