"""NV103, not YAML: a syntax error, a key said twice, or YAML that means more than values."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from nvllm.spec import specfile
from support.specs import GOOD, SHOWN, line_of, only, refusals, spoiled


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("a: [1\nb: 2\n", 2, "while parsing a flow sequence"),
        ("a: 'x\n", 2, "unexpected end of stream"),
        ("a: 1\n\tb: 2\n", 2, "'\\t'"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("a: *b\n", 1, "undefined alias"),
        ("a: 1\nb: \x07\n", 2, "U+0007"),
        ('a: 1\nb: "\\UFFFFFFFF"\n', 2, "out of range"),
        ("[" * 70 + "]" * 70, 1, "nesting deeper than 64 levels"),
    ],
)
def test_syntax(text: str, line: int, found: str) -> None:
    refusal = only(text)
    assert (refusal.code, refusal.where, refusal.expected) == ("NV103", f"{SHOWN}:{line}", "one YAML document")
    assert found in refusal.found
    assert refusal.cure


def test_every_duplicate_key_at_once() -> None:
    text = spoiled("name: demo\n", "name: demo\nname: other\n").replace("      pids: 512\n", 2 * "      pids: 512\n")
    first, second = refusals(text)
    assert first.code == second.code == "NV103"
    assert first.where == f"{SHOWN}:3: .name"
    assert (first.expected, first.found) == ("each key once", "name a second time, first on line 2")
    assert first.cure == "keep one of lines 2 and 3"
    assert second.where.endswith(": .profiles.eager.limits.pids")


def test_key_that_is_no_text() -> None:
    text = spoiled("VLLM_TARGET_DEVICE: cpu", "1: cpu\n    [a]: b\n    on: c")
    number, listed, boolean = refusals(text)
    assert number.where == f"{SHOWN}:{line_of(text, '1: cpu')}: .runtime.environment"
    assert (number.code, number.expected, number.found) == ("NV103", "a key that is text", "1, a whole number")
    assert number.cure == 'put the key in quotes: "1"'
    assert listed.found == "a list or a mapping"
    assert boolean.found == "on, true or false"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("!secret x", "the tag !secret"),
        ("!!python/object:os.system x", "the tag !!python/object:os.system"),
        ("!!binary aGVsbG8=", "the tag !!binary"),
        ("2026-01-01", "the tag !!timestamp"),
        ("!!set {a}", "the tag !!set"),
        ("!own [a]", "the tag !own"),
        ("!!int x", "x"),
        ("!!bool x", "x"),
        (".nan", ".nan"),
        ("-.inf", "-.inf"),
        ("9" * 5000, "999..."),
        ('"\\ud800"', "half of a surrogate pair"),
    ],
)
def test_value_that_json_cannot_say(value: str, found: str) -> None:
    text = spoiled("an image for tests", value)
    refusal = only(text)
    assert (refusal.code, refusal.where) == ("NV103", f"{SHOWN}:3: .description")
    assert found in refusal.found
    assert refusal.expected
    assert refusal.cure


@pytest.mark.parametrize("text", ["a: &a [1, *a]", "a: &a {b: *a}", "a: &a {b: {c: [*a]}}"])
def test_alias_of_what_is_around_it(text: str) -> None:
    refusal = only(text)
    assert refusal.code == "NV103"
    assert refusal.where.startswith(f"{SHOWN}:1: .a")
    assert refusal.expected == "a value that does not contain itself"
    assert refusal.cure == "write the value instead of the alias"


@pytest.mark.parametrize("merge", ["<<: *limits", "<<: [*limits]", "!!merge x: *limits"])
def test_merge_key(merge: str) -> None:
    text = f"one: &limits\n  pids: 4\ntwo:\n  {merge}\n  pids: 5\n"
    refusal = only(text)
    assert (refusal.code, refusal.where) == ("NV103", f"{SHOWN}:4: .two")
    assert (refusal.expected, refusal.found) == ("entries without merge keys", "the merge key <<")
    assert refusal.cure == "write its entries out, or give a whole value an anchor (&name) and an alias (*name)"


def test_a_merge_key_behind_aliases_is_refused_once() -> None:
    assert only("a: &a {b: 1}\nc: &c {<<: *a}\nd: [*c, *c]").where == f"{SHOWN}:2: .c"


def test_a_billion_laughs() -> None:
    lines = ["a0: &a0 [" + ", ".join(10 * ["lol"]) + "]"]
    lines += [f"a{n}: &a{n} [" + ", ".join(10 * [f"*a{n - 1}"]) + "]" for n in range(1, 10)]
    refusal = only("\n".join(lines))
    assert (refusal.code, refusal.expected) == ("NV103", "at most 20000 values")
    assert "aliases" in refusal.cure


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_bytes(GOOD.encode().replace(b"an image", b"an im\xe4ge"))
    with pytest.raises(Refused) as caught:
        specfile.load(path, SHOWN)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.expected) == ("NV103", f"{SHOWN}:3", "text in UTF-8")
    assert "0xe4" in refusal.found
    assert refusal.cure == "save the file as UTF-8"
