"""`nvllm ablate`, `nvllm eval` and `nvllm report`: evidence from fresh containers, in one directory."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import click

from nvllm.bisect import probe as programs
from nvllm.cli.complete import images, probes, profiles
from nvllm.cli.complete import sentinels as sentinel_names
from nvllm.cli.frame import PATH, App, Command, FiniteRange, with_app
from nvllm.core import durable, proc
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.evidence import arms, circumstances, conclusion, page, questions, summary
from nvllm.evidence.arms import Design
from nvllm.evidence.directory import EvidenceDirectory, document
from nvllm.evidence.load import LoadProbe
from nvllm.evidence.probing import LegProbe, ProgramProbe, QuestionProbe
from nvllm.evidence.records import FORM_COMPARISON, ArmState, Comparison, Kind
from nvllm.evidence.runner import Runner
from nvllm.host import locks
from nvllm.host.locks import Holder, Key
from nvllm.image import engine, identity
from nvllm.image.identity import Build
from nvllm.patches import patchset
from nvllm.serve import examine
from nvllm.serve.fresh import FreshInstances

F = TypeVar("F", bound=Callable[..., None])

GSM8K = "gsm8k"

ABLATE_EXAMPLES = """
Examples:
  nvllm ablate sm120 --profile lower8 --sentinels page-zeroer,mamba-block-ids --probe gsm8k --data test.jsonl
  nvllm ablate cpu --profile tiny-eager --sentinels page-zeroer,mamba-block-ids --probe ./probe.sh --runs 3
  nvllm ablate cpu --profile tiny-eager --sentinels a,b,c --design drop-one --probe gsm8k --data test.jsonl
"""
EVAL_EXAMPLES = """
Examples:
  nvllm eval gsm8k --image sm120 --profile lower8 --data test.jsonl --n 50 --seed 42 --floor 45
  nvllm eval --image cpu --profile tiny-eager --probe ./probe.sh
"""
BENCH_EXAMPLES = """
Examples:
  nvllm bench cpu --profile tiny-eager --requests 20 --concurrency 2 --prompt-len 64 --output-len 32
  nvllm bench sm120 --profile lower8 --vs phaseE-off --runs 6
"""
REPORT_EXAMPLES = """
Examples:
  nvllm report RUN                        what the run in the directory RUN found
  nvllm report RUN --html report.html     the same as one web page, with plots
