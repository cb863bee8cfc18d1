"""The settings of speculative decoding among an engine's arguments, and the draft model that belongs into them.

vLLM takes them as one JSON object, ``--speculative-config``, or part by part, ``--speculative-config.method``. Which
model drafts is not said there but by the profile's ``draft:``, so that it is locked and hashed as every model is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

OPTION = "speculative-config"

OURS = frozenset({"model", "revision", "code_revision"})
"""Keys of the object that nvllm decides: which model drafts is the profile's to say, and its revision the lock's."""

Value = bool | int | float | str


def parts(text: Value) -> Mapping[str, object] | None:
    """Return the settings that TEXT, the value of the whole option, is; None if vLLM could not read it as such."""
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def key(name: str) -> str:
    """Return which setting NAME means: vLLM reads ``-`` as ``_``."""
    return name.replace("-", "_")


def drafting(arguments: Mapping[str, Value], path: str) -> dict[str, Value]:
    """Return ARGUMENTS with the model at PATH as the draft, in the form in which they have the other settings."""
    if OPTION not in arguments:
        return {**arguments, f"{OPTION}.model": path}
    settings = {**(parts(arguments[OPTION]) or {}), "model": path}
    return {**arguments, OPTION: json.dumps(settings, sort_keys=True)}
