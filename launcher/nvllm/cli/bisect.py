"""`nvllm bisect`: finds the smallest set of patches that breaks, or repairs, what a probe tests."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import click

from nvllm.bisect import combinations, driver, journal, page, records, replay_check, report, search
from nvllm.bisect.answer import Done, NextTrial
from nvllm.bisect.artifacts import SetArtifacts, artifacts_of
from nvllm.bisect.forecast import Forecast
from nvllm.bisect.inputs import check_unchanged, inputs_now, same_bytes
from nvllm.bisect.journal import Journal
from nvllm.bisect.lookahead import MOST_MACHINES
from nvllm.bisect.records import BisectStart, BisectState, Corrected, End, Kept, Limits, PatchSummary
from nvllm.cache import staging
from nvllm.cli import bisect_sets, image_argument, terminal
from nvllm.cli.bisect_journals import (
    IMAGE,
    all_journals,
    all_unowned,
    bench_of,
    cache_of,
    load,
    locked,
    option,
    path_of,
    set_option,
    unowned,
)
from nvllm.cli.complete import builtins, files, profiles
from nvllm.cli.fleet import ON, check_registry, connected, repository
from nvllm.cli.frame import PATH, App, FiniteRange, Group, packed, with_app
from nvllm.cli.output import refusal_document
from nvllm.cli.webpage import OPTIONS, WebPage
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.core.spec import Profile
from nvllm.engine import engine
from nvllm.fleet.machines import RemoteMachines
from nvllm.host import survey
from nvllm.host.facts import HostFacts
from nvllm.image import identity
from nvllm.patches import seriesfile
from nvllm.serve import hostclass
from nvllm.spec.specfile import named_profile
from nvllm.trials import bench, probe
from nvllm.trials.artifact import check_kept
from nvllm.trials.trial import BisectProbe

EXAMPLES = """
Examples:
  nvllm bisect start cpu --bad all --good none --test ./probe.sh
  nvllm bisect run                                  search until it is found; Ctrl-C is safe
  nvllm bisect start cpu --find fix --bad none --good all --test ./probe.sh
  nvllm bisect start cpu --set --test ./probe.sh    patches that act together: a minimal set
  nvllm bisect report --html report.html
"""


@click.group("bisect", cls=Group, epilog=EXAMPLES)
def bisect() -> None:
    """Each step rebuilds the image with another set of patches and tries it."""


for command in bisect_sets.COMMANDS:
    bisect.add_command(command)


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of `bisect start`: both ends, the probe, what is searched for, and when to give up."""

    bad: str | None
    good: str | None
    test: Path | None
    test_builtin: str | None
    regress: str
    build_only: bool
    profile: str | None
    find: Literal["break", "fix"]
    as_set: bool
    confidence: float
    repeats: int
    patience: int
    max_trials: int
    max_hours: float
    further: bool
    flaky: bool
    build_price: float
    discard: bool


_START = (
    set_option("--bad", help="The set that fails: all, none, spec, ID,...  [default: all; to find a fix: none]"),
    set_option("--good", help="The set that does not fail.  [default: none; to find a fix: all]"),
    option("--test", "test", type=PATH, metavar="PROBE", help="The program that tests a set."),
    option(
        "--test-builtin",
        shell_complete=builtins,
        metavar="NAME",
        help="The built-in test: boots, coherent, aot-loads, or golden FILE.",
    ),
    click.option("--regress", default="", metavar="KIND", help="The only failure that counts: exit=N or log=REGEX."),
    option("--build-only", is_flag=True, help="Do not serve: the probe needs only the image."),
    option("--profile", shell_complete=profiles, help="The profile to serve.  [default: the first of the image]"),
    option(
        "--find", type=click.Choice(["break", "fix"]), default="break", help="Find patches that break or that fix it."
    ),
    option("--set", "as_set", is_flag=True, help="Find a minimal set, because patches may act together."),
    option("--confidence", type=FiniteRange(0.5, 0.9999), default=0.99, help="How sure to be of a flaky failure."),
    option(
        "--repeats", type=click.IntRange(1), default=3, help="Trials of each end and of each line of the certificate."
    ),
    option("--patience", type=click.IntRange(1), default=60, help="The most trials of one set."),
    option(
        "--max-trials",
        type=click.IntRange(1),
        default=400,
        help="End with the best answer after so many trials; --all --flaky may take three times as many.",
    ),
    option("--max-hours", type=FiniteRange(0), default=0.0, help="The same after hours of work; 0: no limit."),
    option("--all", "further", is_flag=True, help="After one cause, search for others without it."),
    option("--flaky", is_flag=True, help="The failure shows only sometimes."),
    option("--build-price", type=FiniteRange(0), default=1.0, help="The price of a build, in trials."),
    option("--discard", is_flag=True, help="Rename the journal of an earlier bisect; leave one of an older nvllm."),
)


