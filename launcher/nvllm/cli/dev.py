"""`nvllm dev`: the patches of an image as commits of a git work tree, and back."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from nvllm.cli.build import fresh_build
from nvllm.cli.complete import files, profiles
from nvllm.cli.frame import PATH, App, Group, with_app
from nvllm.cli.image_argument import IMAGE_BEFORE_PATH, with_image
from nvllm.core import clock, durable, yamledit
from nvllm.core.canonical import Json
from nvllm.core.plan import Mount
from nvllm.core.refusal import refuse, refuse_any
from nvllm.engine import engine
from nvllm.host import locks, survey
from nvllm.host.locks import Holder, Key
from nvllm.image.identity import Build
from nvllm.lock.project import read_lock
from nvllm.patches import checkout, patching, patchset, proofs, seriesfile, source
from nvllm.patches.source import DirectoryTree, Overlay
from nvllm.port import devrecord, devtree, overlay
from nvllm.port.devrecord import DevTree
from nvllm.port.devtree import Finished
from nvllm.port.overlay import TreeDifference
from nvllm.runtime.proving import MARK
from nvllm.sources import commits, fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from nvllm.sources.worktree import WorkTree
from nvllm.spec import specfile
from nvllm.trials import imagetests, probe, proving
from nvllm.trials.bench import EngineBench
from nvllm.trials.imagetests import ImageTests
from nvllm.trials.verdict import TestResult

EXAMPLES = """
Examples:
  nvllm dev start cpu                  the pinned source as a git work tree in vllm-cpu, a commit for each patch
  nvllm dev test vllm-cpu tests/test_mine.py    a test in the image, on the files as they stand
  nvllm dev finish vllm-cpu --dry-run  what has become of each patch, after edits, rebases and new commits
  nvllm dev finish vllm-cpu            the commits as patches again, under their ids
