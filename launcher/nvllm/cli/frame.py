"""The frame of every command: the options that all have, what a command is given, and where its result goes.

A command is a plain function behind ``@click.command("name", cls=Command, epilog=EXAMPLES)`` and
``@with_app``. It returns nothing and raises `Refused`; it hands its result to ``app.out.result``.
Nothing slow is imported here: the help and the shell's completion load this module and no other library.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from platform import machine
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TextIO

import click
from click.core import ParameterSource

from nvllm.core.paths import Places, Project, find_project, host_platform, places, relative_directories
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse

if TYPE_CHECKING:
    from nvllm.core.canonical import Json

SCHEMA = "nvllm.output/1"

COMPLETE_VARIABLE = "_NVLLM_COMPLETE"
"""Set by the completion scripts: complete this line, do not run it."""

P = ParamSpec("P")

PATH = click.Path(path_type=Path)


def sentence(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Return VALUE, words that are written into a file in UTF-8. Raises click.BadParameter for other bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{value!a} is not UTF-8", ctx, param) from None
    return value


_META = "nvllm."  # click keeps one dictionary for a whole command line; these are our keys in it


def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep a common option, wherever on the line it stood. One that was not given overwrites none that was."""
    if value:
        ctx.meta[_META + str(param.name)] = value


def common_options() -> list[click.Option]:
    """Return the options that may stand before and after a command's name."""
    option = functools.partial(click.Option, callback=remember, expose_value=False)
    return [
        option(
            ["--project"],
            type=PATH,
            metavar="DIR",
            help="The directory that holds images/, patches/ and manifests/.  [default: this one, or one above it]",
        ),
        option(
            ["--platform"],
            type=click.Choice(["linux/amd64", "linux/arm64"]),
            help="The platform of the image.  [default: that of this host]",
        ),
        option(["--json"], is_flag=True, help="Print the result as JSON."),
        option(["--offline"], is_flag=True, help="Refuse to use the network."),
        option(["-q", "--quiet"], is_flag=True, help="Show no progress on stderr."),
        option(["-v", "--verbose"], is_flag=True, help="Show every program that nvllm runs."),
        option(["--no-color"], is_flag=True, help="Use no colour; the variable NO_COLOR does the same."),
    ]


def _summary(text: str) -> str:
    """Return the first sentence of the help TEXT."""
    sentence = re.match(r".*?\.(?=\s|$)", text, re.DOTALL)
    return sentence[0] if sentence else text


class FiniteRange(click.FloatRange):
    """A range of numbers, without the infinite ones and without NaN, which no bound excludes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def _show_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    if ctx.obj:
        print_result(command_name(ctx), {"help": ctx.get_help()})
    else:
        click.echo(ctx.get_help(), color=ctx.color)
    ctx.exit()


class WithExamples(click.Command):
    """A command whose epilog is written as it is: examples that were wrapped cannot be copied.

    Its ``--help``, or ``-h``, is one JSON document where the line asks for JSON, which the object of its context says.
    """

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["-h", "--help"]

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            formatter.write("\n" + inspect.cleandoc(self.epilog) + "\n")


class Command(WithExamples):
    """A command with the common options. Its help has its own options apart from them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._common = common_options()
        self.params.extend(self._common)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = [
            record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and param not in self._common and (record := param.get_help_record(ctx))
        ]
        with formatter.section("Options"):
            formatter.write_dl(records)
        formatter.write("\nCommon options: " + ", ".join(max(option.opts, key=len) for option in self._common))
        formatter.write(". See nvllm --help.\n")

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the summary for the listing of a group and for completion. Click cuts it to LIMIT; this does not."""
        return " ".join(_summary(self.help or "").split())

    def invoke(self, ctx: click.Context) -> Any:
        ctx.meta[_META + "command"] = command_name(ctx)
        return super().invoke(ctx)


class Group(WithExamples, click.Group):
    """A command that has commands of its own, such as ``nvllm patch``. Each of them is a `Command`."""

    command_class = Command


def command_name(ctx: click.Context) -> str:
    """Return the command of CTX without the program's name: ``patch list``."""
    return ctx.command_path.partition(" ")[2]


