"""The command lines of nvllm that the pages show, and what is wrong with one for the real parser.

A page shows a line in a block of code, with or without a prompt, a comment or a description behind two spaces; or
inside of a sentence, in backticks, where arguments may be left out. ``[...]`` is what may be left out, ``a|b`` a
choice, and a word in capitals or ``...`` a value of the reader's.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from nvllm.cli import image_argument
from nvllm.core.paths import packaged
from nvllm.core.refusal import Refused
from nvllm.spec import selection, specfile
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


# Names

MADE_FROM = {"mine": "cpu", "bench": "cpu"}
"""Images that a reader or a benchmark makes, and the image of nvllm's whose profiles and models they have."""

OF_A_READER = frozenset({"chat", "tuned"})
"""A profile and a model that a page has the reader write."""

SETS = frozenset({"all", "none", "spec"})
"""Sets of patches that have a name."""

DIGITS = re.compile(r"[0-9a-f]{7}")
"""How a set of patches, or a serve hash, is named in short."""


def unknown(shown: Shown) -> list[str]:
    """Return the names in SHOWN that are none of the packaged project, and why no image is decided where none is named.

    Images, profiles, patches, sentinels, models, instances and blessings: what the shell's completion offers in their
    places, or what comes of a profile. Words in capitals and ``...`` are the reader's.
    """
    own = _of_page(shown.place.partition(":")[0])
    return [problem for form in sorted(_forms(shown.line)) for problem in _unknown(shlex.split(form), own)]


@functools.cache
def _of_page(page: str) -> frozenset[str]:
    """Return the names that PAGE declares: models and profiles in a spec, patches in the arguments of `init`."""
    path = ROOT / page
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    declared = {name for block in blocks for name in re.findall(r"^  ([\w-]+):", block, re.MULTILINE)}
    return frozenset(declared | {*re.findall(r"--proved-by ([\w-]+)=", text)})


def _unknown(words: list[str], own: frozenset[str]) -> list[str]:
    end = next((number for number, word in enumerate(words) if word in {"|", "<", ">", ">>"}), len(words))
    try:
        command, given = cures.parse(words[1:end])
    except click.UsageError:  # a sentence may leave out more than a line
        return []
    ctx = click.Context(command, info_name=command.name)
    ctx.meta["nvllm.project"] = ROOT
    texts = {name: value for name, value in given.items() if isinstance(value, str | list | tuple)}
    ctx.params = {name: MADE_FROM.get(str(value), value) for name, value in texts.items()}
    problems = [
        f"{' '.join(words)}: no {one.human_readable_name} {text}"
        for one in command.params
        for text in _texts(given.get(one.name or ""))
        if text not in own and not _is_known(ctx, one, text)
    ]
    return problems or _undecided(ctx, words)


def _texts(value: object) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return [text for text in values if isinstance(text, str)]


def _undecided(ctx: click.Context, words: list[str]) -> list[str]:
    """Return why no image is decided for WORDS, whose command is that of CTX, which name a profile and no image."""
    takes = any(one.name == "image" and one.human_readable_name == "IMAGE" for one in ctx.command.params)
    named = [ctx.params.get(name) for name in image_argument.PROFILES]
    named = [one for one in named if isinstance(one, str) and not one.isupper()]
    if not takes or not named or isinstance(ctx.params.get("image"), str):
        return []
    try:
        selection.select(packaged(), image_argument.request_of(ctx))
    except Refused as refused:
        return [f"{' '.join(words)}: {refused}"]
    return []


def _is_known(ctx: click.Context, param: click.Parameter, text: str) -> bool:
    """Return whether TEXT is a name that PARAM can have in the packaged project, or PARAM names nothing of it."""
    last = text.rpartition(",")[2]
    if param._custom_shell_complete is None or isinstance(param.type, click.Choice):
        return True
    if (
        last.isupper()
        or last in {"", "..."}
        or text in MADE_FROM
        or text in OF_A_READER
        or text in SETS
        or DIGITS.fullmatch(text)
    ):
        return True
    if re.sub(r"^(nvllm-)?", "", text) in _labels() or re.fullmatch(r"nvllm:[a-z0-9-]+-[0-9a-f]{12}", text):
        return True
    return any(one.type != "plain" or one.value == text for one in param.shell_complete(ctx, text))


@functools.cache
def _labels() -> frozenset[str]:
    """Return IMAGE-PROFILE for each profile: what its instance, behind ``nvllm-``, and its blessing are called."""
    project = packaged()
    labels = {f"{image}-{name}" for image in project.image_names() for name in specfile.of(project, image).profiles}
    return frozenset(labels | {f"{made}-{one.partition('-')[2]}" for made in MADE_FROM for one in labels})
