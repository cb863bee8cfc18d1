"""The command line's frame: the table of commands, and how every ending becomes an exit code.

Exit codes: 0 done, 1 failed, 2 usage, 3 refused, 130 interrupted, 143 terminated. A command's module is
imported when the command runs and not before, so that ``nvllm --help`` answers at once.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import io
import os
import select
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Literal

import click

from nvllm import __version__
from nvllm.cli.frame import (
    COMPLETE_VARIABLE,
    SCHEMA,
    Group,
    asks_for_json,
    command_name,
    common_options,
    invoked,
    print_document,
    print_result,
)
from nvllm.core.paths import places
from nvllm.core.refusal import Refusal, Refused

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from nvllm.core.canonical import Json

Section = Literal["Build", "Serve", "Patches", "Evidence", "Housekeeping"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: its section and its one-line HELP, and the attribute of the module that implements it."""

    section: Section
    name: str
    module: str
    attribute: str
    help: str


_TABLE: Mapping[Section, Sequence[tuple[str, str, str]]] = {
    "Build": (
        ("init", "init.init", "Start a project of your own: a version, patches, a lock."),
        ("lock", "lock.lock", "Resolve every name of an image spec and pin it by sha256."),
        ("build", "build.build_command", "Build an image from its lock, bit for bit."),
        ("image", "image.image", "Compare two images, file by file."),
        ("fetch", "fetch.fetch_command", "Fetch all that a build needs, for a host without network."),
        ("store", "store.store", "Carry locked files from one host's store to another's."),
        ("push", "push.push", "Send an image, and blessings, to an OCI registry."),
        ("pull", "push.pull", "Bring an image, and blessings, from an OCI registry."),
        ("sbom", "sbom.sbom_command", "Print the bill of materials of an image."),
        ("provenance", "provenance.provenance_command", "State what an image was built from, and how."),
        ("dockerfile", "dockerfile.dockerfile", "Write what `docker build` needs of a lock."),
        ("kernels", "kernels.kernels", "Build, list and check the kernels of an image."),
        ("explain", "inspect.explain_command", "Show why two hashes differ, or what NV907 is."),
    ),
    "Serve": (
        ("serve", "serve.serve_command", "Serve a profile of an image on 127.0.0.1, or refuse."),
        ("status", "serve.status", "Show the instances of this host."),
        ("logs", "serve.logs", "Show the log of an instance's engine."),
        ("stop", "serve.stop", "Stop an instance."),
        ("doctor", "inspect.doctor", "Check this host, or a profile on it; start nothing."),
        ("model", "model.model", "Make, fetch or check the models of an image."),
        ("export", "export.export", "Write a profile for Kubernetes, Quadlet, Compose, systemd."),
        ("bless", "bless.bless_command", "Compile the cache of a profile, and test it."),
        ("manifest", "manifest.manifest_command", "List, show, verify, restore, revoke and import blessings."),
    ),
    "Patches": (
        ("patch", "patch.patch", "List, check, make and refresh patches."),
        ("dev", "dev.dev", "Edit the patches of an image as commits of a git work tree."),
        ("port", "port.port", "Move the patches of an image to another release of vLLM."),
        ("bisect", "bisect.bisect", "Find the patches that break, or repair, something."),
        ("worker", "fleet.worker_command", "Carry out tasks that other machines send, one a line."),
        ("fleet", "fleet.fleet", "Show the machines that trials can be sent to."),
    ),
    "Evidence": (
        ("ablate", "evidence.ablate", "Compare switchable patches by sentinels, no rebuild."),
        ("bench", "evidence.bench", "Measure a profile under load, or two side by side."),
        ("eval", "evidence.eval_command", "Ask a profile questions that have known answers."),
        ("sweep", "evidence.sweep", "Measure and ask several profiles, in legs that take turns."),
        ("gate", "gate.gate", "Measure the hardware before a long campaign."),
        ("report", "evidence.report", "Show what a run of these commands found."),
    ),
    "Housekeeping": (
        ("gc", "inspect.gc", "Remove what no project refers to."),
        ("completion", "complete.completion", "Print the completion script of a shell."),
    ),
}
"""By section: the name of each command, where it is in this room, and its help in one line."""

COMMANDS = tuple(
    Entry(section, name, f"nvllm.cli.{where.partition('.')[0]}", where.partition(".")[2], summary)
    for section, rows in _TABLE.items()
    for name, where, summary in rows
)

BY_NAME: dict[str, Entry] = {entry.name: entry for entry in COMMANDS}

EXAMPLES = """
Examples:
  nvllm init mine --vllm 0.27.0          start a project of your own in the directory mine
  nvllm build cpu                        build the image cpu from manifests/cpu.lock.json
  nvllm serve cpu --profile tiny-eager   serve it on 127.0.0.1, or refuse
  nvllm status --json                    the instances of this host, for programs
  eval "$(nvllm completion bash)"        completion of commands, images, profiles and patches
"""


