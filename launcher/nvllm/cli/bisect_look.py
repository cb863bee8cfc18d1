"""`nvllm bisect`, the commands that only look: where a search stands, what it found, and on what evidence."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click

from nvllm.bisect import driver, history, journal, replay_check, search
from nvllm.bisect import report as bisect_report
from nvllm.bisect import script as bisect_script
from nvllm.bisect.combinations import set_hash
from nvllm.bisect.history import State, Tried
from nvllm.bisect.journal import Journal
from nvllm.bisect.search import Done
from nvllm.bisect.verdict import PatchSet
from nvllm.cli import report
from nvllm.cli.complete import images
from nvllm.cli.frame import App, Command, with_app
from nvllm.cli.output import refusal_document
from nvllm.core import durable
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, Refused

IMAGE = click.option(
    "--image", "image", metavar="IMAGE", shell_complete=images, help="Of which image.  [default: the last one started]"
)


@click.command("plan", cls=Command)
@IMAGE
@with_app
def plan_command(app: App, image: str | None) -> None:
    """Say what the search is still going to cost, if one patch alone is the culprit."""
    state = state_of(load(app, image))
    search.propose(state.problem, state.evidence)  # an end that is not as declared costs no build: it ends the search
    costs = driver.forecast(state)
    app.out.result("bisect plan", asdict(costs), forecast_text(state, costs))


@click.command("status", cls=Command)
@IMAGE
@with_app
def status_command(app: App, image: str | None) -> None:
    """Show how far the search is: what was tried, what is next, which patches are under suspicion."""
    log = load(app, image)
    data, text = _shown(app, log, replay_check.answer(state_of(log)))
    app.out.result("bisect status", data, text)


@click.command("log", cls=Command)
@IMAGE
@with_app
def log_command(app: App, image: str | None) -> None:
    """Print the journal as a shell script."""
    script = bisect_script.script(load(app, image).entries)
    app.out.result("bisect log", {"script": script}, script)


@click.command("why", cls=Command)
@click.argument("chosen", metavar="SET", help="A set's seven digits, or ID,...; `none` for no patch.")
@IMAGE
@with_app
def why_command(app: App, chosen: str, image: str | None) -> None:
    """Show every trial of SET, what each was for, and what follows from them."""
    log = load(app, image)
    state = state_of(log)
    found = lookup(state, chosen)
    rows = [
        (f"{record.outcome} {record.kind or record.stage or ''}".strip(), f"{record.seconds:.1f} s", record.reason)
        for entry in log.entries
        if isinstance(record := entry.record, Tried) and frozenset(record.chosen) == found
    ]
    verdict = search.concluded(state.problem, state.evidence, found)
    names = ", ".join(state.problem.combinations.ordered(found)) or "no patch"
    data: Json = {
        "set": set_hash(found),
        "patches": names,
        "verdict": str(verdict) if verdict else None,
        "replicas": state.replicas(found),
        "trials": rows,
    }

    def show() -> None:
        alike = bisect_report.replicas_text(state, found)
        app.out.line(f"{set_hash(found)}: {names}\n{verdict or 'no verdict yet'}{alike}")
        app.out.table(["trial", "took", "asked for"], rows)

    app.out.result("bisect why", data, show)


@click.command("report", cls=Command)
@IMAGE
@click.option("--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write one web page instead.")
@click.option("--upstream", is_flag=True, help="Only the paragraph for an upstream issue.")
@with_app
def report_command(app: App, image: str | None, page: Path | None, upstream: bool) -> None:
    """Print what was found, with its evidence: for a terminal, as a web page, for upstream, or as JSON."""
    log = load(app, image)
    answer = replay_check.answer(state_of(log))
    done = answer if isinstance(answer, Done) else None
    if upstream and isinstance(answer, Refused):
        raise answer
    if upstream and done is None:
        raise Refused([Refusal("NV805", str(log.path), "a search that is done", "one that is not", "nvllm bisect run")])
    if page is not None:
        refused = answer if isinstance(answer, Refused) else None
        with durable.writing(page.absolute(), "NV920"):
            page.write_text(bisect_report.page(log.entries, done, refused), encoding="utf-8")
    data, text = _shown(app, log, answer)
    if upstream and done is not None:
        text = bisect_report.upstream(log.entries, done)
    app.out.result("bisect report", data, f"wrote {page}" if page else text)


@click.command("replay", cls=Command)
@click.argument("file", type=click.Path(path_type=Path, exists=True), help="The journal of another machine.")
@with_app
def replay_command(app: App, file: Path) -> None:
    """Repeat the decisions of a journal, without any trial, and refuse it where they are others than are in it."""
    log = journal.load(file)
    answer = replay_check.repeat(log.entries, str(file))
    data, text = _shown(app, log, answer)
    ended = "no end was written" if isinstance(answer, Done) else "it is not over"
    said = "and the same end" if state_of(log).end is not None else ended
    app.out.result("bisect replay", data, f"{text}\nthe same decisions; {said}")


def _shown(app: App, log: Journal, answer: search.Request | Done | Refused) -> tuple[Json, str]:
    """Return LOG and the ANSWER that it comes to, for programs and for people."""
    done = answer if isinstance(answer, Done) else None
    data, text = bisect_report.data(log.entries, done), bisect_report.text(log.entries, done, color=app.out.color)
    if isinstance(answer, Refused):
        refusals = refusal_document("bisect", answer)["refusals"]
        return {**data, "refusals": refusals}, f"{text}\n{report.refusal_text(answer.refusals, color=app.out.color)}"
    if isinstance(answer, search.Request):
        chosen = list(state_of(log).problem.combinations.ordered(answer.chosen))
        return {**data, "next": chosen}, f"{text}\nnext: {answer.reason}\n"
    return data, text


def lookup(state: State, text: str) -> PatchSet:
    """Return the set that TEXT names. Raises Refused NV805 if the search never tried it and never would.

    TEXT is what `bisect status` calls a set, ids separated by commas, or ``none``.
    """
    sets = {*state.trials, *state.skipped, *state.builds}
    named = [one for one in sets if set_hash(one) == text]
    if named:
        return named[0]
    chosen = frozenset(one.strip() for one in text.split(",") if one.strip() and one != "none")
    problem = state.problem
    if problem.combinations.valid(chosen) and problem.low <= chosen <= problem.high:
        return chosen
    closed = problem.combinations.closed(chosen & set(problem.combinations.order)) | problem.low
    near = ",".join(problem.combinations.ordered(closed)) or "none"
    expected = "a set of the search: closed, and between its ends"
    raise Refused([Refusal("NV805", "SET", expected, text, f"name it by `nvllm bisect status`, or: {near}")])


def path_of(app: App, image: str) -> Path:
    """Return where the journal of the bisect of IMAGE lies."""
    return app.places.state / "bisect" / image / "journal.jsonl"


def load(app: App, image: str | None) -> Journal:
    """Return the journal of IMAGE, or of the bisect that was started last.

    Raises Refused as `journal.load` does, and NV803 for a journal that lies where another image's belongs: the locks
    and the names of trials are those of the place, so it would run beside a bisect of its own image.
    """
    path = path_of(app, image or "IMAGE")
    if image is None:
        known = sorted((app.places.state / "bisect").glob("*/journal.jsonl"), key=lambda path: path.stat().st_mtime)
        path = known[-1] if known else path
    log = journal.load(path)
    named, place = state_of(log).start.image, path.parent.name
    if named != place:
        cure = f"nvllm bisect replay {shlex.quote(str(path))} reads it; move it to where it came from"
        raise Refused([Refusal("NV803", f"{path}: image", place, named, cure)])
    return log


def state_of(log: Journal) -> State:
    """Return what the records of LOG add up to."""
    return history.fold(entry.record for entry in log.entries)


def forecast_text(state: State, costs: driver.Forecast) -> str:
    """Return COSTS, and what the trials of STATE say of the time that they take, as people read them."""
    seconds = [one.seconds for tried in state.trials.values() for one in tried if not one.recalled]
    each = sum(seconds) / len(seconds) if seconds else None
    took = f"; about {costs.trials * each / 60:.0f} min of trials" if each is not None else ""
    return (
        f"{len(state.problem.items)} patches; if one of them alone is it: {costs.builds:.1f} builds "
        f"(at most {costs.most_builds}) and {costs.trials:.1f} trials (at most {costs.most_trials}){took}"
    )


COMMANDS = (plan_command, status_command, log_command, why_command, report_command, replay_command)
