"""Declarations of fields: the schema that they make, the values that they let pass, and what is said of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest

from nvllm.core import documents, fields, schemas
from nvllm.core.canonical import Json
from nvllm.core.fields import NOT_EMPTY, WRITTEN, Case, Commit, Count, Form, Rule, Tagged, Word


@dataclass(frozen=True, slots=True)
class Circle:
    kind: Literal["circle"]
    radius: Annotated[float, Rule(above=0)]


@dataclass(frozen=True, slots=True)
class Square:
    kind: Literal["square"]
    side_length: Count


@dataclass(frozen=True, slots=True)
class Paint:
    colour: Literal["red", "blue"] | None
    coats: Count = 1


@dataclass(frozen=True, slots=True)
class Drawing:
    state: Literal["draft", "final"]
    shapes: Annotated[tuple[Circle | Square, ...], NOT_EMPTY] = ()
    paint: Annotated[Paint | None, Rule(nullable=True)] = None
    commit: Commit | None = None
    size: Annotated[int | None, WRITTEN] = None
    labels: Mapping[Annotated[str, Rule("^[a-z]+$", "a lower-case word")], Word | None] = ()  # type: ignore[assignment]  # empty, and nobody can change it
    point: tuple[Count, Count] = (0, 0)
    signed: str | None = None

    CASES: ClassVar = (Case("state", "final", ("signed",), {"commit": "a final drawing has none"}),)


FORM = Form("drawing", "test.drawing/1", "Drawing", Drawing, kebab=True)
LEAST: dict[str, Json] = {"state": "draft", "size": None}


def places(document: Json, form: Form[Any] = FORM) -> list[str]:
    """Return the paths of what is wrong with DOCUMENT."""
    return [problem.path for problem in schemas.validate(form, document)]


def test_a_field_without_a_default_is_required() -> None:
    assert places({}) == [".size", ".state"]
    assert places(LEAST) == []


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"paint": None}, []),
        ({"paint": {"colour": None}}, []),
        ({"paint": {"colour": "green"}}, [".paint.colour"]),
        ({"paint": {}}, [".paint.colour"]),
        ({"commit": None}, [".commit"]),
        ({"commit": "a" * 40}, []),
        ({"size": 1.0}, [".size"]),
        ({"shapes": []}, [".shapes"]),
        ({"shapes": [{"kind": "circle", "radius": 0}]}, [".shapes[0].radius"]),
        ({"shapes": [{"kind": "square", "radius": 1}]}, [".shapes[0].radius", ".shapes[0].side-length"]),
        ({"shapes": [{"kind": "line"}, {}]}, [".shapes[0].kind", ".shapes[1].kind"]),
        ({"shapes": [{"kind": "square", "side-length": 1}]}, []),
        ({"labels": {"A": "x", "b": "", "c": None}}, [".labels.A", ".labels.b"]),
        ({"point": [1]}, [".point"]),
        ({"point": [1, -1]}, [".point[1]"]),
        ({"points": []}, [".points"]),
        ({"state": "final"}, [".signed"]),
        ({"state": "final", "signed": "me", "commit": "a" * 40}, [".commit"]),
    ],
)
def test_a_document_is_checked_by_the_types_and_rules_of_the_fields(more: dict[str, Json], wrong: list[str]) -> None:
    assert places(LEAST | more) == wrong


def test_what_is_allowed_is_said_in_words() -> None:
    document = LEAST | {"size": "1", "paint": 1, "commit": 1, "state": "final"}
    said = {problem.path: problem.allowed for problem in schemas.validate(FORM, document)}
    assert said[".size"] == "a whole number, or null"
    assert said[".paint"] == "a mapping, or null"
    assert said[".commit"] == "nothing: a final drawing has none"


def test_a_valid_document_becomes_the_class() -> None:
    shapes: Json = [{"kind": "circle", "radius": 2}, {"kind": "square", "side-length": 3}]
    made = documents.structure(FORM, LEAST | {"shapes": shapes, "paint": {"colour": "red"}, "labels": {"a-b": "c-d"}})
    assert made.shapes == (Circle("circle", 2.0), Square("square", 3))
    assert (made.paint, made.labels, made.size) == (Paint("red", 1), {"a-b": "c-d"}, None)


@dataclass(frozen=True, slots=True)
class Head:
    n: Count


def test_a_tag_says_which_class_a_document_is() -> None:
    form: Form[Any] = Form("line", "test.line/1", "Line", Tagged("record", {"paint": Paint, "square": Square}, Head))
    assert places({"n": 0, "record": "paint", "colour": "red"}, form) == []
    assert places({"n": -1, "record": "paint", "kind": "square"}, form) == [".colour", ".kind", ".n"]
    assert places({"record": "circle"}, form) == [".n", ".record"]
    assert places({}, form) == [".n", ".record"]


def test_names_that_are_not_declared_may_be_allowed() -> None:
    form = Form("paint", "test.paint/1", "Paint", Paint, open=True)
    assert places({"colour": "red", "price": 3}, form) == []
    assert documents.structure(form, {"colour": "red", "price": 3}) == Paint("red")


def test_the_classes_of_a_form() -> None:
    assert set(fields.classes(FORM)) == {"Circle", "Square", "Paint", "Drawing"}
    assert set(fields.json_schema(FORM)["$defs"]) == {"Circle", "Square", "Paint"}
