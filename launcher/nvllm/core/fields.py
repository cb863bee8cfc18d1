"""The form of a document, declared once: the types of a dataclass's fields, and rules on them.

A `Form` names the dataclass. `json_schema` derives the JSON Schema by which `schemas.py` validates, and `documents.py`
makes the dataclass from a valid document. A field is required if it has no default, and null is allowed where the type
has None and the field is required. The classes of a union share a field that is a different Literal in each.
This module imports nothing slow: every command loads the modules that declare fields.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, Union

T = TypeVar("T")

Schema: TypeAlias = dict[str, Any]
"""A JSON Schema, or a part of one."""

_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string"}


class Rule(NamedTuple):
    """What a value has to be besides its type; for ``Annotated``. What is None, empty or False says nothing.

    A tuple: as a frozen dataclass it made every start some milliseconds slower.
    """

    pattern: str | None = None
    allowed: str = ""
    """What is allowed, in words."""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    least: int | None = None
    """Fewest characters of text, entries of a list, or names of a mapping."""
    most: int | None = None
    unique: bool = False
    """Whether the entries of the list all differ."""
    choices: tuple[bool | int | str, ...] = ()
    """The only values that are allowed."""
    types: tuple[str, ...] = ()
    """The types of JSON, where the document says the value in another type than the field has."""
    names: tuple[str, ...] = ()
    """The names that a mapping must have; it may have no other."""
    cure: str = ""
    """What to do about another value; ``{value}`` in it is that value, quoted for a shell."""
    code: str = ""
    """The catalogue's code for another value, where it is not the usual one of the document."""
    name: str = ""
    """The name in the document, where it is another than the field's."""
    nullable: bool = False
    """Whether a field that may be left out may also be null."""
    written: bool = False
    """Whether the document must have the field although the class has a default."""


WRITTEN = Rule(written=True)
NOT_EMPTY = Rule(least=1)

COMMIT = "^[0-9a-f]{40}$"
Sha256 = Annotated[str, Rule("^[0-9a-f]{64}$", "a sha256 as 64 lower-case hex digits")]
Commit = Annotated[str, Rule(COMMIT, "a commit as 40 lower-case hex digits")]
PINNED_COMMIT = "^[0-9a-f]{9,40}$"
"""vLLM's commit: all of it, or, of a release, what its source archive records. PyPI's archives record nine digits."""
PINNED = "a commit as 40 lower-case hex digits, or, of a release, the nine or more that its source archive records"
PinnedCommit = Annotated[str, Rule(PINNED_COMMIT, PINNED)]
Platform = Annotated[str, Rule(choices=("linux/amd64", "linux/arm64"))]
Epoch = Annotated[int, Rule(minimum=0, maximum=2**32 - 1)]
Size = Annotated[
    int,
    Rule(
        "^([1-9][0-9]{0,8}(KiB|MiB)|[1-9][0-9]{0,5}GiB)$",
        "a size such as 6GiB, 512MiB or 64KiB, or a whole number of bytes",
        types=("string", "integer"),
        minimum=1,
        maximum=10**15,
    ),
]
Count = Annotated[int, Rule(minimum=0)]
Positive = Annotated[int, Rule(minimum=1)]
Seconds = Annotated[float, Rule(minimum=0)]
Word = Annotated[str, NOT_EMPTY]
Text = Annotated[str, Rule(r"^[^\u0000]+$", "text that is not empty and holds no NUL")]
ProjectPath = Annotated[
    str,
    Rule(
        r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$",
        "a path below the project of letters, digits, ., _ and -, such as templates/mine.jinja",
    ),
]

VERSION = r"([0-9]+!)?[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9]+([._-][a-z0-9]+)*)?$"
DISTRIBUTION = "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"

Requirement = Annotated[
    str,
    Rule(
        f"{DISTRIBUTION}=={VERSION}",
        "one exact version, name==version",
        code="NV102",
        cure="write name==version; `pip index versions NAME` lists the versions",
    ),
]


@dataclass(frozen=True, slots=True)
class Case:
    """What goes with one VALUE of FIELD: other fields it NEEDS, and fields that it must NEVER have, and why not.

    A class lists its cases as ``CASES``. Names are those of the document; ``upstream.since`` is a field of a field.
    """

    field: str
    value: str
    needs: tuple[str, ...]
    never: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tagged:
    """A document that is one of KINDS: its TAG says which. All have the fields of HEAD besides."""

    tag: str
    kinds: Mapping[str, type]
    head: type


