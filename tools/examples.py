"""Records what --json prints while tests run: ``python tools/examples.py`` writes examples.json beside this file.

It is a plugin of pytest as well, which keeps the shortest successful document of each command. Names of temporary
directories become ``~``; a list keeps its first entry and a text its first lines, and ``...`` says what was cut, as it
does in the place of what would name this host.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nvllm.core import canonical
from reference import names

ROOT = Path(__file__).parents[1]
EXAMPLES = Path(__file__).with_name("examples.json")
SEEN = "NVLLM_EXAMPLES_SEEN"
"""The variable that names the file to which a recording appends each document, one a line."""
TESTS = ("tests/unit/cli", "tests/unit/test_golden.py", "tests/refusals")
SHOWN = 4
"""How many texts of a list are kept."""
WIDEST = 400
"""How many characters of a text are kept."""
FITTING = 2000
"""How many characters a document may have on a page."""


@pytest.fixture(scope="session", autouse=True)
def recording() -> Iterator[None]:
    """Append every document that nvllm prints in this process to the file that SEEN names, when all tests are over."""
    printed = canonical.printed
    seen: list[str] = []

    def recorded(document: Any) -> str:
        text = printed(document)
        if isinstance(document, Mapping) and document.get("schema") == "nvllm.output/1":
            seen.append(json.dumps(json.loads(text)) + "\n")
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "printed", recorded)
        yield
    with Path(os.environ[SEEN]).open("a", encoding="utf-8") as lines:
        lines.writelines(seen)


HOSTS_OWN = frozenset({"boot", "kernel"})
"""What names this host in the record of a hardware gate, beside the ``id`` of its ``machine``."""


def short(value: Any) -> Any:
    """Return VALUE as a page shows it."""
    if isinstance(value, Mapping) and value.get("schema") == "nvllm.hardware-gate/1":
        machine = {**value["machine"], "id": "..."}
        return {
            key: short(part) for key, part in {**value, **dict.fromkeys(HOSTS_OWN, "..."), "machine": machine}.items()
        }
    if isinstance(value, Mapping):
        return {key: short(part) for key, part in value.items()}
    if isinstance(value, list) and len(value) > 1 and not all(isinstance(item, str) for item in value):
        return [short(value[0]), "..."]
    if isinstance(value, list):
        return [*map(short, value[:SHOWN]), *(["..."] if len(value) > SHOWN else [])]
    if not isinstance(value, str):
        return value
    text = re.sub(r"/(tmp|var/tmp)/pytest-of-[^/\s]+/pytest-\d+/(popen-gw\d+/)?[^/\s\"']+", "~", value)
    text = text.replace(str(ROOT), "~/nvllm")
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}..."


def chosen(documents: list[Any]) -> dict[str, Any]:
    """Return one of DOCUMENTS for each command: with a result if there is one, and the longest that fits a page."""
    ranked: dict[str, list[tuple[tuple[bool, bool, int, str], Any]]] = {}
    for document in documents:
        text = json.dumps(short(document), sort_keys=True)
        size = len(text) if len(text) <= FITTING else FITTING - len(text)
        ranked.setdefault(document["command"], []).append(
            (("result" in document, document["ok"], size, text), document)
        )
    return {name: short(max(ranked[name], key=lambda pair: pair[0])[1]) for name in sorted({*names()} & ranked.keys())}


def main() -> int:
    """Run the tests and write the examples; return the exit status of the tests.

    Arguments go to pytest. They choose a part of the tests, so examples of other commands stay.
    """
    seen = ROOT / ".site/examples.jsonl"
    seen.parent.mkdir(exist_ok=True)
    seen.unlink(missing_ok=True)
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "examples",
        *TESTS,
        "-m",
        "not engine and not long",
        "-n",
        "1",
        *sys.argv[1:],
    ]
    path = os.pathsep.join([str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(argv, cwd=ROOT, env={**os.environ, SEEN: str(seen), "PYTHONPATH": path}, check=False)
    if ended.returncode == 0:
        documents = [json.loads(line) for line in seen.read_text(encoding="utf-8").splitlines()]
        assert documents, "no document was seen: does the command line print them by canonical.printed still?"
        kept = json.loads(EXAMPLES.read_text(encoding="utf-8")) if sys.argv[1:] else {}
        examples = dict(sorted((kept | chosen(documents)).items()))
        EXAMPLES.write_text(json.dumps(examples, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
