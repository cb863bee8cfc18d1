"""An image spec that was read and is not judged yet: what the rules of `file.py` and `profile.py` look into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvllm.core import yamlnodes
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal

Step: TypeAlias = "str | int"


@dataclass(frozen=True, slots=True)
class Draft:
    """A parsed spec that may still be wrong anywhere: looking into it returns nothing rather than fails."""

    document: yamlnodes.Document
    shown: str

    def at(self, *steps: Step) -> Json:
        """Return the value at STEPS, or None."""
        value: Json = self.document.value
        for step in steps:
            if isinstance(step, str) and isinstance(value, Mapping):
                value = value.get(step)
            elif isinstance(step, int) and isinstance(value, list) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def word(self, *steps: Step) -> str | None:
        """Return the text at STEPS if it can stand in a message; what cannot, the schema refuses."""
        value = self.at(*steps)
        return value if isinstance(value, str) and value.isprintable() else None

    def mapping(self, *steps: Step) -> Mapping[str, Json]:
        value = self.at(*steps)
        return value if isinstance(value, Mapping) else {}

    def items(self, *steps: Step) -> Sequence[Json]:
        value = self.at(*steps)
        return value if isinstance(value, list) else []

    def refusal(self, code: str, steps: Sequence[Step], expected: str, found: str, cure: str) -> Refusal:
        where = f"{self.shown}:{self.document.line(steps)}: {yamlnodes.dotted(steps)}"
        return Refusal(code, where, expected, found, cure)

    def bad(self, steps: Sequence[Step], expected: str, found: str, cure: str) -> Refusal:
        return self.refusal("NV101", steps, expected, found, cure)
