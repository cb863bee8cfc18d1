"""`nvllm dev`: the patches of an image as commits of a git work tree, and back."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from nvllm.cli import dev_serve, dev_test, dev_tree
from nvllm.cli.build import fetched_source, fresh_build
from nvllm.cli.frame import PATH, App, Group, with_app
from nvllm.cli.image_argument import IMAGE_BEFORE_PATH, with_image
from nvllm.core import durable, yamledit
from nvllm.core.canonical import Json
from nvllm.core.refusal import refuse, refuse_any
from nvllm.lock.project import read_lock
from nvllm.patches import checkout, patching, patchset, proofs, seriesfile, source
from nvllm.patches.source import DirectoryTree
from nvllm.port import devrecord, devtree
from nvllm.port.devrecord import DevTree
from nvllm.port.devtree import Finished
from nvllm.sources import commits
from nvllm.sources.store import Store
from nvllm.sources.worktree import WorkTree
from nvllm.spec import specfile

EXAMPLES = """
Examples:
  nvllm dev start cpu                  the pinned source as a git work tree in vllm-cpu, a commit for each patch
  nvllm dev serve vllm-cpu --profile tiny-eager    an engine on the files as they stand, until Ctrl-C
  nvllm dev test vllm-cpu tests/test_mine.py    a test in the image, on the files as they stand
  nvllm dev finish vllm-cpu --dry-run  what has become of each patch, after edits, rebases and new commits
  nvllm dev finish vllm-cpu            the commits as patches again, under their ids
"""


@click.group("dev", cls=Group, epilog=EXAMPLES)
def dev() -> None:
    """A work tree is for people and for git: what is served from it can be neither blessed nor pushed."""


dev.add_command(dev_serve.serve)
dev.add_command(dev_test.test)


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
    pinned, series = build.lock.vllm, build.spec.patches.series
    archive = fetched_source(app, build)
    diffs = build.diffs(app.project)
    with durable.appearing(target, "DIR") as partial:
        checkout.write(archive, [], partial)
        work = WorkTree(partial)
        work.create()
        base = work.commit(["."], f"vLLM {pinned.version}, commit {pinned.commit}\n", build.spec.epoch)
        for number, (patch, diff) in enumerate(zip(build.patches, diffs, strict=True), 1):
            changes = patching.apply(DirectoryTree(partial), diff)
            checkout.apply(partial, changes, patching.modes(diff))
            work.commit([*changes], devtree.message(patch), build.spec.epoch + number)
        record = DevTree(devrecord.SCHEMA, image, series, pinned.commit, base, pinned.source.sha256)
        devrecord.write(work, record)
    ids = [patch.id for patch in build.patches]
    text = (
        f"{target}  vLLM {pinned.version}, and a commit for each of {len(ids)} patches\n"
        f"next: edit and commit there, then nvllm dev finish {shlex.quote(str(target))}"
    )
    data: Json = {"image": image, "series": series, "directory": str(target), "base": base, "patches": [*ids]}
    app.out.result("dev start", data, text)


@dev.command("finish", epilog=EXAMPLES)
@click.argument("directory", type=PATH, metavar="DIR", help="A work tree that `nvllm dev start` made.")
@click.option("--dry-run", is_flag=True, help="Show what would become of each patch; write nothing.")
@with_app
def finish(app: App, directory: Path, dry_run: bool) -> None:
    """Write the commits of DIR back as the patches of the series, and the set that they are into the spec.

    A commit keeps the id of its patch. One without an id becomes a new patch: its subject is the summary, its message
    has to have a line `Proved-by: FILE::TEST`, and may have `Upstream: owner/repository#number`. Its id is made from
    the subject, unless a line `Nvllm-Patch: ID` gives it. A patch whose commit is gone leaves the set, and its
    file stays.
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


def _finished(app: App, directory: Path, record: DevTree) -> Finished:
    """Return the series with the commits of DIRECTORY as its patches. Writes nothing.

    Raises Refused NV610 for a tree that has something to commit, for merges, and for another series or source than the
    tree was made of; and all that `devtree` and `patchset.choose` raise.
    """
    spec = specfile.of(app.project, record.image)
    lock = read_lock(app.project, record.image)  # the source alone: it may be older than the series
    dev_tree.same_origin(app, directory, record, spec.patches.series, lock.vllm.source.sha256)
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
    if {*before} != {*finished.enable}:  # after the series: a spec that enables what no series has is refused
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
