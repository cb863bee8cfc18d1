"""`nvllm patch`: listing, checking and writing the patches of a series."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import click

from nvllm.cli import patch_prove
from nvllm.cli.build import fetched_source, fresh_build, patches_option
from nvllm.cli.complete import files, images_and_files, patches, series
from nvllm.cli.frame import PATH, App, Group, sentence, with_app
from nvllm.cli.image_argument import IMAGE, IMAGE_BEFORE_PATH, Needed, selected, with_image
from nvllm.core import durable, reading
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedFile
from nvllm.core.refusal import refuse, refuse_any
from nvllm.core.spec import ImageSpec
from nvllm.lock import lockdoc
from nvllm.patches import (
    checkout,
    edit,
    imported,
    patchcheck,
    patching,
    patchset,
    proofs,
    proved,
    pullrequest,
    seriesfile,
    source,
    together,
)
from nvllm.patches.imported import Change
from nvllm.patches.patchcheck import Counterpart, Report
from nvllm.patches.pullrequest import ComparedRequest, PullRequest
from nvllm.patches.series import Patch, Series, Upstream
from nvllm.patches.source import DirectoryTree, Overlay, SourceTree
from nvllm.sources import commits, fetch, gitsource, pulls
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store
from nvllm.spec import specfile

EXAMPLES = """
Examples:
  nvllm patch list                              every patch of every series, and which images enable it
  nvllm patch check cpu                         does each patch apply to the pinned source?
  nvllm patch check cpu --against 0.29.0        and to a candidate version?
  nvllm patch check cpu --against ../vllm       and to a checkout?
  nvllm patch apply cpu out/vllm                the whole source with the patch set of the image
  nvllm patch apply cpu before --patches none   the pinned source as it is
  nvllm patch add cpu fix.patch --proved-by tests/test_fix.py::test_it    a diff that you have already
  nvllm patch add cpu --from-pr 12345.patch --proved-by tests/test_fix.py::test_it    a pull request, by its number
  nvllm patch check cpu --upstream 12345.patch  what of that pull request changed since
  nvllm patch new drain ../before ../after --summary "Drain first" --proved-by tests/e2e/test_drain.py::test_it
  nvllm patch refresh scheduler-drain           new line numbers, same change
  nvllm patch replace scheduler-drain fix.patch    another change under the same id
  nvllm patch replace scheduler-drain --from-pr 12345.patch    the pull request that it came from, as it is now
