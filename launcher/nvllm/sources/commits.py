"""Commits as git says them: the one that a release is tagged at, and those that a checkout has on top of it."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvllm.core import proc
from nvllm.core.refusal import refuse
from nvllm.sources import gitsource

REPOSITORY = "vllm-project/vllm"
"""Where vLLM's releases are tagged."""

_HEX = re.compile(r"[0-9a-f]{40}")
_SECONDS = 60.0
"""Seconds that git, and a host that it asks, may take for one answer."""


def tagged(version: str, env: Mapping[str, str]) -> str | None:
    """Return the commit of the tag of VERSION in vLLM's repository, None if nobody answers or it has no such tag."""
    try:
        done = proc.run(_ask(version, env), env=_environment(), timeout=_SECONDS)
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return None
    return commit_in(done.stdout, version)


def commit_in(refs: bytes, version: str) -> str | None:
    """Return the commit of the tag of VERSION in REFS, the output of ``git ls-remote``, None if it is not in it."""
    lines = (line.partition("\t") for line in refs.decode(errors="replace").splitlines())
    commits = {name: commit for commit, _, name in lines}
    # An annotated tag has an id of its own; what it points at stands under its name with ^{}.
    commit = commits.get(f"refs/tags/v{version}^{{}}") or commits.get(f"refs/tags/v{version}")
    return commit if commit is not None and _HEX.fullmatch(commit) else None


def command(version: str, env: Mapping[str, str]) -> str:
    """Return, for a shell, the command that prints the commit of the tag of VERSION."""
    return shlex.join(_ask(version, env))


def _ask(version: str, env: Mapping[str, str]) -> tuple[str, ...]:
    return ("git", "ls-remote", gitsource.url(REPOSITORY, env), f"refs/tags/v{version}*")


def of_checkout(checkout: Path, names: Sequence[str]) -> str | None:
    """Return the commit that the first known one of NAMES, tags or beginnings of ids, stands for in CHECKOUT.

    Raises Refused NV108 if CHECKOUT is no checkout of git.
    """
    _git(checkout, "rev-parse", "--git-dir", where=f"--from-branch {checkout}", expected="a checkout of git")
    for name in names:  # a user's words: --end-of-options, or one that begins with a dash would be an option
        done = _run(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        commit = done.stdout.decode(errors="replace").strip()
        if done.returncode == 0 and _HEX.fullmatch(commit):
            return commit
    return None


def mails(checkout: Path, base: str, where: str) -> bytes:
    """Return the commits of CHECKOUT after the commit BASE, oldest first, as `git format-patch` writes them.

    Merges are left out. Raises Refused NV108 for WHERE if HEAD does not descend from BASE.
    """
    ancestor = ("merge-base", "--is-ancestor", base, "HEAD")
    _git(checkout, *ancestor, where=where, expected=f"commits on top of {base}")
    # Every option that a user's git may be told to set otherwise: the mails are read again, by one form.
    forms = ("--stdout", "--keep-subject", "--no-cover-letter", "--no-attach", "--no-signature", "--no-notes")
    plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3")
    words = ("format-patch", *forms, "--no-base", *plain, f"{base}..HEAD")
    return _git(checkout, *words, where=where, expected="commits that git can show")


def _git(checkout: Path, *arguments: str, where: str, expected: str) -> bytes:
    done = _run(checkout, *arguments)
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.decode(errors="backslashreplace").strip().splitlines()
    problem = lines[-1] if lines else f"`{shlex.join(done.args)}` ends with exit status {done.returncode}"
    cure = shlex.join(["git", "-C", str(checkout), "log", "--oneline"])
    raise refuse("NV108", where, expected, problem, cure)


def _run(checkout: Path, *arguments: str) -> proc.Completed:
    argv = [proc.require("git", "git"), "-C", str(checkout), *arguments]
    try:
        return proc.run(argv, env=_environment(), timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        problem, cure = f"no answer in {_SECONDS:.0f} s", "name a branch with fewer commits after the release"
        raise refuse("NV108", f"--from-branch {checkout}", "an answer of git", problem, cure) from None


def _environment() -> dict[str, str]:
    return proc.environment({"GIT_TERMINAL_PROMPT": "0"})  # or git would ask for a password, and wait