def typed(ctx: click.Context, without: Collection[str], instead: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return the command line of CTX as its user gave it, but for the common options and the parameters WITHOUT.

    Parameters have the values of INSTEAD, if they are in it; one that is empty there is left out.
    """
    words, arguments = ctx.command_path.split(), list[str]()
    for param in ctx.command.params:
        name = param.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and name not in without
        value = instead.get(name, ctx.params.get(name) if given else None)  # that of a common option is not there
        values = value if isinstance(value, tuple) else (value,)
        texts = [str(each) for each in values if each not in (None, "", False)]
        if not isinstance(param, click.Option):
            arguments += texts
        elif param.is_flag:
            words += [param.opts[0]] * len(texts)
        else:
            words += [word for text in texts for word in (param.opts[0], text)]
    # Behind `--` no word is taken for an option.
    end = ["--"] if any(word.startswith("-") for word in arguments) else []
    at = len(ctx.command_path.split())
    return [*words[:at], *arguments, *words[at:]] if not end else [*words, *end, *arguments]


def invoked(ctx: click.Context | None) -> str:
    """Return the name of the command that the line of CTX came to invoke, empty if it never did."""
    return str(ctx.meta.get(_META + "command", "")) if ctx is not None else ""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a result goes: stdout, which carries nothing else. JSON is one document for a whole command."""

    json: bool
    color: bool
    """Whether stdout takes colour."""

    @property
    def width(self) -> int | None:
        """The columns of the terminal that stdout is; None if it is none, such as a file."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def result(self, command: str, data: Json, text: str | Callable[[], None]) -> None:
        """Say what COMMAND (``build``, ``patch list``) found: DATA with --json, else TEXT, or what it prints."""
        if self.json:
            print_result(command, data)
        elif isinstance(text, str):
            self.line(text)
        else:
            text()
            sys.stdout.flush()

    def line(self, text: str) -> None:
        """Say one line of a result that grows, such as a log that is followed. JSON has no such thing."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()  # Python buffers what goes into a pipe, by whole blocks

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print ROWS under COLUMNS; for the TEXT of `result`."""
        from nvllm.cli import terminal

        terminal.print_table(columns, rows, color=self.color)


def print_document(document: Mapping[str, Json]) -> None:
    """Print the one JSON document of this command line."""
    from nvllm.core.canonical import printed

    sys.stdout.write(printed(document))
    sys.stdout.flush()


def print_result(command: str, data: Json) -> None:
    """Print DATA as the result of COMMAND, as one JSON document."""
    print_document({"schema": SCHEMA, "command": command, "ok": True, "result": data})


def asks_for_json(args: Sequence[str]) -> bool:
    """Return whether ARGS ask for JSON; read from the line itself, because it may be one that cannot be parsed."""
    return "--json" in (args[: args.index("--")] if "--" in args else args)


class Seen(Refused):
    """What a command that only looks raises: REFUSALS, and RESULT, what it has to show all the same.

    As text that was printed before. JSON is one document, so that both go into it.
    """

    def __init__(self, refusals: Iterable[Refusal], result: Json) -> None:
        super().__init__(refusals)
        self.result = result


@dataclass(frozen=True, slots=True)
class App:
    """What a command is given: where things lie, how to say things, and what the common options asked for."""

    project: Project
    places: Places
    offline: bool
    progress: Progress
    out: Output
    stderr_color: bool
    """Whether stderr takes colour."""

    def show(self, command: str, data: Json, text: Callable[[], None], refusals: Sequence[Refusal]) -> None:
        """Say what COMMAND, which only looks, has seen, as `Output.result` does; raise `Seen` if there are REFUSALS."""
        if not (self.out.json and refusals):
            self.out.result(command, data, text)
        if refusals:
            raise Seen(refusals, data)

    def need_network(self, address: str) -> None:
        """Raise Refused NV108 if --offline forbids to ask ADDRESS."""
        if self.offline:
            raise refuse("NV108", "--offline", "a command that needs no network", address, "run it without --offline")

    def remember_project(self) -> None:
        """Let `nvllm gc` in any project know of this one: what follows brings something here that it refers to."""
        from nvllm.gc.projects import Projects

        Projects(self.places.projects).remember(self.project)


def app(ctx: click.Context) -> App:
    """Return what the command line of CTX asked for. Raises Refused NV107 if --project names no project."""
    from nvllm.cli import terminal

    given = {name.removeprefix(_META): value for name, value in ctx.meta.items()}

    def color(stream: TextIO) -> bool:
        return "no_color" not in given and terminal.wants_color(os.environ, tty=stream.isatty())

    if "verbose" in given:
        _show_commands(ctx)
    platform = given.get("platform") or host_platform(machine())
    stderr_color = color(sys.stderr)
    progress = terminal.progress(os.environ, quiet="quiet" in given, color=stderr_color)
    for name in relative_directories(os.environ):
        progress.note(f"{name} is ignored: it names a relative directory")
    return App(
        project=find_project(given.get("project"), _here(), platform),
        places=places(os.environ),
        offline="offline" in given,
        progress=progress,
        out=Output(json="json" in given, color=color(sys.stdout)),
        stderr_color=stderr_color,
    )


def _here() -> Path:
    """Return the current directory. Raises Refused NV108 if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise refuse("NV108", "the current directory", "a directory", "it was removed", "cd") from None


def _show_commands(ctx: click.Context) -> None:
    """Send nvllm's debug log, which holds each program that is run, to stderr until CTX ends."""
    import logging

    logger = logging.getLogger("nvllm")
    handler = logging.StreamHandler(sys.stderr)
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    ctx.find_root().call_on_close(lambda: logger.removeHandler(handler))


def with_app(function: Callable[Concatenate[App, P], None]) -> Callable[P, None]:
    """Give FUNCTION the `App` of its command line as its first argument."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        function(app(click.get_current_context()), *args, **kwargs)

    return call


def packed(
    name: str, of: type, options: Sequence[Callable[[Callable[..., None]], Callable[..., None]]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command OPTIONS, and pass what they say as its argument NAME, one value of the dataclass OF."""

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(*args: object, **given: object) -> None:
            values = {field.name: given.pop(field.name) for field in fields(of)}
            function(*args, **given, **{name: of(**values)})

        command: Callable[..., None] = call
        for option in reversed(options):
            command = option(command)
        return command

    return decorated
