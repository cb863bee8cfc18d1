"""`nvllm bless`: compile a cache, test it in fresh containers, and write the manifest that allows it."""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from nvllm.bless import blessing, evaluation, preflight, several
from nvllm.bless.blessing import Bless, BlessResult
from nvllm.bless.evaluation import Asker
from nvllm.bless.preflight import BlessRequest
from nvllm.bless.several import SeveralResult
from nvllm.cache import manifest, promotion
from nvllm.cache.blessings import Blessings
from nvllm.cache.manifest import LEAST_BOOTS, Manifest
from nvllm.cache.pins import Pin, Pins
from nvllm.cli.build import image_builder
from nvllm.cli.complete import profiles
from nvllm.cli.fleet import ON, check_registry, connected, repository
from nvllm.cli.frame import PATH, App, Command, packed
from nvllm.cli.image_argument import IMAGE, BlessedProfile, with_image
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.engine import engine
from nvllm.fleet import boots, candidates, images
from nvllm.fleet.boots import BootMachines
from nvllm.fleet.machines import Carrier, MachinePool
from nvllm.fleet.registry import Repository
from nvllm.fleet.tasks import ServedProfile
from nvllm.host import survey
from nvllm.serve import hostclass, owners, supervisor
from nvllm.serve.examination import Depth, Examination, examine
from nvllm.serve.kernel_reports import KernelReports

EXAMPLES = """
Examples:
  nvllm bless cpu --profile tiny-blessed               compile, run 5 trials, write the manifest
  nvllm bless cpu --profile tiny-blessed --claim 0.90  run 29 trials, which that claim needs
  nvllm bless cpu --profile tiny-blessed --artifacts 3  compile 3 times, bless one that passes
  nvllm bless cpu --profile tiny-blessed --keep-rejected 30  a cache that fails stays for 30 days, for study
  nvllm bless cpu --profile tiny-blessed --rebless     replace the blessing in force
  nvllm bless sm120 --profile qwen35-27b --extend      add the kernels that requests needed and it lacks
  nvllm bless cpu --profile tiny-blessed --candidate 0123456789ab   try what `nvllm pull` brought, compile nothing
  nvllm bless cpu --profile tiny-blessed --on ray://HEAD --registry REPO   trials on every machine of this class
  nvllm bless cpu --profile tiny-blessed --on ssh://HOST --registry REPO   trials on HOST, without a cluster
"""


@dataclass(frozen=True, slots=True)
class BlessOptions:
    """The options of `bless`: how many trials, of what, where, and what the blessing says."""

    profile: str
    trials: int | None
    claim: float | None
    unsafe_trials: int | None
    rebless: bool
    extend: bool
    candidate: str | None
    artifacts: int | None
    keep_rejected: int
    sign: Path | None
    expires: str | None
    addresses: tuple[str, ...]
    registry: str | None
    dry_run: bool
    paranoid: bool


_OPTIONS = (
    click.option(
        "--profile", cls=BlessedProfile, required=True, shell_complete=profiles, help="A profile with `blessed: true`."
    ),
    click.option(
        "--trials",
        type=click.IntRange(min=1),
        help=f"The number of trials, each in a fresh container.  [default: {LEAST_BOOTS}]",
    ),
    click.option(
        "--claim",
        type=float,
        metavar="RATE",
        help="Run enough trials to show that at least RATE of all starts are good.",
    ),
    click.option(
        "--unsafe-trials",
        type=click.IntRange(min=1),
        help="Run fewer trials. Only a profile with `dev: true` may be served by the result.",
    ),
    click.option("--rebless", is_flag=True, help="Replace the blessing in force, and archive it."),
    click.option(
        "--extend", is_flag=True, help="Add kernels to the cache in force, such as those that `nvllm status` reports."
    ),
    click.option(
        "--candidate",
        metavar="TREE",
        help="Compile nothing: try this cache, which `nvllm pull` has brought without a signature.",
    ),
    click.option(
        "--artifacts", type=click.IntRange(2, 50), metavar="K", help="Compile K times, and bless one that passes."
    ),
    click.option(
        "--keep-rejected",
        type=click.IntRange(0, 3650),
        default=0,
        metavar="DAYS",
        help="Keep a cache that a trial rejects for so many days, to look into it.",
    ),
    click.option("--sign", type=PATH, metavar="KEY", help="Sign the manifest with this SSH key."),
    click.option(
        "--expires", metavar="WHEN", help="When the blessing ends: after 30d (or h, w), or on a day such as 2027-01-31."
    ),
    ON,
    click.option("--registry", metavar="REPO", help="With --on: the repository that image and cache travel through."),
    click.option("--dry-run", is_flag=True, help="Check everything, and show where the trials would run."),
    click.option("--paranoid", is_flag=True, help="Hash every file of the model, also those whose hash is on record."),
)