"""


@click.group("dev", cls=Group, epilog=EXAMPLES)
def dev() -> None:
    """A work tree is for people and for git: no image is built from it, and nothing in it is blessed or pushed."""


@dev.command("start", epilog=EXAMPLES)
@IMAGE_BEFORE_PATH
@click.argument("directory", required=False, type=PATH, metavar="[DIR]", help="A new one.  [default: vllm-IMAGE]")
@with_image("directory")
def start(app: App, image: str, directory: Path | None) -> None:
    """Write the pinned source of IMAGE as a git work tree: one commit for the source, and one for each enabled patch.

    The message of a commit names its patch in the line `Nvllm-Patch:`, by which `nvllm dev finish` knows it.
    """
    build = fresh_build(app, image, None)
    target = directory if directory is not None else Path(f"vllm-{image}")
    durable.absent(target, "DIR")
    store, pinned = Store(app.places.store), build.lock.vllm
    fetch.fetch([pinned.source], store, Sources.of(build.lock, os.environ), app.progress, offline=app.offline)
    where = app.project.series(build.spec.patches.series)
    diffs = seriesfile.diffs(where, build.patches, app.project.show(where))
    with durable.appearing(target, "DIR") as partial:
        checkout.write(store.path(pinned.source.sha256), [], partial)
        work = WorkTree(partial)
        work.create()
        base = work.commit(["."], f"vLLM {pinned.version}, commit {pinned.commit}\n", build.spec.epoch)
        for number, patch in enumerate(build.patches, 1):
            changes = patching.apply(DirectoryTree(partial), diffs[patch.id])
            checkout.apply(partial, changes, patching.modes(diffs[patch.id]))
            work.commit([*changes], devtree.message(patch), build.spec.epoch + number)
        record = DevTree(devrecord.SCHEMA, image, where.name, pinned.commit, base, pinned.source.sha256)
        devrecord.write(work, record)
    ids = [patch.id for patch in build.patches]
    text = (
        f"{target}  vLLM {pinned.version}, and a commit for each of {len(ids)} patches\n"
        f"next: edit and commit there, then nvllm dev finish {shlex.quote(str(target))}"
    )
    data: Json = {"image": image, "series": where.name, "directory": str(target), "base": base, "patches": [*ids]}
    app.out.result("dev start", data, text)


@dev.command("finish", epilog=EXAMPLES)
@click.argument("directory", type=PATH, metavar="DIR", help="A work tree that `nvllm dev start` made.")
@click.option("--dry-run", is_flag=True, help="Show what would become of each patch; write nothing.")
@with_app
def finish(app: App, directory: Path, dry_run: bool) -> None:
    """Write the commits of DIR back as the patches of the series, and the set that they are into the spec.

    A commit keeps the id of its patch. One without an id becomes a new patch: its subject is the summary, its message
    has to have a line `Proved-by: FILE::TEST`, and may have `Upstream: owner/repository#number`. A patch whose commit
    is gone leaves the set, and its file stays.
    """
    record = devrecord.read(directory)
    finished = _finished(app, directory, record)
    written: list[str] = []
    if not dry_run:
        app.project.writable(app.project.series(record.series))
        written = _write(app, record, finished)
    data: Json = {
        "image": record.image,
        "series": record.series,
        "patches": [{"id": name, "change": change} for name, change in finished.changes.items()],
        "enable": list(finished.enable),
        "written": [*written],
    }
    app.out.result("dev finish", data, lambda: _text(app, record, finished, written))


@dev.command("test", epilog=EXAMPLES)
@click.argument("directory", type=PATH, metavar="DIR", help="A work tree that `nvllm dev start` made.")
@click.argument("tests", nargs=-1, metavar="TEST...", required=True, shell_complete=files, help="FILE or FILE::TEST.")
@click.option("--profile", shell_complete=profiles, help="The profile whose limits hold.  [default: the first]")
@with_app
def test(app: App, directory: Path, tests: tuple[str, ...], profile: str | None) -> None:
    """Run TESTs with pytest in the image, with the files of DIR as they stand laid over those of the image.

    TEST is a file, or a test in it, below the project or, as vLLM's own tests are, below DIR; those run without
    vLLM's conftest.py. Nothing is built from DIR. Exits with 1 unless all pass.
    """
    record = devrecord.read(directory)
    spec = specfile.of(app.project, record.image)
    name = profile if profile is not None else next(iter(spec.profiles), "")
    specfile.named_profile(app.project, spec, name)
    build = fresh_build(app, record.image, None)
    _same_origin(app, directory, record, spec.patches.series, build.lock.vllm.source.sha256)
    nodes = {node: _below(app, directory, node) for node in tests}
    laid = _difference(app, directory, record, build)
    imagetests.pytest_files()  # refuses before anything is built
    docker = engine.require()
    judge = probe.builtin("boots")  # it judges nothing: the tests do
    bench = EngineBench(
        app.project, app.places, record.image, name, judge, docker, app.offline, app.progress, purpose="dev"
    )
    gpus = survey.host_facts(app.places, docker).gpus[: 1 if spec.profiles[name].gpu is not None else 0]
    site = f"/{build.scheme.site}"
    over = [Mount(str((directory / path).absolute()), f"{site}/{path}") for path in laid.paths]
    sentinels = {*spec.profiles[name].sentinels} & patchset.sentinels(build.patches)
    app.remember_project()
    with locks.acquire_all(
        app.places.locks,
        [Key("proof", f"dev-{record.image}-{app.project.id}")],
        Holder(os.getpid(), clock.now(), f"nvllm dev test {directory}"),
    ):
        bench.clear()
        built = bench.built(tuple(patch.id for patch in build.patches))
        written, by_node = "", dict[str, Sequence[TestResult]]()
        for root in dict.fromkeys(nodes.values()):
            # The image lacks what vLLM's own conftest.py imports.
            options = ("--noconftest",) if root == directory else ()
            runner = ImageTests(bench, build, tuple(gpu.uuid for gpu in gpus), options)
            below = {node: own for node, own in nodes.items() if own == root}
            output = runner.run(built, below, sentinels, over)
            written += output
            by_node |= proving.by_node(imagetests.names(below), output, f"the image {built.image}")
    outcomes = {node: [one for one in by_node[node] if one.outcome != "passed"] for node in nodes}
    failed = [node for node in nodes if not by_node[node] or any(one.outcome == "failed" for one in outcomes[node])]
    data: Json = {
        "image": record.image,
        "difference": laid.digest,
        "files": list(laid.paths),
        "tests": [
            {
                "node": node,
                "passed": sum(one.outcome == "passed" for one in by_node[node]),
                "others": [{"outcome": one.outcome, "text": one.text} for one in outcomes[node]],
            }
            for node in nodes
        ],
    }
    head = f"dev {laid.digest[:12]}: {len(laid.paths)} files of {directory} over the image {record.image}"
    own = "\n".join(line for line in written.splitlines() if MARK not in line)
    app.out.result("dev test", data, f"{own.strip()}\n{head}")
    if failed:
        raise click.exceptions.Exit(1)


def _below(app: App, directory: Path, node: str) -> Path:
    """Return the directory that the test NODE lies below: the project, or the work tree in DIRECTORY."""
    file = node.partition("::")[0]
    for root in (app.project.root, directory):
        if (root / file).is_file():
            return root
    cure = f"name a file below {app.project.root} or {directory}"
    raise refuse("NV108", "TEST", "the file of a test", f"no file {file}", cure)


def _difference(app: App, directory: Path, record: DevTree, build: Build) -> TreeDifference:
    """Return what the files in DIRECTORY, as they stand, are otherwise than in the image of BUILD."""
    where = app.project.series(record.series)
    diffs = [*seriesfile.diffs(where, build.patches, app.project.show(where)).values()]
    paths = {*WorkTree(directory).changed(record.base), *(path for diff in diffs for path in diff.paths)}
    pristine = source.archive(Store(app.places.store).path(record.source), paths)
    image = Overlay(pristine, patching.apply_all(pristine, diffs))
    return overlay.difference(paths, DirectoryTree(directory), image, str(directory))


def _finished(app: App, directory: Path, record: DevTree) -> Finished:
    """Return the series with the commits of DIRECTORY as its patches. Writes nothing.

    Raises Refused NV610 for a tree that has something to commit, for merges, and for another series or source than the
    tree was made of; and all that `devtree` and `patchset.choose` raise.
    """
    spec = specfile.of(app.project, record.image)
    lock = read_lock(app.project, record.image)  # the source alone: it may be older than the series
    _same_origin(app, directory, record, spec.patches.series, lock.vllm.source.sha256)
    work, quoted = WorkTree(directory), shlex.quote(str(directory))
    paths = work.uncommitted()
    if paths:
        cure = f"commit it: git -C {quoted} add --all && git -C {quoted} commit --fixup HEAD"
        raise refuse("NV610", str(directory), "nothing to commit", ", ".join(paths[:3]), cure)
    merges = work.merges(record.base)
    if merges:
        cure = f"put them into one line: git -C {quoted} rebase {record.base}"
        raise refuse("NV610", str(directory), "commits in one line", f"the merge {merges[0]}", cure)
    series = seriesfile.of(app.project, record.series)
    made = devtree.commits(commits.mails(directory, record.base, str(directory)), series, str(directory), record.base)
    new = [node for commit in made if series.patch(commit.id) is None for node in commit.proved_by]
    refuse_any(proofs.refusals(app.project.root, new))
    where = app.project.series(record.series)
    label = app.project.show(where)
    diffs = seriesfile.diffs(where, series.patches, label)
    touched = {path for diff in (*diffs.values(), *(commit.diff for commit in made)) for path in diff.paths}
    tree = source.archive(Store(app.places.store).path(record.source), touched)
    return devtree.finished(seriesfile.text(where, label), series, diffs, spec.patches.enable, made, tree)


def _same_origin(app: App, directory: Path, record: DevTree, series: str, archive: str) -> None:
    again = shlex.join(["nvllm", "dev", "start", record.image, f"{directory}-2"])
    cure = f"carry your commits to a new tree: {again}"
    if (record.series, record.source) != (series, archive):
        spec = app.project.show(app.project.spec(record.image))
        expected = f"a tree of patches/{series} on the source that the lock of {record.image} pins"
        raise refuse("NV610", f"{directory} and {spec}", expected, f"a tree of patches/{record.series}", cure)
    if not Store(app.places.store).has(archive):
        raise refuse(
            "NV204", str(directory), "the pinned source in the store", "none", f"fetch it: nvllm fetch {record.image}"
        )


def _write(app: App, record: DevTree, finished: Finished) -> list[str]:
    """Write FINISHED into the series and the spec, and return what was written. What does not load is not written."""
    where, spec = app.project.series(record.series), app.project.spec(record.image)
    label = app.project.show(where)
    with tempfile.TemporaryDirectory(prefix="nvllm-dev-") as name:
        tried = Path(name, record.series)
        shutil.copytree(where, tried)
        for file, content in finished.files.items():
            (tried / file).write_bytes(content)
        patchset.choose(seriesfile.load(tried, label), finished.enable, where=f"{app.project.show(spec)}: .patches")
    for file, content in sorted(finished.files.items(), reverse=True):  # the series after the files that it names
        durable.replace(where / file, content, 0o644, code="NV920")
    written = [f"{label}/{file}" for file in sorted(finished.files)]
    before = specfile.of(app.project, record.image).patches.enable
    if {*before} != {*finished.enable}:
        text = specfile.written(spec, app.project.show(spec))
        text = yamledit.set_list(text, ("patches", "enable"), finished.enable)
        durable.replace(spec, text.encode(), 0o644, code="NV920")
        written.append(app.project.show(spec))
    return written


def _text(app: App, record: DevTree, finished: Finished, written: Sequence[str]) -> None:
    app.out.table(["patch", "its commit"], [*finished.changes.items()])
    for path in written:
        app.out.line(f"written: {path}")
    if written:
        changed = [name for name, change in finished.changes.items() if change in ("changed", "new")]
        prove = shlex.join(["nvllm", "patch", "prove", record.image, *changed])
        app.out.line(f"next: nvllm lock {record.image}{f', then {prove}' if changed else ''}")
