"""`nvllm doctor`, `explain` and `gc`: checks, differences of hashes, and the removal of garbage."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nvllm.cache.store import TreeStore
from nvllm.cli import terminal
from nvllm.cli.complete import compared, profiles
from nvllm.cli.frame import PATH, App, Command, with_app
from nvllm.cli.image_argument import IMAGE, profile_missing, selected
from nvllm.core import canonical, catalogue, explain, plan, reading
from nvllm.core.canonical import Json
from nvllm.core.explain import Factor, Side
from nvllm.core.plan import LaunchPlan
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.engine import engine
from nvllm.gc import garbage
from nvllm.gc.garbage import Piece
from nvllm.gc.projects import Projects
from nvllm.host import checks, survey
from nvllm.host.checks import Outcome, Subject
from nvllm.host.facts import EngineProblem
from nvllm.image import identity
from nvllm.lock.project import read_lock
from nvllm.models import memory
from nvllm.models.memory import Memory
from nvllm.patches import proved
from nvllm.serve import overview, servehash
from nvllm.serve.examination import Depth, examine
from nvllm.serve.overview import ImageNeeds
from nvllm.spec import specfile

if TYPE_CHECKING:
    from nvllm.lock.updates import Reminder

DOCTOR_EXAMPLES = """
Examples:
  nvllm doctor                               the host, and what each image needs here
  nvllm doctor cpu --profile tiny-eager      every check of `serve`
"""
EXPLAIN_EXAMPLES = """
Examples:
  nvllm explain cpu nvllm:cpu-3bcf597f67cd           a spec, and an image in the engine
  nvllm explain cpu/tiny-eager cpu/tiny-compiled     two profiles
  nvllm explain cpu/tiny-eager nvllm-cpu-tiny-eager  a profile, and an instance that was started
  nvllm explain NV907                                what that refusal means
"""
GC_EXAMPLES = """
Examples:
  nvllm gc --dry-run         list what would be removed, with sizes
  nvllm gc                   remove it
  nvllm gc --forget DIR      also what only the deleted project at DIR needed
