"""`nvllm bisect`: the smallest set of patches that breaks, or repairs, what a probe looks at."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click

from nvllm.bisect import combinations, driver, journal, probe, replay_check, search, trials
from nvllm.bisect import report as bisect_report
from nvllm.bisect import script as bisect_script
from nvllm.bisect.combinations import set_hash
from nvllm.bisect.driver import RunLimits, Unfinished
from nvllm.bisect.journal import Back, BisectProbe, BisectStart, BisectState, Journal, JournalRecord, Skip, Tried
from nvllm.bisect.search import Done
from nvllm.bisect.trial_cache import TrialCache
from nvllm.bisect.verdict import PatchSet
from nvllm.cli import report
from nvllm.cli.complete import images, profiles
from nvllm.cli.frame import App, Group, refusal_document, with_app
from nvllm.core import durable
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.host import locks
from nvllm.host.facts import HostFacts
from nvllm.host.locks import Holder, Holds, Key
from nvllm.image import engine
from nvllm.patches import seriesfile
from nvllm.serve import examine

EXAMPLES = """
Examples:
  nvllm bisect start cpu --bad all --good none --test ./probe.sh
  nvllm bisect run                       go on until it is found; Ctrl-C is safe
  nvllm bisect start cpu --find fix --bad none --good all --test ./probe.sh
  nvllm bisect start cpu --set --test ./probe.sh    interactions: a minimal set, with its certificate
  nvllm bisect report --html report.html