@dataclass(frozen=True, slots=True, eq=False)
class Form(Generic[T]):
    """One kind of document. NAME names its file in docs/schemas, SCHEMA is the tag of the format."""

    name: str
    schema: str
    title: str
    of: type[T] | Tagged
    kebab: bool = False
    """Whether names are written with ``-`` for ``_``, as in documents that people write."""
    open: bool = False
    """Whether it may hold names that are not declared, as a format of another project may."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """What else its schema says."""


def json_schema(form: Form[Any]) -> Schema:
    """Return the JSON Schema (2020-12) of FORM. The schemas of the classes that it uses are its ``$defs``."""
    derivation = _Derivation(form)
    root = derivation.root()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": form.schema, "title": form.title}
    return {**head, **root, **form.also, "$defs": derivation.defs}


def classes(form: Form[Any]) -> Mapping[str, type]:
    """Return the classes that FORM uses, by name. No two of them have the same."""
    derivation = _Derivation(form)
    derivation.root()
    return derivation.classes


class Declared(NamedTuple):
    """A FIELD of a class: the NAME that it has in a document, its type, and the rules on it."""

    field: dataclasses.Field[Any]
    name: str
    hint: Any
    rules: tuple[Rule, ...]


def declared(cls: type, form: Form[Any]) -> Iterator[Declared]:
    """Yield the fields of CLS as a document of FORM has them."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for member in dataclasses.fields(cls):
        hint, rules = _split(hints[member.name])
        other = next((rule.name for rule in rules if rule.name), "")
        yield Declared(member, other or (member.name.replace("_", "-") if form.kebab else member.name), hint, rules)


def tagged(kinds: Collection[type], form: Form[Any]) -> tuple[str, Mapping[str, type]]:
    """Return the name of the field that is a Literal in each of KINDS, and the class for each of its values."""
    literals = [
        {
            declaration.name: declaration.hint
            for declaration in declared(cls, form)
            if typing.get_origin(declaration.hint) is Literal
        }
        for cls in kinds
    ]
    tag = next(iter(set.intersection(*({*hints} for hints in literals))))
    return tag, {typing.get_args(hints[tag])[0]: cls for hints, cls in zip(literals, kinds, strict=True)}


def classes_of(hint: Any) -> tuple[type, ...]:
    """Return the classes of the union HINT; nothing if it is no union of several classes, with or without None."""
    kinds = tuple(kind for kind in typing.get_args(hint) if kind is not types.NoneType) if _is_union(hint) else ()
    return kinds if len(kinds) > 1 and all(map(dataclasses.is_dataclass, kinds)) else ()


def _split(hint: Any) -> tuple[Any, tuple[Rule, ...]]:
    """Return the type in HINT, and the rules on it."""
    if typing.get_origin(hint) is not Annotated:
        return hint, ()
    base, *notes = typing.get_args(hint)
    return base, tuple(note for note in notes if isinstance(note, Rule))


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