@bisect.command("start", epilog=EXAMPLES)
@image_argument.IMAGE
@click.argument(
    "words", nargs=-1, metavar="[FILE | -- CMD]", shell_complete=files, help="The answer of golden; or the probe."
)
@packed("given", StartOptions, _START)
@image_argument.with_image("words")
def start_command(app: App, image: str, words: tuple[str, ...], given: StartOptions) -> None:
    """Start a search: name the bad set, the good set and the probe.

    `nvllm bisect run` then searches.
    """
    judge = _probe(given, words)
    build, stale = identity.load_build(app.project, image, [])
    older = None if given.discard else unowned(app, image)
    refuse_any([*stale, *([older] if older is not None else [])])
    chosen_profile = given.profile if given.profile is not None else next(iter(build.spec.profiles), "")
    profile = named_profile(app.project, build.spec, chosen_profile)
    series = seriesfile.of(app.project, build.spec.patches.series)
    fix = given.find == "fix"
    enabled = build.spec.patches.enable
    usual_good, usual_bad = ("all", "none") if fix else ("none", "all")
    bad_set = combinations.named(series, usual_bad if given.bad is None else given.bad, enabled, where="--bad")
    good_set = combinations.named(series, usual_good if given.good is None else given.good, enabled, where="--good")
    low, high = (bad_set, good_set) if fix else (good_set, bad_set)
    combined = combinations.of_series(series)
    combinations.check_ends(low, high, where="--bad and --good")
    begun = BisectStart(
        schema=records.SCHEMA,
        image=image,
        profile=chosen_profile,
        series=build.spec.patches.series,
        inputs=inputs_now(app.project, image),
        order=combined.order,
        requires={patch_id: combined.ordered(needed) for patch_id, needed in combined.requires.items()},
        conflicts={patch_id: combined.ordered(others) for patch_id, others in combined.conflicts.items()},
        low=combined.ordered(low),
        high=combined.ordered(high),
        find=given.find,
        mode="set" if given.as_set else "ordered",
        confidence=given.confidence,
        repeats=given.repeats,
        patience=given.patience,
        flaky=given.flaky,
        build_price=given.build_price,
        probe=judge,
        host=hostclass.host_class(survey.host_facts(app.places, engine.connect())),
        max_trials=given.max_trials,
        max_hours=given.max_hours,
        further=given.further,
        version=build.spec.vllm.version,
        commit=build.spec.vllm.commit,
        summaries={
            patch.id: PatchSummary(patch.summary, patch.upstream.reference or "")
            for patch in series.patches
            if patch.id in combined.order
        },
        model=records.MODEL,
        same_bytes=same_bytes(profile) and not given.build_only,
    )
    path = path_of(app, image)
    with locked(app, image):
        log = journal.create(path, begun, _aside(path) if given.discard else None)
        staging.discard(artifacts_of(path))  # of an earlier bisect: this one loads only what it has compiled itself
    state = log.state
    costs = state.forecast
    data: Json = {"image": image, "journal": str(path), "items": list(state.problem.items), "forecast": asdict(costs)}
    app.out.result("bisect start", data, f"{_forecast_text(state, costs)}\nnext: nvllm bisect run")


def _probe(given: StartOptions, words: tuple[str, ...]) -> BisectProbe:
    """Return the probe that GIVEN names; WORDS are its arguments, or all of it."""
    test = given.test
    if test is not None and given.test_builtin is not None:
        raise click.UsageError("give either --test or --test-builtin")
    if given.test_builtin is not None:
        refuse_any(_not_for_builtin(given.regress, build_only=given.build_only))
        return probe.builtin(given.test_builtin, tuple(str(Path(word).absolute()) for word in words))
    if test is None:
        if not words:
            raise click.UsageError("give a probe: --test PROBE, --test-builtin NAME, or -- CMD ARGS")
        test, words = Path(words[0]), words[1:]
    return probe.program(test, words, given.regress, build_only=given.build_only)


