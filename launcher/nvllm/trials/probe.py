"""The probe of a bisect: a program or a built-in test, and the verdict that follows from its exit status."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from nvllm.core import canonical, reading
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.trials.trial import BisectProbe, Trial

BUILTIN = "builtin:"
"""Prefix of the command of a built-in test."""

BUILTINS = ("boots", "coherent", "golden", "aot-loads")
UNTESTABLE, _ABORT = 125, 128
"""Exit statuses of a test, as `git bisect run` takes them: skip this one; and from there on, stop."""
_LINE = 256
"""Bytes of the first line that Linux reads; see execve(2)."""

_REGRESS = re.compile(r"exit=([0-9]+)|log=(.+)", re.DOTALL)


def program(path: Path, arguments: tuple[str, ...], regress: str, *, build_only: bool) -> BisectProbe:
    """Return the probe that runs PATH with ARGUMENTS. REGRESS is ``exit=N`` or ``log=REGEX``; empty means any failure.

    Raises Refused NV802 if PATH cannot be run, and NV108 if REGRESS has another form.
    """
    refusals = _bad_regress(regress)
    problem = _not_runnable(path)
    if problem is not None:
        refusals.append(not_runnable(str(path), *problem))
    refuse_any(refusals)
    command = (str(path.absolute()), *arguments)
    return _probe(command, canonical.sha256_file(path), regress, build_only=build_only)


def builtin(name: str, arguments: tuple[str, ...] = ()) -> BisectProbe:
    """Return the built-in test NAME. ``golden`` takes the file with the answer, the others take no argument.

    Raises Refused NV108 for an unknown name, and NV802 if the file cannot be read or is not text.
    """
    if name not in BUILTINS or (name == "golden") != (len(arguments) == 1):
        expected = f"one of {', '.join(BUILTINS)}; golden with a FILE"
        words = " ".join((name, *arguments))
        raise refuse("NV108", "--test-builtin", expected, words, "nvllm bisect start --help")
    content = ""
    for answer in arguments:
        golden(Path(answer))
        content = canonical.sha256_file(Path(answer))
    return _probe((BUILTIN + name, *arguments), content, "", build_only=False)


def golden(path: Path) -> str:
    """Return the answer in the file PATH, without the newlines at its end.

    Raises Refused NV802 if it cannot be read or is not text.
    """
    try:
        return reading.text(path, reading.PAGE).rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise refuse("NV802", str(path), "a text file with the answer", reason, "name a file") from error


def unchanged(probe: BisectProbe) -> BisectProbe:
    """Return PROBE with the hash of its file as it is now. Raises Refused NV802 if the file is gone."""
    if probe.command[0].startswith(BUILTIN):
        return builtin(probe.command[0].removeprefix(BUILTIN), probe.command[1:])
    return program(Path(probe.command[0]), probe.command[1:], probe.regress, build_only=probe.build_only)


def _probe(command: tuple[str, ...], content: str, regress: str, *, build_only: bool) -> BisectProbe:
    arguments: Json = list(command[1:])  # not its own path: the content says what it is, wherever it lies
    about: dict[str, Json] = {"command": arguments, "content": content, "regress": regress, "build_only": build_only}
    if command[0].startswith(BUILTIN):
        about["builtin"] = command[0]
    return BisectProbe(command, canonical.digest("nvllm.test/1", about), regress, build_only)


def not_runnable(path: str, reason: str, cure: str = "") -> Refusal:
    """Return the refusal of the probe at PATH, which cannot be run for REASON; CURE replaces the general cure."""
    cure = cure or f"make it start from a shell: {shlex.quote(path)}"
    return Refusal("NV802", path, "a program that this user may run", reason, cure)


def _not_runnable(path: Path) -> tuple[str, str] | None:
    """Return why PATH cannot be run, and the cure; None if it looks as if it can."""
    if not path.exists():
        return "no such file", "name a file; a program on the PATH needs its full path"
    if not path.is_file():
        return "not a regular file", "name a file"
    if not os.access(path, os.X_OK):
        return "a file that this user may not execute", f"chmod +x {shlex.quote(str(path))}"
    if not os.access(path, os.R_OK):
        return "a file that this user may not read, so it cannot be hashed", f"chmod +r {shlex.quote(str(path))}"
    with path.open("rb") as stream:
        first = stream.readline(_LINE)
    if not first.startswith(b"#!"):
        text = b"\0" not in first
        cure = "add a first line that names its interpreter: #!/bin/sh"
        return ("a script without an interpreter line", cure) if text else None
    interpreter = os.fsdecode(first[2:].strip().partition(b" ")[0])
    if not os.access(interpreter, os.X_OK):
        return (
            f"a script whose interpreter {interpreter or '(empty)'} cannot be run",
            f"install it, or edit line 1 of {path}",
        )
    return None


def _bad_regress(regress: str) -> list[Refusal]:
    match = _REGRESS.fullmatch(regress)
    where, cure = "--regress", "--regress exit=3, or --regress 'log=out of memory'"
    if not regress:
        return []
    if match is None or (match[1] and not 1 <= int(match[1]) < _ABORT):
        return [Refusal("NV108", where, f"exit=N with N from 1 to {_ABORT - 1}, or log=REGEX", regress, cure)]
    if match[2]:
        try:
            re.compile(match[2])
        except re.error as error:
            return [Refusal("NV108", where, "a Python regular expression", f"{match[2]}: {error}", cure)]
    return []


def judge(status: int, output: str, regress: str, *, seconds: float) -> Trial:
    """Return the verdict of a program that exited with STATUS: 0 is good, 125 untestable, any other up to 127 bad.

    With REGRESS only the failure that it names is bad; any other is untestable at the harness. OUTPUT is what the
    program and the engine wrote. Raises Refused NV808 for a status of 128 or more, and for a signal.
    """
    if status < 0 or status >= _ABORT:
        ending = f"signal {-status}" if status < 0 else f"exit status {status}"
        cure = "if the probe did not mean to stop, mend it; the same command again goes on"
        raise refuse("NV808", "the probe", "an exit status below 128", ending, cure)
    if status == 0:
        return Trial("good", seconds=seconds)
    kind = f"exit {status}"
    match = _REGRESS.fullmatch(regress)
    if status == UNTESTABLE:
        return Trial("untestable", kind, "harness", seconds=seconds)
    if match is not None:
        declared = re.search(match[2], output) is not None if match[2] else status == int(match[1])
        if not declared:
            return Trial("untestable", kind, "harness", seconds=seconds)
        kind = regress
    return Trial("bad", kind, seconds=seconds)