@click.command("bless", cls=Command, epilog=EXAMPLES)
@IMAGE
@packed("given", BlessOptions, _OPTIONS)
@with_image()
def bless_command(app: App, image: str, given: BlessOptions) -> None:
    """The cache is compiled in one container and tested in others, each fresh.

    If all trials pass, a manifest is written that lets `nvllm serve` load this cache, and no other. With --on, the
    compile and the first trial run here; the cache goes to REPO, and the other trials to machines of this host's class.
    """
    _refuse_pairs(given)
    number, unsafe = preflight.boots(given.trials, given.claim, given.unsafe_trials)
    ends = manifest.parse_expiry(given.expires, time.time()) if given.expires is not None else None
    blessings = Blessings.of_project(app.project, app.places)
    examination = examine(
        app.project, app.places, image, given.profile, Depth.UNBLESSED, paranoid=given.paranoid, progress=app.progress
    )
    asker, problems = evaluation.prepared(app.project, app.places, examination)
    examination = replace(examination, refusals=(*examination.refusals, *problems))
    candidate = None
    if given.candidate is not None:
        cure = f"name the repository that has it: nvllm pull REPO {image} --blessing {given.profile}"
        candidate = blessings.candidate(given.candidate, examination.plan.serve_hash, cure)
    asked = BlessRequest(number, given.claim, unsafe, given.rebless, given.extend, given.sign, ends, candidate)
    signers = app.project.signers(examination.profile.bless.signers)
    old = preflight.preflight(examination, blessings, asked, signers, time.time())
    for waiver in examination.plan.waivers:
        app.progress.note(f"WAIVER {waiver.name}: {waiver.reason}")
    compiled = None
    with contextlib.ExitStack() as stack:
        pool = None
        if given.addresses:
            pool = _pool(app, examination, stack.enter_context(connected(app, given.addresses)))
        if given.dry_run:
            _show_plan(app, examination, number, pool)
            return
        if candidate is not None:
            app.progress.note(f"CANDIDATE {candidate.tree_hash[:12]}: the trials run code that another host compiled")
        app.remember_project()
        base = old.manifest if old is not None and given.extend else None
        owners.claim(app.project, app.places, examination.plan.instance)
        pin = stack.enter_context(Pins(app.places.pins).pin())
        if pool is None or given.registry is None:
            held_locks = stack.enter_context(supervisor.hold_locks(examination, app.places, _command(examination)))
            # By each call: the logs of each compile and its trials have a directory of their own.
            work = partial(
                Bless, examination, app.places, held_locks, app.progress, pin, asker, keep_days=given.keep_rejected
            )
            if given.artifacts is not None:
                compiled = several.run(work, asked, given.artifacts, app.progress)
                result = compiled.result
            else:
                result = work().run(asked, base) if candidate is None else work().prove(asked.boots, candidate)
        else:
            result = _spread(app, examination, asked, base, pool, repository(app, given.registry), pin, asker)
        new = blessing.new_manifest(examination, blessings, result, asked, time.time())
        file = app.project.show(blessing.promote(blessings, new, old, given.sign))
        kept = f"Commit {file}" if app.project.own else f"It holds on this host: {file}"
        if candidate is not None:
            promotion.settle(blessings, candidate)
        left = KernelReports(app.places.kernels).settle(new.serve_hash, new.tree)
    for kernel in left:
        app.progress.note(f"STILL MISSING {kernel.name} ({kernel.arguments}): no round of requests needed it")
    counted, more = _counted(compiled)
    data = {**_data(image, new, file, signed=given.sign is not None), **counted}
    app.out.result("bless", data, _text(new, f"{more}{kept}"))


def _counted(compiled: SeveralResult | None) -> tuple[dict[str, Json], str]:
    """Return what COMPILED adds to the document, and to the text; nothing if there was one compile."""
    if compiled is None:
        return {}, ""
    return {"compiles": compiled.compiles, "rejected": [*compiled.rejected]}, f"{compiled.text}. "


