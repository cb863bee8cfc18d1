"""The command lines of nvllm that the pages show, and what is wrong with one for the real parser.

A page shows a line in a block of code, with or without a prompt, a comment or a description behind two spaces; or
inside of a sentence, in backticks, where arguments may be left out. ``[...]`` is what may be left out, ``a|b`` a
choice, and a word in capitals or ``...`` a value of the reader's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from support import cures

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    path.relative_to(ROOT).as_posix() for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
)
OUTPUT = frozenset({"docs/benchmarks.md"})
"""Pages whose blocks are tables that a command printed: the names of some rows begin with a command."""

_BEGINS = re.compile(r"(?:[A-Z_]+=\S+ |~/\S+/bin/(?=nvllm )|ssh HOST |sudo )*(nvllm .*)")
"""A command of nvllm, with what may stand before it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A command LINE as a page shows it at PLACE, ``PAGE:LINE``; TYPED if a block of code shows it to be typed."""

    place: str
    line: str
    typed: bool


def commands(page: str) -> Iterator[Shown]:
    """Yield the command lines of nvllm on PAGE, a path below the repository."""
    yield from in_text(page, (ROOT / page).read_text(encoding="utf-8"))


def in_text(page: str, text: str) -> Iterator[Shown]:
    """Yield the command lines of nvllm in TEXT, the Markdown of PAGE."""
    prose, fence, before = [], "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fence = "" if fence else line
        code = bool(fence) or line.startswith("    ")
        prose.append("" if fence else line)
        if code and "json" not in fence and page not in OUTPUT:
            whole = f"{before} {line.strip()}".lstrip().removeprefix("$ ")
            before = whole.removesuffix("\\").strip() if whole.endswith("\\") else ""
            yield from () if before else _typed(f"{page}:{number}", whole)
    joined = "\n".join(prose)
    for found in re.finditer(r"`(nvllm\s(?!COMMAND)[^`]+)`", joined):
        number = joined.count("\n", 0, found.start()) + 1
        yield Shown(f"{page}:{number}", " ".join(found[1].split()), typed=False)


def _typed(place: str, line: str) -> Iterator[Shown]:
    """Yield the commands of nvllm in LINE, without the comment or the description behind them."""
    for one in re.split(r" && |; ", re.sub(r"\s+#\s.*|(?<=\S)\s{2,}.*", "", line)):
        if (found := _BEGINS.match(one)) and "[OPTIONS]" not in one:  # a generated usage
            yield Shown(place, found[1], typed=True)


def wrong(shown: Shown) -> list[str]:
    """Return why the real parser of nvllm refuses SHOWN."""
    found = []
    for form in sorted(_forms(shown.line)):
        try:
            found += _refused(shlex.split(form))
        except (click.UsageError, ValueError) as error:
            text = error.format_message() if isinstance(error, click.UsageError) else str(error)
            if shown.typed or not re.match("without|no command|.* requires an argument", text):
                found.append(f"{form}: {text}")
    return found


def _refused(words: list[str]) -> list[str]:
    """Return the values among WORDS that their parameter does not take. Raises click.UsageError."""
    end = next((number for number, word in enumerate(words) if word in {"|", "<", ">", ">>"}), len(words))
    command, given = cures.parse(words[1:end])
    found = []
    for one in command.params:
        values = given.get(one.name or "")
        for value in values if isinstance(values, list | tuple) else [values]:
            if not isinstance(value, str) or value.isupper() or value == "..." or isinstance(one.type, click.Path):
                continue
            try:
                one.type.convert(value, one, None)
            except click.BadParameter as error:
                found.append(f"{' '.join(words)}: {error.format_message()}")
    return found


def _forms(line: str) -> set[str]:
    """Return the lines that LINE stands for: with and without what may be left out, and with each choice."""
    if found := re.search(r"\[([^][]*)\]", line):
        choices = ["", *found[1].split(" | ")]
    elif found := re.search(r"(?<= )[\w-]+(?:\|[\w-]+)+(?= |$)", line):
        choices = found[0].split("|")
    else:
        return {line}
    return {form for one in choices for form in _forms(line[: found.start()] + one + line[found.end() :])}
