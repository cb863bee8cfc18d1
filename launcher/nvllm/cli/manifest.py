"""`nvllm manifest`: the blessings of a project, and their revocation."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import click

from nvllm.bless import page
from nvllm.cache import promotion, signature
from nvllm.cache.blessings import Blessing, Blessings
from nvllm.cache.manifest import FORM, Manifest, PhaseTime, TrialRecord, encode
from nvllm.cache.store import TreeStore
from nvllm.cli import terminal
from nvllm.cli.complete import blessings
from nvllm.cli.frame import PATH, App, Group, packed, sentence, with_app
from nvllm.cli.webpage import OPTIONS, WebPage
from nvllm.core import documents
from nvllm.core.canonical import Json
from nvllm.core.refusal import Refusal, collected, refuse_any

EXAMPLES = """
Examples:
  nvllm manifest list                            every blessing, and whether it is in force
  nvllm manifest list --all                      also the archived ones
  nvllm manifest show cpu-tiny-compiled          one of them: claim, trials and phases
  nvllm manifest show 3bcf597 --html bless.html  the same as one web page, with plots
  nvllm manifest verify 3bcf597                  hash its cache again
  nvllm manifest restore 3bcf597                 go back to an archived one
  nvllm manifest revoke 3bcf597 --reason "..."   never serve its cache again
