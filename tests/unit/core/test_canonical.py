"""Canonical JSON: one value, one text, one hash; and a golden hash, so that the form cannot drift unseen."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.canonical import Json, decode, digest, encode, pretty, printed, sha256_file

# RFC 8785 takes integers that a double holds exactly, and text without lone surrogates.
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


def backwards(value: Any) -> Any:
    """Return VALUE with the keys of every mapping inserted in the opposite order."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(value)}
    return [backwards(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_the_order_of_keys_does_not_show(value: Any) -> None:
    assert encode(value) == encode(backwards(value))
    assert digest("nvllm.test/1", value) == digest("nvllm.test/1", backwards(value))


@given(values)
def test_the_text_is_json_of_the_same_value(value: Any) -> None:
    # JSON has one kind of number, so 5e16 is written as an integer; what is read back is compared as doubles.
    assert json.loads(encode(value), parse_int=float) == value
    assert json.loads(pretty(value)) == value


@given(values)
def test_the_canonical_text_is_its_own_canonical_text(value: Any) -> None:
    assert encode(json.loads(encode(value), parse_int=float)) == encode(value)


def test_a_golden_hash() -> None:
    value: Json = {"b": [1, 2.5, True, None], "a": "ü\u20ac\n", "": {}}
    assert encode(value) == '{"":{},"a":"ü€\\n","b":[1,2.5,true,null]}'.encode()
    expected = hashlib.sha256(b"nvllm.test/1\n" + encode(value)).hexdigest()
    assert digest("nvllm.test/1", value) == expected
    assert expected == "5e19ea95ff947ef91150e8d3442e3e4c766f594d0c994e8dec35a2fc8c12fe51"


def test_a_domain_is_part_of_the_hash() -> None:
    assert digest("nvllm.build/1", {}) != digest("nvllm.serve/1", {})
    assert digest("nvllm.build/1", {}) != digest("nvllm.build/2", {})


def test_a_domain_is_one_line() -> None:
    with pytest.raises(ValueError, match="one line"):
        digest("nvllm\nbuild", {})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, "\ud800"])
def test_what_json_cannot_say_exactly_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError):
        encode([value])


def test_pretty_is_for_diffs() -> None:
    assert pretty({"b": 1, "a": ["ü"]}) == '{\n  "a": [\n    "ü"\n  ],\n  "b": 1\n}\n'


def test_sha256_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"nvllm" * 100_000)
    assert sha256_file(path) == hashlib.sha256(b"nvllm" * 100_000).hexdigest()


@given(values)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert decode(pretty(value).encode()) == value
    assert decode(printed(value).encode("ascii")) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[NaN]", "NaN is no number of JSON"),
        (b"-Infinity", "-Infinity is no number of JSON"),
        (b"1e999", "1e999 is no number of JSON"),
        (b"1152921504606846976", "a whole number beyond 9007199254740991: 1152921504606846976"),
        (b"-" + b"1" * 5000, "a whole number beyond 9007199254740991: -1111111111111111111..."),
        (b'{"\\ud800": 1}', "surrogates not allowed"),
        (b'["\\udfff"]', "surrogates not allowed"),
        (b"[" * 65 + b"]" * 65, "nesting deeper than 64 levels"),
        (b"[" * 100_000, "nesting deeper than 64 levels"),
        (b"\xff", "decode"),
        (b"", "Expecting value"),
    ],
)
def test_what_could_not_be_written_again_is_no_document(text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(text)


def test_the_deepest_document_is_read() -> None:
    assert decode(b"[" * 64 + b"]" * 64)


@pytest.mark.parametrize("write", [pretty, printed])
def test_no_document_has_a_number_that_json_lacks(write: Any) -> None:
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="Out of range float values"):
            write([number])


def test_what_is_printed_needs_no_encoding() -> None:
    assert printed({"caf\xe9": "\udce9"}) == '{\n  "caf\\u00e9": "\\udce9"\n}\n'
