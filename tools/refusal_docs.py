"""Writes ``docs/refusals.md`` from the catalogue: ``make docs``.

The page is committed, so that it can be read where the code is read; a test compares it with this function.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nvllm.core.catalogue import CODES, RefusalKind

_SECTIONS = {
    "1": "What people write: spec, series, command line",
    "2": "Lock and fetch",
    "3": "Patches and images",
    "4": "Models",
    "5": "The host",
    "6": "Profiles",
    "7": "The started container",
    "8": "Bisecting",
    "9": "Blessing",
}

_ENDINGS: dict[RefusalKind, str] = {"usage": "2, usage", "refused": "3, refused", "failed": "1, failed"}

_HEAD = """\
# The refusals of nvllm

Generated from `launcher/nvllm/core/catalogue.py` by `make docs`; do not edit.

When nvllm will not go on, it says so once for everything that it found. Each refusal has a code that never
changes its meaning, says where, what was expected, what was found, and the one thing that cures it. With
`--json` the same goes to stdout, by `docs/schemas/output.schema.json`. If several are shown together,
the exit code is 3 if anything was refused, else 2, else 1. Each code has a test that provokes it for real,
`tests/refusals/test_<code>.py`.
"""


def render() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for digit, heading in _SECTIONS.items():
        rows = [
            f"| {code} | {entry.title} | {_ENDINGS[entry.kind]} | {entry.meaning.replace('|', chr(92) + '|')} |\n"
            for code, entry in sorted(CODES.items())
            if code[2] == digit
        ]
        parts.append(f"\n## {heading}\n\n| code | title | exit | meaning |\n| --- | --- | --- | --- |\n{''.join(rows)}")
    return "".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
