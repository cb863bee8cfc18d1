"""`nvllm ablate`, `bench`, `eval`, `sweep` and `report`: evidence from fresh containers, in one directory."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click

from nvllm.cli.build import fresh_build
from nvllm.cli.complete import images, probes, profiles, sentinels, several_profiles
from nvllm.cli.evidence_options import (
    AT_ONCE,
    COMPARED,
    ENGINES,
    LOAD,
    MARGIN_OPTIONS,
    PART,
    QUESTIONS,
    RUN,
    SEED,
    TRACE,
    ComparedOptions,
    EngineOptions,
    LoadOptions,
    MarginOptions,
    QuestionOptions,
    RunOptions,
    TraceOptions,
    counted,
    runs_option,
)
from nvllm.cli.frame import PATH, App, Command, packed, typed, with_app
from nvllm.cli.image_argument import HELP, IMAGE, with_image
from nvllm.cli.webpage import OPTIONS, WebPage
from nvllm.core import clock, proc
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.engine import engine
from nvllm.evidence import analysis, arms, circumstances, conclusion, lmeval, page, summary, tworuns
from nvllm.evidence.arms import Design
from nvllm.evidence.directory import EvidenceDirectory, document
from nvllm.evidence.load import LoadProbe, LoadThenQuestions
from nvllm.evidence.records import (
    FORM_COMPARISON,
    MARGINS,
    ArmState,
    Comparison,
    Kind,
    Margins,
    RunManifest,
    TraceRules,
)
from nvllm.evidence.runner import Runner
from nvllm.evidence.summary import ReportTable
from nvllm.evidence.tworuns import Run
from nvllm.host import locks
from nvllm.host.locks import Holder, Key
from nvllm.image.identity import Build
from nvllm.patches import patchset
from nvllm.serve.fresh import FreshInstances
from nvllm.spec.specfile import named_profile
from nvllm.trials import questions
from nvllm.trials.artifact import check_kept
from nvllm.trials.probe import program
from nvllm.trials.probing import LegProbe, ProgramProbe, QuestionProbe

GSM8K, LM_EVAL = "gsm8k", "lm-eval"
_SHOWN_KERNELS = 15
"""Kernels that are listed in a terminal; the report has more."""

ABLATE_EXAMPLES = """
Examples:
  nvllm ablate --profile tiny-ablation --sentinels page-zeroer,mamba-block-ids --probe gsm8k --data test.jsonl
  nvllm ablate cpu --profile tiny-eager --sentinels page-zeroer,mamba-block-ids --probe ./probe.sh --runs 3
  nvllm ablate --profile lower8 --sentinels mamba-block-ids,gdn-first-chunk --probe gsm8k --data test.jsonl
  nvllm ablate --profile lower8 --artifacts 5 --runs 5 --probe gsm8k --data test.jsonl --n 50
"""
EVAL_EXAMPLES = """
Examples:
  nvllm eval gsm8k --profile lower8 --data test.jsonl --n 50 --seed 42 --floor 45/50
  nvllm eval --image cpu --profile tiny-eager --probe ./probe.sh
  nvllm eval --image sm120 lm-eval --tasks gsm8k,ifeval --profile qwen35-27b --n 50
  nvllm eval gsm8k --profile lower8 --data test.jsonl --n 50 --runs-per-engine 5 --engines 1
"""
BENCH_EXAMPLES = """
Examples:
  nvllm bench cpu --profile tiny-eager --requests 20 --concurrency 2 --prompt-len 64 --output-len 32
  nvllm bench --profile lower8 --vs phaseE-off --runs 6
"""
SWEEP_EXAMPLES = """
Examples:
  nvllm sweep --profiles lower8,phaseE-off,all-beta --probe gsm8k --data test.jsonl --n 50 --trace --trace-runs 5
  nvllm sweep cpu --profiles tiny-eager,tiny-ablation --probe ./probe.sh --prompt-len 64 --output-len 32 --dry-run
