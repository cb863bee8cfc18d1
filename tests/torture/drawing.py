"""Bodies of requests that are drawn at random from the schema that a running engine publishes at /openapi.json.

A draw has the fields that the route needs, with ordinary values, and some of its other fields: most with a value that
the schema allows, the rest with one that is out of range or of another type. The same seed draws the same bodies.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, TypeAlias

Json: TypeAlias = Any

GENERATES = ("completions", "responses", "messages", "generate", "tokenize", "detokenize", "render")
"""Words in the paths of routes that take a prompt. Others would change the engine, such as the one that scales it."""

MODEL = "tiny-lfm2"
VOCABULARY = 320

_MESSAGES = [{"role": "user", "content": "hello world"}]
_NEEDED: Mapping[str, Json] = {
    "model": MODEL,
    "prompt": "hello world the quick",
    "messages": _MESSAGES,
    "input": "hello world the quick",
    "tokens": [10, 11, 12],
    "token_ids": [10, 11, 12],
    "sampling_params": {"max_tokens": 4},
    "max_tokens": 4,
    "max_output_tokens": 16,
}
"""The value of a field unless another one is drawn."""

_FEWEST = 0.15
"""The share of the other fields that a draw has."""
_WILD = 0.25
"""The share of values that the schema does not allow."""
_DEEPEST = 4

_INTEGERS = (0, 1, -1, 2, 3, 16, 128, 129, 319, 320, 999, 10_000, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30)
_NUMBERS = (0.0, 0.1, 0.5, 1.0, 1.5, 2.0, -0.1, -1.0, 1e-300, 1e300, -1e300, float("nan"), float("inf"), 100.0)
_TEXTS = ("", " ", "a", "hello", "null", "\x00", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"))
_LONG_TEXTS = ("é" * 300, "\u202e\u0301\ufffd" * 40, "a" * 20_000, "{" * 500, "<|im_start|>" * 50)
_ANYTHING: tuple[Json, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1e300,
    "",
    "x",
    [],
    [[]],
    {},
    {"a": []},
    [None],
    ["x", 1],
    10**30,
)


class Drawer:
    """Draws bodies for the routes of the OpenAPI DOCUMENT, from SEED."""

    def __init__(self, document: Json, seed: int) -> None:
        self._random = random.Random(seed)
        self._schemas = document.get("components", {}).get("schemas", {})
        self.routes = {
            path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]
            for path, methods in sorted(document["paths"].items())
            if any(word in path for word in GENERATES) and "{" not in path and _has_json(methods)
        }

    def draw(self, path: str) -> Json:
        """Return a body for the route PATH."""
        schema = self._resolved(self.routes[path])
        branches: list[Json] = schema.get("anyOf") or schema.get("oneOf") or [schema]
        options = [self._resolved(option) for option in branches]
        schema = self._random.choice(options)
        fields: dict[str, Json] = {}
        required = set(schema.get("required", ()))
        for name, about in schema.get("properties", {}).items():
            if name in _NEEDED:
                fields[name] = _NEEDED[name]
            if (name not in _NEEDED and name in required) or self._random.random() < _FEWEST:
                fields[name] = self._value(about, 0)
        if "max_tokens" in fields and self._random.random() < 0.8:
            fields["max_tokens"] = self._random.choice((1, 2, 4, 8))
        fields["model"] = MODEL
        return fields

    def _resolved(self, schema: Json) -> dict[str, Json]:
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._schemas.get(str(schema["$ref"]).rpartition("/")[2], {})
        return schema if isinstance(schema, dict) else {}

    def _value(self, schema: Json, depth: int) -> Json:
        chance = self._random.random()
        if chance < _WILD / 2:
            return self._random.choice(_ANYTHING)
        schema = self._resolved(schema)
        options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if options:
            return self._value(self._random.choice(options), depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        return self._typed(schema, depth)

    def _typed(self, schema: dict[str, Json], depth: int) -> Json:
        draw = self._random
        match schema.get("type"):
            case "integer":
                return draw.choice((*self._edges(schema), *_INTEGERS))
            case "number":
                return draw.choice((*self._edges(schema), *_NUMBERS))
            case "string":
                return draw.choice(_TEXTS if draw.random() > _WILD else _LONG_TEXTS)
            case "boolean":
                return draw.random() < 0.5
            case "null":
                return None
            case "array":
                if depth >= _DEEPEST:
                    return []
                return [self._value(schema.get("items", {}), depth + 1) for _ in range(draw.choice((0, 1, 1, 2, 3)))]
            case "object":
                return self._object(schema, depth)
        return draw.choice(_ANYTHING)

    def _object(self, schema: dict[str, Json], depth: int) -> Json:
        draw, fields = self._random, {}
        if depth >= _DEEPEST:
            return {}
        required = set(schema.get("required", ()))
        for name, about in schema.get("properties", {}).items():
            if name in required or draw.random() < 2 * _FEWEST:
                fields[name] = self._value(about, depth + 1)
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and more:
            for _ in range(draw.choice((0, 1, 2))):
                fields[str(draw.choice((*_INTEGERS[:11], "x", "")))] = self._value(more, depth + 1)
        return fields

    @staticmethod
    def _edges(schema: dict[str, Json]) -> list[Json]:
        """Return the numbers at the limits that SCHEMA names, and just beyond them."""
        edges = [
            schema[name] for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if name in schema
        ]
        return [edge + step for edge in edges for step in (-1, 0, 1)]


def _has_json(methods: Mapping[str, Json]) -> bool:
    return "application/json" in methods.get("post", {}).get("requestBody", {}).get("content", {})