"""

against_option = click.option(
    "--against",
    shell_complete=files,
    metavar="VERSION|DIR",
    help="A version of vLLM or a directory with its source; else the pinned source.",
)
from_pr_option = click.option(
    "--from-pr",
    shell_complete=files,
    metavar="FILE|URL",
    help="A pull request, NUMBER.patch or NUMBER.diff, in the place of FILE.",
)
series_option = click.option(
    "--series",
    "base",
    metavar="BASE",
    shell_complete=series,
    help="The series patches/BASE; required if there are several.",
)


patch = Group("patch", epilog=EXAMPLES)
patch.add_command(patch_prove.prove)


@patch.command("list")
@series_option
@with_app
def list_(app: App, base: str | None) -> None:
    """List the patches of every series, or of BASE, and the images that enable them."""
    specs = _specs(app)
    data: list[Json] = []
    rows: list[tuple[str, ...]] = []
    for name in [base] if base is not None else _bases(app):
        records = proved.read(app.project, name).proofs
        for entry in seriesfile.of(app.project, name).patches:
            enabled = [s.name for s in specs if s.patches.series == name and entry.id in s.patches.enable]
            state = proved.state(app.project.root, entry, records) if entry.status == "carried" else None
            data.append({"series": name, "enabled_by": list(enabled), "proved": state, **dataclasses.asdict(entry)})
            upstream = (entry.upstream.state, entry.upstream.reference, entry.upstream.since)
            where = " ".join(part for part in upstream if part)
            rows.append((name, entry.id, entry.status, where, ", ".join(enabled) or "-", state or "-", entry.summary))
    columns = ["series", "id", "status", "upstream", "enabled by", "proved", "summary"]
    app.out.result("patch list", {"patches": data}, lambda: app.out.table(columns, rows))


@patch.command("check")
@IMAGE
@click.option("--all", "every", is_flag=True, help="Check every image of the project.")
@against_option
@click.option(
    "--upstream",
    multiple=True,
    shell_complete=files,
    metavar="FILE|URL|each",
    help="A pull request as it is now, beside the patch that was taken from it; each asks GitHub for all. Repeatable.",
)
@with_app
def check_command(app: App, image: str | None, every: bool, against: str | None, upstream: tuple[str, ...]) -> None:
    """Show for each patch whether it applies, is already upstream, or conflicts, with file and hunk.

    A series for another commit than the image pins is refused. If the version has a series of its own, the two series
    are compared as well. Exits with 1 if the patch set of an image does not fit the source.

    With --upstream it compares patches with their pull requests instead, and shows the range-diff of each that has
    changed; then it exits with 1. A pull request with the head that the patch was taken at has not changed.
    """
    if upstream:
        _check_upstream(app, specfile.of(app.project, selected(app)), upstream)
        return
    reports: list[tuple[str, Report, dict[str, tuple[Counterpart, ...]]]] = []
    for spec in _specs(app) if every else [specfile.of(app.project, selected(app))]:
        series = seriesfile.of(app.project, spec.patches.series)
        refuse_any(seriesfile.other_commit(series, spec.vllm.commit, f"patches/{series.base}"))
        tree, version = _source(app, series, patchcheck.paths_read(series), against)
        diffs = seriesfile.diffs_of(app.project, series.base, series.patches)
        report = patchcheck.report(series, diffs, spec.patches.enable, tree, version)
        reports.append((spec.name, report, _beside(app, series, version)))
    data: list[Json] = [
        {
            "image": name,
            "ok": report.ok,
            **dataclasses.asdict(report),
            "beside": {base: [dataclasses.asdict(row) for row in rows] for base, rows in others.items()},
        }
        for name, report, others in reports
    ]
    app.out.result("patch check", {"reports": data}, lambda: _check_text(app, reports))
    if not all(report.ok for _, report, _ in reports):
        raise click.exceptions.Exit(1)


def _check_upstream(app: App, spec: ImageSpec, upstream: Sequence[str]) -> None:
    """Compare patches of the series of SPEC with their pull requests, as UPSTREAM has them."""
    series = seriesfile.of(app.project, spec.patches.series)
    label = f"patches/{series.base}"
    diffs = seriesfile.diffs_of(app.project, series.base, series.patches)
    taken = {
        entry.upstream.reference: entry for entry in series.patches if entry.id in diffs and entry.upstream.reference
    }
    asked = [each for where in upstream for each in ([*_urls(taken.values())] if where == "each" else [where])]
    sources = Sources(None, os.environ)  # for all, since it asks pip for its configuration
    rows: list[ComparedRequest] = []
    for where in asked:
        request = _pull_request(app, where, "--upstream", (), sources)
        entry = taken.get(request.reference)
        if entry is None:
            cure = "name its pull request in the series: upstream: {state: open, reference: OWNER/REPO#NUMBER}"
            known = ", ".join(filter(None, taken)) or "no pull request"
            raise refuse("NV107", f"{label}/{seriesfile.NAME}", f"one of {known}", request.reference, cure)
        tree = None
        if len(request.changes) > 1:
            paths = {path for change in request.changes for path in change.diff.paths}
            source_tree, _ = _source(app, series, patchcheck.paths_read(series) | paths, None)
            below = [diffs[needed.id] for needed in patchcheck.requirements(series, entry)]
            tree = Overlay(source_tree, patching.apply_all(source_tree, below))
        now = pullrequest.whole(tree, request.changes, where).diff
        rows.append(pullrequest.compared(entry, diffs[entry.id], now, request))
    data: Json = [dataclasses.asdict(row) for row in rows]

    def text() -> None:
        for row in rows:
            for line in [row.id, *(f"    {line}" for line in row.range_diff)] if row.since != "same" else ():
                app.out.line(line)
        cells = [(row.id, row.reference, row.head or "-", row.now or "-", row.since) for row in rows]
        app.out.table(["patch", "pull request", "head taken", "head now", "change"], cells)

    app.out.result("patch check", {"image": spec.name, "upstream": data}, text)
    if any(row.since == "changed" for row in rows):
        raise click.exceptions.Exit(1)


def _urls(entries: Collection[Patch]) -> Iterator[str]:
    return (pulls.url(str(entry.upstream.reference), os.environ) for entry in entries if entry.upstream.head)


def _beside(app: App, series: Series, version: str) -> dict[str, tuple[Counterpart, ...]]:
    """Return the other series of the project for VERSION, by name, each compared with SERIES."""
    others = [seriesfile.of(app.project, base) for base in _bases(app) if base != series.base]
    return {other.base: patchcheck.beside(series, other) for other in others if other.version == version}


def _check_text(app: App, reports: Sequence[tuple[str, Report, dict[str, tuple[Counterpart, ...]]]]) -> None:
    for name, report, others in reports:
        app.out.line(f"{name}: patches/{report.base} (vLLM {report.pinned}) on the source of {report.version}")
        rows = [
            (
                ("! " if outcome.error else "  ") + outcome.id,
                outcome.outcome,
                "enabled" if outcome.enabled else "-",
                outcome.detail,
            )
            for outcome in report.outcomes
        ]
        app.out.table(["  patch", "outcome", "set", "detail"], rows)
        for outcome in report.outcomes:
            for conflict in (*outcome.conflicts, *outcome.tests):
                spot = " ".join(part for part in (conflict.file, conflict.hunk) if part)
                app.out.line(f"    {outcome.id}: {spot}: expected {conflict.expected}, found {conflict.actual}")
        for base, counterparts in others.items():
            app.out.line(f"patches/{report.base} beside patches/{base}")
            cells = [
                (
                    f"  {counterpart.id}",
                    counterpart.here or "-",
                    counterpart.there or "-",
                    "the same" if counterpart.same else "-",
                )
                for counterpart in counterparts
            ]
            app.out.table(["  patch", report.base, base, "file"], cells)


@patch.command("new")
@click.argument("patch_id", metavar="ID", help="The id of the new patch.")
@click.argument("before", type=PATH, help="A copy of the source without the change.")
@click.argument("after", type=PATH, help="A copy of the source with it.")
@click.option("--summary", callback=sentence, required=True, help="What the change does, in one line.")
@click.option(
    "--proved-by",
    multiple=True,
    shell_complete=files,
    required=True,
    metavar="NODE",
    help="A test that fails without it. Repeatable.",
)
@series_option
@with_app
def new(
    app: App, patch_id: str, before: Path, after: Path, summary: str, proved_by: tuple[str, ...], base: str | None
) -> None:
    """Write the difference from directory BEFORE to AFTER as the patch ID, and add it to the series."""
    base = _only(app, base)
    app.project.writable(app.project.series(base))
    _check_proofs(app, proved_by)
    diff, series = edit.compare(before, after, str(after)), seriesfile.of(app.project, base)
    if series.patch(patch_id) is None:
        for spec in (candidate for candidate in _specs(app) if candidate.patches.series == base):
            _refuse_conflicts(app, series, spec.patches.enable, Change(patch_id, summary, diff), spec.name)
    entry = edit.add(app.project.series(base), f"patches/{base}", patch_id, summary, proved_by, diff)
    app.out.result("patch new", {"series": base, **dataclasses.asdict(entry)}, f"written: patches/{base}/{entry.file}")


@patch.command("add")
@click.argument(
    "image",
    metavar="[IMAGE|SERIES]",
    required=False,
    shell_complete=images_and_files,
    help="An image, or its series.  [default: the project's image]",
)
@click.argument(
    "file",
    cls=Needed,
    instead="from_pr",
    required=False,
    metavar="[FILE]",
    type=PATH,
    help="A unified diff, or what `git format-patch -1` wrote.",
)
@from_pr_option
@click.option(
    "--proved-by", multiple=True, shell_complete=files, metavar="NODE", help="A test that fails without it. Repeatable."
)
@click.option("--id", "patch_id", metavar="ID", help="The id of the new patch.  [default: of its subject, or of FILE]")
@with_image("file")
def add(
    app: App, image: str, file: Path | None, from_pr: str | None, proved_by: tuple[str, ...], patch_id: str | None
) -> None:
    """Add the patch FILE as the last one of a series.

    nvllm computes the entry: id, summary, paths and sha256. If the pinned source is in the store, the patch must apply
    to it, on top of those that IMAGE enables.

    With --from-pr it is a pull request's text, of vLLM's repository if the URL names no other. The entry keeps its
    number, and head and base as far as the text names them; files that no image has, such as docs, are left out.
    """
    spec = specfile.of(app.project, image) if image in app.project.image_names() else None
    base = spec.patches.series if spec is not None else _known(app, image)
    app.project.writable(app.project.series(base))
    series = seriesfile.of(app.project, base)
    taken = [entry.id for entry in series.patches]
    changes, request = _changes(app, file, from_pr, taken)
    changes = (dataclasses.replace(changes[0], id=patch_id or changes[0].id), *changes[1:])
    if not proved_by:
        cure = "write a test that fails without the patch, and name it: --proved-by tests/test_mine.py::test_it"
        raise refuse("NV108", "--proved-by", f"a test of {changes[0].id}", "none", cure)
    _check_proofs(app, proved_by)
    enabled = spec.patches.enable if spec is not None else ()
    change, checked = _fitted(app, series, enabled, changes)
    directory, label = app.project.series(base), f"patches/{base}"
    upstream, outside = (request.upstream, request.outside) if request is not None else (edit.NOT_UPSTREAM, ())
    entry = edit.add(directory, label, change.id, change.summary, proved_by, change.diff, upstream)
    named = spec.name if spec is not None else "IMAGE"
    text = "".join(f"left out: {path}, which is in no image\n" for path in outside) + (
        f"written: {label}/{entry.file}, {'applies to' if checked else 'NOT tried on the source of'} vLLM "
        f"{series.version}\nnext: write {entry.id} into patches.enable of images/{named}.yaml, then nvllm lock {named}"
    )
    data: dict[str, Json] = {"image": spec.name if spec is not None else None, "series": base, "checked": checked}
    data["left_out"] = list(outside)
    app.out.result("patch add", {**data, **dataclasses.asdict(entry)}, text)


def _check_proofs(app: App, tests: Sequence[str]) -> None:
    """Raise Refused NV108 for those of TESTS that are not there, as far as pytest, or a look at the files, can tell."""
    if not proofs.pytest_is_here():
        app.progress.note("pytest is not installed: nvllm only checked that the files define the tests")
    refuse_any(proofs.refusals(app.project.root, tests))


def _known(app: App, name: str) -> str:
    """Return NAME if there is a series of that name. Raises Refused NV107 with the names that there are."""
    bases = _bases(app)
    if name in bases:
        return name
    known = f"an image ({', '.join(app.project.image_names())}) or a series ({', '.join(bases)})"
    raise refuse("NV107", "IMAGE|SERIES", known, name, "nvllm patch list")


def _changes(
    app: App, file: Path | None, from_pr: str | None, taken: Collection[str]
) -> tuple[tuple[Change, ...], PullRequest | None]:
    """Return the change in FILE, or the commits of the pull request FROM_PR and what it is. No id is one of TAKEN.

    Raises Refused NV108 if it is not one of the two, and what `imported` and `_pull_request` raise.
    """
    if from_pr is not None and file is None:
        request = _pull_request(app, from_pr, "--from-pr", taken, Sources(None, os.environ))
        return request.changes, request
    if file is not None and from_pr is None:
        return (imported.only(file.name, reading.required(file, reading.PATCH, str(file)), taken),), None
    expected, problem = "FILE, or a pull request in its place", "neither" if file is None else f"{file} too"
    raise refuse("NV108", "--from-pr", expected, problem, "name one of them: nvllm patch add IMAGE FILE.patch")


def _pull_request(app: App, where: str, option: str, taken: Collection[str], sources: Sources) -> PullRequest:
    """Return the pull request in WHERE, a file or a URL that OPTION names; the client of SOURCES is asked for a URL.

    Raises Refused NV104, NV108, NV109 or NV209 as `pullrequest` and `pulls` do.
    """
    if "://" in where and where.rpartition("/")[2].isdigit():  # the page of the pull request
        where = f"{where}.patch"
    reference = pullrequest.reference(where, option, commits.REPOSITORY)
    content = pulls.text(where, option, sources.client, offline=app.offline)
    return pullrequest.read(content, reference, where, taken)


def _fitted(app: App, series: Series, enabled: Collection[str], changes: Sequence[Change]) -> tuple[Change, bool]:
    """Return CHANGES as one that applies on top of the patches ENABLED of SERIES, and whether the source to try it on
    is here.

    Raises Refused NV106 or NV301 if it does not apply, NV108 for several changes without the source.
    """
    tree = _stored(app, series, {path for change in changes for path in change.diff.paths})
    if tree is None:
        return pullrequest.whole(None, changes, "--from-pr"), False
    below = [entry for entry in series.patches if entry.id in enabled]
    diffs = seriesfile.diffs_of(app.project, series.base, below)
    changed = Overlay(tree, patching.apply_all(tree, [diffs[entry.id] for entry in below if entry.id in diffs]))
    return pullrequest.whole(changed, imported.exact(changed, changes, series.version), "--from-pr"), True


def _stored(app: App, series: Series, paths: Collection[str]) -> SourceTree | None:
    """Return the source that SERIES pins, as far as it needs it, and PATHS; None if the store does not have it."""
    store = Store(app.places.store)
    archive = next((file for file in _locked_sources(app, series.version) if store.has(file.sha256)), None)
    if archive is None:
        return None
    return source.archive(store.path(archive.sha256), patchcheck.paths_read(series) | {*paths})


def _refuse_conflicts(app: App, series: Series, enabled: Collection[str], change: Change, image: str) -> None:
    """Raise Refused NV609 if CHANGE applies to the source, and not on top of the patches ENABLED in IMAGE.

    Without the source in the store nothing is known of it.
    """
    tree = _stored(app, series, change.diff.paths)
    if tree is None:
        return
    below = [entry for entry in series.patches if entry.id in enabled and entry.status == "carried"]
    diffs = seriesfile.diffs_of(app.project, series.base, below)
    own = Patch(change.id, "carried", change.summary, Upstream("none"), touches=change.diff.paths)
    chosen, label = [*below, own], f"{app.project.show(app.project.spec(image))}: .patches.enable"
    problems = together.conflicts(series, chosen, {**diffs, change.id: change.diff}, tree, label)
    refuse_any(problem for problem in problems if problem.code == "NV609")


@patch.command("replace")
@click.argument("patch_id", metavar="ID", shell_complete=patches, help="The id of a patch that is carried.")
@click.argument(
    "file",
    required=False,
    type=PATH,
    metavar="[FILE]",
    help="A unified diff or a mail; it may be the patch's own file, edited.",
)
@from_pr_option
@series_option
@with_app
def replace(app: App, patch_id: str, file: Path | None, from_pr: str | None, base: str | None) -> None:
    """Put the change in FILE in the place of that of patch ID, with its hash and its paths in the series.

    It must apply to the pinned source, on top of what ID requires, and in every image that enables ID with the rest of
    its patch set. Nothing is written before that is known. With --from-pr the entry gets head and base of the pull
    request.
    """
    base = _only(app, base)
    directory, label = app.project.series(base), f"patches/{base}"
    app.project.writable(directory)
    series = seriesfile.written(directory, label)
    before = edit.carried(series, patch_id, label)
    changes, request = _changes(app, file, from_pr, ())
    diffs = seriesfile.diffs(directory, [entry for entry in series.patches if entry != before], label)
    paths = {*patchcheck.paths_read(series), *(path for change in changes for path in change.diff.paths)}
    tree, version = _source(app, series, paths, None)
    below = patching.apply_all(tree, [diffs[needed.id] for needed in patchcheck.requirements(series, before)])
    change = pullrequest.whole(Overlay(tree, below), changes, from_pr or str(file))
    diffs[patch_id] = diff = edit.replacement(series, label, patch_id, diffs, change.diff, tree)
    after = dataclasses.replace(before, touches=diff.paths)
    series = dataclasses.replace(series, patches=tuple(after if entry == before else entry for entry in series.patches))
    for spec in (
        candidate
        for candidate in _specs(app)
        if candidate.patches.series == base and patch_id in candidate.patches.enable
    ):
        where = f"{app.project.show(app.project.spec(spec.name))}: .patches.enable"
        chosen = patchset.choose(series, spec.patches.enable, where=where)
        refuse_any(together.conflicts(series, chosen, diffs, tree, where))
    upstream = request.upstream if request is not None else edit.NOT_UPSTREAM
    entry = edit.replace_patch(directory, label, patch_id, diff, upstream)
    changed = entry.sha256 != before.sha256
    text = f"{label}/{entry.file}: {'replaced, applies to' if changed else 'already this change on'} vLLM {version}"
    data: dict[str, Json] = {"series": base, "changed": changed, **dataclasses.asdict(entry)}
    app.out.result("patch replace", data, text)


@patch.command("refresh")
@click.argument("patch_id", metavar="ID", shell_complete=patches, help="The id of a patch that is carried.")
@against_option
@series_option
@with_app
def refresh(app: App, patch_id: str, against: str | None, base: str | None) -> None:
    """Write patch ID again with the line numbers of the source, and update its sha256 in the series."""
    base = _only(app, base)
    app.project.writable(app.project.series(base))
    series = seriesfile.of(app.project, base)
    tree, version = _source(app, series, patchcheck.paths_read(series), against)
    entry = edit.refresh(app.project.series(base), f"patches/{base}", patch_id, tree)
    moved = series.patch(patch_id) != entry
    text = f"patches/{base}/{entry.file}: {'written for' if moved else 'already exact for'} {version}"
    app.out.result("patch refresh", {"series": base, "changed": moved, **dataclasses.asdict(entry)}, text)


@patch.command("apply")
@IMAGE_BEFORE_PATH
@click.argument(
    "directory", cls=Needed, required=False, metavar="DIRECTORY", type=PATH, help="The directory; it must not exist."
)
@patches_option
@with_image("directory")
def apply(app: App, image: str, directory: Path, patches: str | None) -> None:
    """Write the pinned source of IMAGE with its patch set applied to DIRECTORY, to read or to compile it.

    With --patches none it is the source as vLLM released it.
    """
    build = fresh_build(app, image, patches)
    durable.absent(directory, "DIRECTORY")
    archive = fetched_source(app, build)
    diffs = build.diffs(app.project)
    with durable.appearing(directory, "DIRECTORY") as partial:
        changed = checkout.write(archive, diffs, partial)
    data: Json = {
        "image": image,
        "directory": str(directory),
        "patches": [patch.id for patch in build.patches],
        "changed": list(changed),
    }
    text = f"{directory}  source of vLLM {build.lock.vllm.version}, {len(changed)} files changed by the patch set"
    app.out.result("patch apply", data, text)


def _bases(app: App) -> list[str]:
    return sorted(path.parent.name for path in (app.project.root / "patches").glob(f"*/{seriesfile.NAME}"))


def _only(app: App, base: str | None) -> str:
    """Return BASE, or the one series that there is. Raises Refused NV108 if there are several."""
    names = _bases(app)
    if base is not None or len(names) == 1:
        return base if base is not None else names[0]
    cure = f"--series {names[0]}" if names else "write patches/BASE/series.yaml"
    raise refuse("NV108", "--series", "the name of a series", f"{len(names)} series and no --series", cure)


def _specs(app: App) -> list[ImageSpec]:
    return [specfile.of(app.project, name) for name in app.project.image_names()]


def _source(app: App, series: Series, paths: Collection[str], against: str | None) -> tuple[SourceTree, str]:
    """Return the source AGAINST (a version or a directory), or the one that SERIES pins, and its name."""
    if against is not None and Path(against).is_dir():
        return DirectoryTree(Path(against)), str(against)
    version = against if against is not None else series.version
    return source.archive(source_archive(app, version), paths), version


def source_archive(app: App, version: str) -> Path:
    """Return the path of the source archive of vLLM VERSION in the store; it is fetched if it is not there.

    Raises Refused NV209 if no lock and no index has it.
    """
    store, sources = Store(app.places.store), Sources(None, os.environ)
    file = next(_locked_sources(app, version), None) or _offered(app, sources, version)
    app.remember_project()
    fetch.fetch([file], store, sources, app.progress, offline=app.offline)
    return store.path(file.sha256)


def _locked_sources(app: App, version: str) -> Iterator[LockedFile]:
    """Yield the source archives of VERSION in the locks of this project, where they are pinned."""
    for path in reading.listed(app.project.root / "manifests", "*.lock.json"):
        locked = lockdoc.read(path, app.project.show(path)).vllm
        if locked.version == version:
            yield locked.source


def _offered(app: App, sources: Sources, version: str) -> LockedFile:
    if app.offline:
        problem = f"no lock has the source of {version}, and --offline"
        raise refuse("NV209", f"vLLM {version}", "its source archive", problem, "run it once without --offline")
    for spec in _specs(app):
        if spec.vllm.source is not None and spec.vllm.version == version:
            label, store = app.project.show(app.project.spec(spec.name)), Store(app.places.store)
            return gitsource.bring(spec.vllm, label, store, sources.client(), os.environ, app.progress)
    offered = sources.indexes().sdist("vllm", version)
    return LockedFile(offered.filename, offered.sha256, sources.indexes().size(offered.url), "pypi")
