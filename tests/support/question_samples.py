"""Questions in the form of GSM8K, made from a seed: short enough for an engine with a context of 128 tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

_NAMES = ("Ann", "Ben", "Eva", "Kai", "Lea", "Max", "Mia", "Tom")
_THINGS = ("figs", "nuts", "pens", "pins")


def lines(count: int, seed: int = 7) -> list[str]:
    """Return COUNT lines, the same for each SEED."""
    drawn = random.Random(seed)
    found = []
    for _ in range(count):
        first, second = drawn.randint(2, 99), drawn.randint(2, 99)
        name, thing = drawn.choice(_NAMES), drawn.choice(_THINGS)
        question = f"{name} has {first} {thing} and gets {second}. How many?"
        answer = (
            f"{first} and {second} are <<{first}+{second}={first + second}>>{first + second}.\n#### {first + second}"
        )
        found.append(json.dumps({"question": question, "answer": answer}))
    return found


def write(path: Path, count: int, seed: int = 7) -> Path:
    """Write COUNT questions to PATH, and return it."""
    path.write_text("\n".join(lines(count, seed)) + "\n")
    return path
