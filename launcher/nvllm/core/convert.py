"""Documents that fit their form as frozen values."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

import cattrs
from cattrs.gen import make_dict_structure_fn, override

from nvllm.core import fields
from nvllm.core.canonical import Json
from nvllm.core.fields import Form, T

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def structure(form: Form[T], document: Json) -> T:
    """Return the value of FORM's class that DOCUMENT says. `schemas.validate` must have found no problem in it."""
    return converter(form).structure(document, cast("type[T]", form.of))


@functools.cache
def converter(form: Form[Any]) -> cattrs.Converter:
    """Return what makes FORM's class, and every class in it, of a document.

    Only the names of fields are translated; the keys of mappings are the user's own. A class of a union is chosen by
    the field that is a Literal in each.
    """
    made = cattrs.Converter(detailed_validation=False)
    made.register_structure_hook_func(lambda hint: hint == bool | int | float | str, lambda value, _: value)
    made.register_structure_hook_factory(dataclasses.is_dataclass, functools.partial(_structure_fn, form, made))
    return made


def _structure_fn(form: Form[Any], made: cattrs.Converter, cls: type[Any]) -> Any:
    names = {}
    for one in fields.declared(cls, form):
        size = any("string" in rule.types and "integer" in rule.types for rule in one.rules)
        names[one.field.name] = override(rename=one.name, struct_hook=_size if size else None)
    return cast("Any", make_dict_structure_fn)(cls, made, **names)


def _size(value: int | str, _: object) -> int:
    """Return the bytes that VALUE says: ``6GiB`` in what people write."""
    return value if isinstance(value, int) else int(value[:-3]) * _UNITS[value[-3:]]
