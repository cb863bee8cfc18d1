"""Detecting secrets: the pattern of their names, the patterns of well-known tokens, and values that contain one.

A spec with such a name or such a value is refused, and a crash report hides the value. The patterns know only the usual
names and tokens, so another one proves nothing.
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
TOKEN = re.compile(
    r"""
      (?<![A-Za-z0-9_-])
      (?:
        (hf_)[A-Za-z0-9]{20,}
      | (sk-)[A-Za-z0-9_-]{20,}
      | (gh[opsur]_)[A-Za-z0-9]{20,}
      | (github_pat_)[A-Za-z0-9_]{20,}
      | (glpat-)[A-Za-z0-9_-]{20,}
      | (nvapi-)[A-Za-z0-9_-]{20,}
      | (A[KS]IA)[A-Z0-9]{16}(?![A-Z0-9])
      | (eyJ)[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+   # a JSON web token
      )
    """,
    re.VERBOSE,
)
"""A token of Hugging Face, OpenAI and those like it, GitHub, GitLab, NVIDIA or AWS, or a JSON web token. Its one group
that is there is the prefix."""
_URL_PASSWORD = re.compile(r"://[^/\s@:]*:[^/\s@]+@")


def named(name: str) -> bool:
    """Return whether NAME, of a variable, an option or a key, is the usual name of a secret.

    The path of a secret is no secret: ``ssl-keyfile`` and ``HF_TOKEN_PATH`` are paths.
    """
    return _NAME.search(name) is not None and _PLACE.search(name) is None


def inside(text: str) -> str | None:
    """Return a description, without the secret, of the secret in TEXT, the value of a harmless name; None if none.

    Found are the password in a URL, a token that is known by its prefix, and a key with a secret's name in a JSON
    object.
    """
    token = TOKEN.search(text)
    if token is not None:
        return f"a token that begins with {next(prefix for prefix in token.groups() if prefix)}"
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
        for item in document:
            yield from _leaves(item)
