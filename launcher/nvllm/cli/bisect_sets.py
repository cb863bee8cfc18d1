"""The commands of `nvllm bisect` about one set: what its trials were, and what the user decides about it."""

from __future__ import annotations

import click

from nvllm.bisect import journal, records, replay_check, search
from nvllm.bisect import report as bisect_report
from nvllm.bisect.combinations import set_hash
from nvllm.bisect.records import Back, BisectState, JournalRecord, Skip, Tried
from nvllm.bisect.search import NextTrial
from nvllm.cli.bisect_journals import IMAGE, SET, bench_of, cache_of, held, load, lookup, option, set_argument
from nvllm.cli.complete import profiles
from nvllm.cli.frame import App, Command, with_app
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refused, refuse
from nvllm.trials.trial import TrialOutcome


@click.command("why", cls=Command)
@SET
@IMAGE
@with_app
def why_command(app: App, chosen: str, image: str | None) -> None:
    """Show the verdict on SET and every trial of it, with its reason."""
    state = load(app, image).state
    found = lookup(state, chosen)
    tried = state.trials.get(found, ())
    rows = [
        (f"{one.outcome} {one.kind or one.stage or ''}".strip(), f"{one.seconds:.1f} s", one.reason) for one in tried
    ]
    output: list[Json] = [{"said": one.said, "run": one.run} for one in tried]
    verdict = search.concluded(state.problem, state.evidence, found)
    names = ", ".join(state.problem.combinations.ordered(found)) or "no patch"
    data: Json = {
        "set": set_hash(found),
        "patches": names,
        "verdict": str(verdict) if verdict else None,
        "replicas": state.replicas(found),
        "trials": rows,
        "output": output,
    }

    def show() -> None:
        alike = bisect_report.replicas_text(state, found)
        app.out.line(f"{set_hash(found)}: {names}\n{verdict or 'no verdict yet'}{alike}")
        app.out.table(["trial", "took", "reason"], rows)
        for number, one in enumerate(tried, 1):
            if one.run or one.said:
                app.out.line(f"\ntrial {number}{f', run directory {one.run}' if one.run else ''}")
            for said in one.said.splitlines():
                app.out.line(f"    {said}")

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
    with held(app, path.parent.name):
        log = journal.load(path)
        state, start = log.state, log.state.start
        found = lookup(state, chosen)
        ordered = state.problem.combinations.ordered(found)
        bench = bench_of(app, start, profile or start.profile)
        built = bench.built(ordered)
        if found not in state.builds:
            log.append(built)  # the search needs no build of its own, and `nvllm gc` keeps the image
    name = set_hash(found)

    def ready(instance: str, address: str) -> None:
        data: Json = {"set": name, "patches": list(ordered), "instance": instance, "address": address}
        shown = ", ".join(ordered) or "no patch"
        verdicts = "".join(f"\n  nvllm bisect {word} {name} --image {start.image}" for word in ("good", "bad"))
        said = f"ready: {instance} at {address}, with {shown}\nits verdict, when you have looked:{verdicts}"
        app.out.result("bisect serve", data, said)

    bench.serve(built, ready)


@click.command("skip", cls=Command)
@SET
@IMAGE
@with_app
def skip_command(app: App, chosen: str, image: str | None) -> None:
    """Never try SET: it counts as untestable."""
    _word(app, image, chosen, "skip")


@click.command("good", cls=Command)
@SET
@IMAGE
@with_app
def good_command(app: App, chosen: str, image: str | None) -> None:
    """Record by hand that SET is good."""
    _word(app, image, chosen, "good")


@click.command("bad", cls=Command)
@SET
@IMAGE
@with_app
def bad_command(app: App, chosen: str, image: str | None) -> None:
    """Record by hand that SET is bad."""
    _word(app, image, chosen, "bad")


@click.command("retry", cls=Command)
@SET
@IMAGE
@with_app
def retry_command(app: App, chosen: str, image: str | None) -> None:
    """Withdraw the untestable trials of SET, so that it is tried again.

    What was good or bad stays.
    """
    _word(app, image, chosen, "retry")


@click.command("back", cls=Command)
@set_argument(required=False, help="Seven digits, or ID,...  [default: the last trial only]")
@IMAGE
@with_app
def back_command(app: App, chosen: str | None, image: str | None) -> None:
    """Withdraw the trials of SET, or its skip; without SET the last trial.

    The trials are removed from the cache as well, and the search continues without them.
    """
    _word(app, image, chosen, "back")


def _word(app: App, image: str | None, chosen: str | None, word: str) -> None:
    path = load(app, image).path
    with held(app, path.parent.name):
        log = journal.load(path)
        state = log.state
        found = state.last if chosen is None else lookup(state, chosen)
        if found is None or (word in ("back", "retry") and found not in state.trials and found not in state.skipped):
            said = "a set that was tried or skipped"
            raise refuse("NV805", "SET", said, chosen or "none yet", "nvllm bisect status")
        ordered = state.problem.combinations.ordered(found)
        record = _record(word, ordered, named=chosen is not None, skipped=found in state.skipped)
        log.append(record)
        if isinstance(record, Back) and found in state.builds:
            gone = [one.trial for one in state.withdrawn(found, record.what)]
            cache_of(app, state.start).forget(state.builds[found].build_hash, gone)
    names = ", ".join(ordered) or "no patch"
    app.out.result(
        f"bisect {word}", {"set": set_hash(found), "patches": list(ordered)}, f"{word}: {names}\n{_then(log.state)}"
    )


def _then(state: BisectState) -> str:
    """Return what comes next in STATE, in one line."""
    answer = replay_check.answer(state)
    if isinstance(answer, NextTrial):
        return bisect_report.next_text(state, answer)
    return "next: nvllm bisect status" if isinstance(answer, Refused) else bisect_report.conclusion(state.start, answer)


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


COMMANDS = (why_command, serve_command, skip_command, good_command, bad_command, retry_command, back_command)