@bisect.command("run")
@IMAGE
@option("--budget", type=FiniteRange(0), metavar="MINUTES", help="Start no trial after this time.")
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST_MACHINES),
    help="Trials at the same time.  [default: 1; with --on, one on each machine]",
)
@option(
    "--artifacts",
    type=click.IntRange(2, 50),
    metavar="N",
    help="Compile each set N times; its trials load these in turn.  [default: each trial compiles for itself]",
)
@ON
@option("--registry", metavar="REPO", help="With --on: the repository that images travel through.")
@option("--max-trials", type=click.IntRange(1), help="Change the limit of trials of this bisect.")
@option("--max-hours", type=FiniteRange(0), help="Change the limit of hours of this bisect; 0: none.")
@with_app
def run_command(
    app: App,
    image: str | None,
    budget: float | None,
    jobs: int | None,
    artifacts: int | None,
    addresses: tuple[str, ...],
    registry: str | None,
    max_trials: int | None,
    max_hours: float | None,
) -> None:
    """Continue the search, from where it stopped, until it is done.

    With --on, images are built here and pushed to REPO, and each trial goes to a machine of this host's class. With
    --artifacts, trials that load the same compiled code are told from those that load other.
    """
    check_registry(addresses, registry)
    if addresses and artifacts is not None:
        raise click.UsageError("--artifacts and --on do not go together: artifacts stay on this host")
    if not addresses and (jobs or 1) > replay_check.MOST_JOBS:
        raise click.UsageError(f"--jobs is at most {replay_check.MOST_JOBS} on one host")
    path = load(app, image).path
    with locked(app, path.parent.name):
        log = journal.load(path)  # under the lock, nobody else writes to it
        start = log.state.start
        facts = survey.host_facts(app.places, engine.connect())
        now = replace(
            start,
            inputs=inputs_now(app.project, start.image),
            probe=probe.unchanged(start.probe),
            host=hostclass.host_class(facts),
            same_bytes=start.same_bytes and same_bytes(_profile_of(app, start)),
        )
        check_unchanged(start, now, str(log.path))
        engine_bench = bench_of(app, start, start.profile)
        if artifacts is not None:
            engine_bench.artifacts = _artifacts(app, log, artifacts)
        engine_bench.clear()  # what a killed run has left
        _change_limits(log, max_trials, max_hours)
        if log.state.end is None:
            app.progress.note(_forecast_text(log.state, log.state.forecast))
        seconds = None if budget is None else 60 * budget
        cache = cache_of(app, start)
        if registry is None:
            at_once = _at_once(app, start, jobs or 1, facts)
            answer = driver.drive(log, engine_bench, cache=cache, budget=seconds, jobs=at_once, progress=app.progress)
        else:
            with connected(app, addresses) as carrier:
                machines = RemoteMachines(
                    engine_bench,
                    start,
                    carrier,
                    repository(app, registry),
                    path.parent / "evidence",
                    jobs or MOST_MACHINES,
                )
                app.progress.note(f"machines of class {start.host}: {machines.count}")
                answer = driver.dispatch(log, machines, cache=cache, budget=seconds, progress=app.progress)
    if isinstance(answer, NextTrial):
        state = log.state
        known = search.beliefs(state.problem, state.evidence)
        odds = report.posterior_text(known)
        beliefs: list[Json] = [{"patch": name, "probability": chance} for name, chance in known]
        data: Json = {
            "done": False,
            "next": list(state.problem.combinations.ordered(answer.chosen)),
            "beliefs": beliefs,
        }
        app.out.result("bisect run", data, f"{odds}\nthe time limit is reached; {report.next_text(state, answer)}")
        return
    app.out.result("bisect run", *_status_of(app, log, answer))


def _change_limits(log: Journal, max_trials: int | None, max_hours: float | None) -> None:
    """Record new limits, if any are given and differ from those of LOG."""
    start = log.state.start
    limits = Limits(
        start.max_trials if max_trials is None else max_trials, start.max_hours if max_hours is None else max_hours
    )
    if limits != Limits(start.max_trials, start.max_hours):
        log.append(limits)


@bisect.command("probe")
@click.argument(
    "words", nargs=-1, metavar="[FILE | -- CMD]", shell_complete=files, help="The probe.  [default: the same file]"
)
@click.option(
    "--keep",
    required=True,
    type=click.Choice(["good", "bad", "all", "none"]),
    help="The verdicts of the probe before that still hold; the other sets are tried again.",
)
@click.option("--regress", metavar="KIND", help="The only failure that counts.  [default: as before]")
@IMAGE
@with_app
def probe_command(app: App, words: tuple[str, ...], keep: Kept, regress: str | None, image: str | None) -> None:
    """Continue with a corrected probe, and keep the verdicts that still hold.

    Verdicts by hand stay, and so do sets that do not apply, build or boot: the probe has no part in those.
    """
    path = load(app, image).path
    with locked(app, path.parent.name):
        log = journal.load(path)
        state = log.state
        corrected = _corrected(state.start.probe, words, regress)
        if corrected == state.start.probe:
            cure = f"nvllm bisect run --image {state.start.image}"
            raise refuse(
                "NV108", "the probe", "another file, content, argument or --regress", "the same as before", cure
            )
        gone = len(state.refuted(keep))
        log.append(Corrected(corrected, keep))
    stay = len(log.state.sequence)
    data: Json = {"probe": list(corrected.command), "sha256": corrected.sha256, "kept": stay, "withdrawn": gone}
    app.out.result("bisect probe", data, f"trials that still hold: {stay}; withdrawn: {gone}\nnext: nvllm bisect run")