"""
REPORT_EXAMPLES = """
Examples:
  nvllm report RUN                        what the run in the directory RUN found
  nvllm report RUN --html report.html     the same as one web page, with plots
  nvllm report RUN --open                 that page in a web browser
  nvllm report RUN OTHER                  both side by side: the arms of OTHER against those of RUN
"""


@dataclass(frozen=True, slots=True)
class TracedLoad:
    """The LOAD of traces, and the RULES by which they are taken."""

    load: LoadProbe
    rules: TraceRules


@dataclass(frozen=True, slots=True)
class Campaign:
    """The legs of ARMS, each on BUILD and asked by PROBE, as the options of RUN say.

    With TRACED each arm has further legs, under a profiler. Unless it is COLD, its legs load what was compiled once.
    One container is asked PER_ENGINE runs.
    """

    kind: Kind
    build: Build
    arms: Sequence[ArmState]
    probe: LegProbe
    run: RunOptions
    margins: Margins = MARGINS
    traced: TracedLoad | None = None
    cold: bool = True
    per_engine: int = 1


_LM_EVAL_TIMEOUT = 600.0
"""Seconds for a request of lm-eval, whose tasks say how long an answer may be."""


@click.command("ablate", cls=Command, epilog=ABLATE_EXAMPLES)
@IMAGE
@click.option("--profile", required=True, shell_complete=profiles, help="A profile of the image.")
@click.option(
    "--sentinels",
    shell_complete=sentinels,
    metavar="A,B",
    help="The switchable patches to compare.",
)
@click.option("--arms", "named", metavar="A,A+B", help="The arms: none, all, or sentinels joined by +.")
@click.option("--artifacts", type=click.IntRange(2, 50), metavar="K", help="Compare K compiles of one key instead.")
@click.option("--design", type=click.Choice(get_args(Design)), help="The arms by rule.  [default: full up to 4]")
@click.option(
    "--probe", required=True, shell_complete=probes, metavar="gsm8k|FILE", help="Questions by --data, or a program."
)
@packed("asked", QuestionOptions, QUESTIONS)
@packed("margins", MarginOptions, MARGIN_OPTIONS)
@packed("engines", EngineOptions, ENGINES)
@packed("run", ComparedOptions, (runs_option(5, "Fresh containers for each arm."), *COMPARED))
@with_image()
def ablate(
    app: App,
    image: str,
    profile: str,
    sentinels: str | None,
    named: str | None,
    artifacts: int | None,
    design: Design | None,
    probe: str,
    asked: QuestionOptions,
    margins: MarginOptions,
    engines: EngineOptions,
    run: ComparedOptions,
) -> None:
    """Nothing is built: an arm is a set of sentinel files, or a compile. If its harness fails it is invalid."""
    if named is not None and design is not None:
        raise refuse("NV108", "nvllm ablate", "--arms or --design", "--arms and --design", "name one of them")
    build = _build(app, image, profile)
    if artifacts is not None:
        given = {"--sentinels": sentinels, "--arms": named, "--design": design, "--cold": run.cold or None}
        states = _compiles(build, profile, artifacts, [name for name, value in given.items() if value is not None])
    elif sentinels is not None:
        chosen = _sentinels(build, sentinels)
        compared = arms.named(named, chosen) if named is not None else arms.designed(design, chosen)
        states = circumstances.ablated_arms(build, profile, compared)
    else:
        raise refuse("NV108", "nvllm ablate", "--sentinels A,B or --artifacts K", "neither", "nvllm ablate --help")
    leg = _probe(app, build, profile, probe, asked)
    run, per_engine = counted(run, engines)
    _campaign(app, Campaign("ablate", build, states, leg, run, margins.chosen, cold=run.cold, per_engine=per_engine))


@click.command("eval", cls=Command, epilog=EVAL_EXAMPLES)
@click.argument("task", required=False, type=click.Choice([GSM8K, LM_EVAL]), help="Questions in --data, or --tasks.")
@click.option("--image", metavar="IMAGE", shell_complete=images, help=HELP)
@click.option("--profile", required=True, shell_complete=profiles, help="A profile of the image.")
@click.option("--probe", type=PATH, metavar="FILE", help="A program in the place of questions.")
@click.option("--tasks", metavar="T,T", help="Tasks of lm-eval, separated by commas.")
@click.option("--include", type=PATH, metavar="DIR", help="Task files of lm-eval of your own.")
@packed("asked", QuestionOptions, QUESTIONS)
@packed("engines", EngineOptions, ENGINES)
@packed("run", RunOptions, (runs_option(1, "Fresh containers."), *RUN))
@with_image()
def eval_command(
    app: App,
    task: str | None,
    image: str,
    profile: str,
    probe: Path | None,
    tasks: str | None,
    include: Path | None,
    asked: QuestionOptions,
    engines: EngineOptions,
    run: RunOptions,
) -> None:
    """Answers are graded as lm-eval grades gsm8k. The exit status is 1 below the floor."""
    if (task is None) == (probe is None):
        given = "both" if task is not None else "neither"
        raise refuse("NV108", "nvllm eval", "gsm8k, lm-eval or --probe FILE", given, "nvllm eval --help")
    if (task == LM_EVAL) != (tasks is not None):
        given = f"--tasks {tasks}" if tasks is not None else "no --tasks"
        cure = f"nvllm eval lm-eval --image {image} --profile {profile} --tasks gsm8k"
        raise refuse("NV108", "nvllm eval", "lm-eval with --tasks", given, cure)
    build = _build(app, image, profile)
    if tasks is not None:
        lmeval.require()
        names, ledger = tuple(name.strip() for name in tasks.split(",")), _ledger(app, build, profile)
        limits = (asked.count, asked.seed, asked.timeout or _LM_EVAL_TIMEOUT, asked.concurrency, _percent(asked.floor))
        leg: LegProbe = lmeval.LmEvalProbe(names, include, *limits, proc.Programs(ledger))
    else:
        leg = _probe(app, build, profile, task or str(probe), asked)
    run, per_engine = counted(run, engines)
    states = circumstances.profile_arms(build, [profile])
    _campaign(app, Campaign("eval", build, states, leg, run, per_engine=per_engine))


@click.command("bench", cls=Command, epilog=BENCH_EXAMPLES)
@IMAGE
@click.option("--profile", required=True, shell_complete=profiles, help="A profile of the image.")
@click.option("--vs", shell_complete=profiles, metavar="PROFILE", help="Another profile; legs take turns.")
@packed("load", LoadOptions, LOAD)
@click.option("--concurrency", type=AT_ONCE, default=8, show_default=True, help="Requests at once.")
@click.option("--seed", type=SEED, default=42, show_default=True, help="Draws the prompts.")
@click.option(
    "--margin", type=PART, metavar="PART", default=0.03, help="Figures this close are the same.  [default: 3%]"
)
@packed("run", ComparedOptions, (runs_option(5, "Fresh containers for each profile."), *COMPARED))
@packed("traces", TraceOptions, TRACE)
@with_image()
def bench(
    app: App,
    image: str,
    profile: str,
    vs: str | None,
    load: LoadOptions,
    concurrency: int,
    seed: int,
    margin: float,
    run: ComparedOptions,
    traces: TraceOptions,
) -> None:
    """The load is that of `vllm bench serve` from the image itself. With --vs, ratios have intervals over runs."""
    build = _build(app, image, profile)
    if vs is not None:
        named_profile(app.project, build.spec, vs)
    states = circumstances.profile_arms(build, [profile] if vs is None else [profile, vs])
    leg = _load(build, [profile] if vs is None else [profile, vs], load, concurrency, seed)
    traced = _traced(leg, traces)
    _campaign(app, Campaign("bench", build, states, leg, run, Margins(margin), traced, run.cold))


@click.command("sweep", cls=Command, epilog=SWEEP_EXAMPLES)
@IMAGE
@click.option(
    "--profiles",
    "listed",
    required=True,
    shell_complete=several_profiles,
    metavar="A,B",
    help="Profiles; all are held against the first.",
)
@click.option(
    "--probe", required=True, shell_complete=probes, metavar="gsm8k|FILE", help="Questions by --data, or a program."
)
@packed("load", LoadOptions, LOAD)
@packed("asked", QuestionOptions, QUESTIONS)
@packed("margins", MarginOptions, MARGIN_OPTIONS)
@packed("run", ComparedOptions, (runs_option(5, "Fresh containers for each profile."), *COMPARED))
@packed("traces", TraceOptions, TRACE)
@with_image()
def sweep(
    app: App,
    image: str,
    listed: str,
    probe: str,
    load: LoadOptions,
    asked: QuestionOptions,
    margins: MarginOptions,
    run: ComparedOptions,
    traces: TraceOptions,
) -> None:
    """A leg is a bench and then an evaluation of a profile. The first profile has two arms: that shows the noise."""
    names = list(dict.fromkeys(name.strip() for name in listed.split(",")))
    build = _build(app, image, names[0])
    for name in names[1:]:
        named_profile(app.project, build.spec, name)
    states = circumstances.swept_arms(build, names)
    questions_asked = _probe(app, build, names[0], probe, asked)
    loaded = _load(build, names, load, asked.concurrency, asked.seed)
    leg, traced = LoadThenQuestions(loaded, questions_asked), _traced(loaded, traces)
    _campaign(app, Campaign("sweep", build, states, leg, run, margins.chosen, traced, run.cold))


@click.command("report", cls=Command, epilog=REPORT_EXAMPLES)
@click.argument("run", type=PATH, help="The directory of a run.")
@click.argument("other", type=PATH, required=False, help="Another one, to compare with it.")
@packed("written", WebPage, OPTIONS)
@with_app
def report(app: App, run: Path, other: Path | None, written: WebPage) -> None:
    """A run that is not finished is shown as far as it is. Of two runs, arms of one name are compared."""
    evidence = EvidenceDirectory(run)
    seen, memory = Run(evidence.manifest(), evidence.arms()), evidence.series()
    if other is None:
        comparison = conclusion.of(seen.manifest, seen.arms, evidence.kernels())
    else:
        second = EvidenceDirectory(other)
        seen, comparison = tworuns.joined(seen, Run(second.manifest(), second.arms()))
        memory = {}
    manifest = seen.manifest
    message = written.written(run / "report.html", lambda: page.html(manifest, seen.arms, comparison, memory))
    text = f"{summary.markdown(manifest, comparison)}\n{analysis.markdown(manifest, comparison)}"
    app.out.result("report", _data(comparison, run), message or text)


# What the commands share


def _build(app: App, image: str, profile: str) -> Build:
    """Return the build of IMAGE, which has PROFILE."""
    build = fresh_build(app, image, None)
    named_profile(app.project, build.spec, profile)
    return build


def _sentinels(build: Build, text: str) -> tuple[str, ...]:
    """Return the sentinels in TEXT. Raises Refused NV602 for each that the patches of BUILD do not read."""
    known = patchset.sentinels(build.patches)
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    expected = f"sentinels that the image's patch set reads: {', '.join(sorted(known)) or 'none'}"
    cure = f"nvllm patch list --series {build.spec.patches.series}"
    refuse_any(Refusal("NV602", "--sentinels", expected, name, cure) for name in chosen if name not in known)
    return chosen


def _compiles(build: Build, profile: str, count: int, given: Sequence[str]) -> list[ArmState]:
    """Return the arms of COUNT compiles of PROFILE.

    Raises Refused NV108 for options that are GIVEN and compare something else, and NV860 for a profile whose engines
    leave nothing that another one could load.
    """
    refuse_any(
        Refusal("NV108", "--artifacts", "arms that differ in what was compiled alone", name, f"leave {name} out")
        for name in given
    )
    check_kept(build.spec, profile)
    return circumstances.artifact_arms(build, profile, count)


def _probe(app: App, build: Build, profile: str, name: str, asked: QuestionOptions) -> LegProbe:
    """Return the probe NAME of PROFILE: questions, or a program."""
    if name != GSM8K:
        test = program(Path(name), (), "", build_only=False)
        floor = 100.0 if asked.floor is None else _percent(asked.floor)  # a program is a test: all of it must hold
        return ProgramProbe(test, proc.Programs(_ledger(app, build, profile)), floor)
    if asked.data is None:
        raise refuse("NV108", "--data", "a file of questions", "none", "--data FILE.jsonl, in the form of GSM8K")
    chosen = questions.drawn(questions.load(asked.data), asked.count, asked.seed)
    asking = questions.asking(asked.prompt.replace("\\n", "\n"), asked.stop, asked.extract)
    limits = (asked.seed, asked.length, asked.timeout, asked.concurrency, _percent(asked.floor))
    return QuestionProbe(GSM8K, chosen, *limits, asking)


def _percent(floor: float | None) -> float | None:
    """Return FLOOR, a part of 1, in percent, as manifests have it."""
    return None if floor is None else round(100 * floor, 9)  # 100 * 0.29 is 28.999999999999996


def _ledger(app: App, build: Build, profile: str) -> Path:
    """Return the directory that has a file for each program which asks PROFILE."""
    return app.places.state / "evidence" / "probes" / f"{build.spec.name}-{profile}"


def _load(build: Build, names: Sequence[str], load: LoadOptions, concurrency: int, seed: int) -> LoadProbe:
    """Return the LOAD of vLLM in the image of BUILD, CONCURRENCY requests at a time, for the profiles NAMES.

    Raises Refused NV108 for each profile that says that its requests are shorter: vLLM would answer all with a 400.
    """
    lengths = {name: build.spec.profiles[name].arguments.get("max-model-len") for name in names}
    tokens = load.prompt_len + load.output_len
    refuse_any(
        Refusal(
            "NV108",
            "--prompt-len and --output-len",
            f"at most {length} tokens together, the max-model-len of profile {name}",
            f"{load.prompt_len} and {load.output_len}",
            f"--prompt-len {length // 2} --output-len {length // 2}",
        )
        for name, length in lengths.items()
        if isinstance(length, int) and length < tokens
    )
    program = build.spec.runtime.entrypoint[0]
    return LoadProbe(program, load.requests, concurrency, load.prompt_len, load.output_len, seed)


def _traced(load: LoadProbe, traces: TraceOptions) -> TracedLoad | None:
    rules = traces.rules
    return None if rules is None else TracedLoad(load, rules)


def _campaign(app: App, campaign: Campaign) -> None:
    """Run the legs of CAMPAIGN and say what they show, or say which they would be."""
    if campaign.run.dry_run:
        _plan(app, campaign)
    else:
        _show_result(app, *_run(app, campaign))


def _plan(app: App, campaign: Campaign) -> None:
    """Show the legs of CAMPAIGN in their order."""
    states, probe, traced = campaign.arms, campaign.probe, campaign.traced
    per_engine = campaign.per_engine
    order = [
        (states[arm], run)
        for arm, engine in arms.schedule(len(states), campaign.run.runs // per_engine)
        for run in arms.runs_of(engine, per_engine)
    ]
    legs: list[dict[str, Json]] = [
        {"arm": state.name, "profile": state.profile, "run": number} for state, number in order
    ]

    evaluated: dict[str, Json] = {state.name: state.evaluated for state in states if state.evaluated}
    planned: dict[str, Json] = {"probe": probe.state.name, "legs": [*legs], "trace": traced is not None}

    def text() -> None:
        where = "a fresh container" if per_engine == 1 else f"a fresh container for each {per_engine} runs of an arm"
        app.out.line(f"each leg, in {where}: {probe.state.name}")
        rows = [(str(place), *(str(leg[name]) for name in leg)) for place, leg in enumerate(legs, 1)]
        app.out.table(("leg", "arm", "profile", "run"), rows)
        for name, profile in evaluated.items():
            app.out.line(f"{name} is asked the questions as profile {profile}, in another fresh container")
        if traced is not None:
            names = ", ".join(state.name for state in states)
            often = "" if traced.rules.runs == 1 else f" {traced.rules.runs} times"
            app.out.line(f"then each{often} under a profiler: {names}")

    app.show(campaign.kind, {**planned, **({"evaluated": evaluated} if evaluated else {})}, text, [])


def _run(app: App, campaign: Campaign) -> tuple[RunManifest, Comparison, Path]:
    """Run the legs of CAMPAIGN, and return what was run, what it shows, and where it is."""
    kind, build, states, probe = campaign.kind, campaign.build, campaign.arms, campaign.probe
    image, running = build.spec.name, engine.require()
    profile = states[0].profile
    host = circumstances.host_state(app.project, app.places, running)
    traced, runs = campaign.traced, campaign.run.runs
    planned = circumstances.manifest(
        kind,
        build,
        states,
        runs,
        probe.state,
        host,
        app.project,
        app.places,
        campaign.margins,
        trace=None if traced is None else traced.rules,
        until_decided=campaign.run.until_decided,
        cold=campaign.cold,
        per_engine=campaign.per_engine,
    )
    began = clock.now()
    where = campaign.run.output or app.places.state / "evidence" / f"{kind}-{image}-{profile}-{clock.compact(began)}"
    evidence = EvidenceDirectory(where.absolute())
    app.remember_project()
    # The command by which the run goes on: --force would remove it.
    command = shlex.join([*typed(click.get_current_context(), {"output", "force", "anyway"}), "--output", str(where)])
    keys = locked_keys(image, states, evidence.path)
    with locks.acquire_all(app.places.locks, keys, Holder(os.getpid(), began, command)):
        instances = FreshInstances(app.project, app.places, running, kind, command)
        for name in {name for state in states for name in state.profiles}:
            instances.clear(image, name)  # what a killed run has left
        asked = probe.questions if isinstance(probe, LoadThenQuestions) else probe
        if isinstance(asked, ProgramProbe | lmeval.LmEvalProbe):
            asked.programs.end_left()  # what a killed run has left
        manifest = evidence.begin(planned, force=campaign.run.force, anyway=campaign.run.anyway)
        app.progress.note(f"evidence: {evidence.path}")
        load = None if traced is None else traced.load
        return manifest, Runner(evidence, manifest, build, probe, instances, app.progress, load).run(), evidence.path


def locked_keys(image: str, states: Sequence[ArmState], output: Path) -> list[Key]:
    """Return the keys that a run of STATES into OUTPUT locks: no other may clear its containers or its files away."""
    directory = hashlib.sha256(os.fsencode(output.resolve())).hexdigest()[:12]
    profiles = dict.fromkeys(name for state in states for name in state.profiles)
    return [Key("evidence", f"output-{directory}"), *(Key("evidence", f"{image}-{name}") for name in profiles)]


def _show_result(app: App, manifest: RunManifest, comparison: Comparison, where: Path) -> None:
    """Say what COMPARISON shows of the run of MANIFEST at WHERE.

    Raises Refused NV854 for invalid arms, NV855 for failed ones.
    """

    def tables(*every: ReportTable) -> None:
        for table in every:
            if table.rows:
                app.out.table(*table)

    def text() -> None:
        tables(
            summary.arm_table(manifest, comparison),
            summary.figure_table(comparison),
            summary.effect_table(comparison),
            summary.traced_table(comparison),
        )
        for kernels in comparison.kernels:
            app.out.line(summary.kernels_title(kernels))
            app.out.table(*summary.kernel_table(kernels).first(_SHOWN_KERNELS))
        tables(
            summary.common_table(comparison).first(_SHOWN_KERNELS),
            summary.compile_table(comparison),
            summary.engine_table(comparison),
        )
        for finding in comparison.findings:
            app.out.line(f"{finding.factor}: {finding.finding}: {finding.text}")
            if finding.artifacts:
                app.out.line(f"    compiled code: {finding.artifacts}")
        for note in comparison.notes:
            app.out.line(note)
        if comparison.flipped:
            count = len(comparison.flipped) + comparison.unlisted
            app.out.line(f"{count} questions are not answered alike; ANALYSIS.md and the page list them")
        app.out.line(f"evidence: {where}")

    app.show(manifest.kind, _data(comparison, where), text, summary.refusals(comparison, EvidenceDirectory(where)))


def _data(comparison: Comparison, where: Path) -> dict[str, Json]:
    return {**document(FORM_COMPARISON, comparison), "directory": str(where)}
