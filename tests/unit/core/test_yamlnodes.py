"""YAML as values and lines: the same values as PyYAML's own, and a line for each."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core import yamlnodes
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, Refused

WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f\x85"), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**53, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


def places(value: object, path: str = ".") -> set[str]:
    """Return the dotted path of every value in VALUE."""
    found = {path}
    if isinstance(value, dict):
        found.update(*(places(item, yamlnodes.join(path, key)) for key, item in value.items()))
    elif isinstance(value, list):
        found.update(*(places(item, yamlnodes.join(path, index)) for index, item in enumerate(value)))
    return found


@given(VALUES)
def test_values_come_back_and_each_has_a_line(value: object) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    document = yamlnodes.parse(text, "x.yaml")
    assert document.value == value
    assert set(document.lines) == places(value)
    assert all(1 <= line <= text.count("\n") + 1 for line in document.lines.values())


@given(st.text(st.sampled_from("ab:-?,[]{}&*!|>'\"%@`#\\xU\t \n01.~<=\ud7ff\x00\r"), max_size=40))
def test_any_text_is_a_document_or_refused(text: str) -> None:
    refusals: Sequence[Refusal] = ()
    value: Json = None
    try:
        value = yamlnodes.parse(text, "x.yaml").value
    except Refused as refused:
        refusals = refused.refusals
    assert {refusal.code for refusal in refusals} <= {"NV103"}
    assert all(refusal.where.startswith("x.yaml:") for refusal in refusals)
    assert json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


def test_lines_are_those_of_keys_and_items() -> None:
    document = yamlnodes.parse("# top\na:\n  b-c: 1\n  d:\n    - x\n    - y: 2\n'e f': 3\n", "x.yaml")
    assert document.lines == {
        ".": 2,
        ".a": 2,
        ".a.b-c": 3,
        ".a.d": 4,
        ".a.d[0]": 5,
        ".a.d[1]": 6,
        ".a.d[1].y": 6,
        '.["e f"]': 7,
    }


def test_what_comes_through_an_alias_has_the_line_where_it_is_written() -> None:
    document = yamlnodes.parse("a: &a\n  x: 1\n  y: 2\nb: *a\n", "x.yaml")
    assert document.value == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}}
    assert [document.lines[path] for path in (".a", ".b", ".b.y")] == [1, 4, 3]


def test_a_quoted_merge_key_is_a_key() -> None:
    assert yamlnodes.parse("'<<': 1", "x.yaml").value == {"<<": 1}


def test_the_line_of_what_is_not_there_is_that_of_what_is_around_it() -> None:
    document = yamlnodes.parse("a:\n  b:\n    c: 1\n", "x.yaml")
    assert document.line(["a", "b", "missing", "c"]) == 2
    assert document.line(["other"]) == 1
    assert yamlnodes.parse("", "x.yaml").line(["a"]) == 1


def test_paths_tell_keys_from_steps() -> None:
    assert yamlnodes.dotted([]) == "."
    assert yamlnodes.dotted(["a", 3, "b-c"]) == ".a[3].b-c"
    assert yamlnodes.dotted(["a.b"]) == '.["a.b"]' != yamlnodes.dotted(["a", "b"])


def refused(text: str) -> Refusal:
    started = time.process_time()
    with pytest.raises(Refused) as caught:
        yamlnodes.parse(text, "x.yaml")
    assert time.process_time() - started < 5
    (only, *_) = caught.value.refusals
    assert only.code == "NV103"
    return only


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1" + 100_000 * ":1", "1:1:1"),
        ("a: 1:30", "1:30"),
        ("a: 9007199254740992", "9007199254740992"),
        (f"a: 0x{'f' * 5000}", "0xfff"),
        (f"a: {'9' * 4301}", "9999"),
        ("[" * 200_000, "nesting deeper than 64 levels"),
        pytest.param("[" + "[]," * 60_000 + "]", "over 20000 values", marks=pytest.mark.thorough),
        ("a: " + "x" * 10_000_000, "10000003 characters, and at most 250000 are read"),
    ],
    ids=["to the base of 60", "a time of day", "2**53", "hexadecimal", "4301 digits", "deep", "long", "10 MB"],
)
def test_what_takes_time_or_memory_is_refused_at_once(text: str, found: str) -> None:
    assert found in refused(text).found


def test_the_largest_number_is_read() -> None:
    assert yamlnodes.parse("a: 9007199254740991", "x.yaml").value == {"a": 2**53 - 1}


def test_a_document_of_errors_has_a_hundred_refusals() -> None:
    with pytest.raises(Refused) as caught:
        yamlnodes.parse("a: 1\n" * 5000, "x.yaml")
    assert len(caught.value.refusals) == yamlnodes.MAX_REFUSALS
