"""`nvllm bless`: compile a cache, test it in fresh containers, and write the manifest that allows it."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

from nvllm.bless import blessing, preflight
from nvllm.bless.blessing import Bless
from nvllm.bless.preflight import BlessRequest
from nvllm.cache import manifest
from nvllm.cache.blessings import Blessings
from nvllm.cache.manifest import LEAST_BOOTS, Manifest
from nvllm.cli.complete import images, profiles
from nvllm.cli.frame import PATH, App, Command, with_app
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse
from nvllm.serve import examine, supervisor
from nvllm.serve.kernel_reports import KernelReports

EXAMPLES = """
Examples:
  nvllm bless cpu --profile tiny-blessed               compile, run 5 trials, write the manifest
  nvllm bless cpu --profile tiny-blessed --claim 0.90  run 29 trials, which that claim needs
  nvllm bless cpu --profile tiny-blessed --rebless     replace the blessing in force
  nvllm bless sm120 --profile NAME --extend            add the kernels that requests needed and it lacks
"""


@click.command("bless", cls=Command, epilog=EXAMPLES)
@click.argument("image", shell_complete=images, help="An image spec: images/IMAGE.yaml.")
@click.option("--profile", required=True, shell_complete=profiles, help="A profile with `blessed: true`.")
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help=f"The number of trials, each in a fresh container.  [default: {LEAST_BOOTS}]",
)
@click.option(
    "--claim",
    type=float,
    metavar="RATE",
    help="Run enough trials to show that at least RATE of all starts are good.",
)
@click.option(
    "--unsafe-trials",
    type=click.IntRange(min=1),
    help="Run fewer trials. Only a profile with `dev: true` may be served by the result.",
)
@click.option("--rebless", is_flag=True, help="Replace the blessing in force, and archive it.")
@click.option(
    "--extend", is_flag=True, help="Add kernels to the cache in force, such as those that `nvllm status` reports."
)
@click.option("--sign", type=PATH, metavar="KEY", help="Sign the manifest with this SSH key.")
@click.option(
    "--expires", metavar="WHEN", help="When the blessing ends: after 30d (or h, w), or on a day such as 2027-01-31."
)
@click.option("--paranoid", is_flag=True, help="Hash every file of the model, also those whose hash is on record.")
@with_app
def bless_command(
    app: App,
    image: str,
    profile: str,
    trials: int | None,
    claim: float | None,
    unsafe_trials: int | None,
    rebless: bool,
    extend: bool,
    sign: Path | None,
    expires: str | None,
    paranoid: bool,
) -> None:
    """The cache is compiled in one container and tested in others, each fresh.

    If all trials pass, a manifest is written that lets `nvllm serve` load this cache, and no other.
    """
    if rebless and extend:
        raise refuse("NV108", "nvllm bless", "--rebless or --extend", "--rebless and --extend", "name one of them")
    number, unsafe = preflight.boots(trials, claim, unsafe_trials)
    ends = manifest.parse_expiry(expires, time.time()) if expires is not None else None
    asked = BlessRequest(number, claim, unsafe, rebless, extend, sign, ends)
    blessings = Blessings.of_project(app.project, app.places)
    found = examine.examine_unblessed(app.project, app.places, image, profile, paranoid=paranoid, progress=app.progress)
    signers = app.project.signers(found.build.spec.profiles[profile].bless.signers)
    old = preflight.preflight(found, blessings, asked, signers, time.time())
    for waiver in found.plan.waivers:
        app.progress.note(f"WAIVER {waiver.name}: {waiver.reason}")
    app.remember_project()
    command = shlex.join(["nvllm", "bless", image, "--profile", profile])
    with supervisor.hold_locks(found, app.places, command) as held_locks:
        work = Bless(found, app.places, held_locks, app.progress)
        base = old.manifest if old is not None and extend else None
        new = blessing.new_manifest(found, blessings, work.run(asked, base), asked, time.time())
        place = app.project.show(blessing.promote(blessings, new, old, sign))
        kept = f"Commit {place}" if app.project.own else f"It holds on this host: {place}"
        left = KernelReports(app.places.kernels).settle(new.serve_hash, new.tree)
    for one in left:
        app.progress.note(f"STILL MISSING {one.name} ({one.arguments}): no round of requests needed it")
    app.out.result("bless", _data(new, place, signed=sign is not None), _text(new, kept))


def _data(new: Manifest, file: str, *, signed: bool) -> Json:
    return {
        "file": file,
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
    }


def _text(new: Manifest, kept: str) -> str:
    unsafe = " UNSAFE: no production profile serves it." if new.unsafe else ""
    ends = f" Until {new.expires}." if new.expires is not None else ""
    return (
        f"blessed: {new.label} v{new.version}, {new.claim.boots} of {new.claim.boots} fresh boots good: at least "
        f"{int(new.claim.bound * 100)} % of boots are, at 95 % confidence.{unsafe}{ends} {kept}"
    )
