"""What is called a secret: the one pattern by which a name gives one away, and where else one can stand.

Who judges a spec refuses what has such a name, and who writes a crash report hides it. A word list can only know
what secrets are usually called, so a name that is not in it proves nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from nvllm.core.canonical import Json

_VOCABULARY = "audio bos cls end eos first image last mask next pad per sep special start stop unk video"
"""What stands before the token of a model's vocabulary (``eos-token``), or before one that something is counted by."""
_MEASURES = "budget count id len length limit num number prob size threshold type"
"""What stands behind one that is counted or numbered: ``prefill-token-threshold``."""
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
"""Who logs in, in a URL: a name, mostly with a password."""
_URL_PASSWORD = re.compile(r"://[^/\s@:]*:[^/\s@]+@")


def named(name: str) -> bool:
    """Return whether NAME, of a variable, an option or a key, is what a secret is called.

    The place of one is none: ``ssl-keyfile`` and ``HF_TOKEN_PATH`` are paths.
    """
    return _NAME.search(name) is not None and _PLACE.search(name) is None


def inside(text: str) -> str | None:
    """Return what in TEXT, the value of a harmless name, is a secret, in words that do not tell it; None: nothing.

    That is the password of a URL, or what has a secret's name in a JSON object.
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
    """Yield each key in DOCUMENT that has a value of its own, and that value."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            if isinstance(value, Mapping | list):
                yield from _leaves(value)
            elif value is not None:
                yield key, value
    elif isinstance(document, list):
        for one in document:
            yield from _leaves(one)
