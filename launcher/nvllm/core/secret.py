"""Detecting secrets: the pattern of their names, and values that contain one.

A spec with such a name is refused, and a crash report hides its value. The pattern knows only the usual names of
secrets, so another name proves nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from nvllm.core.canonical import Json

_VOCABULARY = "audio bos cls end eos first image last mask next pad per sep special start stop unk video"
"""Words before ``token`` in names that are no secret: a token of a vocabulary (``eos-token``), or tokens as a unit."""
_MEASURES = "budget count id len length limit num number prob size threshold type"
"""Words after ``token`` in names that are no secret, because tokens are counted: ``prefill-token-threshold``."""
_NAME = re.compile(
    rf"""
      secret | passw(or)?d | passphrase | authorization
    | (?<=[a-z0-9])[-_.](pass|pwd)$                     # MYSQL_PWD, and not PWD, the working directory
    | (?<!allow[-_])credential                          # --allow-credentials is a rule of CORS
    | (api|access|account|auth|encryption|hmac|license|master|private|signing|ssh|storage)[-_.]?keys?(?![a-z])
    | (?<=[a-z0-9])(?<!cache)(?<!public)(?<!sort)[-_.]key$
    | (?<![a-z])(access|api|auth|bearer|hub|id|refresh|session)[-_.]?tokens?(?![a-z])
    | {"".join(f"(?<!{word}[-_])" for word in _VOCABULARY.split())}token(?![a-z])
      (?![-_.]({"|".join(_MEASURES.split())})s?([-_.]|$))
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PLACE = re.compile(r"[-_.](file|path|dir|directory)$", re.IGNORECASE)
URL_USER = re.compile(r"(?<=://)[^/\s@]+@")
"""The user of a URL: a name, mostly with a password."""
_URL_PASSWORD = re.compile(r"://[^/\s@:]*:[^/\s@]+@")


def named(name: str) -> bool:
    """Return whether NAME, of a variable, an option or a key, is the usual name of a secret.

    The path of a secret is no secret: ``ssl-keyfile`` and ``HF_TOKEN_PATH`` are paths.
    """
    return _NAME.search(name) is not None and _PLACE.search(name) is None


def inside(text: str) -> str | None:
    """Return a description, without the secret, of the secret in TEXT, the value of a harmless name; None if none.

    Found are the password in a URL, and a key with a secret's name in a JSON object.
    """
    if _URL_PASSWORD.search(text) is not None:
        return "a URL with a password"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    key = next((key for key, value in _leaves(document) if not isinstance(value, bool) and named(key)), None)
    return f"a value for {key}" if key is not None else None


def _leaves(document: Json) -> Iterator[tuple[str, Json]]:
    """Yield each key in DOCUMENT whose value is not an object or list, and that value."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            if isinstance(value, Mapping | list):
                yield from _leaves(value)
            elif value is not None:
                yield key, value
    elif isinstance(document, list):
        for one in document:
            yield from _leaves(one)
