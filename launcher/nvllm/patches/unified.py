"""Unified diffs as values: parsed, with git's extended headers and nothing guessed; made of two versions; written.

A diff is bytes: vLLM's sources are not all UTF-8, and a line may end in CRLF. Ambiguous input (a wrong count, an empty
line in a hunk, a path outside the tree) is refused here, so that `patching.py` gets unambiguous diffs only. The text of
a diff depends on nothing but the two versions: no dates, no object ids, no version of git.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from nvllm.core.refusal import Refused, refuse

CONTEXT = 3
"""Lines of context around a change, as many as git writes."""

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?")
_GIT = re.compile(rb"diff --git (.+)")
_QUOTED = re.compile(rb'\\(?:([abfnrtv"\\])|([0-7]{3}))')
_ESCAPES = {b"a": 7, b"b": 8, b"f": 12, b"n": 10, b"r": 13, b"t": 9, b"v": 11, b'"': 34, b"\\": 92}
_REGULAR = {b"100644": 0o644, b"100755": 0o755}
_NO_NEWLINE = b"\\ No newline at end of file"
_SIGNATURE = b"-- "
_CURE = "write the patch again with `nvllm patch new`, or with plain `git diff`"


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk. LINES are (tag, text): tag `` ``, ``-`` or ``+``; text with its line ending, if it has one.

    OLD_START and NEW_START are line numbers from 1, as the header says them.
    """

    old_start: int
    new_start: int
    lines: tuple[tuple[str, bytes], ...]

    @property
    def old(self) -> tuple[bytes, ...]:
        return tuple(text for tag, text in self.lines if tag != "+")

    @property
    def new(self) -> tuple[bytes, ...]:
        return tuple(text for tag, text in self.lines if tag != "-")

    @property
    def position(self) -> int:
        """The index, from 0, of the line before which the hunk begins, in the file as it was."""
        return self.old_start - 1 if self.old else self.old_start

    @property
    def header(self) -> str:
        return f"@@ -{_span(self.old_start, len(self.old))} +{_span(self.new_start, len(self.new))} @@"


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The change of one file. OLD is None for a new file, NEW is None for a deleted one.

    The modes (0o644 or 0o755) are None unless the diff names them.
    """

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...] = ()
    old_mode: int | None = None
    new_mode: int | None = None

    @property
    def path(self) -> str:
        """The path for messages: the new one, or the old one of a deleted file."""
        return self.new or self.old or ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path of the tree that changes, sorted: two for a rename."""
        return tuple(sorted({path for path in (self.old, self.new) if path is not None}))


