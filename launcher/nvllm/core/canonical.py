"""Canonical JSON, and the hashes taken over it.

Every identity in nvllm (build hash, serve hash, lock inputs) is the sha256 of an RFC 8785 text behind a
domain tag, so that two documents of different kinds can never share a hash, and a new version of a format
is a new domain.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import rfc8785

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def encode(value: Json) -> bytes:
    """Return the RFC 8785 form of VALUE. Raises ValueError for values that JSON cannot represent exactly."""
    try:
        return rfc8785.dumps(cast("Any", value))  # its own JSON type wants list and dict, not Sequence and Mapping
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from error


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
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