@functools.cache
def _imported(entry: Entry) -> click.Command:
    """Return the command of ENTRY. Its help is the summary in the table, then the docstring, which says the rest."""
    command = vars(importlib.import_module(entry.module))[entry.attribute]
    assert isinstance(command, click.Command)
    # Joined to a summary, a docstring is no longer the text that click dedents: its first line has no indentation.
    command.help = "\n\n".join(filter(None, (entry.help, inspect.cleandoc(command.help or ""))))
    return command


class LazyGroup(Group):
    """The program itself: it knows its commands from the table and imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(BY_NAME)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in BY_NAME:
            return None
        return _imported(BY_NAME[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click looks for the nearest name among imported commands only
            raise click.NoSuchCommand(error.command_name, possibilities=BY_NAME, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(entry.section for entry in COMMANDS):
            with formatter.section(section):
                formatter.write_dl([(e.name.ljust(12), e.help) for e in COMMANDS if e.section == section])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [CompletionItem(entry.name, help=entry.help) for entry in COMMANDS if entry.name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


program = LazyGroup(
    name="nvllm",
    help="Build, prove and serve a patched vLLM: one YAML file pins everything.",
    epilog=EXAMPLES,
    params=list(common_options()),
    options_metavar="[OPTIONS]",
    context_settings={"max_content_width": 110},
)


def _show_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    if ctx.obj:
        print_result("", {"version": __version__})
    else:
        click.echo(f"nvllm {__version__}")
    ctx.exit()


click.version_option(__version__, prog_name="nvllm")(program)
program.params[-1].callback = _show_version


class Ended(KeyboardInterrupt):
    """A signal that asks to end: it unwinds what is under way exactly as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


