"""Canonical JSON, and the hashes taken over it.

Every identity in nvllm (build hash, serve hash, lock inputs) is the sha256 of an RFC 8785 text behind a
domain tag, so that two documents of different kinds can never share a hash, and a new version of a format
is a new domain.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, cast

import rfc8785

MAX_DEPTH = 64
"""Deepest nesting of a document. Beyond a few hundred levels Python's recursion limit would end the program."""

EXACT = 2**53 - 1
"""The largest integer of canonical JSON: beyond it a reader whose numbers are doubles gets another one."""

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def encode(value: Json) -> bytes:
    """Return the RFC 8785 form of VALUE. Raises ValueError for values that JSON cannot represent exactly."""
    try:
        return rfc8785.dumps(cast("Any", value))  # its own JSON type wants list and dict, not Sequence and Mapping
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from error


def decode(data: bytes) -> Json:
    """Return the JSON document in DATA. Raises ValueError for what `encode` could not write again.

    That is anything but JSON, NaN, numbers that are too large, half of a surrogate pair, and deep nesting.
    """
    try:
        document: Json = json.loads(data, parse_constant=_no_number, parse_int=_integer, parse_float=_float)
    except RecursionError as error:
        raise ValueError(f"nesting deeper than {MAX_DEPTH} levels") from error
    _check(document)
    return document


def mapping(value: Json) -> Mapping[str, Json]:
    """Return VALUE, a document or a part of one. Raises ValueError if it is no object."""
    if isinstance(value, Mapping):
        return value
    raise ValueError("no JSON object")


def _check(document: Json) -> None:
    """Raise ValueError if DOCUMENT is nested too deep, or has text that UTF-8 cannot encode."""
    level: list[Json] = [document]
    for _ in range(MAX_DEPTH):
        below: list[Json] = []
        for value in level:
            if isinstance(value, str):
                value.encode()
            elif isinstance(value, Mapping):
                below += [*value, *value.values()]
            elif isinstance(value, Sequence):
                below += value
        if not below:
            return
        level = below
    raise ValueError(f"nesting deeper than {MAX_DEPTH} levels")


def _integer(digits: str) -> int:
    # int() takes 4,300 digits at most, and says so in words of its own.
    number = int(digits) if len(digits) <= len(str(-EXACT)) else EXACT + 1
    if abs(number) > EXACT:
        raise ValueError(f"a whole number beyond {EXACT}: {digits[:20]}{'...' if len(digits) > 20 else ''}")
    return number


def _float(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_number(digits[:20])


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def digest(domain: str, value: Json) -> str:
    """Return the hex sha256 of VALUE under DOMAIN, for example ``nvllm.build/1``.

    The domain is length-prefixed by being a JSON string of its own line: it can hold no newline.
    """
    if "\n" in domain:
        raise ValueError(f"a domain tag is one line: {domain!r}")
    return hashlib.sha256(domain.encode() + b"\n" + encode(value)).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of the bytes of PATH."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def pretty(value: Json) -> str:
    """Return VALUE as JSON for files that people diff: sorted keys, two spaces, one newline at the end."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def printed(value: Json) -> str:
    """Return VALUE as JSON for a terminal or a pipe, whatever their encoding: as `pretty`, in ASCII."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"