"""


def _probe_options(function: F) -> F:
    """Give FUNCTION the options of a probe and of the directory that is written."""
    options = [
        click.option("--data", type=PATH, metavar="FILE", help="Questions as GSM8K has them, one JSON object a line."),
        click.option("--n", "count", type=click.IntRange(1), help="Ask so many of them.  [default: all]"),
        click.option("--seed", type=int, default=42, show_default=True, help="Draws the questions."),
        click.option(
            "--floor", type=FiniteRange(0, 100), metavar="PERCENT", help="Fail below so many correct answers."
        ),
        click.option("--length", type=click.IntRange(1), default=512, show_default=True, help="Tokens of an answer."),
        click.option(
            "--timeout", type=FiniteRange(0, min_open=True), default=120, show_default=True, help="Seconds for one."
        ),
        click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Questions at once."),
        click.option("--output", type=PATH, metavar="DIR", help="Where the evidence goes; a run there goes on."),
        click.option("--force", is_flag=True, help="Remove the run that is in --output."),
    ]
    for one in reversed(options):
        function = one(function)
    return function


@click.command("ablate", cls=Command, epilog=ABLATE_EXAMPLES)
@click.argument("image", shell_complete=images, help="An image spec: images/IMAGE.yaml.")
@click.option("--profile", required=True, shell_complete=profiles, help="A profile of the image.")
@click.option(
    "--sentinels",
    required=True,
    shell_complete=sentinel_names,
    metavar="A,B",
    help="The switchable patches to compare.",
)
@click.option("--arms", "named", metavar="A,A+B", help="The arms: none, all, or sentinels joined by +.")
@click.option("--design", type=click.Choice(get_args(Design)), help="The arms by rule.  [default: full up to 4]")
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="Fresh containers for each arm.")
@click.option(
    "--probe", required=True, shell_complete=probes, metavar="gsm8k|FILE", help="Questions by --data, or a program."
)
@_probe_options
@with_app
def ablate(
    app: App,
    image: str,
    profile: str,
    sentinels: str,
    named: str | None,
    design: Design | None,
    runs: int,
    probe: str,
    data: Path | None,
    count: int | None,
    seed: int,
    floor: float | None,
    length: int,
    timeout: float,
    concurrency: int,
    output: Path | None,
    force: bool,
) -> None:
    """Nothing is built: an arm is a set of sentinel files. An arm whose harness fails is invalid, never passed."""
    if named is not None and design is not None:
        raise refuse("NV108", "nvllm ablate", "--arms or --design", "--arms and --design", "name one of them")
    build = _build(app, image, profile)
    chosen = _sentinels(app, build, profile, sentinels)
    compared = arms.named(named, chosen) if named is not None else arms.designed(design, chosen)
    asked = _probe(app, image, profile, probe, data, count, seed, length, timeout, concurrency, floor)
    states = circumstances.ablated_arms(build, profile, compared)
    found, where = _run(app, "ablate", build, states, runs, asked, output, force)
    _say(app, "ablate", found, where)


@click.command("eval", cls=Command, epilog=EVAL_EXAMPLES)
@click.argument("task", required=False, type=click.Choice([GSM8K]), help="The kind of questions in --data.")
@click.option("--image", required=True, shell_complete=images, help="An image spec: images/IMAGE.yaml.")
@click.option("--profile", required=True, shell_complete=profiles, help="A profile of the image.")
@click.option("--probe", type=PATH, metavar="FILE", help="A program in the place of questions.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Fresh containers.")
@_probe_options
@with_app
def eval_command(
    app: App,
    task: str | None,
    image: str,
    profile: str,
    probe: Path | None,
    runs: int,
    data: Path | None,
    count: int | None,
    seed: int,
    floor: float | None,
    length: int,
    timeout: float,
    concurrency: int,
    output: Path | None,
    force: bool,
) -> None:
    """An answer is correct if its last number is the question's. The exit status is 1 below the floor."""
    if (task is None) == (probe is None):
        said = "both" if task is not None else "neither"
        raise refuse("NV108", "nvllm eval", "gsm8k or --probe FILE", said, "nvllm eval --help")
    build = _build(app, image, profile)
    asked = _probe(app, image, profile, task or str(probe), data, count, seed, length, timeout, concurrency, floor)
    states = circumstances.profile_arms(build, [profile])
    found, where = _run(app, "eval", build, states, runs, asked, output, force)
    _say(app, "eval", found, where)


@click.command("bench", cls=Command, epilog=BENCH_EXAMPLES)
@click.argument("image", shell_complete=images, help="An image spec: images/IMAGE.yaml.")
@click.option("--profile", required=True, shell_complete=profiles, help="A profile of the image.")
@click.option("--vs", shell_complete=profiles, metavar="PROFILE", help="Another profile; legs take turns.")
@click.option("--requests", type=click.IntRange(1), default=100, show_default=True, help="Requests of a leg.")
@click.option("--concurrency", type=click.IntRange(1), default=8, show_default=True, help="Requests at once.")
@click.option("--prompt-len", type=click.IntRange(1), default=512, show_default=True, help="Tokens of a prompt.")
@click.option("--output-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of an answer.")
@click.option("--seed", type=int, default=42, show_default=True, help="Draws the prompts.")
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="Fresh containers for each profile.")
@click.option("--output", type=PATH, metavar="DIR", help="Where the evidence goes; a run there goes on.")
@click.option("--force", is_flag=True, help="Remove the run that is in --output.")
@with_app
def bench(
    app: App,
    image: str,
    profile: str,
    vs: str | None,
    requests: int,
    concurrency: int,
    prompt_len: int,
    output_len: int,
    seed: int,
    runs: int,
    output: Path | None,
    force: bool,
) -> None:
    """The load is that of `vllm bench serve` from the image itself. With --vs, ratios have intervals over runs."""
    build = _build(app, image, profile)
    if vs is not None:
        examine.named_profile(app.project, build.spec, vs)
    states = circumstances.profile_arms(build, [profile] if vs is None else [profile, vs])
    load = LoadProbe(build.spec.runtime.entrypoint[0], requests, concurrency, prompt_len, output_len, seed)
    found, where = _run(app, "bench", build, states, runs, load, output, force)
    _say(app, "bench", found, where)


@click.command("report", cls=Command, epilog=REPORT_EXAMPLES)
@click.argument("run", type=PATH, help="The directory of a run.")
@click.option("--html", type=PATH, metavar="FILE", help="Write the report as one web page, to send to others.")
@with_app
def report(app: App, run: Path, html: Path | None) -> None:
    """A run that is not finished is shown as far as it is."""
    evidence = EvidenceDirectory(run)
    manifest, legs = evidence.manifest(), evidence.arms()
    found = conclusion.of(manifest, legs)
    if html is not None:
        with durable.writing(html.absolute(), "NV920"):
            html.write_text(page.html(manifest, legs, found), encoding="utf-8")
    app.out.result("report", _data(found, run), f"wrote {html}" if html else summary.markdown(manifest, found))


