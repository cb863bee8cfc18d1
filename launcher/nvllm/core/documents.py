"""Documents of one form as frozen values, and files of that form: read strictly, written as the only text of a value.

The form (`fields.py`) says which names and values are allowed. Rules that need more than one field are the caller's.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from nvllm.core import canonical, fields, schemas
from nvllm.core.canonical import Json
from nvllm.core.fields import WRITTEN, Form, T, Tagged
from nvllm.core.refusal import Refusal, refuse, refuse_any

Rules: TypeAlias = Callable[[T], Iterable[tuple[str, str, str]]]
"""Yields path, expected and found of each error in a value that its form cannot find."""

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse(form: Form[T], data: bytes, rules: Rules[T], *, code: str, label: str, cure: str) -> T:
    """Return the value of FORM in DATA, the content of the file that messages call LABEL.

    Raises Refused with CODE and CURE for everything that is wrong by the form or, if nothing is, by RULES.
    """
    try:
        document = canonical.decode(data)
    except ValueError as error:
        raise refuse(code, label, "a JSON document", str(error), cure) from error
    refuse_any(
        Refusal(code, f"{label}: {problem.path}", problem.allowed, problem.actual, cure)
        for problem in schemas.validate(form, document)
    )
    value = structure(form, document)
    refuse_any(Refusal(code, f"{label}: {path}", expected, actual, cure) for path, expected, actual in rules(value))
    return value


def decode(form: Form[T], data: bytes, rules: Rules[T], *, code: str, label: str, cure: str) -> T:
    """Return what `parse` does. Raises Refused also if DATA is not the text that `encode` writes."""
    value = parse(form, data, rules, code=code, label=label, cure=cure)
    written = encode(form, value)
    if written != data:
        problem = f"the same content in another layout, first in line {_first_difference(written, data)}"
        raise refuse(code, label, "the text that nvllm writes", problem, cure)
    return value


def encode(form: Form[T], value: T) -> bytes:
    """Return the text of VALUE as a file of FORM."""
    return canonical.pretty(unstructure(form, value)).encode()


def _first_difference(first: bytes, second: bytes) -> int:
    """Return the number of the first line in which two texts differ, counted from 1."""
    pairs = itertools.zip_longest(first.splitlines(keepends=True), second.splitlines(keepends=True))
    return next(number for number, (line, another) in enumerate(pairs, start=1) if line != another)


def structure(form: Form[T], document: Json) -> T:
    """Return the value of FORM's class that DOCUMENT says. `schemas.validate` must have found no problem in it."""
    of = form.of
    if isinstance(of, Tagged):
        of = of.kinds[str(canonical.mapping(document)[of.tag])]
    return converter(form).structure(document, of)


def unstructure(form: Form[T], value: T) -> Json:
    """Return VALUE as a document of FORM.

    A field that has its default is left out, as in documents that are older than the field, unless it is WRITTEN.
    """
    return cast("Json", _writer(form).unstructure(value))


@functools.cache
def converter(form: Form[Any]) -> cattrs.Converter:
    """Return what makes FORM's class, and every class in it, of a document; and the document again, with every field.

    Only the names of fields are translated; the keys of mappings are the user's own. A class of a union is chosen by
    the field that is a Literal in each.
    """
    reader = cattrs.Converter(detailed_validation=False)  # jsonschema has found every problem before
    reader.register_structure_hook_func(lambda hint: hint == bool | int | float | str, lambda value, _: value)
    reader.register_structure_hook_factory(
        lambda hint: bool(fields.classes_of(hint)), functools.partial(_union_fn, form, reader)
    )
    reader.register_structure_hook_factory(dataclasses.is_dataclass, functools.partial(_structure_fn, form, reader))
    return reader


def _structure_fn(form: Form[Any], reader: cattrs.Converter, cls: type[Any]) -> Any:
    names = {}
    for member in fields.declared(cls, form):
        # The type `Size`: people write 6GiB, and the field has bytes.
        size = any("string" in rule.types and "integer" in rule.types for rule in member.rules)
        names[member.field.name] = override(rename=member.name, struct_hook=_size if size else None)
    return cast("Any", make_dict_structure_fn)(cls, reader, **names)


def _union_fn(form: Form[Any], reader: cattrs.Converter, hint: Any) -> Any:
    tag, kinds = fields.tagged(fields.classes_of(hint), form)
    return lambda value, _: None if value is None else reader.structure(value, kinds[value[tag]])


def _size(value: int | str, _: object) -> int:
    """Return the bytes that VALUE says: ``6GiB`` in what people write."""
    return value if isinstance(value, int) else int(value[:-3]) * _UNITS[value[-3:]]


@functools.cache
def _writer(form: Form[Any]) -> cattrs.Converter:
    writer = cattrs.Converter()
    writer.register_unstructure_hook_factory(dataclasses.is_dataclass, functools.partial(_unstructure_fn, form, writer))
    return writer


def _unstructure_fn(form: Form[Any], writer: cattrs.Converter, cls: type[Any]) -> Any:
    names = {
        declaration.field.name: override(rename=declaration.name, omit_if_default=WRITTEN not in declaration.rules)
        for declaration in fields.declared(cls, form)
    }
    return cast("Any", make_dict_unstructure_fn)(cls, writer, **names)
