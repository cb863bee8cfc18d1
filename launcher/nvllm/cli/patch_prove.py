"""`nvllm patch prove`: the tests that patches name, run without and with them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from nvllm.cli import complete
from nvllm.cli.frame import App, Command
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core import clock
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse_any
from nvllm.core.spec import ImageSpec
from nvllm.engine import engine
from nvllm.host import locks, survey
from nvllm.host.facts import HostFacts
from nvllm.host.locks import Holder, Key
from nvllm.patches import edit, proofs, proved, seriesfile
from nvllm.patches.proved import ProofRecord, State, Verdict
from nvllm.patches.series import Series
from nvllm.spec import specfile
from nvllm.trials import imagetests, probe, proving
from nvllm.trials.bench import EngineBench
from nvllm.trials.proving import ProofBench, Sets

EXAMPLES = """
Examples:
  nvllm patch prove cpu                        every enabled patch that is not proved yet
  nvllm patch prove cpu page-zeroer --again    one patch, also if it is proved already
  nvllm patch prove cpu --dry-run              which tests would run, where, and on which sets
"""

_NO_GPU = "needs a GPU, which this host or the profile lacks"
_WORDS: Mapping[Verdict, str] = {
    "proved": "fails without the patch, passes with the set",
    "passes-without": "passes without the patch: it proves nothing",
    "fails-with": "does not pass with the set",
    "other-error": "fails without the patch, but for another reason",
    "not-run": "did not run",
}

Records = Mapping[tuple[str, str], ProofRecord]
"""By patch and node."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The proofs of one patch: the SETS of its two images, the nodes to RUN, and of other nodes why they do not."""

    sets: Sets
    run: tuple[str, ...]
    left: Mapping[str, str]


@click.command("prove", cls=Command, epilog=EXAMPLES)
@IMAGE
@click.argument(
    "patches", nargs=-1, metavar="[PATCH]...", shell_complete=complete.patches, help="Patches.  [default: enabled ones]"
)
@click.option(
    "--profile",
    shell_complete=complete.profiles,
    help="The profile that is served, and whose limits hold.  [default: the first of the image]",
)
@click.option("--again", is_flag=True, help="Run also the tests that prove their patch by the records.")
@click.option("--dry-run", is_flag=True, help="Show which tests would run, where, and on which sets; run nothing.")
@with_image()
def prove(app: App, image: str, patches: tuple[str, ...], profile: str | None, again: bool, dry_run: bool) -> None:
    """Run the tests of each patch in the image without it, and in the image with the patch set.

    A test proves its patch if it fails without it, by an assertion or an error that it names, and passes with the set.
    What the tests did is kept in patches/SERIES/proofs.json after each patch, so that a run goes on where another
    stopped. Exits with 1 if a patch is not proved.
    """
    spec = specfile.of(app.project, image)
    series = seriesfile.of(app.project, spec.patches.series)
    name = profile if profile is not None else next(iter(spec.profiles), "")
    specfile.named_profile(app.project, spec, name)
    label = f"patches/{series.base}"
    named = [edit.carried(series, patch_id, label) for patch_id in patches or spec.patches.enable]
    facts = survey.host_facts(app.places, engine.connect())
    sets = [proving.sets(series, spec.patches.enable, patch) for patch in named]
    gpu = bool(facts.gpus) and spec.profiles[name].gpu is not None
    work = [_work(app, series, chosen, gpu=gpu, again=again) for chosen in sets]
    if not dry_run:
        refuse_any(proofs.refusals(app.project.root, [node for job in work for node in job.run]))
        app.project.writable(app.project.series(series.base))
        if any(job.run for job in work):
            _run(app, spec, series, name, facts, work)
    records = {(proof.patch, proof.node): proof for proof in proved.read(app.project, series.base).proofs}
    states = {job.sets.patch.id: proved.state(app.project.root, job.sets.patch, [*records.values()]) for job in work}
    data: Json = {
        "image": image,
        "series": series.base,
        "profile": name,
        "dry_run": dry_run,
        "patches": [_document(app, job, states[job.sets.patch.id], records) for job in work],
    }
    app.out.result("patch prove", data, lambda: _text(app, work, states, records, planned=dry_run))
    if not dry_run and set(states.values()) - {"proved"}:
        raise click.exceptions.Exit(1)


