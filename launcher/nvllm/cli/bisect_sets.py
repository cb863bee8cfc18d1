"""The commands of `nvllm bisect` about one set: what its trials were, and what the user decides about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import click

from nvllm.bisect import journal, records, replay_check, report, search
from nvllm.bisect.answer import NextTrial
from nvllm.bisect.combinations import set_hash
from nvllm.bisect.records import Back, BisectState, JournalRecord, Skip, Tried
from nvllm.cli.bisect_journals import IMAGE, SET, bench_of, cache_of, load, locked, lookup, option, set_argument
from nvllm.cli.complete import profiles
from nvllm.cli.frame import App, Command, with_app
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refused, refuse
from nvllm.trials.trial import TrialOutcome

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@click.command("why", cls=Command)
@SET
@IMAGE
@with_app
def why_command(app: App, chosen: str, image: str | None) -> None:
    """Show the verdict on SET and every trial of it, with its reason."""
    state = load(app, image).state
    patches = lookup(state, chosen)
    tried = state.trials.get(patches, ())
    rows = [
        (f"{trial.outcome} {trial.kind or trial.stage or ''}".strip(), f"{trial.seconds:.1f} s", trial.reason)
        for trial in tried
    ]
    output: list[Json] = [{"said": trial.said, "run": trial.run} for trial in tried]
    verdict = search.concluded(state.problem, state.evidence, patches)
    names = ", ".join(state.problem.combinations.ordered(patches)) or "no patch"
    data: Json = {
        "set": set_hash(patches),
        "patches": names,
        "verdict": str(verdict) if verdict else None,
        "replicas": state.replicas(patches),
        "trials": rows,
        "output": output,
    }

    def show() -> None:
        alike = report.replicas_text(state, patches)
        app.out.line(f"{set_hash(patches)}: {names}\n{verdict or 'no verdict yet'}{alike}")
        app.out.table(["trial", "took", "reason"], rows)
        for number, trial in enumerate(tried, 1):
            if trial.run or trial.said:
                app.out.line(f"\ntrial {number}{f', run directory {trial.run}' if trial.run else ''}")
            for line in trial.said.splitlines():
                app.out.line(f"    {line}")

    app.out.result("bisect why", data, show)


@click.command("serve", cls=Command)
@SET
@option("--profile", shell_complete=profiles, help="The profile to serve.  [default: that of the bisect]")
@IMAGE
@with_app
def serve_command(app: App, chosen: str, profile: str | None, image: str | None) -> None:
    """Build the image of SET and serve it, to look at it yourself, until Ctrl-C or `nvllm stop`.

    Then give the verdict: `nvllm bisect good SET` or `nvllm bisect bad SET`.
    """
    path = load(app, image).path
    with locked(app, path.parent.name):
        log = journal.load(path)
        state, start = log.state, log.state.start
        patches = lookup(state, chosen)
        ordered = state.problem.combinations.ordered(patches)
        bench = bench_of(app, start, profile or start.profile)
        built = bench.built(ordered)
        if patches not in state.builds:
            log.append(built)  # the search needs no build of its own, and `nvllm gc` keeps the image
    name = set_hash(patches)

    def ready(instance: str, address: str) -> None:
        data: Json = {"set": name, "patches": list(ordered), "instance": instance, "address": address}
        names = ", ".join(ordered) or "no patch"
        verdicts = "".join(f"\n  nvllm bisect {word} {name} --image {start.image}" for word in ("good", "bad"))
        text = f"ready: {instance} at {address}, with {names}\nits verdict, when you have looked:{verdicts}"
        app.out.result("bisect serve", data, text)

    bench.serve(built, ready)


def _decision(word: str, text: str, argument: Decorator = SET) -> click.Command:
    """Return the command of the user's WORD on the set that ARGUMENT names, with the help TEXT."""

    @click.command(word, cls=Command, help=text)
    @argument
    @IMAGE
    @with_app
    def decision(app: App, chosen: str | None, image: str | None) -> None:
        _word(app, image, chosen, word)

    return decision


def _word(app: App, image: str | None, chosen: str | None, word: str) -> None:
    """Record the user's WORD on the set CHOSEN of the bisect of IMAGE; without one, on the last."""
    path = load(app, image).path
    with locked(app, path.parent.name):
        log = journal.load(path)
        state = log.state
        patches = state.last if chosen is None else lookup(state, chosen)
        if patches is None or (
            word in ("back", "retry") and patches not in state.trials and patches not in state.skipped
        ):
            expected = "a set that was tried or skipped"
            raise refuse("NV805", "SET", expected, chosen or "none yet", "nvllm bisect status")
        ordered = state.problem.combinations.ordered(patches)
        record = _record(word, ordered, named=chosen is not None, skipped=patches in state.skipped)
        log.append(record)
        if isinstance(record, Back) and patches in state.builds:
            gone = [tried.trial for tried in state.withdrawn(patches, record.what)]
            cache_of(app, state.start).forget(state.builds[patches].build_hash, gone)
    names = ", ".join(ordered) or "no patch"
    app.out.result(
        f"bisect {word}", {"set": set_hash(patches), "patches": list(ordered)}, f"{word}: {names}\n{_then(log.state)}"
    )


def _then(state: BisectState) -> str:
    """Return what comes next in STATE, in one line."""
    answer = replay_check.answer(state)
    if isinstance(answer, NextTrial):
        return report.next_text(state, answer)
    return "next: nvllm bisect status" if isinstance(answer, Refused) else report.conclusion(state.start, answer)


def _record(word: str, ordered: tuple[str, ...], *, named: bool, skipped: bool) -> JournalRecord:
    """Return the record of the user's WORD on the set ORDERED, which is SKIPPED, or was NAMED."""
    match word:
        case "back":
            what: records.Withdrawn = "skip" if skipped else "trials"
            return Back(ordered, what if named else "last")
        case "retry":
            return Back(ordered, "untestable")
        case "skip":
            return Skip(ordered)
        case _:
            outcome: TrialOutcome = "good" if word == "good" else "bad"
            return Tried(ordered, outcome, "", None, "", 0.0, recalled=False, reason="by hand", by_hand=True)


_BACK = """Withdraw the trials of SET, or its skip; without SET the last trial.

The trials are removed from the cache as well, and the search continues without them.
"""

COMMANDS = (
    why_command,
    serve_command,
    _decision("skip", "Never try SET: it counts as untestable."),
    _decision("good", "Record by hand that SET is good."),
    _decision("bad", "Record by hand that SET is bad."),
    _decision(
        "retry", "Withdraw the untestable trials of SET, so that it is tried again.\n\nIts good and bad trials stay."
    ),
    _decision(
        "back", _BACK, set_argument(required=False, help="Seven digits, or ID,...  [default: the last trial only]")
    ),
)
