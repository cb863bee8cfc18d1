"""YAML text as plain values, each with its line.

PyYAML's nodes know their lines; the values that it makes do not. So the values are made here from the nodes. What YAML
allows and a pinned spec must not have is refused here: a key that stands twice, a key that is no text, the merge key
``<<``, a tag, a document that grows without bound.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import yaml

from nvllm.core import canonical
from nvllm.core.canonical import MAX_DEPTH, Json
from nvllm.core.refusal import Refusal, Refused, refuse_any

MAX_VALUES = 20_000
"""Most values in one document, with aliases expanded. A spec has hundreds; a few nested aliases make billions."""

MAX_TEXT = 250_000
"""Most characters of one document: PyYAML takes seconds for as many."""

MAX_REFUSALS = 100
"""Most refusals of one document; more of them help nobody."""

_LONGEST_NUMBER = 40
"""Digits: more than a number of any field has. PyYAML reads a longer one to the base of 60 by the square of them."""

_TAG = "tag:yaml.org,2002:"
_PLAIN = re.compile(r"[A-Za-z0-9_-]+\Z")


def join(path: str, step: str | int) -> str:
    """Return PATH extended by STEP, a key or an index: ``.base`` and ``packages`` give ``.base.packages``.

    The root is ``.``. A key that holds other than letters, digits, ``_`` and ``-`` is written as JSON in
    brackets, so that two different places never have the same path.
    """
    if isinstance(step, str) and _PLAIN.match(step):
        return f".{step}" if path == "." else f"{path}.{step}"
    return f"{path}[{json.dumps(step, ensure_ascii=False)}]"


def dotted(steps: Iterable[str | int]) -> str:
    """Return the path of STEPS from the root."""
    path = "."
    for step in steps:
        path = join(path, step)
    return path


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text: its VALUE, and LINES, the 1-based line of each dotted path.

    The line of a mapping's entry is its key's line. What an alias brings in has the line where it is written,
    because it has to be changed there.
    """

    value: Json
    lines: Mapping[str, int]

    def line(self, steps: Iterable[str | int]) -> int:
        """Return the line of the place at STEPS, or of the nearest place around it that exists."""
        path, line = ".", self.lines["."]
        for step in steps:
            path = join(path, step)
            if path not in self.lines:
                break
            line = self.lines[path]
        return line


def parse(text: str, label: str) -> Document:
    """Return the document in TEXT, which messages call LABEL.

    Raises Refused NV103 for what is not YAML, with every duplicate key, key that is not text, merge key, unusable
    scalar, unknown tag and recursive alias at once.
    """
    if len(text) > MAX_TEXT:
        raise Refused([_not_yaml(label, 1, f"{len(text)} characters, and at most {MAX_TEXT} are read", "use less")])
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Refused([_not_yaml(label, line, f"character U+{ord(text[error.position]):04X}", "remove it")]) from error
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        cure = f"correct line {line}, column {mark.column + 1 if mark is not None else 1}"
        raise Refused([_not_yaml(label, line, problem, cure)]) from error
    except (ValueError, OverflowError) as error:  # PyYAML lets Python's own through for an escape such as "\UFFFFFFFF"
        line = loader.line + 1
        raise Refused([_not_yaml(label, line, "an escape or number out of range", f"correct line {line}")]) from error
    builder = _Builder(loader, label)
    if node is None:
        return Document(None, {".": 1})
    builder.lines["."] = node.start_mark.line + 1
    value = builder.value(node, ".")
    refuse_any(builder.refusals)
    return Document(value, builder.lines)


def _not_yaml(label: str, line: int, actual: str, cure: str) -> Refusal:
    return Refusal("NV103", f"{label}:{line}", "one YAML document", actual, cure)


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses nesting deeper than MAX_DEPTH, and more than MAX_VALUES nodes."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH or self.nodes > 2 * MAX_VALUES:  # a key is a node, and no value
            problem = (
                f"nesting deeper than {MAX_DEPTH} levels" if self.depth > MAX_DEPTH else f"over {MAX_VALUES} values"
            )
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, problem, mark)
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[arg-type]  # the stub lacks None
        self.depth -= 1
        return node