# What the commands share


def _build(app: App, image: str, profile: str) -> Build:
    """Return the build of IMAGE, which has PROFILE."""
    build, stale = identity.load_build(app.project, image, None)
    refuse_any(stale)
    examine.named_profile(app.project, build.spec, profile)
    return build


def _sentinels(app: App, build: Build, profile: str, text: str) -> tuple[str, ...]:
    """Return the sentinels in TEXT. Raises Refused NV602 for each that the patches of BUILD do not read."""
    known = patchset.sentinels(build.patches)
    chosen = tuple(dict.fromkeys(one.strip() for one in text.split(",")))
    expected = f"sentinels that the image's patch set reads: {', '.join(sorted(known)) or 'none'}"
    cure = f"nvllm patch list --series {build.spec.patches.series}"
    refuse_any(Refusal("NV602", "--sentinels", expected, one, cure) for one in chosen if one not in known)
    return chosen


def _probe(
    app: App,
    image: str,
    profile: str,
    name: str,
    data: Path | None,
    count: int | None,
    seed: int,
    length: int,
    timeout: float,
    concurrency: int,
    floor: float | None,
) -> LegProbe:
    if name != GSM8K:
        test = programs.program(Path(name), (), "", build_only=False)
        ledger = app.places.state / "evidence" / "probes" / f"{image}-{profile}"
        return ProgramProbe(test, proc.Programs(ledger), *(() if floor is None else (floor,)))
    if data is None:
        raise refuse("NV108", "--data", "a file of questions", "none", "--data FILE.jsonl, in the form of GSM8K")
    asked = questions.drawn(questions.load(data), count, seed)
    return QuestionProbe(GSM8K, asked, seed, length, timeout, concurrency, floor)


def _run(
    app: App,
    kind: Kind,
    build: Build,
    states: Sequence[ArmState],
    runs: int,
    probe: LegProbe,
    output: Path | None,
    force: bool,
) -> tuple[Comparison, Path]:
    """Run the legs, and return what they show, and where they are."""
    image, running = build.spec.name, engine.require()
    profile = states[0].profile
    host = circumstances.host_state(app.project, app.places, running)
    wanted = circumstances.manifest(kind, build, states, runs, probe.state, host, app.places)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    where = output or app.places.state / "evidence" / f"{kind}-{image}-{profile}-{stamp}"
    evidence = EvidenceDirectory(where.absolute())
    app.remember_project()
    command = shlex.join(["nvllm", kind, image, "--profile", profile, "--output", str(where)])
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with locks.acquire_all(app.places.locks, _keys(image, states), Holder(os.getpid(), began, command)):
        instances = FreshInstances(app.project, app.places, running, kind, command)
        for name in {one.profile for one in states}:
            instances.clear(image, name)
        if isinstance(probe, ProgramProbe):
            probe.programs.end_left()  # what a killed run has left
        held = evidence.begin(wanted, force=force)
        app.progress.note(f"evidence: {evidence.path}")
        return Runner(evidence, held, build, probe, instances, app.progress).run(), evidence.path


def _keys(image: str, states: Sequence[ArmState]) -> list[Key]:
    """Return the keys that a run of STATES locks: no other one may clear their containers away."""
    return [Key("evidence", f"{image}-{name}") for name in dict.fromkeys(one.profile for one in states)]


def _say(app: App, command: str, found: Comparison, where: Path) -> None:
    """Say what was FOUND in the run at WHERE. Raises Refused NV854 for invalid arms, NV855 for failed ones."""

    def text() -> None:
        app.out.table(summary.arm_columns(found), summary.arm_rows(found))
        if figures := summary.figure_rows(found):
            app.out.table(("figure", *(one.name for one in found.arms)), figures)
        if found.effects:
            app.out.table(summary.EFFECT_COLUMNS, summary.effect_rows(found))
        for one in found.findings:
            app.out.line(f"{one.factor}: {one.finding}: {one.text}")
        for note in found.notes:
            app.out.line(note)
        app.out.line(f"evidence: {where}")

    app.show(command, _data(found, where), text, summary.refusals(found, where))


def _data(found: Comparison, where: Path) -> dict[str, Json]:
    return {**document(FORM_COMPARISON, found), "directory": str(where)}
