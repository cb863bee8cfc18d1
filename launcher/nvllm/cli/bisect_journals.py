"""Which journal a command of `nvllm bisect` is about: that of an image, or of the bisect that was started last.

::

    <state>/work/<project>/bisect/<image>/    the journal, the probes that run, and journals that were put aside
    <state>/bisect/trials/                    the cache of trials: its keys are hashes, so all projects share it
    <state>/bisect/<image>/journal.jsonl      the journal of an older nvllm, which did not say whose it is
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from nvllm.bisect import journal
from nvllm.bisect.combinations import PatchSet, set_hash
from nvllm.bisect.journal import Journal
from nvllm.bisect.records import BisectStart, BisectState
from nvllm.bisect.trial_cache import TrialCache
from nvllm.cli.complete import images, sets
from nvllm.cli.frame import App
from nvllm.core import reading
from nvllm.core.refusal import Refusal, refuse, refuse_any
from nvllm.engine import engine
from nvllm.gc.projects import Projects
from nvllm.host import locks
from nvllm.host.locks import HeldLocks, Key
from nvllm.trials import bench

option = functools.partial(click.option, show_default=True)
IMAGE = option(
    "--image", metavar="IMAGE", shell_complete=images, help="The image of the bisect.  [default: the last one]"
)
set_argument = functools.partial(click.argument, "chosen", metavar="SET", shell_complete=sets)
set_option = functools.partial(click.option, metavar="SET", shell_complete=sets)
SET = set_argument(help="The seven digits of a set, or ID,...; `none` for no patch.")


def path_of(app: App, image: str) -> Path:
    """Return the path of the journal of this project's bisect of IMAGE."""
    return app.places.work(app.project) / "bisect" / image / "journal.jsonl"


def all_journals(app: App) -> Iterator[Path]:
    """Yield the journals of all bisects of this project, the one that was started last first."""
    journals = (app.places.work(app.project) / "bisect").glob("*/journal.jsonl")
    yield from sorted(journals, key=journal.started, reverse=True)


def unowned(app: App, image: str) -> Refusal | None:
    """Return NV809 if this project has no journal of IMAGE, and there is one that no present project has."""
    own = path_of(app, image).parent
    if own.exists():
        return None
    for old, why in _left_behind(app, image):
        if (old / "journal.jsonl").is_file():
            make, move = shlex.join(["mkdir", "-p", str(own.parent)]), shlex.join(["mv", str(old), str(own)])
            return Refusal(
                "NV809", str(old / "journal.jsonl"), f"a journal of {app.project.root}", why, f"{make} && {move}"
            )
    return None


def _left_behind(app: App, image: str) -> Iterator[tuple[Path, str]]:
    """Yield each directory where a journal of IMAGE may lie that no present project has, and why it has none."""
    older = "one of an older nvllm, which did not record the project; another project may have started it"
    yield app.places.state / "bisect" / image, older
    known = Projects(app.places.projects)
    present, gone = {project.id for project in known.present()}, known.gone()
    for work in reading.listed(app.places.works, "*"):
        if work.name not in {app.project.id, *present}:
            was = f"at {gone[work.name]}" if work.name in gone else "forgotten"
            yield work / "bisect" / image, f"one of a project that was {was}"


def all_unowned(app: App) -> list[Refusal]:
    """Return NV809 for every image with a journal that no present project has; see `unowned`."""
    refusals = [unowned(app, image) for image in app.project.image_names()]
    return [refusal for refusal in refusals if refusal is not None]


def load(app: App, image: str | None) -> Journal:
    """Return this project's journal of IMAGE, or of its bisect that was started last.

    Raises Refused as `journal.load` does, NV803 for the journal of another image: locks and trials are named after
    the directory, so it could run at the same time as the bisect of its own image; and NV809 as `unowned` does.
    """
    path = path_of(app, image or "IMAGE")
    if image is None:
        path = next(all_journals(app), path)
    if not path.is_file():
        refuse_any(
            all_unowned(app) if image is None else [refusal for refusal in [unowned(app, image)] if refusal is not None]
        )
    log = journal.load(path)
    named, directory = log.state.start.image, path.parent.name
    if named != directory:
        cure = shlex.join(["mv", str(path), str(path_of(app, named))])
        raise refuse("NV803", f"{path}: image", directory, named, cure)
    return log


def locked(app: App, image: str) -> HeldLocks:
    """Take the lock of this project's bisect of IMAGE, so that its journal has one writer."""
    app.remember_project()
    keys = [Key("bisect", f"{image}-{app.project.id}")]
    return locks.acquire_all(app.places.locks, keys, locks.this_process(f"nvllm bisect of {image}"))


def cache_of(app: App, start: BisectStart) -> TrialCache:
    return TrialCache(app.places.state / "bisect" / "trials", start.probe.sha256, f"{start.host} {start.profile}")


def bench_of(app: App, start: BisectStart, profile: str) -> bench.EngineBench:
    """Return the bench that builds and serves sets of START with PROFILE. Raises Refused NV510 without an engine."""
    docker = engine.require()
    return bench.EngineBench(
        app.project, app.places, start.image, profile, start.probe, docker, app.offline, app.progress
    )


def lookup(state: BisectState, text: str) -> PatchSet:
    """Return the set that TEXT names: its seven digits, ids separated by commas, or ``none``.

    Raises Refused NV805 if the search would never try it.
    """
    sets = {*state.trials, *state.skipped, *state.builds}
    named = [patches for patches in sets if set_hash(patches) == text]
    if named:
        return named[0]
    chosen = frozenset(name.strip() for name in text.split(",") if name.strip() and name != "none")
    problem = state.problem
    if problem.combinations.valid(chosen) and problem.low <= chosen <= problem.high:
        return chosen
    closed = problem.combinations.closed(chosen & set(problem.combinations.order)) | problem.low
    near = ",".join(problem.combinations.ordered(closed)) or "none"
    expected = "a closed set between the ends of the search"
    cure = f"`nvllm bisect status` shows the sets; the nearest is {near}"
    raise refuse("NV805", "SET", expected, text, cure)