def _without_none(hint: Any) -> Any:
    kinds = tuple(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    return Union[kinds] if _is_union(hint) else hint  # noqa: UP007 - of a tuple


class _Derivation:
    """Makes the schema of each type that a form uses, and keeps those of classes as DEFS."""

    def __init__(self, form: Form[Any]) -> None:
        self.defs: dict[str, Schema] = {}
        self.classes: dict[str, type] = {}
        self._form = form

    def root(self) -> Schema:
        """Return the schema of the whole document."""
        if isinstance(self._form.of, Tagged):
            return self._tagged(self._form.of)
        self.schema(self._form.of)
        return self.defs.pop(self._form.of.__name__)

    def schema(self, hint: Any) -> Schema:
        """Return the schema of HINT; that of a class is a reference into DEFS."""
        base, rules = _split(hint)
        if rules:
            return self._ruled(self.schema(base), rules)
        origin, arguments = typing.get_origin(base), typing.get_args(base)
        if _is_union(base):
            return self._union(arguments)
        if origin is Literal:
            return _choices(arguments)
        if origin is tuple:
            sizes = {} if arguments[-1] is ... else {"minItems": len(arguments), "maxItems": len(arguments)}
            return {"type": "array", **sizes, "items": self.schema(arguments[0])}
        if origin is not None and issubclass(origin, Mapping):
            return self._mapping(*arguments)
        if dataclasses.is_dataclass(base):
            assert isinstance(base, type)
            if base.__name__ not in self.defs:
                self.defs[base.__name__] = self._class(base)
            return {"$ref": f"#/$defs/{base.__name__}"}
        return {} if base is Any else {"type": _SCALARS[base]}

    def _tagged(self, choice: Tagged) -> Schema:
        head = self._class(choice.head)
        for tag, cls in choice.kinds.items():
            own = self._class(cls)
            self.defs[cls.__name__] = {
                **own,
                "required": [*head["required"], choice.tag, *own["required"]],
                "properties": {**head["properties"], choice.tag: {"const": tag}, **own["properties"]},
            }
        references = _by_tag(choice.tag, {tag: f"#/$defs/{cls.__name__}" for tag, cls in choice.kinds.items()})
        required = [*head["required"], choice.tag]
        return {**references, "required": required, "properties": {**head["properties"], **references["properties"]}}

    def _class(self, cls: type) -> Schema:
        # Two classes of one name would share an entry of `$defs`.
        assert self.classes.setdefault(cls.__name__, cls) is cls
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for member, named, hint, rules in declared(cls, self._form):
            unset = member.default is dataclasses.MISSING and member.default_factory is dataclasses.MISSING
            must = unset or any(rule.written for rule in rules)
            nullable = must or any(rule.nullable for rule in rules)
            properties[named] = self._ruled(self.schema(hint if nullable else _without_none(hint)), rules)
            if must:
                required.append(named)
        schema: Schema = {"type": "object", **({} if self._form.open else {"additionalProperties": False})}
        schema |= {"required": required, "properties": properties}
        cases = vars(cls).get("CASES", ())
        return {**schema, "allOf": [self._case(case, properties) for case in cases]} if cases else schema

    def _case(self, case: Case, properties: Mapping[str, Schema]) -> Schema:
        then: dict[str, Any] = {
            other: {"not": {}, "x-allowed": f"nothing: {reason}"} for other, reason in case.never.items()
        }
        for needed in case.needs:
            outer, _, inner = needed.partition(".")
            then[outer] = properties[outer]
            if inner:
                schema = self._inline(properties[outer])["properties"][inner]
                then[outer] = {"required": [inner], "properties": {inner: schema}}
        required = [needed for needed in case.needs if "." not in needed]
        condition = {"required": [case.field], "properties": {case.field: {"const": case.value}}}
        return {"if": condition, "then": {"required": required, "properties": then}}

    def _mapping(self, key: Any, value: Any) -> Schema:
        names = {"propertyNames": self.schema(key)} if _split(key)[1] else {}
        return {"type": "object", **names, **({} if value is Any else {"additionalProperties": self.schema(value)})}

    def _union(self, kinds: Collection[Any]) -> Schema:
        known = [kind for kind in kinds if kind is not types.NoneType]
        if len(known) == 1:
            schema = self.schema(known[0])
        elif all(kind in _SCALARS for kind in known):
            schema = {"type": [_SCALARS[kind] for kind in known]}
        else:
            schema = self._classes(known)
        return self._or_null(schema) if len(known) < len(kinds) else schema

    def _classes(self, classes: Collection[type]) -> Schema:
        tag, kinds = tagged(classes, self._form)
        return _by_tag(tag, {kind: self.schema(cls)["$ref"] for kind, cls in kinds.items()})

    def _inline(self, schema: Schema) -> Schema:
        return self.defs[schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema

    def _or_null(self, schema: Schema) -> Schema:
        schema = dict(self._inline(schema))
        if "enum" in schema:
            return {**schema, "enum": [*schema["enum"], None]}
        if "x-allowed" in schema:
            schema["x-allowed"] += ", or null"
        return {**schema, "type": [schema["type"], "null"]}

    def _ruled(self, schema: Schema, rules: Iterable[Rule]) -> Schema:
        for rule in rules:
            added = self._keywords(rule, schema)
            if rule.choices:
                schema = {**_choices(rule.choices), **added}
            elif added:
                schema = {**self._inline(schema), **added}
        return schema

    def _keywords(self, rule: Rule, schema: Schema) -> Schema:
        sized = {"string": "Length", "array": "Items"}.get(str(schema.get("type")), "Properties")
        keywords: Schema = {
            "pattern": rule.pattern,
            "minimum": rule.minimum,
            "maximum": rule.maximum,
            "exclusiveMinimum": rule.above,
            "exclusiveMaximum": rule.below,
            f"min{sized}": rule.least,
            f"max{sized}": rule.most,
            "uniqueItems": rule.unique or None,
            "type": [*rule.types] or None,
            "x-allowed": rule.allowed or None,
            "x-cure": rule.cure or None,
            "x-refusal": rule.code or None,
        }
        if rule.names:
            value = schema["additionalProperties"]
            keywords |= {"properties": dict.fromkeys(rule.names, value), "required": [*rule.names]}
            keywords["additionalProperties"] = False
        return {keyword: value for keyword, value in keywords.items() if value is not None}


def _choices(values: Collection[Any]) -> Schema:
    return {"enum": [*values]} if len(values) > 1 else {"const": next(iter(values))}


def _by_tag(tag: str, references: Mapping[str, str]) -> Schema:
    """Return the schema of a choice by TAG. It has no ``oneOf``, so each problem is found at the value that has it."""
    return {
        "type": "object",
        "required": [tag],
        "properties": {tag: _choices(list(references))},
        "allOf": [
            {"if": {"required": [tag], "properties": {tag: {"const": value}}}, "then": {"$ref": reference}}
            for value, reference in references.items()
        ],
    }
