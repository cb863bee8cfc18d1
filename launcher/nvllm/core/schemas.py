"""Documents checked against their form: every problem at once, in words.

The check is jsonschema's, by the schema that `fields.py` derives. Such a schema has three keywords of its own:
``x-allowed`` says in words what a pattern means, ``x-cure`` what to do about a value that does not fit (``{value}`` in
it is that value, quoted for a shell), and ``x-refusal`` names the catalogue's code for such a value.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

from nvllm.core.canonical import Json
from nvllm.core.fields import Form, json_schema
from nvllm.core.yamlnodes import dotted

Schema: TypeAlias = Mapping[str, Any]
Step: TypeAlias = "str | int"


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """One thing that does not fit: where, what is there, what is allowed, and the one thing to do about it.

    CODE is the catalogue's code that the schema names for it; None leaves it to the caller. STEPS are PATH's
    keys and indexes, for callers who look up a line.
    """

    path: str
    actual: str
    allowed: str
    cure: str
    code: str | None
    steps: tuple[Step, ...]


def validate(form: Form[Any], document: Json) -> list[SchemaProblem]:
    """Return every problem of DOCUMENT as one of FORM, each once, sorted by path: none for a valid document."""
    validator = _validator(form)
    # jsonschema decides by exact types: a Json value made of lists and dicts, as parsers return it
    errors: Iterator[ValidationError] = validator.iter_errors(cast("Any", document))
    problems = {problem for error in errors for problem in _problems(validator.schema, error)}
    return sorted(problems, key=lambda p: (tuple((isinstance(s, str), s) for s in p.steps), p.allowed, p.actual))


def nearest(word: str, known: list[str]) -> str | None:
    """Return the one of KNOWN that WORD was most likely meant to be, or None."""
    close = difflib.get_close_matches(word, known, n=1)
    return close[0] if close else None


def show(value: Json) -> str:
    """Return VALUE as messages show it: JSON, cut to about one line, and its type where it is no text."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, Mapping):
        return "a mapping"
    if not isinstance(value, bool | int | float | str):
        return "an empty list" if not value else "a list"
    text = json.dumps(value, ensure_ascii=False)
    short = text if len(text) <= 80 else text[:77] + "..."
    return short if isinstance(value, str) else f"{short} ({_type_word(value)})"


def _type_word(value: bool | int | float) -> str:  # noqa: FBT001 - it names the type of its argument
    if isinstance(value, bool):
        return "a boolean"
    return "a whole number" if isinstance(value, int) else "a number"


@functools.cache
def _validator(form: Form[Any]) -> Any:
    return _strict()(json_schema(form))


@functools.cache
def _strict() -> Any:
    """Return a validator class for which 1.0 is no integer, and ``$`` is the end and not a newline before it."""
    checker = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    return cast("Any", validators.extend)(Draft202012Validator, {"pattern": _pattern}, type_checker=checker)


def _pattern(_: Any, pattern: str, value: Json, __: Schema) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _compiled(pattern).search(value):
        yield ValidationError("wrong form")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") else pattern)


def _problems(root: Schema, error: ValidationError) -> Iterator[SchemaProblem]:
    """Yield ERROR as problems: one for each unknown or missing name, else one."""
    steps: tuple[Step, ...] = tuple(error.absolute_path)
    schema = cast("Schema", error.schema)
    if error.validator == "required":
        yield from _missing(root, error, steps)
    elif error.validator == "additionalProperties" and error.validator_value is False:
        yield from _unknown(error, steps)
    else:
        if "propertyNames" in error.absolute_schema_path:
            steps = (*steps, cast("str", error.instance))
        allowed = _allowed(root, schema)
        value = cast("Json", error.instance)
        code = schema.get("x-refusal") if _is_word(value) else None
        yield SchemaProblem(dotted(steps), show(value), allowed, _cure(schema, error, allowed), code, steps)


def _missing(root: Schema, error: ValidationError, steps: tuple[Step, ...]) -> Iterator[SchemaProblem]:
    properties = cast("Schema", error.schema)["properties"]
    for name in cast("list[str]", error.validator_value):
        if name not in cast("Mapping[str, Json]", error.instance):
            allowed = _allowed(root, properties[name])
            here = (*steps, name)
            yield SchemaProblem(dotted(here), "nothing", allowed, f"add `{name}:` with {allowed}", None, here)


def _unknown(error: ValidationError, steps: tuple[Step, ...]) -> Iterator[SchemaProblem]:
    known = sorted(cast("Schema", error.schema)["properties"])
    for name in cast("Mapping[str, Json]", error.instance):
        if name not in known:
            meant = nearest(name, known)
            cure = f"write `{meant}`" if meant is not None else f"remove {show(name)}"
            here = (*steps, name)
            yield SchemaProblem(dotted(here), f"the unknown name {show(name)}", _one_of(known), cure, None, here)


def _is_word(value: Json) -> bool:
    """Whether VALUE is something written where a name should stand: YAML makes a number of ``1234567``."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _cure(schema: Schema, error: ValidationError, allowed: str) -> str:
    value = cast("Json", error.instance)
    if "x-cure" in schema and _is_word(value):
        word = " ".join(str(value).split())  # a block scalar ends in a newline, which no command line should
        return str(schema["x-cure"]).replace("{value}", shlex.quote(word))
    if error.validator == "type" and error.validator_value == "string" and isinstance(value, bool | int | float):
        return "put the value in quotes, so that YAML reads it as text"
    if error.validator == "enum" and isinstance(value, str):
        known = [choice for choice in cast("list[Json]", error.validator_value) if isinstance(choice, str)]
        meant = nearest(value, known)
        if meant is not None:
            return f"write {meant}"
    return f"write {allowed}"


def _allowed(root: Schema, schema: Schema) -> str:
    """Return in words what SCHEMA, a part of ROOT, allows."""
    if "x-allowed" in schema:
        return str(schema["x-allowed"])
    if "$ref" in schema:
        return _allowed(root, root["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "enum" in schema:
        return _one_of([_plain(choice) for choice in schema["enum"]])
    if "const" in schema:
        return _plain(schema["const"])
    kinds = schema.get("type", "value")
    if isinstance(kinds, list) and kinds[-1] == "null":
        return f"{_allowed(root, {**schema, 'type': kinds[:-1]})}, or null"
    words = " or ".join(_TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))
    if "minimum" in schema and "maximum" in schema:
        return f"{words} from {schema['minimum']} to {schema['maximum']}"
    if schema.get("minItems") == 1:
        return f"{words} that is not empty"
    bounds = [phrase.format(schema[key]) for key, phrase in _BOUNDS.items() if key in schema]
    return f"{words} {' and '.join(bounds)}" if bounds else words


_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "value": "a value",
}

_BOUNDS = {
    "minimum": "not below {}",
    "maximum": "not above {}",
    "minLength": "of at least {} characters",
    "maxLength": "of at most {} characters",
    "minItems": "of at least {} entries",
    "maxItems": "of at most {} entries",
    "minProperties": "of at least {} entries",
}


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _one_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
