"""What was read before in this process: specs, series, locks and journals of hundreds of tests, certificates, pip.

All of it is pure: the same text is the same document, and a document that fits its form fits it every time. What does
not parse or fit is judged anew.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from ssl import SSLContext
from typing import Any

import httpcore2

from nvllm.core import schemas, yamlnodes
from nvllm.core.canonical import Json
from nvllm.core.fields import Form
from nvllm.core.schemas import SchemaProblem
from nvllm.core.yamlnodes import Document
from nvllm.lock import lockdoc
from nvllm.sources import indexes
from nvllm.sources.indexes import Configuration


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


ask_pip = indexes.read_configuration
"""Starts pip each time."""


def of_variables() -> Configuration:
    """Return what pip says of its variables alone; `tests/unit/sources/test_wheels.py` holds that against pip."""
    given = {name.removeprefix("PIP_"): value for name, value in os.environ.items() if name.startswith("PIP_")}
    return indexes.parse_configuration(
        "".join(f":env:.{name.lower().replace('_', '-')}={value!r}\n" for name, value in given.items())
    )


def configured() -> Callable[[], Configuration]:
    """Return what asks pip once for what it is configured with, and not at all where that is variables alone."""
    known: dict[object, Configuration] = {}

    def call() -> Configuration:
        if os.environ.get("PIP_CONFIG_FILE") == os.devnull:  # then pip reads no file
            return of_variables()
        variables = tuple((name, value) for name, value in os.environ.items() if name.startswith("PIP_"))
        home = Path(os.environ.get("HOME", "/"))
        user = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        files = (Path(os.environ.get("PIP_CONFIG_FILE", "/")), user / "pip/pip.conf", home / ".pip/pip.conf")
        key = (variables, *(file.read_bytes() if file.is_file() else None for file in files))
        if key not in known:
            known[key] = ask_pip()
        return known[key]

    return call


def remember() -> None:
    """Parse and check each text once in this process, whoever asks, and read each file of certificates once.

    PyYAML takes 10 ms for a spec, which edits ask 60 times; jsonschema 10 ms for a lock, which every examination reads;
    OpenSSL 15 ms for the certificates, which every HTTP client asks for; pip 200 ms for its configuration, which every
    source of files asks for.
    """
    indexes.read_configuration = configured()  # its refusals are made anew
    httpcore2.default_ssl_context = trusted(httpcore2.default_ssl_context)
    yamlnodes.parse = remembered(yamlnodes.parse)  # type: ignore[assignment]  # every caller gives both by place
    schemas.validate = once(schemas.validate)  # type: ignore[assignment]  # likewise
    lockdoc.decode = lru_cache(maxsize=256)(lockdoc.decode)  # its values are frozen
