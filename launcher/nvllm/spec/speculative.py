"""The settings of speculative decoding among an engine's arguments, and the draft model that is added to them.

vLLM takes them as one JSON object, ``--speculative-config``, or part by part, ``--speculative-config.method``. The
profile's ``draft:`` names the draft model, so that it is locked and hashed as every model is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

OPTION = "speculative-config"

OURS = frozenset({"model", "revision", "code_revision"})
"""Keys of the object that nvllm sets: the profile names the draft model, and the lock its revision."""

Value = bool | int | float | str


def parts(text: object) -> Mapping[str, object] | None:
    """Return the settings in TEXT, the value of the whole option; None if it is not a JSON object."""
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def key(name: str) -> str:
    """Return NAME as vLLM reads it, with ``_`` for ``-``."""
    return name.replace("-", "_")


def drafting(arguments: Mapping[str, Value], path: str) -> dict[str, Value]:
    """Return ARGUMENTS with the model at PATH as the draft, in the form that the other settings have."""
    if OPTION not in arguments:
        return {**arguments, f"{OPTION}.model": path}
    settings = {**(parts(arguments[OPTION]) or {}), "model": path}
    return {**arguments, OPTION: json.dumps(settings, sort_keys=True)}