def _end(number: int, _frame: FrameType | None) -> None:
    raise Ended(number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ARGV (without the program's name; sys.argv if None) and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    for name in ("stdin", "stdout", "stderr"):
        if vars(sys)[name] is None:  # closed by the caller; the next file to be opened would get its number
            vars(sys)[name] = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115 - until the program ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an argument may hold bytes that no encoding takes
            stream.reconfigure(errors="backslashreplace")
    # A hang-up that the caller chose to ignore (nohup) stays ignored.
    caught = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, _end) for number in caught}
    if argv is not None:  # the caller goes on after an interrupt, and wants to get the next one
        previous[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        return _run(args)
    except BrokenPipeError as error:
        return _broken_pipe(args, error)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run(args: Sequence[str]) -> int:
    """Run ARGS, and turn every way in which that can end into what the user sees and an exit code.

    click's own `main` is not used: it would turn an interrupt into an abort, and a signal into the same.
    """
    context: click.Context | None = None
    try:
        if instruction := os.environ.get(COMPLETE_VARIABLE):
            return _completed(instruction)
        context = program.make_context("nvllm", list(args), obj=asks_for_json(args))
        with context:
            program.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        if asks_for_json(args):
            path = error.ctx.command_path if error.ctx is not None else "nvllm"
            missing = Refusal("NV108", path, "a command", "none", f"{path} --help")
            return _refuse(args, command_name(error.ctx) if error.ctx else "", Refused([missing]))
        print(error.format_message(), file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        return _refuse(args, *_usage(args, error))
    except Refused as refused:
        return _refuse(args, invoked(context), refused)
    except (KeyboardInterrupt, click.Abort) as interrupt:
        # All is unwound. Impatient users send another one, which would take the place of the exit code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("interrupted", file=sys.stderr)
        return interrupt.exit_code if isinstance(interrupt, Ended) else 130
    except BrokenPipeError:
        raise  # showing an ending can break as well: both are for the caller
    except OSError as error:
        return _unusable(args, invoked(context), error)
    # The one place that catches everything: whatever gets here is a defect of nvllm, and its traceback
    # belongs into a file for whoever repairs it.
    except Exception as error:  # noqa: BLE001
        return _crash(args, invoked(context), error)
    return 0


def _completed(instruction: str) -> int:
    """Print what a shell asks for by INSTRUCTION, and return the exit code; 1 if the shell's variables say nothing."""
    from click.shell_completion import shell_complete

    try:
        return shell_complete(program, {}, "nvllm", COMPLETE_VARIABLE, instruction)
    except (KeyError, ValueError):  # no words, no position, or a quotation that is not closed
        return 1


def _unusable(args: Sequence[str], command: str, error: OSError) -> int:
    """Refuse if ERROR is about a full disk, or a file of another kind or access than is used; else it is a crash."""
    from nvllm.core import durable, reading

    refused = durable.full(error) or reading.unusable(error)
    if refused is None:
        return _crash(args, command, error)
    try:
        sys.stdout.flush()
        return _refuse(args, command, refused)
    except OSError:  # it is stdout that has no room; stderr may have
        _drop_output()
        return _refuse([word for word in args if word != "--json"], command, refused)


def _drop_output() -> None:
    """Lose what stdout still holds: the interpreter would write it when it ends, and fail with a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(args: Sequence[str], error: click.ClickException) -> tuple[str, Refused]:
    """Return the command's name and the refusal NV108 for what click could not use of ARGS."""
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.MissingParameter) and ctx is not None and (refused := _missing(ctx, error.param)):
        return command_name(ctx), refused
    path = ctx.command_path if ctx is not None else "nvllm"
    expected, cure = f"what `{path} --help` shows", f"{path} --help"
    if isinstance(error, click.NoSuchCommand):
        names = ctx.command.list_commands(ctx) if ctx is not None and isinstance(ctx.command, click.Group) else []
        expected = "one of " + ", ".join(names)
        cure = f"{path} {error.possibilities[0]}" if error.possibilities else cure
    elif isinstance(error, click.NoSuchOption):
        cure = _corrected(args, error) or cure
    elif ctx is not None:
        expected = ctx.get_usage().removeprefix("Usage: ")
    problem = error.message if isinstance(error, (click.NoSuchCommand, click.NoSuchOption)) else error.format_message()
    refusal = Refusal("NV108", path, expected, " ".join(problem.split()).rstrip("."), cure)
    return (command_name(ctx) if ctx is not None else ""), Refused([refusal])


def _corrected(args: Sequence[str], error: click.NoSuchOption) -> str | None:
    """Return the line of ARGS with the option that looks like the one that is not there; None if none does."""
    name = error.option_name
    near = difflib.get_close_matches(name, error.possibilities or (), 1, _ALIKE)
    words = [near[0] + word.removeprefix(name) if near and word.partition("=")[0] == name else word for word in args]
    return shlex.join(["nvllm", *words]) if near else None


_ALIKE = 0.75
"""From 0 to 1. click's own 0.6 takes --dry-run for a misspelt --runs."""


def _missing(ctx: click.Context, param: click.Parameter | None) -> Refused | None:
    """Return the refusal of the line of CTX, which lacks PARAM, if that names profiles; else None."""
    from nvllm.cli import image_argument

    if param is None or param.name not in image_argument.PROFILES:
        return None
    try:
        return image_argument.profile_missing(ctx)
    except Refused as refused:  # such as a --project that is none
        return refused


def _refuse(args: Sequence[str], command: str, refused: Refused) -> int:
    """Show every refusal: as JSON on stdout, or as text on stderr."""
    if not asks_for_json(args):
        _print_refusals(args, refused)
        return refused.exit_code
    from nvllm.cli.output import refusal_document

    try:
        print_document(refusal_document(command, refused))
    except BrokenPipeError:
        _print_refusals(args, refused)  # who read has gone, as from a detached supervisor: its log is what stays
        raise
    except OSError:  # stdout has no room
        _drop_output()
        _print_refusals(args, refused)
    return refused.exit_code


def _print_refusals(args: Sequence[str], refused: Refused) -> None:
    from nvllm.cli import terminal

    color = "--no-color" not in args and terminal.wants_color(os.environ, tty=sys.stderr.isatty())
    terminal.print_refusals(refused.refusals, color=color)


def _broken_pipe(args: Sequence[str], error: BrokenPipeError) -> int:
    """End quietly if the reader of stdout went away (``nvllm logs | head``); any other pipe is a crash."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    # POLLERR, of the end that is written to, says that nobody reads the other one: poll(2).
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return _crash(args, "", error)
    _drop_output()
    return 128 + signal.SIGPIPE


def _crash(args: Sequence[str], command: str, error: Exception) -> int:
    """Write the crash report of ERROR, say in one line where it is, and return 1."""
    from nvllm.cli import crash, terminal

    summary = terminal.printable(crash.scrub(f"{type(error).__name__}: {error}", args, os.environ))
    path: str | None = None
    try:
        path = str(crash.write(error, args, os.environ, places(dict(os.environ)).state / "crashes"))
        print(f"nvllm crashed ({summary}); report: {path}", file=sys.stderr)
    except OSError as failure:
        print(f"nvllm crashed ({summary}); the report could not be written: {failure}", file=sys.stderr)
    if asks_for_json(args):
        document: Mapping[str, Json] = {
            "schema": SCHEMA,
            "command": command,
            "ok": False,
            "crash": {"summary": summary, "report": path},
        }
        print_document(document)
    return 1