def _refuse_pairs(given: BlessOptions) -> None:
    """Raise Refused NV108 for options of GIVEN that do not go together."""
    check_registry(given.addresses, given.registry)
    if given.rebless and given.extend:
        raise refuse("NV108", "nvllm bless", "--rebless or --extend", "--rebless and --extend", "name one of them")
    if given.candidate is not None and (given.extend or given.addresses):
        other = "--extend" if given.extend else "--on"
        raise refuse("NV108", "nvllm bless", f"--candidate or {other}", "both", "a candidate is tried whole, and here")
    if given.keep_rejected and given.addresses:
        raise refuse("NV108", "nvllm bless --keep-rejected", "trials here", "--on", "leave --on out")
    if given.artifacts is not None and (given.extend or given.candidate is not None or given.addresses):
        other = "--extend" if given.extend else "--candidate" if given.candidate is not None else "--on"
        expected = "compiles from nothing, here"
        raise refuse("NV108", "nvllm bless --artifacts", expected, other, f"leave {other} out")


def _command(examination: Examination) -> str:
    return shlex.join(["nvllm", "bless", examination.plan.image, "--profile", examination.plan.profile])


def _pool(app: App, examination: Examination, carrier: Carrier) -> MachinePool:
    """Return the machines of CARRIER that are of this host's class. Raises Refused NV343 if there is none."""
    host = hostclass.host_class(survey.host_facts(app.places, examination.engine or engine.require()))
    pool = MachinePool(
        carrier, host, app.progress, f"{_command(examination)}, here alone; or add a machine: docs/fleet.md"
    )
    app.progress.note(f"machines of class {host}: {len(pool.fitting())}")
    return pool


def _show_plan(app: App, examination: Examination, number: int, pool: MachinePool | None) -> None:
    """Show where NUMBER trials of the profile of EXAMINATION would run."""
    machines = pool.fitting() if pool is not None else []
    here = number if pool is None else 1
    data: Json = {
        "dry_run": True,
        "image": examination.plan.image,
        "serve_hash": examination.plan.serve_hash,
        "boots": number,
        "boots_here": here,
        "machines": [machine.name for machine in machines],
        "class": pool.host if pool is not None else None,
    }
    app.out.result("bless", data, f"nothing was done; it would run {boots.plan_text(machines, number)}")


def _spread(
    app: App,
    examination: Examination,
    asked: BlessRequest,
    base: Manifest | None,
    pool: MachinePool,
    registry: Repository,
    pin: Pin,
    asker: Asker | None,
) -> BlessResult:
    """Return the result of a bless whose compile and first trial run here, and the others on the machines of POOL.

    PIN keeps tree and evidence meanwhile.
    """
    assert examination.build is not None  # without a lock there was no examination
    plan, build = examination.plan, examination.build
    builder = image_builder(app)
    pushed = images.push_image(builder.image(build), images.tag_of(build), registry)
    served = ServedProfile(
        plan.image, plan.profile, plan.build_hash, registry.name.typed, pushed.digest, pool.host, plan.serve_hash
    )
    ready = boots.check_ready(pool, served)
    app.progress.note(f"{len(ready)} machines have the image and the models")
    with supervisor.hold_locks(examination, app.places, _command(examination)) as held_locks:
        work = Bless(examination, app.places, held_locks, app.progress, pin, asker)
        made, trials = work.begin(1, asked.boots, base)
    # Without these locks: this host may be one of the machines.
    label, platform = f"{plan.image}-{plan.profile}", build.lock.platform
    candidate = candidates.push_candidate(made.tree, label, work.cure, platform, app.places, registry, app.progress)
    machines = BootMachines(pool, served, work.evidence)
    return work.result(made, (*trials, *machines.boots(made, candidate, trials[0], asked.boots - 1)))


def _data(image: str, new: Manifest, file: str, *, signed: bool) -> dict[str, Json]:
    return {
        "file": file,
        "image": image,
        "label": new.label,
        "version": new.version,
        "unsafe": new.unsafe,
        "serve_hash": new.serve_hash,
        "tree_hash": new.tree_hash,
        "files": len(new.tree.files),
        "boots": new.claim.boots,
        "bound": new.claim.bound,
        "replays": new.claim.replays,
        "kv_tokens": new.kv_tokens,
        "expires": new.expires,
        "signed": signed,
        "evaluation": [f"{record.file}: {record.text}" for record in new.evaluations],
        "machines": [trial.machine.name if trial.machine is not None else None for trial in new.trials],
    }


def _text(new: Manifest, kept: str) -> str:
    unsafe = " UNSAFE: no production profile serves it." if new.unsafe else ""
    ends = f" Until {new.expires}." if new.expires is not None else ""
    evaluated = "".join(f" {record.file}: {record.text}." for record in new.evaluations)
    return (
        f"blessed: {new.label} v{new.version}, {new.claim.boots} of {new.claim.boots} fresh boots good: at least "
        f"{int(new.claim.bound * 100)} % of boots are, at 95 % confidence.{evaluated}{unsafe}{ends} {kept}"
    )
