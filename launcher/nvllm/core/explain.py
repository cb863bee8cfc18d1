"""Explaining a difference: which factors of two build hashes, or two serve hashes, differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard, cast

from nvllm.core import canonical
from nvllm.core.canonical import Json

HashKind = Literal["build", "serve"]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: its name, its hash and its factors."""

    named: str
    kind: HashKind
    hash: str
    factors: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor that differs: its dotted path, and its value on each side, None if it is missing."""

    path: str
    before: str | None
    after: str | None


def differences(before: Json, after: Json) -> tuple[Factor, ...]:
    """Return every leaf in which BEFORE and AFTER differ, sorted by path.

    The result is empty exactly if the canonical forms, and so the hashes, are equal. Lists of objects with an ``id`` (a
    patch set) are compared by id, and their order as another factor. Of long sorted lists of words, each side shows
    the words that the other lacks. Other lists are compared as a whole, because one moved element would otherwise look
    like many changes.
    """
    return tuple(sorted(_differences("", before, after), key=lambda factor: factor.path))


def _differences(path: str, before: Json, after: Json) -> list[Factor]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        factors = []
        for key in sorted(before.keys() | after.keys()):
            inner = f"{path}.{key}"
            if key in before and key in after:
                factors += _differences(inner, before[key], after[key])
            else:
                factors.append(Factor(inner, _value_text(before, key), _value_text(after, key)))
        return factors
    if _identified(before) and _identified(after):
        factors = _differences(path, _by_id(before), _by_id(after))
        orders = [
            [key for key in _by_id(side) if key in _by_id(other)] for side, other in [(before, after), (after, before)]
        ]
        if orders[0] != orders[1]:
            factors.append(Factor(f"{path} (order)", " ".join(orders[0]), " ".join(orders[1])))
        return factors
    if _long_set(before) and _long_set(after) and before != after:
        return [Factor(path or ".", _only_in(before, after), _only_in(after, before))]
    same = canonical.encode(before) == canonical.encode(after)
    return [] if same else [Factor(path or ".", _text(before), _text(after))]


_LONG = 16
"""Words from which on a list is explained by what came and what went: the flags of a processor are over a hundred."""


def _long_set(value: Json) -> TypeGuard[list[str]]:
    """Return whether VALUE is a long, sorted list of unique words, such as the flags of a CPU."""
    if not isinstance(value, list) or len(value) < _LONG or not all(isinstance(word, str) for word in value):
        return False
    return value == sorted(set(cast("list[str]", value)))


def _only_in(words: list[str], others: list[str]) -> str:
    return " ".join(word for word in words if word not in set(others)) or "nothing else"


def _identified(value: Json) -> TypeGuard[list[Mapping[str, Json]]]:
    """Return whether VALUE is a list of objects, each with an ``id`` of its own."""
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        return False
    ids = [entry.get("id") for entry in value]
    return all(isinstance(id_, str) for id_ in ids) and len(set(ids)) == len(ids)


def _by_id(values: list[Mapping[str, Json]]) -> dict[str, Json]:
    return {str(entry["id"]): entry for entry in values}


def _value_text(mapping: Mapping[str, Json], key: str) -> str | None:
    return _text(mapping[key]) if key in mapping else None


def _text(value: Json) -> str:
    return value if isinstance(value, str) else canonical.encode(value).decode()