class _Builder:
    """Makes values from nodes; collects refusals and lines while it does."""

    def __init__(self, loader: yaml.SafeLoader, label: str) -> None:
        self.lines: dict[str, int] = {}
        self.refusals: list[Refusal] = []
        self._loader = loader
        self._label = label
        self._count = 0
        self._open: set[yaml.Node] = set()  # the nodes around this one: an alias of one of them is a cycle
        self._judged: dict[yaml.Node, dict[str, tuple[int, yaml.Node]]] = {}  # so that each key is refused once

    def value(self, node: yaml.Node, path: str) -> Json:
        """Return the value of NODE, which stands at PATH, and note the lines of all that is below."""
        self._count += 1
        if self._count > MAX_VALUES:
            self._refuse(node, path, f"at most {MAX_VALUES} values", "more, with aliases expanded", "use fewer aliases")
            raise Refused(self.refusals)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node in self._open:
            self._cycle(node, path)
            return None
        self._open.add(node)
        try:
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return self._sequence(node, path)
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                return self._mapping(node, path)
        finally:
            self._open.discard(node)
        self._unknown_tag(node, path)
        return None

    def _sequence(self, node: yaml.SequenceNode, path: str) -> list[Json]:
        items: list[Json] = []
        for index, item in enumerate(node.value):
            below = join(path, index)
            self.lines[below] = item.start_mark.line + 1
            items.append(self.value(item, below))
        return items

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Json]:
        values: dict[str, Json] = {}
        for key, (line, value_node) in self._entries(node, path).items():
            below = join(path, key)
            self.lines[below] = line
            values[key] = self.value(value_node, below)
        return values

    def _entries(self, node: yaml.MappingNode, path: str) -> dict[str, tuple[int, yaml.Node]]:
        """Return the line of the key and the value's node of each entry of NODE, by key."""
        if node in self._judged:
            return self._judged[node]
        entries: dict[str, tuple[int, yaml.Node]] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            line = key_node.start_mark.line + 1
            if key in entries:
                cure = f"keep one of lines {entries[key][0]} and {line}"
                actual = f"{_shorten(key)} a second time, first on line {entries[key][0]}"
                self._refuse(key_node, join(path, key), "each key once", actual, cure)
            else:
                entries[key] = (line, value_node)
        self._judged[node] = entries
        return entries

    def _key(self, node: yaml.Node, path: str) -> str | None:
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _TAG + "str":
                return self._text(node, path)
            if node.tag == _TAG + "merge":
                cure = "write its entries out, or give a whole value an anchor (&name) and an alias (*name)"
                self._refuse(node, path, "entries without merge keys", "the merge key <<", cure)
                return None
            actual = f"{_shorten(node.value)}, {_kind(node.tag)}"
            cure = f'put the key in quotes: "{_shorten(node.value)}"'
        else:
            actual, cure = "a list or a mapping", "write a word as the key"
        self._refuse(node, path, "a key that is text", actual, cure)
        return None

    def _scalar(self, node: yaml.ScalarNode, path: str) -> Json:
        kind = node.tag.removeprefix(_TAG)
        if kind in ("int", "float") and (len(node.value) > _LONGEST_NUMBER or ":" in node.value):
            # To the base of 60, PyYAML takes time by the square of its length.
            cure = "write a decimal number, or put the text in quotes"
            self._refuse(
                node, path, f"a decimal number of at most {_LONGEST_NUMBER} digits", _shorten(node.value), cure
            )
            return None
        try:
            if kind == "str":
                return self._text(node, path)
            if kind == "null":
                return None
            if kind == "bool":
                return bool(self._loader.construct_yaml_bool(node))
            if kind == "int":
                number: int | float = int(self._loader.construct_yaml_int(node))
                if abs(number) <= canonical.EXACT:
                    return number
            if kind == "float":
                number = float(self._loader.construct_yaml_float(node))
                if math.isfinite(number):
                    return number
        except (ValueError, KeyError, IndexError):  # a value that does not fit its tag, such as `!!int x`
            pass
        if kind in ("bool", "int", "float"):
            allowed = f"{_kind(node.tag)} that JSON has"
            self._refuse(node, path, allowed, _shorten(node.value), "write a number, or put the text in quotes")
        else:
            self._unknown_tag(node, path)
        return None

    def _text(self, node: yaml.ScalarNode, path: str) -> str:
        text = str(node.value)
        if any("\ud800" <= character <= "\udfff" for character in text):
            actual = "half of a surrogate pair, from an escape"
            self._refuse(node, path, "text that UTF-8 can encode", actual, "write the character itself")
            return ""
        return text

    def _unknown_tag(self, node: yaml.Node, path: str) -> None:
        tag = node.tag.replace(_TAG, "!!")
        expected = "text, a number, true, false, null, a list or a mapping"
        cure = "put the value in quotes" if isinstance(node, yaml.ScalarNode) else f"remove the tag {tag}"
        self._refuse(node, path, expected, f"the tag {tag}", cure)

    def _cycle(self, node: yaml.Node, path: str) -> None:
        actual = f"an alias of line {node.start_mark.line + 1}, which contains it"
        self._refuse(node, path, "a value that does not contain itself", actual, "write the value instead of the alias")

    def _refuse(self, node: yaml.Node, path: str, expected: str, actual: str, cure: str) -> None:
        where = f"{self._label}:{node.start_mark.line + 1}: {path}"
        self.refusals.append(Refusal("NV103", where, expected, actual or "nothing", cure))
        if len(self.refusals) == MAX_REFUSALS:
            raise Refused(self.refusals)


def _kind(tag: str) -> str:
    words = {"null": "nothing", "bool": "true or false", "int": "a whole number", "float": "a number"}
    return words.get(tag.removeprefix(_TAG), f"the tag {tag.replace(_TAG, '!!')}")


def _shorten(text: str) -> str:
    short = text if len(text) <= 60 else text[:57] + "..."
    return short if short.isprintable() else json.dumps(short)
