"""The cures of refusals, as the source writes them, and what is wrong with one as a line for a shell.

A cure is a command that can be pasted; or, where only a person can say what to write, an instruction in words. A
command inside of words stands in backticks, or after a colon at the end.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from nvllm.cli.frame import Group
from nvllm.cli.main import BY_NAME, program

ROOT = Path(__file__).parents[2]
SAMPLE = "sample"
"""Stands for what is only known when the refusal is made."""

PROGRAMS = frozenset(
    """
    apt-get cd chmod cp df docker export fuser git hf kill less ls mkdir mv newgrp nix nvidia-smi nvllm pip python rm
    scp sed ss ssh-add sudo systemctl tail touch unset usermod
    """.split()  # noqa: SIM905 - a list of thirty words is easier to read so
)
_FOLLOWED = frozenset({"sudo"})
"""Programs that run another one, which follows."""


@dataclass(frozen=True, slots=True)
class Cure:
    """A cure as MODULE:LINE writes it, with `SAMPLE` for each value in it."""

    place: str
    text: str

    @property
    def is_command(self) -> bool:
        return re.split(r"\s", self.text, maxsplit=1)[0] in PROGRAMS


@functools.cache
def written() -> tuple[Cure, ...]:
    """Return every cure in the package: arguments of refusals, and what is given to names with `cure` in them."""
    package = ROOT / "launcher/nvllm"
    cures = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if any(word in text.lower() for word in ("cure", "refus", "def command")):
            module = path.relative_to(package)
            named = ((node.lineno, one) for node in _cures(ast.parse(text)) for one in _texts(node) if one != SAMPLE)
            cures += [Cure(f"{module}:{line}", one) for line, one in named]
    return tuple(cures)


def _cures(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="Refusal" | "refuse"), args=[_, _, _, _, cure, *_]):
                yield cure
            case ast.Call(func=ast.Name(id="refusing"), args=[_, _, _, cure]):
                yield cure
            case ast.Call(keywords=keywords):
                yield from (one.value for one in keywords if one.arg == "cure")
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from (value for name, value in zip(names, values, strict=True) if _is_cure(name))
            case ast.Assign(targets=[name], value=value) if _is_cure(name):
                yield value
            case ast.AnnAssign(target=name, value=ast.expr() as value) if _is_cure(name):
                yield value
            case ast.FunctionDef(name=str(named)) if re.search(r"(^|_)(cure|again|command)(_|$)", named):
                returned = (one.value for one in ast.walk(node) if isinstance(one, ast.Return))
                yield from (one for one in returned if one is not None and not _is_of_options(one))


def _is_of_options(node: ast.expr) -> bool:
    """Return whether NODE is a line that is put together of options: that of `nvllm gate`, which has its own test."""
    return ast.unparse(node).startswith("f'nvllm gate {")


def _is_cure(name: ast.expr) -> bool:
    return isinstance(name, ast.Name) and re.search(r"(^|_)cures?$", name.id, re.IGNORECASE) is not None


def _texts(node: ast.expr) -> list[str]:
    """Return what NODE can be: `SAMPLE` for a value that is no text of its own."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            parts = [_texts(one) if isinstance(one, ast.Constant) else _choices(one) for one in values]
            return ["".join(chosen) for chosen in itertools.product(*parts)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [first + second for first in _texts(left) for second in _texts(right)]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_texts(body), *_texts(orelse)]
        case ast.BoolOp(values=values):
            return [text for one in values for text in _texts(one)]
        case ast.Dict(values=values):
            return [text for one in values for text in _texts(one)]
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.List(elts=elements)]):
            return [" ".join(_texts(one)[0] for one in elements)]
        case _:
            return [SAMPLE]


def _choices(node: ast.expr) -> list[str]:
    """Return what the part NODE of an f-string can be: each text of a conditional, else `SAMPLE`."""
    choice = node.value if isinstance(node, ast.FormattedValue) else node
    return _texts(choice) if isinstance(choice, ast.IfExp) else [SAMPLE]


def unquoted() -> Iterator[str]:
    """Yield the command lines of the package whose path is not quoted by `shlex`: a home may have a space."""
    package = ROOT / "launcher/nvllm"
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not _PROGRAM_WITH_PATHS.search(text):
            continue  # parsing all of them would take seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.JoinedStr) and _TAKES_PATHS.search(_texts(node)[0]):
                first = next(one for one in node.values if isinstance(one, ast.FormattedValue))
                if not _quoted(first.value):
                    yield f"{path.relative_to(package)}: {ast.unparse(node)}"


