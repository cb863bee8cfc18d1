"""YAML texts that were parsed before in this process: the specs and series of the project, in hundreds of tests."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from nvllm.core import yamlnodes
from nvllm.core.yamlnodes import Document


def remembered(parse: Callable[[str, str], Document]) -> Callable[[str, str], Document]:
    """Return PARSE, which parses each text once. Every call returns values of its own, and a refusal is made anew."""
    known: dict[str, bytes] = {}

    def call(text: str, shown: str) -> Document:
        if text not in known:
            document = parse(text, shown)
            known[text] = pickle.dumps((document.value, document.lines))
        return Document(*pickle.loads(known[text]))

    return call


def remember() -> None:
    """Parse each text once in this process, whoever asks. PyYAML takes 40 ms for a spec, and edits ask 60 times."""
    yamlnodes.parse = remembered(yamlnodes.parse)  # type: ignore[assignment]  # every caller gives both by place