def _work(app: App, series: Series, chosen: Sets, *, gpu: bool, again: bool) -> _Work:
    """Return what is to be done for the patch of CHOSEN: without AGAIN, not what the records say already.

    GPU says whether tests get one.
    """
    root, patch = app.project.root, chosen.patch
    proofs_here = proved.read(app.project, series.base).proofs
    done = {one.node for one in proofs_here if one.patch == patch.id and one.verdict == "proved"}
    current = {one.node for one in proofs_here if one.node in done and proved.holds(root, patch, one)}
    left = {node: _NO_GPU for node in patch.proved_by if not gpu and proofs.GPU in proofs.needs(root, node)}
    run = tuple(node for node in patch.proved_by if node not in left and (again or node not in current))
    return _Work(chosen, run, left)


def _run(app: App, spec: ImageSpec, series: Series, profile: str, facts: HostFacts, work: Sequence[_Work]) -> None:
    """Run the tests of WORK, and record what they did after each patch."""
    docker, image = engine.require(), spec.name
    imagetests.pytest_files()  # refuses before anything is built
    judge = probe.builtin("boots")  # it judges nothing: the tests do
    bench = EngineBench(
        app.project, app.places, image, profile, judge, docker, app.offline, app.progress, purpose="proof"
    )
    prover = ProofBench(app.project, spec, series, bench, facts)
    directory = app.project.series(series.base)
    diffs = seriesfile.diffs(directory, series.patches, app.project.show(directory))
    keys = [Key("proof", f"{image}-{app.project.id}")]
    holder = Holder(os.getpid(), clock.now(), f"nvllm patch prove {image}")
    app.remember_project()
    with locks.acquire_all(app.places.locks, keys, holder):
        bench.clear()
        with app.progress.task("patches", len(work), "tests") as task:
            for job in work:
                if job.run:
                    app.progress.note(f"{job.sets.patch.id}: {', '.join(job.run)}")
                    records = prover.prove(job.sets, job.run, diffs[job.sets.patch.id])
                    proved.write(app.project, series.base, records)
                task.advance(1)


def _document(app: App, job: _Work, state: State, records: Records) -> Json:
    """Return JOB for --json, with what the RECORDS say."""
    patch = job.sets.patch

    def test(node: str) -> Json:
        record = records.get((patch.id, node))
        return {
            "node": node,
            "where": proving.where(proofs.needs(app.project.root, node)),
            "to_run": node in job.run,
            "left": job.left.get(node),
            "record": None if record is None else {**asdict(record), "holds": _holds(app, job, record)},
        }

    without, whole = list(job.sets.without), list(job.sets.whole)
    tests = [test(node) for node in patch.proved_by]
    return {"id": patch.id, "state": state, "without": without, "whole": whole, "tests": tests}


def _holds(app: App, job: _Work, record: ProofRecord) -> bool:
    return proved.holds(app.project.root, job.sets.patch, record)


def _text(app: App, work: Sequence[_Work], states: Mapping[str, State], records: Records, *, planned: bool) -> None:
    rows: list[tuple[str, ...]] = []
    for job in work:
        patch = job.sets.patch
        gone = ", ".join(name for name in job.sets.whole if name not in job.sets.without)
        for node in patch.proved_by:
            record = records.get((patch.id, node))
            answer = job.left.get(node) or ("not run yet" if record is None else _WORDS[record.verdict])
            if planned and node in job.run:
                answer = f"runs in the {proving.where(proofs.needs(app.project.root, node))}, without {gone}"
            elif record is not None and node not in job.left and not _holds(app, job, record):
                answer = f"stale: patch or test changed since; {answer}"
            rows.append((patch.id, states[patch.id], node, answer))
    app.out.table(["patch", "state", "test", "what it did"], rows)
    for job in work if not planned else ():
        for node in job.sets.patch.proved_by:
            record = records.get((job.sets.patch.id, node))
            if record is not None and record.verdict != "proved":
                app.out.line(f"{node}\n  without: {record.without.outcome}: {record.without.text or '-'}")
                app.out.line(f"  with:    {record.whole.outcome}: {record.whole.text or '-'}")