"""


@click.command("doctor", cls=Command, epilog=DOCTOR_EXAMPLES)
@IMAGE
@click.option("--profile", shell_complete=profiles, help="A profile of the image.")
@with_app
def doctor(app: App, image: str | None, profile: str | None) -> None:
    """Without --profile: the checks of the host, and what each image of the project needs before it can be built,
    served and blessed. With it: every check that `nvllm serve` runs.
    """
    if profile is not None:
        image = selected(app)
    elif image is not None:
        raise profile_missing(click.get_current_context())
    reminder, needed = None, None
    every: tuple[ImageNeeds, ...] = ()
    if image is None or profile is None:
        docker: engine.Engine | EngineProblem = engine.connect()
        facts = survey.host_facts(app.places, docker)
        outcomes = checks.outcomes(Subject(None, facts))
        every = overview.needs(app.project, app.places, docker, facts)
        refusals = [refusal for outcome in outcomes for refusal in outcome.refusals]
    else:
        seen = examine(app.project, app.places, image, profile, Depth.SHOW, paranoid=True, progress=app.progress)
        outcomes, refusals = seen.outcomes, list(seen.refusals)
        reminder, needed = _reminder(app, image), _memory(app, image, profile, seen.plan)
        rules = specfile.of(app.project, image).profiles[profile]
        if rules.blessed and rules.bless.signers is None:
            app.progress.note(f"UNSIGNED profile {profile} names no signers: who writes the project writes blessings")
    rows: list[Json] = [
        {"code": outcome.code, "name": outcome.name, "state": outcome.state, "detail": outcome.detail}
        for outcome in outcomes
    ]
    data: dict[str, Json] = {"image": image, "checks": rows}
    if every:
        data["images"] = [_needs_data(needs) for needs in every]
    if reminder is not None:
        data["security"] = reminder.data
    if needed is not None:
        data["memory"] = {**asdict(needed), "blocks": needed.blocks, "tokens": needed.tokens}

    def text() -> None:
        _outcomes_text(app, outcomes, reminder, needed)
        _needs_text(app, every)

    app.show("doctor", data, text, refusals)


def _needs_data(needs: ImageNeeds) -> Json:
    steps = {"build": needs.build, "serve": needs.serve, "bless": needs.bless}
    lacks: dict[str, Json] = {
        name: None
        if refusals is None
        else [{"code": lack.code, "title": lack.title, "cure": lack.cure} for lack in refusals]
        for name, refusals in steps.items()
    }
    proofs: dict[str, Json] = {"proofs": {**needs.proofs}} if needs.proofs else {}
    return {"image": needs.image, "built": needs.built, "lacks": lacks, **proofs, "next": needs.next}


def _needs_text(app: App, every: Sequence[ImageNeeds]) -> None:
    def cell(refusals: Sequence[Refusal] | None) -> str:
        if refusals is None:
            return "no profile"
        words = ("another platform" if refusal.code == "NV108" else refusal.title for refusal in refusals)
        return ", ".join(dict.fromkeys(words)) or "ready"

    if every:
        app.out.line("")
        steps = [
            (needs.image, "built" if needs.built else cell(needs.build), cell(needs.serve), cell(needs.bless))
            for needs in every
        ]
        rows = [(*step, proved.words(needs.proofs) or "-") for step, needs in zip(steps, every, strict=True)]
        app.out.table(["image", "build", "serve", "bless", "proofs"], rows)
        app.out.line("next:")
        for needs in every:
            app.out.line(f"  {needs.image}: {needs.next}")


def _reminder(app: App, image: str) -> Reminder | None:
    from nvllm.lock import updates  # its clients of indexes take longer to load than a `doctor` that asks none

    try:
        lock = read_lock(app.project, image)
    except Refused:  # it is among what was seen already
        return None
    return updates.remind(lock, os.environ, offline=app.offline)


def _memory(app: App, image: str, profile: str, planned: LaunchPlan) -> Memory | None:
    """Return the memory that the model of PLANNED takes on a GPU; None if that is not known, or the model not here."""
    if planned.gpu is None:
        return None
    inside = f"{planned.model.path}/"
    files = [
        (mount.target.removeprefix(inside), Path(mount.source))
        for mount in planned.mounts
        if mount.target.startswith(inside)
    ]
    arguments = specfile.of(app.project, image).profiles[profile].arguments
    return memory.of_files(files, arguments)


def _memory_text(needed: Memory) -> str:
    parts = (needed.weights, needed.cache, needed.weights + needed.cache)
    weights, cache, both = (terminal.size(part) for part in parts)
    return (
        f"memory: weights {weights}, cache {cache}, together {both}, and what activations and graphs take\n"
        f"  a token takes {needed.token:,} bytes of the cache, the states of a sequence {needed.states:,}\n"
        f"  {needed.blocks:,} blocks of {needed.block_tokens:,} tokens; a request of {needed.length:,} tokens takes "
        f"{needed.request_blocks:,}, so {needed.requests:.1f} requests of that length fit at once"
    )


def _outcomes_text(app: App, outcomes: Sequence[Outcome], reminder: Reminder | None, needed: Memory | None) -> None:
    made = [outcome for outcome in outcomes if outcome.state != "skipped" or outcome.detail != checks.NO_PLAN]
    app.out.table(
        ["code", "check", "", "seen"], [(outcome.code, outcome.name, outcome.state, outcome.detail) for outcome in made]
    )
    if len(made) < len(outcomes):
        app.out.line(f"{len(outcomes) - len(made)} more checks are of a profile: nvllm doctor IMAGE --profile NAME")
    if needed is not None:
        app.out.line(_memory_text(needed))
    if reminder is not None:
        app.out.line("\n".join(reminder.words))


@click.command("explain", cls=Command, epilog=EXPLAIN_EXAMPLES)
@click.argument("a", shell_complete=compared, help="An image, IMAGE/PROFILE, an instance, a tag, or a refusal's code.")
@click.argument("b", required=False, shell_complete=compared, help="The one to compare it with.")
@with_app
def explain_command(app: App, a: str, b: str | None) -> None:
    """With the code of a refusal alone: what it means, and how a command ends that shows it."""
    if b is None:
        _explain_code(app, a)
        return
    before, after = _side(app, a), _side(app, b)
    if before.kind != after.kind:
        kinds = f"a {before.kind} hash and a {after.kind} hash"
        cure = "compare two images, or two of IMAGE/PROFILE and instances"
        raise refuse("NV108", f"{a} {b}", "two hashes of the same kind", kinds, cure)
    factors = explain.differences(before.factors, after.factors)
    data: Json = {
        "kind": before.kind,
        "a": {"name": a, "hash": before.hash},
        "b": {"name": b, "hash": after.hash},
        "factors": [{"path": factor.path, "a": factor.before, "b": factor.after} for factor in factors],
    }
    app.out.result("explain", data, lambda: _factors_text(app, before, after, factors))


def _explain_code(app: App, name: str) -> None:
    """Show the page of the refusal code NAME. Raises Refused NV107, which names the nearest codes, if there is none."""
    code = name.upper()
    if code not in catalogue.CODES:
        near = catalogue.nearest(code)
        cure = f"nvllm explain {near[0] if near else 'NV101'}"
        expected = f"the code of a refusal, such as {' or '.join(near or ['NV101'])}; or two things to compare"
        raise refuse("NV107", "nvllm explain", expected, name, cure)
    entry = catalogue.CODES[code]
    ending, test = catalogue.EXIT_CODES[entry.kind], f"tests/refusals/test_{code.lower()}*.py"
    data: Json = {
        "code": code,
        "title": entry.title,
        "kind": entry.kind,
        "exit_status": ending,
        "meaning": entry.meaning,
        "test": test,
    }
    text = (
        f"{code} {entry.title}\n  meaning      {entry.meaning}\n  exit status  {ending}, {entry.kind}\n"
        f"  provoked by  {test}\nThe refusal itself says where, what was expected and found, and its cure."
    )
    app.out.result("explain", data, text)


def _factors_text(app: App, before: Side, after: Side, factors: Sequence[Factor]) -> None:
    if not factors:
        app.out.line(f"the same {before.kind} hash: {before.hash}")
        return
    rows = [(factor.path, factor.before or "-", factor.after or "-") for factor in factors]
    app.out.table(
        [f"{before.kind} factor", f"{before.named} {before.hash[:12]}", f"{after.named} {after.hash[:12]}"], rows
    )


def _side(app: App, name: str) -> Side:
    """Return the hash of NAME and its factors. Raises Refused NV107 if NAME has no hash."""
    image, slash, profile = name.partition("/")
    if image in app.project.image_names() and slash:
        examined = examine(app.project, app.places, image, profile, Depth.WHOLE, paranoid=False, progress=app.progress)
        return Side(name, "serve", examined.plan.serve_hash, servehash.factors(examined.plan))
    if image in app.project.image_names():
        build, _ = identity.load_build(app.project, image, None)
        return Side(name, "build", build.build_hash, build.factors)
    instances = {place.name: place / "plan.json" for place in reading.listed(app.places.runs, "*")}
    if name in instances and instances[name].exists():
        return _instance(name, instances[name])
    docker = engine.connect()
    if not isinstance(docker, EngineProblem) and (facts := docker.image(name)) is not None:
        data = docker.read_file(facts.id, "/" + identity.IDENTITY_PATH)
        if data is not None:
            return read_identity(name, data)
    known = ", ".join(app.project.image_names())
    expected = f"an image ({known}), IMAGE/PROFILE, an instance, or a tag of the engine"
    raise refuse("NV107", shlex.quote(name), expected, "nothing of that name", "nvllm status && docker images nvllm")


def _instance(name: str, document: Path) -> Side:
    """Return what the plan in DOCUMENT hashed. Raises Refused NV108 or NV109 if this version cannot read it."""
    data = reading.required(document, reading.STATE, str(document))
    try:
        planned = plan.decode(canonical.decode(data))
    except ValueError as error:
        cure = "nvllm gc"
        expected, problem = "a launch plan of this version of nvllm", str(error)[:300]
        raise refuse("NV108", str(document), expected, problem, cure) from error
    return Side(name, "serve", planned.serve_hash, servehash.factors(planned))


def read_identity(name: str, data: bytes) -> Side:
    """Return what the identity file DATA of the image NAME says. Raises Refused NV304 if it says nothing."""
    try:
        document = canonical.decode(data)
    except ValueError as error:
        document, problem = None, str(error)[:300]
    else:
        problem = "another document"
    match document:
        case {"build_hash": str(build_hash), "factors": dict(factors)}:
            return Side(name, "build", build_hash, factors)
    where = f"docker engine: {name}: /{identity.IDENTITY_PATH}"
    expected, cure = "a build hash and its factors", shlex.join(["docker", "rmi", name])
    raise refuse("NV304", where, expected, problem, cure)


@click.command("gc", cls=Command, epilog=GC_EXAMPLES)
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@click.option(
    "--keep-younger",
    type=click.IntRange(min=0),
    default=3600,
    metavar="SECONDS",
    show_default=True,
    help="Keep what changed less than so many seconds ago; a build may need it.",
)
@click.option(
    "--forget",
    type=PATH,
    multiple=True,
    metavar="DIR",
    help="The root of a deleted project; also remove what only that project refers to.",
)
@with_app
def gc(app: App, dry_run: bool, keep_younger: int, forget: tuple[Path, ...]) -> None:
    """It removes older images, layers, files that no lock names, caches, and the directories of ended runs.

    nvllm knows every project that has used this cache. If one of them is not where it was or cannot be read, all files
    that it may need stay, the rest goes, and the refusal names the project. --forget says that it was deleted.
    """
    docker = engine.require()
    known = Projects(app.places.projects)
    refuse_any(known.lost(app.places.builds))
    forgotten = [root.absolute() for root in forget]
    projects = {*known.present(forgotten), app.project}
    lost, ids = known.vanished(forgotten), known.ids(forgotten)
    referred, containers = garbage.referred(projects, app.places, lost, ids), docker.containers()
    oldest = time.time() - keep_younger
    old_images = list(garbage.images(app.places, docker.stored(), containers, referred, oldest))
    old_files = list(garbage.files(app.places, referred, containers, oldest))
    pieces: list[Piece] = [*old_images, *old_files]
    if not dry_run:
        for root in forgotten:
            known.forget(root)
        garbage.forget(app.places, ids)
        app.remember_project()
        # Images before the records of builds: one without a record is taken for another home's, and stays for ever.
        for piece in old_images:
            for tag in piece.tags:
                docker.remove_image(tag)
        for piece in old_files:
            garbage.remove(piece, app.places)
    store = TreeStore(app.places.trees)
    restorable = sorted(tree for tree in referred.restorable if store.has(tree))
    data: Json = {
        "removed": not dry_run,
        "bytes": sum(piece.size for piece in pieces),
        "pieces": [
            {"kind": piece.kind, "name": piece.name, "bytes": piece.size, "note": piece.note} for piece in pieces
        ],
        "restorable": [*restorable],
        "rejected": [
            {"tree": record.tree, "until": record.until, "bless": str(path)} for path, record in referred.rejected
        ],
    }

    def text() -> None:
        _pieces_text(app, pieces, "would go" if dry_run else "removed")
        if restorable:
            names = ", ".join(tree[:12] for tree in restorable)
            app.out.line(f"kept for `nvllm manifest restore`: the caches before those in force: {names}")
        for path, record in referred.rejected:
            app.out.line(f"kept until {record.until}, rejected by the trials of {path}: {record.tree[:12]}")

    app.show("gc", data, text, referred.unknown)


def _pieces_text(app: App, pieces: Sequence[Piece], verb: str) -> None:
    if not pieces:
        app.out.line("nothing to remove")
        return
    rows = [(piece.kind, piece.name, terminal.size(piece.size), piece.note) for piece in pieces]
    app.out.table(["kind", "name", "size", ""], rows)
    app.out.line(f"{len(pieces)} {verb}, {terminal.size(sum(piece.size for piece in pieces))}")
