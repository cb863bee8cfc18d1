"""The three-way merge of one file by git."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from nvllm.core import proc
from nvllm.core.refusal import refuse
from nvllm.port.merge import Merged

_SECONDS = 60.0
"""One file is merged in milliseconds. This ends a git that waits, such as for a file system that is gone."""
_MOST = 127
"""`git merge-file` ends with the number of conflicts, at most 127; with a larger status it did not merge."""


def merge(new: bytes, old: bytes, patched: bytes) -> Merged:
    """Merge into the NEW file what was changed from the OLD file to PATCHED, the old file with a patch.

    Raises Refused NV512 if there is no git that knows zdiff3 (2.35, of 2022).
    """
    git = proc.require("git", "git")
    with tempfile.TemporaryDirectory(prefix="nvllm-port-") as name:
        paths = [Path(name, part) for part in ("new", "old", "patched")]
        for path, content in zip(paths, (new, old, patched), strict=True):
            path.write_bytes(content)
        labels = [word for label in ("the new source", "the old source", "the patch") for word in ("-L", label)]
        # zdiff3 shows the old lines too, and keeps what both sides have in common at the ends out of the conflict.
        argv = [git, "merge-file", "-p", "--zdiff3", *labels, *map(str, paths)]
        try:
            done = proc.run(argv, env=proc.environment({"GIT_CONFIG_NOSYSTEM": "1"}), timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise refuse("NV512", "git merge-file", "a merge", f"no answer in {_SECONDS:.0f} s", "try again") from None
    if done.returncode > _MOST or done.returncode < 0:
        lines = done.stderr.decode(errors="backslashreplace").strip().splitlines()
        answer = lines[0] if lines else f"exit status {done.returncode}"
        raise refuse("NV512", "git merge-file", "git 2.35 or newer", answer, "apt-get install git")
    return Merged(done.stdout, done.returncode)