"""

IMAGE = click.option(
    "--image", "image", metavar="IMAGE", shell_complete=images, help="Of which image.  [default: the last one started]"
)


@click.group("bisect", cls=Group, epilog=EXAMPLES)
def bisect() -> None:
    """Find the smallest set of patches that breaks, or repairs, what a probe looks at, by rebuilding."""


@bisect.command("start", epilog=EXAMPLES)
@click.argument("image", shell_complete=images, help="An image spec: images/IMAGE.yaml.")
@click.argument("file", required=False, type=click.Path(path_type=Path), help="The answer, for --test-builtin golden.")
@click.option("--bad", metavar="SET", help="The set that fails: all, none, spec, or ID,...  [default: all; fix: none]")
@click.option("--good", metavar="SET", help="The set that does not.  [default: none; fix: all]")
@click.option("--test", "test", type=click.Path(path_type=Path), metavar="PROBE", help="The program that judges.")
@click.option("--test-builtin", metavar="NAME", help="Judge by boots, coherent, aot-loads, or golden FILE instead.")
@click.option("--regress", default="", metavar="KIND", help="The failure that counts: exit=N or log=REGEX.")
@click.option("--build-only", is_flag=True, help="The probe needs the image only; serve nothing.")
@click.option("--profile", shell_complete=profiles, help="The profile to serve.  [default: the first of the image]")
@click.option("--find", type=click.Choice(["break", "fix"]), default="break", show_default=True)
@click.option("--set", "as_set", is_flag=True, help="Patches may act together: a minimal set, not the first patch.")
@click.option("--confidence", type=click.FloatRange(0.5, 0.9999), default=0.99, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Trials of an end or of a proof.")
@click.option("--patience", type=click.IntRange(1), default=40, show_default=True, help="Most trials of one set.")
@click.option("--flaky", is_flag=True, help="It fails now and then only.")
@click.option("--build-price", type=click.FloatRange(0), default=1.0, show_default=True, help="A build, in trials.")
@click.option("--discard", is_flag=True, help="Set an earlier bisect of the image aside.")
@with_app
def start_command(
    app: App,
    image: str,
    file: Path | None,
    bad: str | None,
    good: str | None,
    test: Path | None,
    test_builtin: str | None,
    regress: str,
    build_only: bool,
    profile: str | None,
    find: str,
    as_set: bool,
    confidence: float,
    repeats: int,
    patience: int,
    flaky: bool,
    build_price: float,
    discard: bool,
) -> None:
    """Declare what is bad, what is good and what tells them apart. `nvllm bisect run` then searches."""
    if (test is None) == (test_builtin is None):
        raise click.UsageError("start takes --test or --test-builtin")
    if test is not None and file is not None:
        raise click.UsageError("FILE is for --test-builtin golden")
    if test is None:
        refuse_any(_not_for_builtin(regress, build_only=build_only))
    if test is not None:
        judge = probe.program(test, (), regress, build_only=build_only)
    else:
        judge = probe.builtin(str(test_builtin), () if file is None else (str(file.absolute()),))
    build, stale = examine.load_build(app.project, image, [])
    refuse_any(stale)
    chosen_profile = profile if profile is not None else next(iter(build.spec.profiles), "")
    examine.named_profile(app.project, build.spec, chosen_profile)
    directory = app.project.series(build.spec.patches.series)
    series = seriesfile.load(directory, app.project.show(directory))
    fix = find == "fix"
    enabled = build.spec.patches.enable
    bad_set = combinations.named(series, bad or ("none" if fix else "all"), enabled, where="--bad")
    good_set = combinations.named(series, good or ("all" if fix else "none"), enabled, where="--good")
    low, high = (bad_set, good_set) if fix else (good_set, bad_set)
    found = combinations.of_series(series)
    combinations.check_ends(low, high, where="--bad and --good")
    begun = BisectStart(
        schema=journal.SCHEMA,
        image=image,
        profile=chosen_profile,
        series=build.spec.patches.series,
        inputs=trials.inputs(app.project, image),
        order=found.order,
        requires={one: found.ordered(needed) for one, needed in found.requires.items()},
        conflicts={one: found.ordered(others) for one, others in found.conflicts.items()},
        low=found.ordered(low),
        high=found.ordered(high),
        find="fix" if fix else "break",
        mode="set" if as_set else "ordered",
        confidence=confidence,
        repeats=repeats,
        patience=patience,
        flaky=flaky,
        build_price=build_price,
        probe=judge,
        host=trials.host_class(examine.host_facts(app.places, engine.connect())),
    )
    path = _path_of(app, image)
    with _held(app, image):
        log = journal.create(path, begun, _aside(path) if discard else None)
    state = log.state
    costs = driver.forecast(state)
    data: Json = {"image": image, "journal": str(path), "items": list(state.problem.items), "forecast": asdict(costs)}
    app.out.result("bisect start", data, f"{_forecast_text(state, costs)}\nnext: nvllm bisect run")


@bisect.command("run")
@IMAGE
@click.option("--budget", type=click.FloatRange(0), metavar="MINUTES", help="Begin no trial after so long.")
@click.option(
    "--jobs", type=click.IntRange(1, replay_check.MOST_JOBS), default=1, show_default=True, help="Trials at a time."
)
@with_app
def run_command(app: App, image: str | None, budget: float | None, jobs: int) -> None:
    """Go on with the search, from wherever it stopped, until it is done."""
    log = _load(app, image)
    start = log.state.start
    facts = examine.host_facts(app.places, engine.connect())
    now = _now(app, start, facts)
    trials.check_unchanged(start, now, str(log.path))
    jobs = _at_once(app, start, jobs, facts)
    bench = trials.EngineBench(
        app.project, app.places, start.image, start.profile, start.probe, engine.require(), app.offline, app.progress
    )
    with _held(app, start.image):
        log = journal.load(log.path)  # nobody else writes from here on
        bench.clear()
        limits = RunLimits(None if budget is None else 60 * budget, jobs)
        answer = driver.drive(log, bench, cache=_cache(app, start), limits=limits, progress=app.progress)
    if isinstance(answer, Unfinished):
        state = log.state
        known = search.beliefs(state.problem, state.evidence)
        said = bisect_report.posterior_text(known)
        beliefs: list[Json] = [{"patch": name, "probability": chance} for name, chance in known]
        data: Json = {
            "done": False,
            "next": list(state.problem.combinations.ordered(answer.next_trial.chosen)),
            "beliefs": beliefs,
        }
        app.out.result("bisect run", data, f"{said}\nthe budget is spent; next: {answer.next_trial.reason}")
        return
    app.out.result(
        "bisect run",
        bisect_report.data(log.state, answer),
        bisect_report.text(log.state, answer, color=app.out.color),
    )


@bisect.command("plan")
@IMAGE
@with_app
def plan_command(app: App, image: str | None) -> None:
    """Say what the search is still going to cost, if one patch alone is the culprit."""
    state = _load(app, image).state
    search.propose(state.problem, state.evidence)  # an end that is not as declared costs no build: it ends the search
    costs = driver.forecast(state)
    app.out.result("bisect plan", asdict(costs), _forecast_text(state, costs))


@bisect.command("status")
@IMAGE
@with_app
def status_command(app: App, image: str | None) -> None:
    """Show how far the search is: what was tried, what is next, which patches are under suspicion."""
    log = _load(app, image)
    data, text = _shown(app, log, replay_check.answer(log.state))
    app.out.result("bisect status", data, text)


@bisect.command("log")
@IMAGE
@with_app
def log_command(app: App, image: str | None) -> None:
    """Print the journal as a shell script."""
    script = bisect_script.script(_load(app, image).entries)
    app.out.result("bisect log", {"script": script}, script)


@bisect.command("why")
@click.argument("chosen", metavar="SET", help="A set's seven digits, or ID,...; `none` for no patch.")
@IMAGE
@with_app
def why_command(app: App, chosen: str, image: str | None) -> None:
    """Show every trial of SET, what each was for, and what follows from them."""
    log = _load(app, image)
    state = log.state
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


@bisect.command("report")
@IMAGE
@click.option("--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write one web page instead.")
@click.option("--upstream", is_flag=True, help="Only the paragraph for an upstream issue.")
@with_app
def report_command(app: App, image: str | None, page: Path | None, upstream: bool) -> None:
    """Print what was found, with its evidence: for a terminal, as a web page, for upstream, or as JSON."""
    log = _load(app, image)
    answer = replay_check.answer(log.state)
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
        text = bisect_report.upstream(log.state, done)
    app.out.result("bisect report", data, f"wrote {page}" if page else text)


@bisect.command("replay")
@click.argument("file", type=click.Path(path_type=Path, exists=True), help="The journal of another machine.")
@with_app
def replay_command(app: App, file: Path) -> None:
    """Repeat the decisions of a journal, without any trial, and refuse it where they are others than are in it."""
    log = journal.load(file)
    answer = replay_check.repeat(log.entries, str(file))
    data, text = _shown(app, log, answer)
    ended = "no end was written" if isinstance(answer, Done) else "it is not over"
    said = "and the same end" if log.state.end is not None else ended
    app.out.result("bisect replay", data, f"{text}\nthe same decisions; {said}")


@bisect.command("skip")
@click.argument("chosen", metavar="SET", help="A set's seven digits, or ID,...")
@IMAGE
@with_app
def skip_command(app: App, chosen: str, image: str | None) -> None:
    """Never try SET: it counts as untestable, and is stepped around."""
    _word(app, image, chosen, "skip")


@bisect.command("back")
@click.argument("chosen", metavar="SET", required=False, help="A set that was tried.  [default: the last one]")
@IMAGE
@with_app
def back_command(app: App, chosen: str | None, image: str | None) -> None:
    """Withdraw the trials of SET, here and from the memo, or its skip; the search goes on from there."""
    _word(app, image, chosen, "back")


def _word(app: App, image: str | None, chosen: str | None, word: str) -> None:
    path = _load(app, image).path
    with _held(app, path.parent.name):
        log = journal.load(path)
        state = log.state
        found = state.last if chosen is None else lookup(state, chosen)
        if found is None or (word == "back" and found not in state.trials and found not in state.skipped):
            said = "a set that was tried or skipped"
            raise Refused([Refusal("NV805", "SET", said, chosen or "none yet", "nvllm bisect status shows the sets")])
        ordered = state.problem.combinations.ordered(found)
        record: JournalRecord = Back(ordered) if word == "back" else Skip(ordered)
        log.append(record)
        if word == "back" and found in state.builds:
            _cache(app, state.start).forget(state.builds[found].build_hash)
    names = ", ".join(ordered) or "no patch"
    app.out.result(f"bisect {word}", {"set": set_hash(found), "patches": list(ordered)}, f"{word}: {names}")


def _not_for_builtin(regress: str, *, build_only: bool) -> Iterator[Refusal]:
    """Yield what was asked of a test that nvllm brings, and only a program can do."""
    cure = "leave it out, or judge by a program: --test PROBE"
    if regress:
        yield Refusal("NV108", "--regress", "a program to judge by", f"--test-builtin with {regress}", cure)
    if build_only:
        yield Refusal("NV108", "--build-only", "a program to judge by", "--test-builtin, which serves", cure)


def _aside(path: Path) -> Path:
    """Return a name that no journal has had, for the one at PATH."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    return path.with_name(f"journal-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest // 10**6:03}Z.jsonl")


