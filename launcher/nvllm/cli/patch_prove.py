"""`nvllm patch prove`: the tests that patches name, run without and with them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from nvllm.cli import complete
from nvllm.cli.build import image_builder
from nvllm.cli.fleet import ON, check_registry, connected, repository
from nvllm.cli.frame import App, Command
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core.canonical import Json
from nvllm.core.progress import Task
from nvllm.core.refusal import refuse_any
from nvllm.core.spec import ImageSpec
from nvllm.engine import engine
from nvllm.fleet.machines import Carrier, MachinePool
from nvllm.fleet.proofs import ProofMachines
from nvllm.fleet.registry import Repository
from nvllm.host import locks, survey
from nvllm.host.facts import HostFacts
from nvllm.host.locks import Key
from nvllm.patches import edit, proofs, proved, seriesfile
from nvllm.patches.proved import CoveredProof, LeftOut, ProofRecord, State, Verdict
from nvllm.patches.series import Series
from nvllm.serve import hostclass
from nvllm.spec import specfile
from nvllm.trials import imagetests, probe, proving
from nvllm.trials.bench import EngineBench
from nvllm.trials.proving import Job, ProofBench, Sets

EXAMPLES = """
Examples:
  nvllm patch prove cpu                        every enabled patch that is not proved yet
  nvllm patch prove cpu page-zeroer --again    one patch, also if it is proved already
  nvllm patch prove cpu --each                 and all tests without each patch in turn
  nvllm patch prove cpu --dry-run              which tests would run, where, and on which sets
  nvllm patch prove cpu --on ssh://HOST,ssh://HOST2 --registry REPO    patches at once, one on each machine
