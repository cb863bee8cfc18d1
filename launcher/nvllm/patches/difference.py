"""Making diffs: from two versions of a file to hunks, and from a diff to its text.

The text depends on nothing but the two versions: no dates, no object ids, no version of git.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

from nvllm.patches.unified import Diff, FileDiff, Hunk

CONTEXT = 3


def lines(data: bytes) -> list[bytes]:
    """Return DATA's lines with their newlines. Only LF ends a line: a CR is part of its text."""
    found = [line + b"\n" for line in data.split(b"\n")]
    last = found.pop()[:-1]
    return [*found, last] if last else found


def hunks(old: bytes, new: bytes) -> tuple[Hunk, ...]:
    """Return what makes NEW of OLD, with three lines of context."""
    before, after = lines(old), lines(new)
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    return tuple(_hunk(before, after, group) for group in matcher.get_grouped_opcodes(CONTEXT))


def _hunk(before: list[bytes], after: list[bytes], group: list[tuple[str, int, int, int, int]]) -> Hunk:
    found: list[tuple[str, bytes]] = []
    for kind, old_from, old_to, new_from, new_to in group:
        if kind == "equal":
            found += [(" ", line) for line in before[old_from:old_to]]
        else:
            found += [("-", line) for line in before[old_from:old_to]]
            found += [("+", line) for line in after[new_from:new_to]]
    old_from, old_to, new_from, new_to = group[0][1], group[-1][2], group[0][3], group[-1][4]
    # An empty side is named by the line before it, a side with lines by its first line.
    return Hunk(old_from + (old_to > old_from), new_from + (new_to > new_from), tuple(found))


def render(diff: Diff) -> bytes:
    """Return the text of DIFF, files in the order of their paths, as `unified.parse` and git read it."""
    return b"".join(part for file in sorted(diff.files, key=lambda file: file.path) for part in _file(file))


def _file(file: FileDiff) -> Iterator[bytes]:
    old, new = file.old or file.path, file.new or file.path
    yield f"diff --git {_quoted('a/' + old)} {_quoted('b/' + new)}\n".encode()
    if file.old is None:
        yield f"new file mode {_mode(file.new_mode)}\n".encode()
    elif file.new is None:
        yield f"deleted file mode {_mode(file.old_mode)}\n".encode()
    elif file.old_mode != file.new_mode:
        yield f"old mode {_mode(file.old_mode)}\nnew mode {_mode(file.new_mode)}\n".encode()
    if old != new:
        yield f"rename from {_quoted(old)}\nrename to {_quoted(new)}\n".encode()
    if file.hunks:
        yield f"--- {_quoted('a/' + old) if file.old else '/dev/null'}\n".encode()
        yield f"+++ {_quoted('b/' + new) if file.new else '/dev/null'}\n".encode()
    for hunk in file.hunks:
        yield f"{hunk.header}\n".encode()
        for tag, text in hunk.lines:
            yield tag.encode() + text
            if not text.endswith(b"\n"):
                yield b"\n\\ No newline at end of file\n"


def _mode(mode: int | None) -> str:
    return "100755" if mode == 0o755 else "100644"


def _quoted(path: str) -> str:
    """Return PATH as git writes it: in quotes, with octal bytes, where it is not plain ASCII."""
    data = path.encode()
    if all(32 <= byte < 127 and byte != ord('"') for byte in data):
        return path
    return '"' + "".join(chr(b) if 32 <= b < 127 and b != ord('"') else f"\\{b:03o}" for b in data) + '"'
