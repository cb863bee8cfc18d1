"""`nvllm port`: a series of patches, moved to another release of vLLM."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import click
from packaging.version import Version

from nvllm.cli import complete
from nvllm.cli.frame import PATH, App, Command
from nvllm.cli.image_argument import IMAGE, with_image
from nvllm.cli.patch import source_archive
from nvllm.core import durable
from nvllm.core.canonical import Json
from nvllm.core.fields import COMMIT, PINNED, PINNED_COMMIT
from nvllm.core.refusal import Refused, refuse, refuse_any
from nvllm.core.spec import ImageSpec
from nvllm.lock import lockdoc, providers, release_wheels, resolve, wheel_matches_source
from nvllm.lock.project import lock_image, read_inputs, read_lock, usable_lock
from nvllm.lock.release_wheels import ReleaseWheels
from nvllm.patches import patching, seriesfile, source
from nvllm.patches.series import Series
from nvllm.patches.source import ArchiveTree
from nvllm.patches.unified import Diff
from nvllm.port import gitmerge, merge, moves, newspec, releases, report, written
from nvllm.port.conflicts import Conflicts
from nvllm.port.merge import Ported, Resolution, Sides
from nvllm.port.newspec import Need
from nvllm.port.report import PortReport
from nvllm.port.resolutions import Resolutions
from nvllm.port.written import Release
from nvllm.sources import commits
from nvllm.sources.indexes import Sources
from nvllm.spec import specfile

EXAMPLES = """
Examples:
  nvllm port cpu --to 0.32.0 --dry-run     what becomes of each patch; nothing is written
  nvllm port cpu --to each --dry-run       the same for every release since the pinned one, as a table
  nvllm port cpu --to 0.32.0               write patches/v0.32.0 and the spec, or the files in which patches conflict
  nvllm port sm120 --to 0.33.0 --from-series v0.32.0    from the series of a later release than the image's
