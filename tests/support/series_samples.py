"""A small series on disk, for tests of what reads and writes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from nvllm.patches import seriesfile, unified
from nvllm.patches.series import Series
from nvllm.patches.unified import Diff, FileDiff

SHOWN = "patches/v1"

HEADER = """\
# A comment that must stay.
schema: nvllm.series/1
base: v1
version: 1.2.3
commit: 2cf0a6915ce544dc493a0990f2ea38d81601128a

patches:
"""

SOURCE = {
    "vllm/one.py": b"".join(b"one %d\n" % n for n in range(1, 41)),
    "vllm/two.py": b"".join(b"two %d\n" % n for n in range(1, 41)),
    "tests/test_one.py": b"def test():\n    assert 1\n",
}


class MappingTree:
    """A source tree in memory; None stands for a file that does not exist."""

    def __init__(self, files: Mapping[str, bytes | None]) -> None:
        self._files = files

    def read(self, path: str) -> bytes | None:
        return self._files.get(path)


def unproved(series: Series, root: Path) -> tuple[tuple[str, str], ...]:
    """Return (patch id, test node id) for each test of SERIES that is not defined below ROOT."""
    return tuple(
        (patch.id, node) for patch in series.patches for node in patch.proved_by if not seriesfile.defined(root, node)
    )


def changed(**edits: tuple[bytes, bytes]) -> dict[str, bytes]:
    """Return SOURCE with (old, new) replaced in vllm/NAME.py for each NAME."""
    files = dict(SOURCE)
    for name, (old, new) in edits.items():
        path = f"vllm/{name}.py"
        assert files[path].count(old) == 1
        files[path] = files[path].replace(old, new)
    return files


def old_side(diff: Diff) -> dict[str, bytes | None]:
    """Return the files that DIFF changes: its hunks stand at their lines, with filling between; None for a new file."""
    return {file.path: _old_text(file) if file.old is not None else None for file in diff.files}


def _old_text(file: FileDiff) -> bytes:
    lines: list[bytes] = []
    for hunk in file.hunks:
        lines += [b"# filling\n"] * (hunk.position - len(lines))
        lines += hunk.old
    return b"".join(lines)


def patch_text(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bytes:
    """Return the diff between two mappings of files."""
    files = [
        unified.FileDiff(
            path if path in before else None,
            path if path in after else None,
            unified.hunks(before.get(path, b""), after.get(path, b"")),
        )
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    return unified.render(unified.Diff("sample", tuple(files)))


def entry(directory: Path, number: int, patch_id: str, text: bytes, extra: str = "") -> str:
    """Write the patch file of a carried patch and return its entry of the series."""
    file = f"{number:04}-{patch_id}.patch"
    (directory / file).write_bytes(text)
    touches = ", ".join(unified.parse(text, file).paths)
    return f"""\
  - id: {patch_id}
    status: carried
    file: {file}
    sha256: {hashlib.sha256(text).hexdigest()}
    summary: Changes {touches}
    upstream: {{state: none}}
    touches: [{touches}]
    proved-by: [tests/unit/test_x.py::test_x]
{extra}"""


def series_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "patches" / "v1"
    directory.mkdir(parents=True)
    return directory


def write(directory: Path, *entries: str) -> Path:
    """Write the series of ENTRIES and return its directory."""
    (directory / "series.yaml").write_text(HEADER + "\n".join(entries))
    return directory


def write_tree(root: Path, files: Mapping[str, bytes]) -> Path:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


ONE = (b"one 20\n", b"one twenty\n")
TWO = (b"two 20\n", b"two twenty\n")


def two_patches(tmp_path: Path) -> Path:
    """Write a series of patches `first` (vllm/one.py) and `second` (vllm/two.py, requires `first`)."""
    directory = series_directory(tmp_path)
    return write(
        directory,
        entry(directory, 1, "first", patch_text(SOURCE, changed(one=ONE))),
        entry(directory, 2, "second", patch_text(SOURCE, changed(two=TWO)), "    requires: [first]\n"),
    )