_PROGRAM_WITH_PATHS = re.compile(r"\b(?:nvllm gc --forget|cd|chmod|df|less|ls|mkdir|mv|rm|touch) ")
_TAKES_PATHS = re.compile(rf"^(?:sudo )?{_PROGRAM_WITH_PATHS.pattern}.*\bsample\b")


def _quoted(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {"shlex.quote", "shlex.join"}


def wrong(cure: str) -> list[str]:
    """Return why CURE cannot be pasted, where it is a command; or a command that its words name."""
    if re.split(r"\s", cure, maxsplit=1)[0] in PROGRAMS:
        return wrong_line(cure)
    named = [one for one in re.findall(r"`([^`]+)`", cure) if one.split(" ")[0] in PROGRAMS]
    rest = re.sub(r"`[^`]*`", "", cure)
    found = [problem for one in named for problem in wrong_line(one) if ": without" not in problem]
    last = rest.rpartition(": ")[2]
    if rest != last and last.split(" ")[0] in PROGRAMS - _WORDS:
        found += wrong_line(last)
    elif begun := _COMMAND.search(rest):
        found.append(f"a command in the middle of words: {rest[begun.start() :]}")
    return found


_WORDS = frozenset({"export", "kill", "less", "touch"})
"""Programs whose names are words as well."""

_COMMAND = re.compile(
    rf"""
      \bnvllm\ (?:{"|".join(BY_NAME)})\b
    | \bgit\ (?:add|archive|checkout|commit|diff|format-patch|log|rev-parse|rm)\b
    | \bdocker\ (?:images|pull|rmi|save|version)\b
    | \bpip\ (?:config|index|install)\b
    | \bhf\ auth\b | \bapt-get\ [a-z] | \brm\ -r\b
    """,
    re.VERBOSE,
)
"""How a command begins that stands in words without a mark."""


def wrong_line(line: str) -> list[str]:
    """Return why LINE is no line for a shell, or one whose nvllm commands do not exist as it writes them."""
    syntax = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True, check=False)
    if syntax.returncode != 0:
        return [f"{line}: {syntax.stderr.strip()}"]
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("&|;"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [problem for words in commands for problem in _wrong_command(line, words)]


def _wrong_command(line: str, words: list[str]) -> list[str]:
    while words and words[0] in _FOLLOWED:
        words = words[1:]
    if words == [SAMPLE]:
        return []
    if not words or words[0] not in PROGRAMS:
        return [f"{line}: no program: {' '.join(words)}"]
    if any(word.endswith((",", ":")) or word in {"and", "or", "the", "shows"} for word in words):
        return [f"{line}: words behind a command"]
    if words[0] != "nvllm":
        return []
    try:
        parse(words[1:])
    except click.UsageError as error:
        return [f"{line}: {error.format_message()}"]
    return []


def parse(words: list[str]) -> tuple[click.Command, Mapping[str, object]]:
    """Parse WORDS as nvllm does; return the command and its parameters, by name and unconverted: they may be samples.

    Raises click.UsageError.
    """
    command: click.Command = program
    ctx = click.Context(program, info_name="nvllm")
    while isinstance(command, click.Group):
        _, rest, _ = command.make_parser(ctx).parse_args(list(words))
        if not rest:
            if any(one in words for one in ("-h", "--help", "--version")) or (isinstance(command, Group) and not words):
                return command, {}
            raise click.UsageError("no command", ctx)
        _, found, words = command.resolve_command(ctx, rest)
        assert found is not None
        command, ctx = found, click.Context(found, parent=ctx, info_name=found.name)
    given, rest, _ = command.make_parser(ctx).parse_args(list(words))
    if rest:
        raise click.UsageError(f"extra arguments {rest}", ctx)
    if not {"-h", "--help"}.isdisjoint(words):
        return command, {}
    lacking = [one.human_readable_name for one in command.params if one.required and _absent(given.get(one.name or ""))]
    if lacking:
        raise click.UsageError(f"without {', '.join(lacking)}", ctx)
    return command, given


def _absent(value: object) -> bool:
    return value is None or value == () or type(value).__name__ == "Sentinel"