"""

EACH = "each"
_NAMED = "name one release: --to VERSION"
_UNASKED = "nothing was asked of an index: --offline"
_COMPILED = "vLLM is compiled from a commit: no index has its wheel"
_VERSION_FILE = "vllm/_version.py"


@dataclass(frozen=True, slots=True)
class _Job:
    """What is moved: a SERIES with its DIFFS, the files of its source, and the ids of the patches ENABLED."""

    app: App
    series: Series
    diffs: Mapping[str, Diff]
    old: Mapping[str, bytes]
    enabled: tuple[str, ...]

    def texts(self, version: str) -> Mapping[str, bytes]:
        """Return the files of the source of VERSION that the patches, or the spec, may be about."""
        if version == self.series.version:
            return self.old
        return source.texts(source_archive(self.app, version), suffixes(self.series))

    def to(
        self, version: str, new: Mapping[str, bytes], resolved: merge.Resolve
    ) -> tuple[tuple[Ported, ...], ArchiveTree]:
        """Return what becomes of each patch on NEW, the source of VERSION, and that source."""
        names = {*self.old, *new, *(path for patch in self.series.patches for path in patch.touches)}
        names |= {item.path for patch in self.series.patches for item in patch.evidence}
        before, after = (ArchiveTree({name: files.get(name) for name in names}) for files in (self.old, new))
        sides = Sides(before, after, version, cache(lambda path: moves.moved(path, self.old, new)))
        return merge.port(self.series, self.diffs, sides, gitmerge.merge, resolved), after

    def upstream(self, version: str) -> frozenset[str]:
        """Return the ids of the patches that the source of VERSION has."""
        ported, _ = self.to(version, self.texts(version), _unasked)
        return frozenset(outcome.id for outcome in ported if outcome.state == "upstream")

    def releases(self) -> tuple[str, ...]:
        """Return the releases after that of the series that the index has, in their order."""
        return releases.after(Sources(None, os.environ).indexes().sdist_versions("vllm"), self.series.version)


def _unasked(patch_id: str, path: str, merged: bytes) -> Resolution | None:
    """Resolve nothing: what becomes of a patch by its text alone."""
    return None


@dataclass(frozen=True, slots=True)
class _Resolver:
    """What people have made of the files of patches: for this port in CONFLICTS, before in MEMORY."""

    conflicts: Conflicts
    memory: Resolutions

    def resolved(self, patch_id: str, path: str, merged: bytes) -> Resolution | None:
        content = self.conflicts.resolved(patch_id, path)
        if content is not None:
            return Resolution(content, "person")
        content = self.memory.recall(path, merged)
        return Resolution(content, "memory") if content is not None else None

    def remember(self, ported: Sequence[Ported]) -> None:
        """Keep what people have made of the files of PORTED for this port. Raises Refused NV920."""
        for file in (file for outcome in ported for file in outcome.resolved if file.resolution.origin == "person"):
            self.memory.remember(file.path, file.merged, file.resolution.content)


def suffixes(series: Series) -> tuple[str, ...]:
    """Return the suffixes of the files that SERIES touches, and that of Python."""
    paths = [Path(path) for patch in series.patches for path in patch.touches]
    return tuple(sorted({".py", *(path.suffix or path.name for path in paths)}))


@click.command("port", cls=Command, epilog=EXAMPLES)
@IMAGE
@click.option(
    "--to", required=True, metavar="VERSION|each", help="A release of vLLM, or every one since the pinned one."
)
@click.option(
    "--from-series",
    "base",
    metavar="BASE",
    shell_complete=complete.series,
    help="The series to move, a directory below patches/.  [default: that of the image]",
)
@click.option("--dry-run", is_flag=True, help="Say what becomes of each patch; write nothing.")
@click.option(
    "--commit",
    metavar="HEX40",
    help="The commit of the release.  [default: git says it, or the source archive its first digits]",
)
@click.option(
    "--conflicts",
    type=PATH,
    metavar="DIR",
    help="Where the files lie that a person must merge.  [default: patches/vVERSION.conflicts]",
)
@with_image()
def port(
    app: App, image: str, to: str, base: str | None, dry_run: bool, commit: str | None, conflicts: Path | None
) -> None:
    """Move the patches of IMAGE's series, or of another one, to the vLLM release VERSION.

    Each patch is merged three-way, file by file, from the two source archives. It is unchanged, moved, merged, partly
    upstream, upstream, or in conflict. Where patches conflict, the files are written with markers: edit them, and run
    the same command again. A conflict that was resolved before, also in another project, is resolved the same way. A
    series for VERSION that is there is taken as it is, and the spec alone is moved.

    With --from-series the patches are those of another series of the project, such as one for a release nearer to
    VERSION. The set stays that of the image: what it enables and the series carries.

    The report begins with what of each patch changed, as `git range-diff` shows it. Then come the outcomes, what the
    image's spec needs, what was dropped, and what a person decides. If the spec needs no decision, the lock is written
    too. Exits with 1 while a patch is in conflict, or a person must decide something.
    """
    spec = specfile.of(app.project, image)
    series = _series(app, spec, base)
    directory = app.project.series(series.base)
    diffs = seriesfile.diffs_of(app.project, series.base, series.patches)
    old = source.texts(source_archive(app, series.version), suffixes(series))
    job = _Job(app, series, diffs, old, spec.patches.enable)
    if to == EACH:
        _each(job)
        return
    target = app.project.series(f"v{to}")
    resolver = _Resolver(
        Conflicts(conflicts or target.with_name(f"{target.name}.conflicts")), Resolutions(app.places.resolutions)
    )
    if not dry_run:
        app.project.writable(target)
    ready = _ready(app, target, to, commit) if not dry_run and target.exists() else None
    new = job.texts(to)
    ported: tuple[Ported, ...] = ()
    tree = ArchiveTree({_VERSION_FILE: new.get(_VERSION_FILE)})
    if ready is None:
        ported, tree = job.to(to, new, resolver.resolved)
        if not dry_run:
            resolver.remember(ported)
        ported = _dated(job, ported, to)
    unmerged = [outcome for outcome in ported if outcome.state in ("conflict", "missing")]
    commit = None if dry_run or unmerged else _commit(app, spec, to, ready.commit if ready else commit, tree)
    gone = {outcome.id for outcome in ported if outcome.state == "upstream"}
    left = ready if ready is not None else series
    carried = frozenset(patch.id for patch in left.patches if patch.status == "carried" and patch.id not in gone)
    pinned = job.texts(spec.vllm.version)
    release = newspec.NewRelease(to, commit, target.name, new, f"vllm-{to}.tar.gz", carried, pinned)
    moved, needs = _moved(app, spec, release, dry_run=dry_run)
    undecided = any(need.state == "decide" for need in needs)
    needs = (*needs, *newspec.old_proofs(app.project.root, left.patches, series.version, release))
    evidence = written.evidence(series, diffs, ported, tree)
    reported = report.of(series, diffs, ported, needs, evidence)
    paths: tuple[Path, ...] = ()
    lines: list[str] = []
    spec_path = app.project.spec(image)
    if not dry_run and unmerged:
        paths = resolver.conflicts.write(ported)
        lines = [*(f"conflict: {app.project.show(path)}" for path in paths), "edit these files, then run it again"]
    elif not dry_run:
        assert commit is not None
        lines = [f"there already, and taken as it is: {app.project.show(target)}"]
        if ready is None:
            text = seriesfile.text(directory, app.project.show(directory))
            files = written.files(text, series, ported, evidence, Release(target.name, to, commit))
            # Each was merged on what it requires; refuses those that do not apply together.
            patching.apply_all(
                tree, [patch.diff for patch in ported if patch.diff is not None and patch.id in job.enabled]
            )
            with durable.appearing(target, "--to") as partial:
                for name, content in files.items():
                    durable.replace(partial / name, content, 0o644, code="NV920")
            lines = [f"written: {app.project.show(target)}, {len(files) - 1} patches"]
        if moved is not None:  # after the series that it names: an interrupted port goes on with that
            durable.replace(spec_path, moved.encode(), 0o644, code="NV920")
            lines.append(f"written: {app.project.show(spec_path)}")
        if moved is None or undecided:
            rest = "says" if moved is None else "leaves to you"
            write = f"write what the table {rest} into {app.project.show(spec_path)}"
            lines.append(f"next: {write}, then nvllm lock {image} --update wheels")
        else:
            lines += [f"written: {_locked(app, image)}", f"next: nvllm patch prove {image}, nvllm build {image}"]
    data: dict[str, Json] = {
        "image": image,
        "series": series.base,
        "version": to,
        "patches": [_document(outcome, job.enabled, reported) for outcome in ported],
        "dropped": [dataclasses.asdict(item) for item in reported.dropped],
        "decide": [dataclasses.asdict(item) for item in reported.decide],
        "conflicts": [str(path) for path in paths],
        "spec": [dataclasses.asdict(need) for need in needs],
        "written": None if dry_run or unmerged or ready is not None else app.project.show(target),
    }
    app.out.result("port", data, lambda: _text(app, ported, job.enabled, needs, reported, lines))
    if unmerged or any(need.state == "decide" for need in needs):
        raise click.exceptions.Exit(1)


def _series(app: App, spec: ImageSpec, base: str | None) -> Series:
    """Return the series to move: BASE, or that of SPEC. Raises Refused NV104 if that of SPEC is of another commit."""
    if base is not None:
        return seriesfile.of(app.project, base)
    series = seriesfile.of(app.project, spec.patches.series)
    label = app.project.show(app.project.series(series.base))
    refuse_any(seriesfile.other_commit(series, spec.vllm.commit, label))
    return series


def _ready(app: App, target: Path, version: str, commit: str | None) -> Series:
    """Return the series in TARGET: another image was moved to VERSION, or a port was interrupted.

    Raises Refused NV108 if it is for another release, NV104 for another commit than COMMIT, and as `seriesfile.of`
    does.
    """
    label, ready = app.project.show(target), seriesfile.of(app.project, target.name)
    if ready.version != version:
        cure = f"to make it again: {shlex.join(['rm', '-r', label])}"
        raise refuse("NV108", "--to", f"a series for {version} in {label}", f"one for {ready.version}", cure)
    if commit is not None:
        refuse_any(seriesfile.other_commit(ready, commit, label))
    return ready


def _locked(app: App, image: str) -> str:
    """Lock IMAGE, whose spec and series are those of the new release, and return the path of the lock.

    Raises what `nvllm lock` raises, which then goes on where this ended.
    """
    app.remember_project()
    previous = usable_lock(app.project, image, app.progress)
    update = frozenset({"wheels"})  # what the new release does not bound would stay at the versions of the old one
    inputs = read_inputs(app.project, image)
    lockdoc.write(
        app.project.lock(image),
        lock_image(inputs, previous, app.places, update, offline=app.offline, progress=app.progress),
    )
    return app.project.show(app.project.lock(image))


def _dated(job: _Job, ported: tuple[Ported, ...], version: str) -> tuple[Ported, ...]:
    """Return PORTED, on the source of VERSION, with the first release that has each patch that is upstream.

    The series may say it. Otherwise the releases up to VERSION are halved; --offline nobody knows them.
    """
    known = {patch.id: patch.upstream.since for patch in job.series.patches}
    asked = [patch.id for patch in ported if patch.state == "upstream" and known[patch.id] is None]
    first: dict[str, str] = {}
    if asked and not job.app.offline:
        versions = [release for release in job.releases() if Version(release) < Version(version)]
        upstream = cache(job.upstream)
        first = {patch_id: releases.first([*versions, version], patch_id, upstream) for patch_id in asked}
    dated = []
    for outcome in ported:
        if outcome.id in first:
            detail = f"{outcome.detail}, and {first[outcome.id]} is the first that has"
            dated.append(replace(outcome, since=first[outcome.id], detail=detail))
        else:
            dated.append(replace(outcome, since=known[outcome.id]) if outcome.state == "upstream" else outcome)
    return tuple(dated)


def _each(job: _Job) -> None:
    """Say what becomes of each patch on every release after that of the series."""
    app, series = job.app, job.series
    if app.offline:
        raise refuse("NV209", "--to each", "an index that says which releases there are", "--offline", _NAMED)
    rows: dict[str, tuple[Ported, ...]] = {}
    for version in job.releases():
        rows[version] = job.to(version, job.texts(version), _unasked)[0]
    data: Json = {
        "series": series.base,
        "releases": [
            {"version": version, "patches": [_outcome(outcome, job.enabled) for outcome in ported]}
            for version, ported in rows.items()
        ],
    }
    columns = ["patch", *rows]
    cells = [
        (patch.id, *(ported[index].state for ported in rows.values())) for index, patch in enumerate(series.patches)
    ]
    app.out.result("port", data, lambda: app.out.table(columns, cells))


def _document(outcome: Ported, enabled: tuple[str, ...], reported: PortReport) -> dict[str, Json]:
    """Return OUTCOME for --json, with what is REPORTED of it."""
    return {
        **_outcome(outcome, enabled),
        "range_diff": list(reported.changes.get(outcome.id, ())),
        "evidence": [dataclasses.asdict(item) for item in reported.evidence.get(outcome.id, ())],
    }


def _outcome(outcome: Ported, enabled: tuple[str, ...]) -> dict[str, Json]:
    """Return OUTCOME for --json: without the bytes of its files."""
    return {
        "id": outcome.id,
        "outcome": outcome.state,
        "detail": outcome.detail,
        "since": outcome.since,
        "enabled": outcome.id in enabled,
        "unmerged": [{"path": file.path, "reason": file.reason} for file in outcome.unmerged],
        "renamed": [{"old": old, "new": new} for old, new in outcome.renamed],
        "resolved": [{"path": file.path, "origin": file.resolution.origin} for file in outcome.resolved],
    }


def _moved(
    app: App, spec: ImageSpec, release: newspec.NewRelease, *, dry_run: bool
) -> tuple[str | None, tuple[Need, ...]]:
    """Return the text of SPEC at RELEASE, None if its wheels are unknown, and its needs.

    Raises what `wheels_of` and `newspec.needs` raise, but in a DRY_RUN a release without wheels is one of the needs.
    """
    instead: tuple[newspec.State, str] = ("unread", _UNASKED if app.offline else _COMPILED)
    try:
        wheels = wheels_of(app, spec, release)
    except Refused as refused:
        if not dry_run:  # before anything is written, and before a person merges for a release that has no wheel
            raise
        words = "; ".join(f"{refusal.expected}: {refusal.found}" for refusal in refused.refusals)
        wheels, instead = None, ("decide", words)
    values = newspec.values(spec, seriesfile.of(app.project, spec.patches.series), release, wheels)
    needs = newspec.needs(spec, values, release, wheels, instead)
    path = app.project.spec(spec.name)
    text = newspec.text(specfile.written(path, app.project.show(path)), values) if wheels is not None else None
    return text, needs


def wheels_of(app: App, spec: ImageSpec, release: newspec.NewRelease) -> ReleaseWheels | None:
    """Return what SPEC says of its wheels at RELEASE; None if no index may be asked, or vLLM is compiled.

    Raises Refused NV201 without a lock, which says what Python the wheels are for, and NV209 if there is no wheel.
    """
    if app.offline or spec.vllm.source is not None:
        return None
    target = resolve.target(spec.base, read_lock(app.project, spec.name).base, app.project.platform)
    sources = {
        path: data for path, data in release.sources.items() if path.startswith("vllm/") and path.endswith(".py")
    }
    asked = providers.connect(spec, app.places, None, offline=app.offline, progress=app.progress)
    return release_wheels.of(spec, release.version, sources, target, asked)


def _text(
    app: App,
    ported: tuple[Ported, ...],
    enabled: tuple[str, ...],
    needs: tuple[Need, ...],
    reported: PortReport,
    lines: list[str],
) -> None:
    """Print the range-diff first: it is the longest part, and what is to be done stands last."""
    for patch_id, changes in reported.changes.items():
        for line in [patch_id, *(f"    {change}" for change in changes)] if changes else ():
            app.out.line(line)
    rows = [
        (outcome.id, outcome.state, "enabled" if outcome.id in enabled else "-", outcome.detail) for outcome in ported
    ]
    if rows:
        app.out.table(["patch", "outcome", "set", "detail"], rows)
    for patch_id, evidence in reported.evidence.items():
        for item in evidence:
            texts = [f"has {text!r}" for text in item.contains] + [f"lacks {text!r}" for text in item.lacks]
            app.out.line(f"  {patch_id}: {item.path} {', '.join(texts)}")
    spec = [(need.where, need.state, need.now, need.then) for need in needs if need.state != "decide"]
    dropped, decide = ([(item.what, item.why) for item in items] for items in (reported.dropped, reported.decide))
    tables = ((["spec", "state", "now", "then"], spec), (["dropped", "why"], dropped), (["decide", "what"], decide))
    for columns, cells in tables:
        if cells:
            app.out.table(columns, cells)
    for line in lines:
        app.out.line(line)


def _commit(app: App, spec: ImageSpec, version: str, named: str | None, tree: ArchiveTree) -> str:
    """Return the commit of VERSION: NAMED, or what git says, or as far as the source in TREE records it.

    Raises Refused NV108 for a name that is no commit, NV209 if nobody knows it (all of it, where SPEC has a source by
    its commit), NV207 if the source records another.
    """
    if named is not None and not re.fullmatch(PINNED_COMMIT, named):
        raise refuse("NV108", "--commit", PINNED, named, "write the whole id, as `git rev-parse` prints it")
    recorded = wheel_matches_source.recorded_commit(tree.read(_VERSION_FILE) or b"")
    commit = named if named is not None or app.offline else commits.tagged(version, os.environ)
    cure = f"name the commit of the tag v{version} with --commit: {commits.command(version, os.environ)}"
    if commit is None and spec.vllm.source is None:
        commit = recorded
    if commit is None or (spec.vllm.source is not None and not re.fullmatch(COMMIT, commit)):
        expected = f"the commit of vLLM {version}, 40 hex digits, which begins with {recorded}"
        raise refuse("NV209", "--commit", expected, "nobody here who knows the rest", cure)
    if recorded is None or not commit.startswith(recorded):
        raise refuse("NV207", f"{_VERSION_FILE} of vLLM {version}", f"commit {commit}", f"commit {recorded}", cure)
    return commit