def _now(app: App, start: BisectStart, facts: HostFacts) -> BisectStart:
    """Return START as it would be written now, on the host of FACTS."""
    now: BisectProbe = probe.unchanged(start.probe)
    return replace(start, inputs=trials.inputs(app.project, start.image), probe=now, host=trials.host_class(facts))


def _at_once(app: App, start: BisectStart, wanted: int, facts: HostFacts) -> int:
    """Return how many trials run at the same time, and say so where that is fewer than WANTED."""
    if start.probe.build_only:
        return wanted
    build, _ = examine.load_build(app.project, start.image, [])
    jobs, why = trials.at_once(wanted, examine.named_profile(app.project, build.spec, start.profile), facts)
    if why:
        app.progress.note(f"--jobs {wanted} becomes {jobs}: {why}")
    return jobs


def _cache(app: App, start: BisectStart) -> TrialCache:
    return TrialCache(app.places.state / "bisect" / "trials", start.probe.sha256, f"{start.host} {start.profile}")


def _held(app: App, image: str) -> Holds:
    """Take the lock of the bisect of IMAGE: one journal, one writer."""
    app.remember_project()
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    holder = Holder(os.getpid(), began, f"nvllm bisect of {image}")
    return locks.acquire_all(app.places.locks, [Key("bisect", image)], holder)


