"""Edits of YAML text by place: what stands there is replaced, and every other line, comments too, stays as it is.

A place is named by its steps, the keys and indexes from the root. These functions know the forms in which nvllm's own
files are written; a test compares what they make of each of them with the document that is meant.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Sequence

import yaml

from nvllm.core import yamlnodes
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refused

Steps = Sequence[str | int]

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _./:+-]*")
_VALUE = re.compile(r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^#]*?)(?P<rest>\s+#.*)?""")
_WIDTH = 120


def scalar(value: Json) -> str:
    """Return VALUE as YAML on one line: plain where that is read back as the same text, else as JSON."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and _read(f"k: {value}") == {"k": value}:
        return value
    return json.dumps(value, ensure_ascii=False)


def set_scalar(text: str, steps: Steps, value: Json) -> str:
    """Return TEXT with VALUE as the scalar at STEPS, a key of a mapping. A comment on its line stays."""
    lines, at = _lines(text), _line(text, steps)
    key, _, after = lines[at].rstrip("\n").partition(":")
    match = _VALUE.fullmatch(after.strip())
    assert match is not None, f"line {at + 1} holds no scalar"
    lines[at] = f"{key}: {scalar(value)}{match['rest'] or ''}\n"
    return "".join(lines)


def set_list(text: str, steps: Steps, values: Sequence[str]) -> str:
    """Return TEXT with VALUES as the list at STEPS. Entries that stay keep their comments.

    The comment beside the key of a block list goes: it was about the old list. So do those within brackets. An alias of
    another list stays.
    """
    lines, at = _lines(text), _line(text, steps)
    key, _, after = lines[at].rstrip("\n").partition(":")
    if after.strip().startswith("*"):
        return text
    node = _node(text, steps)
    if node.flow_style:
        start, end = node.start_mark.index, node.end_mark.index
        anchor = text[start:end].partition("[")[0]
        return f"{text[:start]}{anchor}[{', '.join(map(scalar, values))}]{text[end:]}"
    if not values:
        lines[at : _end(lines, at)] = [f"{key}: []\n"]
        return "".join(lines)
    old = _value(text, steps)
    assert isinstance(old, list)
    entries = dict(zip(map(str, old), _entries(text, steps, len(old)), strict=True))
    indent = _indent(lines[_line(text, [*steps, 0])])
    new = [entries.get(value, [f"{indent}- {scalar(value)}\n"]) for value in values]
    lines[at : _end(lines, at)] = [f"{key}:\n", *(line for entry in new for line in entry)]
    return "".join(lines)


def replaced(text: str, steps: Steps, old: str, new: str) -> str:
    """Return TEXT with NEW in the place of OLD on the line of STEPS, where it stands once."""
    lines, at = _lines(text), _line(text, steps)
    assert lines[at].count(old) == 1, f"line {at + 1} does not hold {old} once"
    lines[at] = lines[at].replace(old, new)
    return "".join(lines)


def without_comments(text: str, word: str) -> str:
    """Return TEXT without the comments on lines of their own that hold WORD; what stands together goes together."""
    kept: list[str] = []
    comment: list[str] = []
    for line in [*_lines(text), ""]:
        if line.lstrip().startswith("#"):
            comment.append(line)
            continue
        kept += comment if not any(word in comment_line for comment_line in comment) else []
        comment = []
        kept.append(line)
    return "".join(kept)


def without(text: str, steps: Steps, gone: Collection[int]) -> str:
    """Return TEXT without the entries numbered GONE of the block list at STEPS, and without the comments above them."""
    whole = _value(text, steps)
    assert isinstance(whole, list)
    lines, at = _lines(text), _line(text, steps)
    kept = [part for index, part in enumerate(_entries(text, steps, len(whole))) if index not in gone]
    end = _end(lines, at)
    if not kept:
        key = lines[at].partition(":")[0]
        return "".join([*lines[:at], f"{key}: []\n", *lines[end:]])
    while kept[0] and not kept[0][0].strip():
        kept[0] = kept[0][1:]
    lines[at + 1 : end] = [line for part in kept for line in part]
    return "".join(lines)


def without_key(text: str, steps: Steps) -> str:
    """Return TEXT without the entry at STEPS, a key of a block mapping, and what it holds."""
    lines, at = _lines(text), _line(text, steps)
    del lines[at : _end(lines, at)]
    return "".join(lines)


def followed(text: str, steps: Steps, new: Sequence[str]) -> str:
    """Return TEXT with the lines NEW, indented as the key at STEPS is, after what that key holds."""
    lines, at = _lines(text), _line(text, steps)
    end = _end(lines, at)
    return "".join([*lines[:end], *(f"{_indent(lines[at])}{line}\n" for line in new), *lines[end:]])


def commented(text: str, steps: Steps, comment: str) -> str:
    """Return TEXT with COMMENT, wrapped, on lines of its own above the key at STEPS, below those that are there."""
    lines, at = _lines(text), _line(text, steps)
    start = _indent(lines[at]) + "# "
    lines[at:at] = [
        f"{line}\n" for line in textwrap.wrap(comment, _WIDTH, initial_indent=start, subsequent_indent=start)
    ]
    return "".join(lines)


def uncommented(text: str, steps: Steps) -> str:
    """Return TEXT without the comments on the lines right above the key at STEPS."""
    lines, at = _lines(text), _line(text, steps)
    first = at
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "".join([*lines[:first], *lines[at:]])


def headed(text: str, comment: Sequence[str]) -> str:
    """Return TEXT with the lines COMMENT in the place of the comment with which it begins."""
    lines = _lines(text)
    while lines and lines[0].startswith("#"):
        del lines[0]
    return "".join([*(f"# {line}".rstrip() + "\n" for line in comment), *lines])


def _read(text: str) -> Json:
    """Return the document in TEXT, or None if it is none."""
    try:
        return yamlnodes.parse(text, "").value
    except Refused:
        return None


def _value(text: str, steps: Steps) -> Json:
    value = yamlnodes.parse(text, "").value
    for step in steps:
        if isinstance(step, str):
            assert isinstance(value, dict)
            value = value[step]
        else:
            assert isinstance(value, list)
            value = value[step]
    return value


def _node(text: str, steps: Steps) -> yaml.CollectionNode:
    """Return the node of the list at STEPS: its marks say where it begins and ends, also over several lines."""
    node = yaml.compose(text, yaml.SafeLoader)
    for step in steps:
        assert isinstance(node, yaml.CollectionNode)
        node = (
            node.value[step] if isinstance(step, int) else next(value for key, value in node.value if key.value == step)
        )
    assert isinstance(node, yaml.SequenceNode)
    return node


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _line(text: str, steps: Steps) -> int:
    """Return the index of the line of the place at STEPS. Raises KeyError if TEXT has no such place."""
    return yamlnodes.parse(text, "").lines[yamlnodes.dotted(steps)] - 1


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _end(lines: Sequence[str], at: int) -> int:
    """Return the index after the last line of what the key on line AT holds: blank lines and comments after it stay."""
    depth, following = len(_indent(lines[at])), at + 1
    while following < len(lines) and (not lines[following].strip() or len(_indent(lines[following])) > depth):
        following += 1
    return _last_line(lines, at, following)


def _entries(text: str, steps: Steps, count: int) -> list[list[str]]:
    """Return the lines of each of COUNT entries of the block list at STEPS, with the blank lines and comments above."""
    places = yamlnodes.parse(text, "").lines
    lines, at = _lines(text), places[yamlnodes.dotted(steps)] - 1
    starts = [places[yamlnodes.dotted([*steps, index])] - 1 for index in range(count)]
    ends = [
        _last_line(lines, start, following)
        for start, following in zip(starts, [*starts[1:], _end(lines, at)], strict=True)
    ]
    return [lines[begin:end] for begin, end in zip([at + 1, *ends[:-1]], ends, strict=True)]


def _last_line(lines: Sequence[str], start: int, following: int) -> int:
    """Return the index after the last line of the entry that begins at START, without what precedes FOLLOWING."""
    end = following
    while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    return end
