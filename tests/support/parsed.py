"""What was read before in this process: specs, series, locks and journals of hundreds of tests, and certificates.

All of it is pure: the same text is the same document, and a document that fits its form fits it every time. What does
not parse or fit is judged anew.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from functools import cache, lru_cache
from ssl import SSLContext
from typing import Any

import httpcore2

from nvllm.core import schemas, yamlnodes
from nvllm.core.canonical import Json
from nvllm.core.fields import Form
from nvllm.core.schemas import SchemaProblem
from nvllm.core.yamlnodes import Document
from nvllm.lock import lockdoc


def remembered(parse: Callable[[str, str], Document]) -> Callable[[str, str], Document]:
    """Return PARSE, which parses each text once. Every call returns values of its own, and a refusal is made anew."""
    known: dict[str, bytes] = {}

    def call(text: str, shown: str) -> Document:
        if text not in known:
            document = parse(text, shown)
            known[text] = pickle.dumps((document.value, document.lines))
        return Document(*pickle.loads(known[text]))

    return call


def once(
    validate: Callable[[Form[Any], Json], list[SchemaProblem]],
) -> Callable[[Form[Any], Json], list[SchemaProblem]]:
    """Return VALIDATE, which checks each document of a form once if it fits."""
    fitting: set[tuple[Form[Any], bytes]] = set()

    def call(form: Form[Any], document: Json) -> list[SchemaProblem]:
        key = (form, hashlib.sha256(pickle.dumps(document)).digest())
        problems = [] if key in fitting else validate(form, document)
        if not problems:
            fitting.add(key)
        return problems

    return call


@cache
def _trusting(make: Callable[..., SSLContext], places: tuple[str | None, ...], trust_env: bool) -> SSLContext:
    return make(_trust_env=trust_env)


def trusted(make: Callable[..., SSLContext]) -> Callable[..., SSLContext]:
    """Return MAKE, which reads the certificates of each place that the environment names once."""

    def call(*, _trust_env: bool = True) -> SSLContext:
        return _trusting(make, (os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")), _trust_env)

    return call


def remember() -> None:
    """Parse and check each text once in this process, whoever asks, and read each file of certificates once.

    PyYAML takes 10 ms for a spec, which edits ask 60 times; jsonschema 10 ms for a lock, which every examination reads;
    OpenSSL 15 ms for the certificates, which every HTTP client asks for.
    """
    httpcore2.default_ssl_context = trusted(httpcore2.default_ssl_context)
    yamlnodes.parse = remembered(yamlnodes.parse)  # type: ignore[assignment]  # every caller gives both by place
    schemas.validate = once(schemas.validate)  # type: ignore[assignment]  # likewise
    lockdoc.decode = lru_cache(maxsize=256)(lockdoc.decode)  # its values are frozen
