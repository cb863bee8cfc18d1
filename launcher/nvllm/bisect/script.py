"""A journal as a shell script, to be read or run: the start of the search, then each trial in order.

Any text in a journal may contain newlines and quotes, such as the pattern of `--regress`. All of it is quoted, so none
of it becomes a command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from nvllm.bisect import records
from nvllm.bisect.problem import Settings
from nvllm.bisect.records import BisectStart, BisectState, JournalEntry, Tried
from nvllm.trials import probe

_GO_ON = '|| echo "exit status $?"'
"""Prints a failure, which would otherwise end the script."""


def script(entries: Sequence[JournalEntry]) -> str:
    """Return the journal of ENTRIES as a script for `sh`.

    Run in the project, it starts the same search, skips the same sets and builds each set in the order of the trials.
    It runs a probe that needs only the image. A probe that needs an engine is a comment, because only
    `nvllm bisect run` serves a set that differs from the spec's. Comments show the results.
    """
    return "\n".join(_lines(entries)) + "\n"


def _lines(entries: Sequence[JournalEntry]) -> Iterator[str]:
    first, *others = entries
    state = records.fold([first.record])
    start = state.start
    yield "#!/bin/sh"
    yield _comment(f"bisect of {start.image}, series {start.series}, on {start.host}")
    yield "set -eu"
    yield _start(start)
    number = 0
    for entry in others:
        record = entry.record
        match record:
            case Tried() if record.by_hand:
                number += 1
                yield _word(record.outcome, start, record.chosen)
            case Tried():
                number += 1
                yield ""
                yield _comment(f"{number}: {record.reason}")
                yield from _tried(state, record)
            case records.Skip():
                yield _word("skip", start, record.chosen)
            case records.Corrected():
                yield _correction(start.image, record)
            case records.Back():
                # Where the script runs, no trial was recorded, so only a skip can be withdrawn.
                said = _word("back", start, record.chosen)
                withdrawn = record.what in ("all", "skip") and frozenset(record.chosen) in state.skipped
                yield said if withdrawn else _comment(said)
            case records.End():
                yield ""
                yield _comment(f"found: {', '.join(record.culprits)}")
        state = state.after(record)
        start = state.start


def _correction(image: str, corrected: records.Corrected) -> str:
    words = ["nvllm", "bisect", "probe", "--image", image, "--keep", corrected.kept]
    program, *arguments = corrected.probe.command
    if program.startswith(probe.BUILTIN):
        return shlex.join([*words, *arguments])
    words += ["--regress", corrected.probe.regress] if corrected.probe.regress else []
    return shlex.join([*words, "--", program, *arguments])


def _tried(state: BisectState, tried: Tried) -> Iterator[str]:
    start, chosen = state.start, frozenset(tried.chosen)
    built = state.builds.get(chosen)
    if chosen not in state.trials:
        command = shlex.join(["nvllm", "build", start.image, "--patches", _ids(tried.chosen)])
        yield command if built is not None else f"{command} {_GO_ON}"
    if built is not None and not start.probe.command[0].startswith(probe.BUILTIN):
        given = {"NVLLM_IMAGE": built.image, "NVLLM_PATCHES": ",".join(tried.chosen)}
        environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in given.items())
        command = f"{environment} {shlex.join(start.probe.command)} {_GO_ON}"
        yield (command if start.probe.build_only else _comment(f"with the engine's NVLLM_ADDRESS: {command}"))
    about = f" ({tried.kind or tried.stage})" if tried.kind or tried.stage else ""
    yield _comment(f"{tried.outcome}{about}, {tried.seconds:.1f} s{', from the cache' if tried.recalled else ''}")


def _start(start: BisectStart) -> str:
    bad, good = (start.high, start.low) if start.find == "break" else (start.low, start.high)
    words = ["nvllm", "bisect", "start", start.image]
    program, *arguments = start.probe.command
    if program.startswith(probe.BUILTIN):
        words += [*arguments, "--test-builtin", program.removeprefix(probe.BUILTIN)]
        arguments = []
    elif not arguments:
        words += ["--test", program]
    else:
        arguments = ["--", program, *arguments]
    words += ["--find", start.find, "--bad", _ids(bad), "--good", _ids(good), "--profile", start.profile]
    words += ["--confidence", f"{start.confidence:g}", "--repeats", str(start.repeats)]
    words += ["--patience", str(start.patience), "--build-price", f"{start.build_price:g}"]
    words += ["--regress", start.probe.regress] if start.probe.regress else []
    words += ["--build-only"] if start.probe.build_only else []
    words += ["--set"] if start.mode == "set" else []
    words += ["--flaky"] if start.flaky else []
    words += ["--max-trials", str(start.max_trials)] if start.max_trials != Settings().max_trials else []
    words += ["--max-hours", f"{start.max_hours:g}"] if start.max_hours else []
    words += ["--all"] if start.further else []
    return shlex.join([*words, *arguments])


def _word(word: str, start: BisectStart, chosen: Sequence[str]) -> str:
    return shlex.join(["nvllm", "bisect", word, "--image", start.image, _ids(chosen)])


def _ids(chosen: Sequence[str]) -> str:
    return ",".join(chosen) or "none"


def _comment(text: str) -> str:
    """Return TEXT as a comment of one line."""
    return "# " + "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