def _corrected(before: BisectProbe, words: tuple[str, ...], regress: str | None) -> BisectProbe:
    """Return the probe BEFORE as it is now; WORDS and REGRESS, if given, are its new command and failure."""
    if before.command[0].startswith(probe.BUILTIN):
        refuse_any(_not_for_builtin(regress or "", build_only=False))
        answer = tuple(str(Path(word).absolute()) for word in words) or before.command[1:]
        return probe.builtin(before.command[0].removeprefix(probe.BUILTIN), answer)
    program, *arguments = words or before.command
    counts = before.regress if regress is None else regress
    return probe.program(Path(program), tuple(arguments), counts, build_only=before.build_only)


@bisect.command("plan")
@IMAGE
@with_app
def plan_command(app: App, image: str | None) -> None:
    """Show what the search will still cost, if one patch is the cause."""
    state = load(app, image).state
    search.propose(state.problem, state.evidence)  # refuses if an end is not as declared: nothing is left to search
    costs = state.forecast
    app.out.result("bisect plan", asdict(costs), _forecast_text(state, costs))


@bisect.command("status")
@IMAGE
@with_app
def status_command(app: App, image: str | None) -> None:
    """Show the trials so far, the suspected patches and the next trial."""
    log = load(app, image)
    app.out.result("bisect status", *_status_of(app, log, replay_check.answer(log.state)))


@bisect.command("report")
@IMAGE
@packed("written", WebPage, OPTIONS)
@option("--markdown", is_flag=True, help="Print the report of a finished search as text for an upstream issue.")
@with_app
def report_command(app: App, image: str | None, markdown: bool, written: WebPage) -> None:
    """Print what was found, with its evidence."""
    log = load(app, image)
    answer = replay_check.answer(log.state)
    done = answer if isinstance(answer, Done) else None
    if markdown and isinstance(answer, Refused):
        raise answer
    if markdown and done is None:
        unfinished = "a search that is not finished"
        raise refuse("NV805", str(log.path), "a finished search", unfinished, "nvllm bisect run")
    refused = answer if isinstance(answer, Refused) else None
    message = written.written(log.path.with_name("report.html"), lambda: page.html(log.entries, done, refused))
    data, text = _status_of(app, log, answer)
    if markdown and done is not None:
        text = page.markdown(log.entries, done)
    app.out.result("bisect report", data, message or text)


@bisect.command("replay")
@click.argument("file", type=click.Path(path_type=Path, exists=True), help="The journal of another machine.")
@option("--adopt", is_flag=True, help="Then copy it here, so that `run` continues it. Look at its probe first.")
@with_app
def replay_command(app: App, file: Path, adopt: bool) -> None:
    """Check a journal: repeat its decisions without any trial.

    Refuses the journal if a decision differs.
    """
    log = journal.load(file)
    answer = replay_check.repeat(log.entries, str(file))
    data, text = _status_of(app, log, answer)
    ended = "its end is not recorded" if isinstance(answer, Done) else "it is not finished"
    ending = "the end is the same" if log.state.end is not None else ended
    message = f"{text}\nthe decisions are the same; {ending}"
    if adopt:
        start = log.state.start
        identity.load_build(app.project, start.image, [])  # refuses the name of an image that is not in the project
        with locked(app, start.image):
            journal.adopt(path_of(app, start.image), log)
        message += f"\nits probe: {shlex.join(start.probe.command)}\nnext: nvllm bisect run --image {start.image}"
    app.out.result("bisect replay", data, message)


