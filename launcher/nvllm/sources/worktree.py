"""A git work tree that nvllm makes: its commits, with nothing of the user's configuration of git in them."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvllm.core import proc
from nvllm.core.refusal import Refused, refuse

_SECONDS = 600.0
"""Seconds for one command of git. The first ones check in the 5,000 files of vLLM's source."""

_WHO = "nvllm"
# The user's own configuration must neither change bytes of files nor ask for a key, nor run hooks.
_PLAIN = ("-c", "core.autocrlf=false", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null")


@dataclass(frozen=True, slots=True)
class WorkTree:
    """The git work tree in DIRECTORY."""

    directory: Path

    @property
    def git_directory(self) -> Path:
        return self.directory / ".git"

    def create(self) -> None:
        """Make a repository of DIRECTORY. Git then keeps every byte of its files. Raises Refused NV610, or NV512."""
        # --template=: nothing of the host's is copied into it, such as hooks and patterns of ignored files.
        self.git("init", "--quiet", "--initial-branch=patches", "--template=")
        (self.git_directory / "info").mkdir(exist_ok=True)
        (self.git_directory / "info/attributes").write_text("* -text\n", encoding="ascii")

    def commit(self, paths: Sequence[str], message: str, epoch: int) -> str:
        """Commit what lies at PATHS, ignored files too, at EPOCH, seconds since 1970, and return the commit."""
        self.git("add", "--all", "--force", "--", *paths)
        when = {f"GIT_{who}_DATE": f"{epoch} +0000" for who in ("AUTHOR", "COMMITTER")}
        self.git("commit", "--quiet", "--allow-empty", "--file=-", stdin=message.encode(), extra=when)
        return self.head()

    def head(self) -> str:
        """Return the commit that is checked out."""
        return self.git("rev-parse", "HEAD").decode().strip()

    def uncommitted(self) -> Sequence[str]:
        """Return the paths of files that are changed, or new and not ignored, since the last commit."""
        lines = self.git("-c", "core.quotePath=false", "status", "--porcelain").decode(errors="replace").splitlines()
        return [line[3:] for line in lines]

    def merges(self, base: str) -> Sequence[str]:
        """Return the merges among the commits after BASE."""
        return self.git("rev-list", "--merges", f"{base}..HEAD").decode().split()

    def changed(self, base: str) -> Sequence[str]:
        """Return the paths of files that differ from the commit BASE, as they stand, with new ones."""
        plain = ("-c", "core.quotePath=false")
        tracked = self.git(*plain, "diff", "--name-only", "--no-renames", base).decode(errors="replace").splitlines()
        new = self.git(*plain, "ls-files", "--others", "--exclude-standard").decode(errors="replace").splitlines()
        return sorted({*tracked, *new})

    def in_commit(self, commit: str, paths: Sequence[str]) -> Sequence[str]:
        """Return those of PATHS that COMMIT has."""
        names = self.git("ls-tree", "-r", "-z", "--name-only", commit, "--", *paths) if paths else b""
        return names.decode(errors="replace").split("\0")

    def git(self, *arguments: str, stdin: bytes = b"", extra: Mapping[str, str] | None = None) -> bytes:
        """Run git with ARGUMENTS in the work tree and return what it prints.

        Raises Refused NV610 with the first line of its errors if it fails, and NV512 if there is no git.
        """
        argv = [proc.require("git", "git"), *_PLAIN, "-C", str(self.directory), *arguments]
        own = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0"}
        who = {f"GIT_{part}_{what}": _WHO for part in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        try:
            done = proc.run(argv, env=proc.environment({**own, **who, **(extra or {})}), timeout=_SECONDS, stdin=stdin)
        except subprocess.TimeoutExpired:
            raise self._failed(arguments, f"no answer in {_SECONDS:.0f} s") from None
        if done.returncode == 0:
            return done.stdout
        lines = done.stderr.decode(errors="backslashreplace").strip().splitlines()
        raise self._failed(arguments, lines[0] if lines else f"exit status {done.returncode}")

    def _failed(self, arguments: Sequence[str], problem: str) -> Refused:
        cure = f"see what git says there: {shlex.join(['git', '-C', str(self.directory), 'status'])}"
        return refuse("NV610", str(self.directory), f"git {arguments[0]} in a work tree", problem, cure)