def _shown(app: App, log: Journal, answer: search.NextTrial | Done | Refused) -> tuple[Json, str]:
    """Return LOG and the ANSWER that it comes to, for programs and for people."""
    done = answer if isinstance(answer, Done) else None
    data, text = bisect_report.data(log.state, done), bisect_report.text(log.state, done, color=app.out.color)
    if isinstance(answer, Refused):
        refusals = refusal_document("bisect", answer)["refusals"]
        return {**data, "refusals": refusals}, f"{text}\n{report.refusal_text(answer.refusals, color=app.out.color)}"
    if isinstance(answer, search.NextTrial):
        chosen = list(log.state.problem.combinations.ordered(answer.chosen))
        return {**data, "next": chosen}, f"{text}\nnext: {answer.reason}\n"
    return data, text


def lookup(state: BisectState, text: str) -> PatchSet:
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


def _path_of(app: App, image: str) -> Path:
    """Return where the journal of the bisect of IMAGE lies."""
    return app.places.state / "bisect" / image / "journal.jsonl"


def _load(app: App, image: str | None) -> Journal:
    """Return the journal of IMAGE, or of the bisect that was started last.

    Raises Refused as `journal.load` does, and NV803 for a journal that lies where another image's belongs: the locks
    and the names of trials are those of the place, so it would run beside a bisect of its own image.
    """
    path = _path_of(app, image or "IMAGE")
    if image is None:
        known = sorted((app.places.state / "bisect").glob("*/journal.jsonl"), key=lambda path: path.stat().st_mtime)
        path = known[-1] if known else path
    log = journal.load(path)
    named, place = log.state.start.image, path.parent.name
    if named != place:
        cure = f"nvllm bisect replay {shlex.quote(str(path))} reads it; move it to where it came from"
        raise Refused([Refusal("NV803", f"{path}: image", place, named, cure)])
    return log


def _forecast_text(state: BisectState, costs: driver.Forecast) -> str:
    """Return COSTS, and what the trials of STATE say of the time that they take, as people read them."""
    seconds = [one.seconds for tried in state.trials.values() for one in tried if not one.recalled]
    each = sum(seconds) / len(seconds) if seconds else None
    took = f"; about {costs.trials * each / 60:.0f} min of trials" if each is not None else ""
    return (
        f"{len(state.problem.items)} patches; if one of them alone is it: {costs.builds:.1f} builds "
        f"(at most {costs.most_builds}) and {costs.trials:.1f} trials (at most {costs.most_trials}){took}"
    )
