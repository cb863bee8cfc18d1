"""`nvllm lock`: the only command that resolves names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import click

from nvllm.cli.complete import models
from nvllm.cli.frame import App, Command
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedVllm
from nvllm.lock import drift, lockdoc, resolve, updates
from nvllm.lock.drift import Drift
from nvllm.lock.project import lock_image, proved_digits, read_inputs, read_lock, usable_lock
from nvllm.lock.updates import Reminder
from nvllm.patches import patchset, proved
from nvllm.sources.store import Store

EXAMPLES = """
Examples:
  nvllm lock cpu                           resolve what images/cpu.yaml added or changed; keep the rest
  nvllm lock cpu --update wheels           let the wheels move to what the indexes have now
  nvllm lock cpu --check                   write nothing; exit 1 if `nvllm lock cpu` would change the lock
  nvllm lock cpu --check --update all      what has moved since the lock was made, by kind
  nvllm lock gb10 --compiled out/vllm.whl  with the wheel that was compiled from the pinned commit
  nvllm lock sm120 --later qwen35-27b-nvfp4   all but that model, on a host that reaches no hub
  nvllm lock cpu --model tiny-lfm2         pin that model as it is now, and keep all other pins
"""


_WIDEST = 100


@click.command("lock", cls=Command, epilog=EXAMPLES)
@IMAGE
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing; list the changes and missing security updates, and exit 1 if the lock would change.",
)
@click.option(
    "--update",
    multiple=True,
    type=click.Choice([*sorted(resolve.PARTS), "all"]),
    help="Resolve this part again, even if the spec has not changed it. Repeatable.",
)
@click.option(
    "--compiled",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="WHEEL",
    help="The wheel that was compiled from the pinned commit; it is locked by its sha256.",
)
@click.option(
    "--later",
    multiple=True,
    metavar="MODEL",
    shell_complete=models,
    help="Do not ask the hub for this model if the lock lacks it; profiles with it are refused until it is locked. "
    "Repeatable.",
)
@click.option(
    "--model",
    "again",
    multiple=True,
    metavar="MODEL",
    shell_complete=models,
    help="Pin this model as it is now: a directory by the files in it, a model of the hub by what it follows. "
    "Repeatable.",
)
@with_image()
def lock(
    app: App,
    image: str,
    check: bool,
    update: tuple[str, ...],
    compiled: Path | None,
    later: tuple[str, ...],
    again: tuple[str, ...],
) -> None:
    """The lock is manifests/IMAGE.lock.json. What it pins stays as long as the spec allows it.

    Only this command resolves names at an index, a mirror or the hub.
    """
    if not check:
        app.project.writable(app.project.lock(image))
    inputs = read_inputs(app.project, image)
    previous = read_lock(app.project, image) if check else usable_lock(app.project, image, app.progress)
    app.remember_project()
    new = lock_image(
        inputs, previous, app.places, update, compiled, later, again, offline=app.offline, progress=app.progress
    )
    drifts = drift.compare(previous, new) if previous is not None else ()
    changed = lockdoc.encode(previous) != lockdoc.encode(new) if previous is not None else True
    if not check:
        lockdoc.write(app.project.lock(image), new)
    file = app.project.show(app.project.lock(image))
    data: dict[str, object] = {
        "image": image,
        "platform": app.project.platform,
        "lock": file,
        "changed": changed,
        "drift": [dataclasses.asdict(change) for change in drifts],
    }
    reminder = updates.remind(new, os.environ, offline=app.offline) if check else None
    if reminder is not None:
        data["security"] = reminder.data
    digits = proved_digits(new, Store(app.places.store)) if check else None
    if check:
        data["commit"] = {"commit": new.vllm.commit, "proved_digits": digits}
    verb = ("would change" if check else "written") if changed else "unchanged"
    size = sum(file.size for file in new.files) / 1e6
    head = f"{file}: {verb}, {len(new.files)} files, {size:.0f} MB, {len(new.wheels)} of them wheels"
    if digits is not None:
        head += f"\n{_proved(new.vllm, digits)}"
    enabled = [patch for patch in inputs.series.patches if patch.id in inputs.spec.patches.enable]
    states = proved.tally(app.project, inputs.series.base, enabled)
    if states:
        data["proofs"] = {**states}
        head += f"\npatches: {proved.words(states)}"
    lacking = patchset.lacking(inputs.spec, inputs.series, enabled)
    if lacking:
        data["lacking"] = {name: list(ids) for name, ids in lacking.items()}
        head += "".join(f"\n{line}" for line in lacking_lines(lacking))
    app.out.result("lock", cast("Json", data), lambda: _print(app, head, drifts, reminder))
    if check and changed:
        raise click.exceptions.Exit(1)


def _proved(vllm: LockedVllm, digits: int) -> str:
    commit = vllm.commit
    if vllm.compiled:
        return f"commit {commit}: proved by the hash of its source tree"
    if digits == len(commit):
        return f"commit {commit}: its source archive records all of that"
    return f"commit {commit}: its source archive proves {commit[:digits] or 'nothing'}; the rest is what the spec says"


def lacking_lines(lacking: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each profile that is LACKING patches which it requires."""
    return [
        f"profile {name}: requires {', '.join(ids)}, not in the patch set; serve and bless refuse it (NV613)"
        for name, ids in lacking.items()
    ]


def cell(text: str | None) -> str:
    """Return TEXT as a table of differences shows it: a long list, such as all new arguments, only as it begins."""
    if text is None:
        return "-"
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}... ({len(text)} characters; --json has all)"


def _print(app: App, head: str, drifts: Sequence[Drift], reminder: Reminder | None) -> None:
    app.out.line(head)
    if drifts:
        rows = [(change.kind, change.name, cell(change.before), cell(change.after)) for change in drifts]
        app.out.table(["kind", "name", "before", "after"], rows)
    if reminder is not None:
        app.out.line("\n".join(reminder.words))
