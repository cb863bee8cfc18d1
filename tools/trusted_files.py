"""Writes ``docs/trusted-files.md`` from the table that a test walks: ``make docs``.

The page is committed; a test compares it with this function.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.trusted_table import CONDITIONS, GOOD, ROWS

_HEAD = f"""\
# Trusted files

Generated from `tests/support/trusted_table.py` by `make docs`; do not edit.

nvllm believes these files and directories. `tests/unit/test_trusted_files.py` puts each one in each of these conditions
and asks nvllm, as a user who is not root. A code is the refusal that it answers; *{GOOD}* means that it goes on.

- A name is *absent* only in a real directory that no other user can write. So a file, a link to nothing, a link to an
  empty directory or a loop in the place of a directory never means that there is nothing in it.
- *Other kind* is a file in the place of a directory, or a directory in the place of a file. *Torn* is a file cut in
  half; of a directory, its largest file.
- In a project, a file may be group-writable, because git makes such files with umask 002, and may belong to the owner
  of the project. In the state directory it may not.
- A revocation that is absent both in the project and on this host cannot be known. While it is there, every command
  that looks a blessing up copies it from the project into the memory of this host.
- The store of caches may belong to anybody, because `serve` hashes what it copies from there. So may recorded digests
  and the lock of an image: whoever can write the project can write them. The state of an instance is only shown.
- A pin keeps what a living process needs from `nvllm gc`. *Not kept* is a pin that was removed, or replaced by a file
  that no process holds: only this user and root can do that.
- Allowed signers are asked for a profile that demands a signature, and must be a file that only root and this user can
  write, wherever it lies.

"""


def render() -> str:
    """Return the whole page."""
    head = ["trusted", *CONDITIONS]
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join([row.name, *(row.answers[condition] for condition in CONDITIONS)]) for row in ROWS]
    return _HEAD + "".join(f"| {line} |\n" for line in lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