"""


manifest_command = Group("manifest", epilog=EXAMPLES)


def _blessings(app: App) -> Blessings:
    """Return the blessings of the project, as this host sees them."""
    return Blessings.of_project(app.project, app.places)


def trees(app: App) -> TreeStore:
    """Return the store of blessed caches of this host."""
    return TreeStore(app.places.trees)


_NAME = "A file name, a label, or at least 7 digits of a serve hash or tree hash."


def _archived(app: App, blessing: Blessing) -> bool:
    return blessing.path.parent != _blessings(app).directory


def _state(app: App, blessing: Blessing) -> str:
    """Return in a word whether BLESSING can be served by a production profile, or why not."""
    archived = ["archived"] if _archived(app, blessing) else []
    if blessing.manifest is None:
        return ", ".join([*archived, "damaged"])
    against = _blessings(app).reasons_against(blessing.path, blessing.manifest, time.time())
    return ", ".join([*archived, *(refusal.title for refusal in against)]) or "in force"


def _readable(blessing: Blessing) -> Manifest:
    refuse_any(blessing.refusals)
    assert blessing.manifest is not None
    return blessing.manifest


@manifest_command.command("list", epilog=EXAMPLES)
@click.option("--all", "archived", is_flag=True, help="Also list archived blessings.")
@with_app
def list_command(app: App, archived: bool) -> None:
    """List the blessings of the project."""
    blessings = _blessings(app)
    every = [
        (blessing, _state(app, blessing))
        for blessing in (*blessings.all(), *(blessings.archived() if archived else ()))
    ]
    store = trees(app)
    rows = [
        (
            blessing.path.stem,
            str(blessing.manifest.version),
            f"{blessing.manifest.claim.boots} boots",
            blessing.manifest.created,
            state,
        )
        if blessing.manifest is not None
        else (blessing.path.stem, "-", "-", "-", state)
        for blessing, state in every
    ]
    data: Json = {
        "blessings": [
            {
                "file": blessing.path.name,
                "state": state,
                "archived": _archived(app, blessing),
                "serve_hash": blessing.manifest.serve_hash if blessing.manifest else None,
                "tree_hash": blessing.manifest.tree_hash if blessing.manifest else None,
                "here": blessing.manifest is not None and store.has(blessing.manifest.tree_hash),
                "version": blessing.manifest.version if blessing.manifest else None,
            }
            for blessing, state in every
        ]
    }

    def text() -> None:
        if rows:
            app.out.table(["blessing", "version", "evidence", "created", "state"], rows)
        else:
            app.out.line("nothing is blessed: nvllm bless IMAGE --profile NAME")

    unknown = [refusal for blessing, _ in every for refusal in _revocation_unknown(blessings, blessing)]
    app.show("manifest list", data, text, unknown)


def _revocation_unknown(blessings: Blessings, blessing: Blessing) -> list[Refusal]:
    """Return why nobody can say whether the cache of BLESSING is revoked: what keeps this user from looking."""
    if blessing.manifest is None:
        return []
    against = blessings.revocations.against(blessing.path, blessing.manifest)
    return [refusal for refusal in against if refusal.where != str(blessing.path)]


@manifest_command.command("show", epilog=EXAMPLES)
@click.argument("name", shell_complete=blessings, help=_NAME)
@packed("written", WebPage, OPTIONS)
@with_app
def show(app: App, name: str, written: WebPage) -> None:
    """Show one blessing with its evidence."""
    blessing = _blessings(app).named(name)
    manifest = _readable(blessing)
    state = _state(app, blessing)
    signed = _blessings(app).signature(manifest).is_file()
    data: Json = {
        "file": blessing.path.name,
        "state": state,
        "archived": _archived(app, blessing),
        "signed": signed,
        "directory": str(trees(app).path(manifest.tree_hash)),
        "manifest": documents.unstructure(FORM, manifest),
    }
    usual = app.places.work(app.project) / "pages" / f"{blessing.path.stem}.html"
    message = written.written(usual, lambda: page.html(manifest, state))
    app.out.result(
        "manifest show", data, message or (lambda: _show_text(app, manifest, state, "there" if signed else "none"))
    )


def _show_text(app: App, manifest: Manifest, state: str, signed: str) -> None:
    claim, cold = manifest.claim, manifest.cold
    rows = [
        ("state", state),
        ("profile", f"{manifest.image}/{manifest.profile}"),
        ("serve hash", manifest.serve_hash),
        ("build hash", manifest.build_hash),
        ("tree", f"{manifest.tree_hash}, {len(manifest.tree.files)} files, {manifest.tree.size} bytes"),
        ("version", f"{manifest.version}, {manifest.created}, expires {manifest.expires or 'never'}"),
        ("signature", signed),
        *(("evaluation", evaluation.summary) for evaluation in manifest.evaluations),
        (
            "fresh boots",
            f"{claim.boots}, all good: at least {int(claim.bound * 100)} % of boots are, at 95 % confidence",
        ),
        ("inside them", f"{claim.replays} answers to {claim.prompts} prompts; repeats, which add nothing to that"),
        ("bootstrap", f"{cold.saved} saved; {cold.compiles} compiles in its log, {cold.kernels} kernels in no cache"),
        ("KV tokens", str(manifest.kv_tokens or "-")),
    ]
    app.out.table([manifest.label, ""], rows)
    app.out.line("")
    app.out.table(_TRIAL, [_trial(trial) for trial in manifest.trials])
    boots = [
        ("bootstrap", cold.phases, cold.processor),
        *((str(trial.number), trial.phases, trial.processor) for trial in manifest.trials),
    ]
    names = list(dict.fromkeys(phase.name for _, phases, _ in boots for phase in phases))
    app.out.line("")
    app.out.table(
        ["seconds of", *names, "processor"],
        [(name, *_seconds(phases, names), f"{processor:.1f}") for name, phases, processor in boots],
    )


_TRIAL = ("trial", "repeats agree", "prompts apart", "loaded", "saved", "tree kept", "answers", "compiled", "KV tokens",
          "peak memory", "container", "machine")  # fmt: skip


def _trial(trial: TrialRecord) -> tuple[str, ...]:
    signs = (trial.coherent, trial.independent, trial.loaded, trial.saved, trial.unchanged)
    memory = terminal.size(trial.peak_memory) if trial.peak_memory is not None else "-"
    figures = (str(trial.replays), str(trial.compiles), str(trial.kv_tokens or "-"), memory, trial.boot[:12],
               trial.machine.name if trial.machine is not None else "here")  # fmt: skip
    return (str(trial.number), *("yes" if sign else "no" for sign in signs), *figures)


def _seconds(phases: Sequence[PhaseTime], names: Sequence[str]) -> list[str]:
    """Return what each of NAMES took of PHASES."""
    took = {phase.name: f"{phase.seconds:.1f}" for phase in phases}
    return [took.get(name, "-") for name in names]


@manifest_command.command("verify", epilog=EXAMPLES)
@click.argument("name", shell_complete=blessings, help=_NAME)
@click.option("--signers", type=PATH, help="An allowed signers file; one of them must have signed.")
@with_app
def verify(app: App, name: str, signers: Path | None) -> None:
    """Hash a blessed cache again, and check its manifest."""
    blessings, blessing = _blessings(app), _blessings(app).named(name)
    manifest = _readable(blessing)
    refusals = blessings.reasons_against(blessing.path, manifest, time.time())
    signer = None
    with collected(refusals):
        if signers is not None:
            signer = blessings.signer(blessing.path, manifest, signers)
    with collected(refusals):
        trees(app).verify(manifest.tree, manifest.cure)
    refuse_any(refusals)
    data: Json = {
        "file": blessing.path.name,
        "tree_hash": manifest.tree_hash,
        "bytes": manifest.tree.size,
        "signer": signer,
    }
    by = f", signed by {signer}" if signer is not None else ""
    app.out.result("manifest verify", data, f"{blessing.path.stem}: {len(manifest.tree.files)} files as blessed{by}")


@manifest_command.command("restore", epilog=EXAMPLES)
@click.argument("name", shell_complete=blessings, help="An archived blessing, by the name of its file or a tree hash.")
@click.option("--sign", type=PATH, metavar="KEY", help="Sign the manifest with this SSH key.")
@with_app
def restore(app: App, name: str, sign: Path | None) -> None:
    """Bring an archived blessing into force again, by a new version.

    Its trials, its age and its end stay what they are. The one in force is archived, and can be restored in turn.
    """
    blessings, blessing = _blessings(app), _blessings(app).named(name)
    earlier = _readable(blessing)
    refusals = blessings.reasons_against(blessing.path, earlier, time.time())
    # What is archived is older than what is in force, and few trials are enough for a development profile.
    refusals = [refusal for refusal in refusals if refusal.blame not in {"version", "few trials"}]
    if not _archived(app, blessing):
        expected = "an archived blessing"
        refusals.append(Refusal("NV108", str(blessing.path), expected, "the one in force", "nvllm manifest list --all"))
    if sign is None and blessings.signature(earlier).is_file():
        restore = shlex.join(["nvllm", "manifest", "restore", blessing.path.stem, "--sign", "KEY"])
        cure = f"with the key of a signer: {restore}"
        expected = "a signature of its new version, as the blessing had one"
        refusals.append(Refusal("NV909", "--sign", expected, "no key", cure))
    with collected(refusals):
        trees(app).verify(earlier.tree, earlier.cure)
    refuse_any(refusals)
    new = promotion.restored(blessings, earlier)
    signed = signature.sign(encode(new), sign, new.filename) if sign is not None else None
    before = next(iter(blessings.of(new.serve_hash)), None)
    file = app.project.show(promotion.promote(blessings, new, before, signed))
    data: Json = {
        "file": file,
        "label": new.label,
        "version": new.version,
        "restored": earlier.version,
        "tree_hash": new.tree_hash,
        "signed": signed is not None,
    }
    kept = f"commit {file}" if app.project.own else f"on this host: {file}"
    text = f"restored: {new.label} v{earlier.version}, in force as v{new.version}; {kept}"
    app.out.result("manifest restore", data, text)


@manifest_command.command("revoke", epilog=EXAMPLES)
@click.argument("name", shell_complete=blessings, help=_NAME)
@click.option("--reason", callback=sentence, required=True, help="The reason. Every later refusal shows it.")
@with_app
def revoke(app: App, name: str, reason: str) -> None:
    """Never serve the cache of a blessing again.

    This cannot be undone. NAME may be an archived blessing, or a whole tree hash that no manifest here names.
    """
    blessings = _blessings(app)
    tree_hash = blessings.tree(name)
    naming = blessings.naming(tree_hash)
    record = app.project.show(blessings.revocations.add(tree_hash, reason, time.time(), naming))
    data: Json = {"tree_hash": tree_hash, "manifests": list(naming), "record": record}
    named = f"which {', '.join(naming)} names" if len(naming) == 1 else f"which {len(naming)} manifests here name"
    kept = f"commit {record}" if app.project.own else f"on this host: {record}"
    app.out.result("manifest revoke", data, f"revoked: tree {tree_hash}, {named}; {kept}")
