"""`nvllm fetch`: all that a build needs, before the network is gone."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from nvllm.cli import terminal
from nvllm.cli.build import fresh_build
from nvllm.cli.frame import App, Command
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.cli.model import verify
from nvllm.core.canonical import Json
from nvllm.core.lock import Lock, LockedFile, LockedRegistryBase
from nvllm.core.refusal import Refusal, collected, refuse_any
from nvllm.kernels import toolchain
from nvllm.models import location
from nvllm.sources import fetch
from nvllm.sources.hub import download
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store

EXAMPLES = """
Examples:
  nvllm fetch cpu --dry-run          how many files and bytes are missing
  nvllm fetch cpu                    fetch them; what was interrupted goes on where it was
  nvllm fetch sm120 --models         the models that a hub serves too
  nvllm build cpu --offline          needs no network then
"""


@click.command("fetch", cls=Command, epilog=EXAMPLES)
@IMAGE
@click.option("--models", is_flag=True, help="Download the image's models of a hub too, and hash them.")
@click.option("--dry-run", is_flag=True, help="Say what is missing; fetch nothing.")
@with_image()
def fetch_command(app: App, image: str, models: bool, dry_run: bool) -> None:
    """Every file of the lock for the platform goes into the store: packages, wheels, the source of vLLM.

    Files that the store has already are hashed; one with other bytes is removed and refused, and the next fetch brings
    it.

    For an image with kernels, the compilers for this host and this Python too. The base image of a registry is none of
    these files: `docker pull` brings it.
    """
    build = fresh_build(app, image, None)
    store, files = Store(app.places.store), needed(build.lock)
    damaged = fetch.damaged(files, store, app.progress)
    missing = (*fetch.missing(files, store), *damaged)
    hub = [(name, locked) for name, locked in build.lock.models.items() if models and locked.kind == "huggingface"]
    if not dry_run:
        app.remember_project()
        _remove(damaged, store, f"nvllm fetch {image} --platform {build.lock.platform}")
        fetch.fetch(files, store, Sources.of(build.lock, os.environ), app.progress, offline=app.offline)
        if not app.offline:
            for name, locked in hub:
                download(locked, location.model_directory(build.spec, name, app.places), progress=app.progress)
        refuse_any(verify(app, build, hub))
    sizes = {file.sha256: file.size for file in files}
    total, lacking = sum(sizes.values()), sum(file.size for file in missing)
    base = build.lock.base.image if isinstance(build.lock.base, LockedRegistryBase) else None
    data: Json = {
        "image": image,
        "platform": build.lock.platform,
        "files": len(sizes),
        "bytes": total,
        "missing_files": len(missing),
        "missing_bytes": lacking,
        "fetched": not dry_run,
        "models": [name for name, _ in hub],
        "base": base,
    }
    did = "to fetch" if dry_run else "fetched"
    lines = [
        f"{image} for {build.lock.platform}: {len(sizes)} files, {terminal.size(total)}",
        f"  {did}  {len(missing)} files, {terminal.size(lacking)}" if missing else "  all in the store already",
        *(f"  model {name}  {terminal.size(sum(file.size for file in locked.files))}" for name, locked in hub),
        *([f"  not in the store: the base image, docker pull {base}"] if base is not None else ()),
    ]
    app.out.result("fetch", data, "\n".join(lines))


def _remove(damaged: Sequence[LockedFile], store: Store, cure: str) -> None:
    """Remove the DAMAGED files from STORE. Raises Refused NV205 with CURE for each of them."""
    refusals: list[Refusal] = []
    for file in damaged:
        with collected(refusals):
            store.verify(file.sha256, cure)
    refuse_any(refusals)


def needed(lock: Lock) -> tuple[LockedFile, ...]:
    """Return the files that a build of LOCK on this host needs. Raises Refused NV311 if no compiler of it runs here."""
    return (*lock.files, *toolchain.files(lock), *lock.vllm.native_files)