@dataclass(frozen=True, slots=True)
class Diff:
    """A whole patch. Messages call it NAME: the name of its file."""

    name: str
    files: tuple[FileDiff, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that the patch touches, sorted."""
        return tuple(sorted({path for file in self.files for path in file.paths}))


def reverse(diff: Diff) -> Diff:
    """Return the reverse of DIFF."""
    swap = {" ": " ", "-": "+", "+": "-"}

    def hunk(forward: Hunk) -> Hunk:
        lines = tuple((swap[tag], text) for tag, text in forward.lines)
        return Hunk(forward.new_start, forward.old_start, lines)

    return replace(
        diff,
        files=tuple(
            FileDiff(file.new, file.old, tuple(map(hunk, file.hunks)), file.new_mode, file.old_mode)
            for file in diff.files
        ),
    )


def parse(data: bytes, name: str) -> Diff:
    """Return DATA, the bytes of a patch file that messages call NAME, as a diff.

    Text before the first file (a mail's header, a commit message) is skipped, and so is the signature that
    `git format-patch` writes last. Raises Refused NV104, with the line, for anything else that is
    not a diff of regular files.
    """
    reader = _Reader(data, name)
    files = tuple(reader.files())
    if not files:
        raise reader.bad("at least one file in the diff", "none")
    seen: set[str] = set()
    for file in files:
        for path in file.paths:
            if path in seen:
                raise reader.bad("each path in one file of the diff", f"{path} twice")
            seen.add(path)
    return Diff(name, files)


def lines(data: bytes) -> list[bytes]:
    """Return DATA's lines with their newlines. Only LF ends a line: a CR is part of its text."""
    whole = [line + b"\n" for line in data.split(b"\n")]
    last = whole.pop()[:-1]
    return [*whole, last] if last else whole


def hunks(old: bytes, new: bytes) -> tuple[Hunk, ...]:
    """Return the hunks from OLD to NEW, with three lines of context."""
    before, after = lines(old), lines(new)
    # In files of 200 lines and more autojunk passes over lines that occur often, and the hunks get larger (difflib).
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    return tuple(_compared(before, after, group) for group in matcher.get_grouped_opcodes(CONTEXT))


def _compared(before: list[bytes], after: list[bytes], group: list[tuple[str, int, int, int, int]]) -> Hunk:
    tagged: list[tuple[str, bytes]] = []
    for kind, old_from, old_to, new_from, new_to in group:
        if kind == "equal":
            tagged += [(" ", line) for line in before[old_from:old_to]]
        else:
            tagged += [("-", line) for line in before[old_from:old_to]]
            tagged += [("+", line) for line in after[new_from:new_to]]
    old_from, old_to, new_from, new_to = group[0][1], group[-1][2], group[0][3], group[-1][4]
    # An empty side is named by the line before it, a side with lines by its first line.
    return Hunk(old_from + (old_to > old_from), new_from + (new_to > new_from), tuple(tagged))


def render(diff: Diff) -> bytes:
    """Return the text of DIFF, files in the order of their paths, as `parse` and git read it."""
    return b"".join(part for file in sorted(diff.files, key=lambda file: file.path) for part in _rendered(file))


def _rendered(file: FileDiff) -> Iterator[bytes]:
    old, new = file.old or file.path, file.new or file.path
    yield f"diff --git {_quoted('a/' + old)} {_quoted('b/' + new)}\n".encode()
    if file.old is None:
        yield f"new file mode {_mode_text(file.new_mode)}\n".encode()
    elif file.new is None:
        yield f"deleted file mode {_mode_text(file.old_mode)}\n".encode()
    elif file.old_mode != file.new_mode:
        yield f"old mode {_mode_text(file.old_mode)}\nnew mode {_mode_text(file.new_mode)}\n".encode()
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


def _mode_text(mode: int | None) -> str:
    return "100755" if mode == 0o755 else "100644"


def _quoted(path: str) -> str:
    """Return PATH as git writes it: in quotes, with octal bytes, where it is not plain ASCII."""
    data = path.encode()
    if all(32 <= byte < 127 and byte != ord('"') for byte in data):
        return path
    return '"' + "".join(chr(b) if 32 <= b < 127 and b != ord('"') else f"\\{b:03o}" for b in data) + '"'


def _span(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start},{count}"


def checked_path(path: str) -> str | None:
    """Return why PATH is not a path inside a source tree, or None if it is."""
    parts = path.split("/")
    if path.startswith("/"):
        return "is absolute"
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty, `.` or `..` part"
    if any(part.lower() == ".git" for part in parts):
        return "goes into .git"
    if any(ord(letter) < 32 or ord(letter) == 127 or letter == "\\" for letter in path):
        return "holds a control character or a backslash"
    return None


@dataclass(slots=True)
class _Header:
    """The contents of the lines before a file's first hunk."""

    old: str | None = None
    new: str | None = None
    old_mode: int | None = None
    new_mode: int | None = None
    created: bool = False
    deleted: bool = False
    renamed: int = 0
    named: bool = False


class _Reader:
    """Walks over the lines of one patch file."""

    def __init__(self, data: bytes, name: str) -> None:
        self._lines = data.split(b"\n")
        self._ends_with_newline = self._lines[-1] == b""
        if self._ends_with_newline:
            self._lines.pop()
        self._name = name
        self._at = 0

    def bad(self, expected: str, actual: str, *, line: int | None = None) -> Refused:
        number = self._at + 1 if line is None else line + 1
        where = f"{self._name}:{min(number, max(len(self._lines), 1))}"
        return refuse("NV104", where, expected, actual, _CURE)

    def _peek(self) -> bytes | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def files(self) -> Iterator[FileDiff]:
        started = False
        while (line := self._peek()) is not None:
            if line.startswith((b"diff --git ", b"--- ")) and line != b"--- ":
                started = True
                yield self._file()
            elif started and not self._signature():
                raise self.bad("the next hunk, the next file, or the end", _show(line))
            elif started:
                return
            else:
                self._at += 1

    def _signature(self) -> bool:
        """Return whether the rest is the mail signature of `git format-patch`: a version, blank lines."""
        rest = self._lines[self._at :]
        if rest[0] == _SIGNATURE:
            rest = [line for line in rest[1:] if line]
            return len(rest) <= 1
        return not any(rest)

    def _file(self) -> FileDiff:
        first = self._at
        header = _Header()
        line = self._lines[self._at]
        git = _GIT.fullmatch(line)
        if git:
            self._at += 1
            self._extended(header)
        self._names(header, required=git is None)
        hunks = tuple(self._hunks())
        if git and not header.named:
            self._names_of_git_line(header, git.group(1), first)
        file = FileDiff(
            None if header.created else header.old,
            None if header.deleted else header.new,
            hunks,
            header.old_mode,
            header.new_mode,
        )
        self._check(file, header, first)
        return file

    def _extended(self, header: _Header) -> None:
        """Read git's lines between ``diff --git`` and ``---``."""
        while (line := self._peek()) is not None:
            word, _, rest = line.partition(b" ")
            match word:
                case b"old" | b"new" | b"deleted" if rest.startswith((b"mode ", b"file mode ")):
                    mode = self._mode(rest.rsplit(b" ", 1)[-1])
                    if rest.startswith(b"file mode "):
                        header.created, header.deleted = word == b"new", word == b"deleted"
                    if word == b"new":
                        header.new_mode = mode
                    else:
                        header.old_mode = mode
                case b"rename" if rest.startswith((b"from ", b"to ")):
                    side, _, path = rest.partition(b" ")
                    header.renamed += 1
                    header.named = True
                    if side == b"from":
                        header.old = self._path(path)
                    else:
                        header.new = self._path(path)
                case b"copy":
                    raise self.bad("changed, new, deleted or renamed files", "a copied file")
                case b"similarity" | b"dissimilarity" | b"index":
                    pass
                case b"GIT" | b"Binary":
                    raise self.bad("a diff of text files", "a binary file")
                case _:
                    return
            self._at += 1

    def _mode(self, text: bytes) -> int:
        mode = _REGULAR.get(text)
        if mode is None:
            raise self.bad("the mode of a regular file, 100644 or 100755", _show(text))
        return mode

    def _names(self, header: _Header, *, required: bool) -> None:
        """Read the ``---`` and ``+++`` lines, which only a diff with hunks has."""
        line = self._peek()
        if line is None or not line.startswith(b"--- "):
            if required:
                raise self.bad("a line that begins with `--- `", _show(line or b""))
            return
        old = self._side(line[4:], b"a/")
        self._at += 1
        line = self._peek()
        if line is None or not line.startswith(b"+++ "):
            raise self.bad("a line that begins with `+++ `", _show(line or b""))
        new = self._side(line[4:], b"b/")
        if header.renamed and (old, new) != (header.old, header.new):
            raise self.bad(f"{header.old} and {header.new}, as the rename says", f"{old} and {new}")
        self._at += 1
        header.old, header.new, header.named = old, new, True
        header.created = header.created or old is None
        header.deleted = header.deleted or new is None

    def _side(self, text: bytes, prefix: bytes) -> str | None:
        # A tab ends the name if a date follows, as plain diff writes it.
        text = text if text.startswith(b'"') else text.split(b"\t", 1)[0]
        text = self._unquote(text)
        if text == b"/dev/null":
            return None
        if not text.startswith(prefix):
            raise self.bad(f"a path below {prefix.decode()}", _show(text))
        return self._path(text[len(prefix) :])

    def _unquote(self, text: bytes) -> bytes:
        if not text.startswith(b'"'):
            return text
        if len(text) < 2 or not text.endswith(b'"'):
            raise self.bad("a path with its closing quote", _show(text))
        return _QUOTED.sub(lambda m: bytes([_ESCAPES[m[1]] if m[1] else int(m[2], 8) & 0xFF]), text[1:-1])

    def _path(self, text: bytes) -> str:
        try:
            path = self._unquote(text).decode()
        except UnicodeDecodeError:
            raise self.bad("a path in UTF-8", _show(text)) from None
        wrong = checked_path(path)
        if wrong:
            raise self.bad("a path inside the source tree", f"{path!r}, which {wrong}")
        return path

    def _names_of_git_line(self, header: _Header, text: bytes, first: int) -> None:
        """Take the name from ``diff --git a/x b/x``: an empty file or a change of mode has no other line.

        Both sides are the same there, so the text splits in its middle whatever it holds.
        """
        half = (len(text) - 1) // 2
        old, new = self._unquote(text[:half]), self._unquote(text[half + 1 :])
        if not (old.startswith(b"a/") and new.startswith(b"b/") and old[2:] == new[2:]):
            raise self.bad("`diff --git a/PATH b/PATH` with one path", _show(text), line=first)
        header.old = header.new = self._path(old[2:])

    def _hunks(self) -> Iterator[Hunk]:
        last, end, shift = -1, 0, 0
        while (line := self._peek()) is not None and line.startswith(b"@@ "):
            at = self._at
            hunk = self._hunk(line)
            old, new = len(hunk.old), len(hunk.new)
            if hunk.position < end or hunk.position == last:
                raise self.bad("hunks in the order of their lines, not overlapping", hunk.header, line=at)
            if hunk.new_start - (1 if new else 0) != hunk.position + shift:
                expected = f"+{hunk.position + shift + (1 if new else 0)}, by the hunks before it"
                raise self.bad(expected, hunk.header, line=at)
            last, end, shift = hunk.position, hunk.position + old, shift + new - old
            yield hunk

    def _hunk(self, line: bytes) -> Hunk:
        head = _HUNK.fullmatch(line)
        if not head:
            raise self.bad("`@@ -LINE,COUNT +LINE,COUNT @@`", _show(line))
        old_start, new_start = int(head[1]), int(head[3])
        old_left, new_left = (int(count) if count is not None else 1 for count in (head[2], head[4]))
        if (old_start == 0 and old_left) or (new_start == 0 and new_left):
            raise self.bad("line 0 only where the count is 0", _show(line))
        at = self._at
        self._at += 1
        lines: list[tuple[str, bytes]] = []
        while old_left or new_left:
            text = self._peek()
            tag = text[:1].decode("latin-1") if text else ""
            if text is None or tag not in (" ", "-", "+"):
                end = "the end of the file" if text is None else _show(text)
                raise self.bad(f"{old_left} more old and {new_left} more new lines in the hunk", end)
            old_left -= tag != "+"
            new_left -= tag != "-"
            if old_left < 0 or new_left < 0:
                raise self.bad("as many lines as the hunk's header says", _show(text))
            self._at += 1
            lines.append((tag, text[1:] + self._ending(lines, old_left, new_left, tag)))
        if not any(tag != " " for tag, _ in lines):
            raise self.bad("a hunk that changes something", "only context", line=at)
        return Hunk(old_start, new_start, tuple(lines))

    def _ending(self, lines: Sequence[tuple[str, bytes]], old_left: int, new_left: int, tag: str) -> bytes:
        """Return the line ending of the line just read, and skip the marker for a missing newline."""
        if self._peek() != _NO_NEWLINE:
            if self._peek() is None and not self._ends_with_newline:
                raise self.bad("a newline at the end of the patch file", "none")
            return b"\n"
        if (tag != "+" and old_left) or (tag != "-" and new_left):
            raise self.bad("a line without newline only as the last of its side", f"line {len(lines) + 1} of the hunk")
        self._at += 1
        return b""

    def _check(self, file: FileDiff, header: _Header, first: int) -> None:
        """Raise Refused NV104 if the headers of a file contradict its hunks."""
        if file.old is None and file.new is None:
            raise self.bad("a path on one side at least", "/dev/null on both", line=first)
        if header.renamed not in (0, 2):
            raise self.bad("`rename from` and `rename to`", "only one of them", line=first)
        if file.old and file.new and file.old != file.new and not header.renamed:
            raise self.bad("one path on both sides, or a rename", f"{file.old} and {file.new}", line=first)
        if header.created and any(hunk.old for hunk in file.hunks):
            raise self.bad("only added lines in a new file", file.path, line=first)
        if header.deleted and any(hunk.new for hunk in file.hunks):
            raise self.bad("only removed lines in a deleted file", file.path, line=first)
        if not file.hunks and not (header.created or header.deleted or header.renamed or file.new_mode):
            raise self.bad("a hunk, or a header that changes something", file.path, line=first)


def _show(line: bytes) -> str:
    return repr(line.decode("utf-8", "backslashreplace"))[:100]