@bisect.command("list")
@with_app
def list_command(app: App) -> None:
    """Show this project's bisects, the one that was started last first: it is the default of the other commands."""
    for refusal in all_unowned(app):
        app.progress.note(f"{refusal.where}: {refusal.found}. To take it over: {refusal.cure}")
    rows: list[tuple[str, str, str, int, str]] = []
    for path in all_journals(app):
        log = journal.read(path)
        state, begun = log.state, time.strftime("%Y-%m-%d %H:%M", time.gmtime(log.entries[0].when))
        answer = state.end if journal.outdated(log) is not None else replay_check.answer(state)
        done = answer if isinstance(answer, End) or (isinstance(answer, Done) and not answer.stopped) else None
        result = "not finished" if done is None else ", ".join(done.culprits)
        rows.append((path.parent.name, begun, state.start.series, len(state.sequence), result))
    names = ["image", "started", "series", "trials", "found"]
    data: list[Json] = [dict(zip(names, row, strict=True)) for row in rows]
    app.out.result(
        "bisect list", {"bisects": data}, lambda: app.out.table(names, [tuple(map(str, row)) for row in rows])
    )


def _not_for_builtin(regress: str, *, build_only: bool) -> Iterator[Refusal]:
    """Yield a refusal for each option that a built-in test does not take."""
    cure = "leave it out, or use a program: --test PROBE"
    if regress:
        yield Refusal("NV108", "--regress", "a program, by --test", f"--test-builtin with {regress}", cure)
    if build_only:
        yield Refusal("NV108", "--build-only", "a program, by --test", "--test-builtin, which serves", cure)


def _aside(path: Path) -> Path:
    """Return a new name for the journal at PATH."""
    seconds, rest = divmod(time.time_ns(), 10**9)
    return path.with_name(f"journal-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest // 10**6:03}Z.jsonl")


def _profile_of(app: App, start: BisectStart) -> Profile:
    """Return the profile that START names, as it is now."""
    build, _ = identity.load_build(app.project, start.image, [])
    return named_profile(app.project, build.spec, start.profile)


def _artifacts(app: App, log: Journal, count: int) -> SetArtifacts:
    """Return COUNT artifacts of each set of LOG.

    Raises Refused NV108 for a probe that asks no engine, or starts its own, and NV860 for a profile whose engines leave
    nothing that another one could load.
    """
    start = log.state.start
    if start.probe.build_only or start.probe.command[0] == f"{probe.BUILTIN}aot-loads":
        expected, cure = "a probe that asks an engine", f"nvllm bisect run --image {start.image}"
        raise refuse("NV108", "--artifacts", expected, "one that needs only the image", cure)
    build, _ = identity.load_build(app.project, start.image, [])
    check_kept(build.spec, start.profile)
    app.progress.note(f"trials of a set load {count} compiles of it in turn: nothing else varies from boot to boot")

    def tried(chosen: tuple[str, ...]) -> int:
        return len(log.state.trials.get(frozenset(chosen), ()))

    return SetArtifacts(artifacts_of(log.path), count, tried, app.places, app.progress)


def _at_once(app: App, start: BisectStart, asked: int, facts: HostFacts) -> int:
    """Return how many of ASKED trials run at the same time, and say why if it is not all."""
    if start.probe.build_only:
        return asked
    jobs, why = bench.at_once(asked, _profile_of(app, start), facts)
    if why:
        app.progress.note(f"--jobs {asked} becomes {jobs}: {why}")
    return jobs


def _status_of(app: App, log: Journal, answer: NextTrial | Done | Refused) -> tuple[Json, str]:
    """Return LOG and its ANSWER, for programs and for people."""
    done = answer if isinstance(answer, Done) else None
    data = report.data(log.state, done)
    text = report.text(log.state, done, color=app.out.color, width=app.out.width)
    if isinstance(answer, Refused):
        refusals = refusal_document("bisect", answer)["refusals"]
        return {**data, "refusals": refusals}, f"{text}\n{terminal.refusal_text(answer.refusals, color=app.out.color)}"
    if isinstance(answer, NextTrial):
        chosen = list(log.state.problem.combinations.ordered(answer.chosen))
        costs = log.state.forecast
        left = _forecast_text(log.state, costs)
        return {
            **data,
            "next": chosen,
            "forecast": asdict(costs),
        }, f"{text}\n{report.next_text(log.state, answer)}\n{left}\n"
    return data, text


def _forecast_text(state: BisectState, costs: Forecast) -> str:
    """Return COSTS, what the search of STATE still costs, for people."""
    took = "" if costs.minutes is None else f"; about {costs.minutes:.0f} min"
    most = "" if costs.most_minutes is None else f", and at most {costs.most_minutes:.0f} min"
    rarer = " (three times --max-trials, for --all)" if state.start.further and state.start.flaky else ""
    builds = report.varies_text(state.start)
    return (
        f"{len(state.problem.items)} patches; if one of them is the culprit: {costs.builds:.1f} builds "
        f"(at most {costs.most_builds}) and {costs.trials:.1f} trials{took}. "
        f"It ends after {costs.most_trials} trials at most{rarer}{most}{builds and f'; {builds}'}"
    )