"""

_NO_FILE = "its file is not in this project"
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
    """The proofs of one patch: the JOB to run, and of other nodes why they do not run."""

    job: Job
    left: Mapping[str, str]

    @property
    def sets(self) -> Sets:
        return self.job.sets


@dataclass(frozen=True, slots=True)
class _Removal:
    """TESTS that run without the patch of SETS, for `--each`: the hash of their INPUTS, and whether TO_RUN."""

    sets: Sets
    tests: Sequence[proving.Test]
    inputs: str
    to_run: bool


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
@click.option("--each", is_flag=True, help="Run also the tests of all patches without each of them in turn.")
@click.option("--again", is_flag=True, help="Run also what the records say already.")
@click.option("--dry-run", is_flag=True, help="Show which tests would run, where, and on which sets; run nothing.")
@ON
@click.option("--registry", metavar="REPO", help="With --on: the repository that images and tests travel through.")
@with_image()
def prove(
    app: App,
    image: str,
    patches: tuple[str, ...],
    profile: str | None,
    each: bool,
    again: bool,
    dry_run: bool,
    addresses: tuple[str, ...],
    registry: str | None,
) -> None:
    """Run the tests of each patch in the image without it, and in the image with the patch set.

    A test proves its patch if it fails without it, by an assertion or an error that it names, and passes with the set.
    What the tests did is kept in patches/SERIES/proofs.json after each patch, so that a run goes on where another
    stopped. Unless patches are named, a test whose file the project lacks is left out, and its patch stays unproved.
    Exits with 1 if a patch is not proved.

    With --each, the tests of all patches run without each patch: a test that passes although its patch is left out is
    shown with the patches that cover it, and so is a test that fails although its patch is there.

    With --on, images are built here and pushed to REPO with the files of the tests, and each machine of this host's
    class proves one patch at a time: both runs of its tests.
    """
    check_registry(addresses, registry)
    if each and addresses:
        raise click.UsageError("--each runs its tests here: leave --on out")
    spec = specfile.of(app.project, image)
    series = seriesfile.of(app.project, spec.patches.series)
    name = profile if profile is not None else next(iter(spec.profiles), "")
    specfile.named_profile(app.project, spec, name)
    label = f"patches/{series.base}"
    named = [edit.carried(series, patch_id, label) for patch_id in patches or spec.patches.enable]
    facts = survey.host_facts(app.places, engine.connect())
    sets = [proving.sets(series, spec.patches.enable, patch) for patch in named]
    gpu = bool(facts.gpus) and spec.profiles[name].gpu is not None
    # A patch that is named has to be proved; of the enabled ones, those whose tests are elsewhere stay unproved.
    everything = (node for patch in series.patches for node in patch.proved_by)
    absent = frozenset() if patches else proofs.absent(app.project.root, everything)
    work = [_work(app, series, chosen, absent, gpu=gpu, again=again) for chosen in sets]
    removals = [_removal(app, series, chosen, absent, gpu=gpu, again=again) for chosen in sets] if each else []
    if not dry_run:
        nodes = [node for job in work for node in job.job.nodes]
        nodes += [node for removal in removals if removal.to_run for _, node in removal.tests]
        refuse_any(proofs.refusals(app.project.root, [*dict.fromkeys(nodes)]))
        app.project.writable(app.project.series(series.base))
        jobs = [job.job for job in work if job.job.nodes]
        if nodes:
            app.remember_project()
            keys = [Key("proof", f"{image}-{app.project.id}")]
            with locks.acquire_all(app.places.locks, keys, locks.this_process(f"nvllm patch prove {image}")):
                if registry is None:
                    _here(app, spec, series, name, facts, jobs, removals)
                else:
                    with connected(app, addresses) as carrier:
                        _elsewhere(app, spec, name, facts, jobs, carrier, repository(app, registry))
    kept = proved.read(app.project, series.base)
    records = {(proof.patch, proof.node): proof for proof in kept.proofs}
    states = {job.sets.patch.id: proved.state(app.project.root, job.sets.patch, kept.proofs) for job in work}
    without = {record.patch: record for record in kept.left_out}
    data: dict[str, Json] = {
        "image": image,
        "series": series.base,
        "profile": name,
        "dry_run": dry_run,
        "patches": [_document(app, job, states[job.sets.patch.id], records) for job in work],
    }
    if each:
        data["each"] = [_removal_document(removal, without.get(removal.sets.patch.id)) for removal in removals]

    def text() -> None:
        _text(app, work, states, records, planned=dry_run)
        _removal_text(app, removals, without, planned=dry_run)

    app.out.result("patch prove", data, text)
    others = [without[removal.sets.patch.id] for removal in removals if removal.sets.patch.id in without]
    if not dry_run and (set(states.values()) - {"proved"} or any(record.covered or record.broken for record in others)):
        raise click.exceptions.Exit(1)


def _work(app: App, series: Series, chosen: Sets, absent: Collection[str], *, gpu: bool, again: bool) -> _Work:
    """Return what is to be done for the patch of CHOSEN: without AGAIN, not what the records say already.

    The tests ABSENT are not here. GPU says whether tests get one.
    """
    root, patch = app.project.root, chosen.patch
    proofs_here = proved.read(app.project, series.base).proofs
    done = {proof.node for proof in proofs_here if proof.patch == patch.id and proof.verdict == "proved"}
    current = {proof.node for proof in proofs_here if proof.node in done and proved.holds(root, patch, proof)}
    left = {node: _NO_GPU for node in patch.proved_by if not gpu and proofs.GPU in proofs.needs(root, node)}
    left |= {node: _NO_FILE for node in patch.proved_by if node in absent}
    run = tuple(node for node in patch.proved_by if node not in left and (again or node not in current))
    return _Work(Job(chosen, run), left)


def _removal(app: App, series: Series, chosen: Sets, absent: Collection[str], *, gpu: bool, again: bool) -> _Removal:
    """Return what is to run without the patch of CHOSEN. ABSENT, AGAIN and GPU are those of `_work`."""
    root, whole = app.project.root, [patch for patch in series.patches if patch.id in chosen.whole]
    tests = [
        (patch.id, node)
        for patch in whole
        for node in patch.proved_by
        if node not in absent and (gpu or proofs.GPU not in proofs.needs(root, node))
    ]
    hashed = proved.inputs(root, whole, tests)
    kept = proved.read(app.project, series.base).left_out
    same = any(record.patch == chosen.patch.id and record.inputs == hashed for record in kept)
    return _Removal(chosen, tests, hashed, again or not same)


def _recorded(app: App, base: str, records: Sequence[ProofRecord], task: Task) -> None:
    """Write RECORDS of a patch of the series BASE, and count it in TASK."""
    proved.write(app.project, base, records)
    app.progress.note("\n".join(f"{record.patch}: {record.node}: {record.verdict}" for record in records))
    task.advance(1)


def _elsewhere(
    app: App,
    spec: ImageSpec,
    profile: str,
    facts: HostFacts,
    jobs: Sequence[Job],
    carrier: Carrier,
    registry: Repository,
) -> None:
    """Have the machines of CARRIER run JOBS, and record what each did as soon as it is known."""
    cure = "start it on a host of their class, or add a machine: docs/fleet.md"
    pool = MachinePool(carrier, hostclass.host_class(facts), app.progress, cure)
    app.progress.note(f"machines of class {pool.host}: {len(pool.fitting())}")
    prover = ProofMachines(pool, image_builder(app), registry, spec.name, profile)
    with (
        contextlib.closing(prover.prove(jobs)) as answers,
        app.progress.task("patches", len(jobs), "tests") as task,
    ):
        for records in answers:
            _recorded(app, spec.patches.series, records, task)


def _here(
    app: App,
    spec: ImageSpec,
    series: Series,
    profile: str,
    facts: HostFacts,
    jobs: Sequence[Job],
    removals: Sequence[_Removal],
) -> None:
    """Run JOBS and REMOVALS, and record what each did as soon as it is known."""
    docker, image = engine.require(), spec.name
    imagetests.pytest_files()  # refuses before anything is built
    judge = probe.builtin("boots")  # it judges nothing: the tests do
    bench = EngineBench(
        app.project, app.places, image, profile, judge, docker, app.offline, app.progress, purpose="proof"
    )
    diffs = seriesfile.diffs_of(app.project, series.base, series.patches)
    prover = ProofBench(app.project, spec, series, diffs, bench, facts, app.project.root)
    waiting = [removal for removal in removals if removal.to_run]
    bench.clear()
    with app.progress.task("patches", len(jobs) + len(waiting), "tests") as task:
        for records in prover.prove(jobs):
            _recorded(app, series.base, records, task)
        for removal in waiting:
            app.progress.note(f"without {', '.join(removal.sets.gone)}: {len(removal.tests)} tests")
            record = prover.leave_out(removal.sets, removal.tests, removal.inputs)
            proved.write(app.project, series.base, (), [record])
            task.advance(1)


def _document(app: App, job: _Work, state: State, records: Records) -> Json:
    """Return JOB for --json, with what the RECORDS say."""
    patch = job.sets.patch

    def test(node: str) -> Json:
        record = records.get((patch.id, node))
        return {
            "node": node,
            "where": proving.where(proofs.needs(app.project.root, node)),
            "to_run": node in job.job.nodes,
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
        gone = ", ".join(job.sets.gone)
        for node in patch.proved_by:
            record = records.get((patch.id, node))
            answer = job.left.get(node) or ("not run yet" if record is None else _WORDS[record.verdict])
            if planned and node in job.job.nodes:
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


def _removal_document(removal: _Removal, record: LeftOut | None) -> Json:
    """Return REMOVAL for --json, with its RECORD."""
    return {
        "left_out": list(removal.sets.gone),
        "without": list(removal.sets.without),
        "tests": [list(test) for test in removal.tests],
        "to_run": removal.to_run,
        "record": None if record is None else {**asdict(record), "holds": record.inputs == removal.inputs},
    }


def _removal_text(app: App, removals: Sequence[_Removal], without: Mapping[str, LeftOut], *, planned: bool) -> None:
    rows: list[tuple[str, ...]] = []
    for removal in removals:
        record, gone = without.get(removal.sets.patch.id), ", ".join(removal.sets.gone)
        if record is None or (planned and removal.to_run):
            rows.append((gone, str(len(removal.tests)), "to run"))
            continue
        answers = [_covered(test) for test in record.covered]
        answers += [f"{test.node} fails, though {test.patch} is there: {test.text}" for test in record.broken]
        rows += [(gone, str(record.tests), answer) for answer in answers or ["each as it must"]]
    if removals:
        app.out.table(["left out", "tests", "what they did"], rows)


def _covered(test: CoveredProof) -> str:
    by = f": {', '.join(test.by)} covers it" if test.by else ", and without any patch"
    return f"{test.node} passes without {test.patch}{by}"
