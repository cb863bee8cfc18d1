"""`nvllm init`: a project of one's own, with its spec, its series and its first lock."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import click

from nvllm.cache import signing_key
from nvllm.cache.signing_key import Signer
from nvllm.cli.complete import files, targets
from nvllm.cli.frame import PATH, App, Command, packed, with_app
from nvllm.cli.lock import lacking_lines
from nvllm.core import durable, paths, reading
from nvllm.core.canonical import Json
from nvllm.core.fields import PINNED, PINNED_COMMIT
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, Refused, refuse_any, refusing
from nvllm.core.spec import ImageSpec
from nvllm.init import newproject
from nvllm.init.newproject import ProjectDraft, ProjectRequest
from nvllm.lock import providers
from nvllm.lock.providers import Providers
from nvllm.patches import patchset, proofs, seriesfile
from nvllm.spec import specfile

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)+[a-z0-9.+-]*")
_SIGNERS = "manifests/allowed_signers"
"""The allowed signers file of a new project."""

EXAMPLES = """
Examples:
  nvllm init mine                                        nvllm's own vLLM and patches, as a project to change
  nvllm init mine --vllm 0.27.0                          another version of vLLM
  nvllm init mine --from-branch ~/vllm --vllm 0.27.0 \\
      --proved-by tests/test_mine.py::test_it            one patch for each commit after v0.27.0
  nvllm init mine --from-diff a.patch --from-diff b.patch \\
      --proved-by a=tests/test_a.py::test_a --proved-by b=tests/test_b.py::test_b
  nvllm init mine --signer you@example.org               who signs its blessings, with a key of yours or a new one
  nvllm init mine --target sm120 --bare --no-lock        only the files, without patches of nvllm's own
"""


@dataclasses.dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of `init`: the version, the patches, and who signs."""

    version: str | None
    target: str
    name: str | None
    diffs: tuple[Path, ...]
    checkout: Path | None
    tests: tuple[str, ...]
    commit: str | None
    bare: bool
    principal: str | None
    key: Path | None
    no_lock: bool
    dry_run: bool


_OPTIONS = (
    click.option("--vllm", "version", metavar="VERSION", help="A release of vLLM.  [default: the target's]"),
    click.option(
        "--target",
        default="cpu",
        show_default=True,
        metavar="IMAGE",
        shell_complete=targets,
        help="The image of nvllm's to begin with: cpu, sm120 or gb10.",
    ),
    click.option("--name", metavar="NAME", help="What the image is called.  [default: as DIR is]"),
    click.option(
        "--from-diff",
        "diffs",
        multiple=True,
        type=PATH,
        metavar="FILE",
        help="A unified diff, or what `git format-patch` wrote, as the next patch. Repeatable.",
    ),
    click.option(
        "--from-branch",
        "checkout",
        type=PATH,
        metavar="CHECKOUT",
        help="A git checkout of vLLM: each commit after the release, up to HEAD, is a patch.",
    ),
    click.option(
        "--proved-by",
        "tests",
        multiple=True,
        metavar="[ID=]FILE::TEST",
        shell_complete=files,
        help="A test that fails without the patches, or without patch ID. FILE is copied. Repeatable.",
    ),
    click.option(
        "--commit",
        metavar="HEX40",
        help="The commit of the release.  [default: git says it, or the source archive its first digits]",
    ),
    click.option(
        "--bare", is_flag=True, help="Without the patches that nvllm's image has: stock vLLM and your patches."
    ),
    click.option(
        "--signer",
        "principal",
        metavar="PRINCIPAL",
        help="Who signs the blessings, such as an e-mail address: blessed profiles demand it.",
    ),
    click.option(
        "--key",
        type=PATH,
        metavar="PATH",
        help="With --signer: the SSH key; it is made if it is not there.  [default: ~/.config/nvllm/signing_key]",
    ),
    click.option("--no-lock", is_flag=True, help="Write no lock; `nvllm lock` does it later."),
    click.option("--dry-run", is_flag=True, help="Do all but the lock, say what there would be, and write nothing."),
)


@click.command("init", cls=Command, epilog=EXAMPLES)
@click.argument("directory", metavar="DIR", type=PATH, help="Where the project is to be.")
@packed("given", InitOptions, _OPTIONS)
@with_app
def init(app: App, directory: Path, given: InitOptions) -> None:
    """DIR gets images/, patches/ and manifests/, and the first lock.

    The spec is that of nvllm's image TARGET for the version that is asked for. Of nvllm's patches the project has those
    that apply to that version, then yours. Environment variables stay as TARGET has them; those that the version reads
    otherwise, or not at all, are named. Nothing is written if anything is refused. With --offline a lock is
    written only if nothing has to be asked for it.
    """
    directory = directory.absolute()
    newproject.vacant(directory)
    principal, key = given.principal, given.key
    if key is None and principal is not None:
        key = paths.signing_key(os.environ)
    refuse_any([*_unusable(given), *signing_key.unusable(principal, key, directory)])
    signer = signing_key.of(principal, key.absolute()) if principal is not None and key is not None else None
    origin = newproject.template_of(paths.packaged(app.project.platform), given.target)
    asked = providers.connect(origin.spec, app.places, None, offline=app.offline, progress=app.progress)
    request = ProjectRequest(
        name=given.name or newproject.name_of(directory),
        version=given.version,
        commit=given.commit,
        diffs=tuple((str(path), _content(path)) for path in given.diffs),
        checkout=given.checkout,
        proofs=given.tests,
        bare=given.bare,
        signers=_SIGNERS if signer is not None else None,
    )
    drafted = newproject.draft(request, origin, asked, os.environ, offline=app.offline)
    values = drafted.values
    if given.tests and not proofs.pytest_is_here():
        app.progress.note("pytest is not installed here: of the tests, only that their files define them was looked at")
    with newproject.scratch() if given.dry_run else durable.becoming(directory) as root:
        project = newproject.write(drafted, root)
        locked = None if given.no_lock or given.dry_run else _locked(app, drafted, project, asked)
        (root / "manifests/.gitkeep").touch()  # git keeps no empty directory, and a project has this one (NV107)
        spec = specfile.load(project.spec(values.name), drafted.spec)
        series = seriesfile.of(project, spec.patches.series)
        lacking = patchset.lacking(spec, series, [patch for patch in series.patches if patch.id in spec.patches.enable])
        if signer is not None:  # last: what is refused before leaves no key
            allowed = signer if given.dry_run else signing_key.make(signer)
            durable.replace(root / _SIGNERS, allowed.entry.encode(), 0o644, code="NV920")
        files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    if locked:
        dataclasses.replace(app, project=Project(directory, project.platform)).remember_project()
    profile, model = newproject.start(spec)
    next_ = _next(directory, values.name, profile, model, locked=locked is not None)
    if signer is not None:
        next_ += _signing(spec, signer)
    data = {
        "directory": str(directory),
        "written": not given.dry_run,
        "image": values.name,
        "vllm": values.version,
        "commit": values.commit,
        "series": values.series,
        "carried": [fit.id for fit in drafted.fits if fit.fault is None],
        "left_out": [{"id": fit.id, "fault": fit.fault} for fit in drafted.fits if fit.fault is not None],
        "lacking": {name: list(ids) for name, ids in lacking.items()},
        "decide": [dataclasses.asdict(need) for need in drafted.decisions],
        "imported": [
            {"id": change.id, "summary": change.summary, "from": change.diff.name} for change in drafted.changes
        ],
        "differs": list(values.differs),
        "lock": locked,
        "files": files,
        "next": next_,
        "signer": _signer_data(signer, dry_run=given.dry_run),
    }
    app.out.result(
        "init",
        cast("Json", data),
        lambda: _print_draft(app, drafted, directory, lacking, next_, signer, dry_run=given.dry_run, locked=locked),
    )


def _unusable(given: InitOptions) -> Iterator[Refusal]:
    if given.version is not None and not _VERSION.fullmatch(given.version):
        yield Refusal("NV108", "--vllm", "a version such as 0.28.0", given.version, "pip index versions vllm")
    if given.commit is not None and not re.fullmatch(PINNED_COMMIT, given.commit):
        yield Refusal("NV108", "--commit", PINNED, given.commit, "write the whole id, as `git rev-parse` prints it")
    if given.name is not None and not _NAME.fullmatch(given.name):
        expected = "a name of lower-case letters, digits and -, not starting with -"
        yield Refusal("NV108", "--name", expected, given.name, f"--name {newproject.name_of(Path(given.name))}")
    if given.diffs and given.checkout is not None:
        cure = "write the commits as files with `git format-patch`, and name each with --from-diff"
        yield Refusal("NV108", "--from-branch", "--from-diff or --from-branch", "both", cure)


def _content(path: Path) -> bytes:
    """Return the bytes of the diff at PATH. Raises Refused NV108 if there is no regular file that can be a diff."""
    expected, cure = f"a file with a diff, of at most {reading.PATCH} bytes", "write it with `git format-patch`"
    with refusing("NV108", f"--from-diff {path}", expected, cure):
        return reading.content(path, reading.PATCH)


def _locked(app: App, drafted: ProjectDraft, project: Project, asked: Providers) -> str | None:
    """Write the first lock and return its path in PROJECT. Offline, return None if something would have to be asked."""
    try:
        path = newproject.first_lock(drafted, project, asked)
    except Refused as refused:
        if app.offline and all(refusal.blame == "network" for refusal in refused.refusals):
            return None
        raise
    return project.show(path)


def _next(directory: Path, image: str, profile: str, model: str | None, *, locked: bool) -> list[str]:
    """Return the three commands that lead from the new project to a served model."""
    enter = f"cd {shlex.quote(str(directory))}"
    build = f"nvllm build {image}" if locked else f"nvllm lock {image} && nvllm build {image}"
    serve = f"nvllm serve {image} --profile {profile}"
    return [f"{enter} && {build}", f"nvllm model make {image} {model}", serve] if model else [enter, build, serve]


def _signing(spec: ImageSpec, signer: Signer) -> list[str]:
    """Return the command that signs a blessing of the first profile of SPEC that demands it."""
    blessed = [name for name, profile in spec.profiles.items() if profile.blessed]
    return [
        shlex.join(["nvllm", "bless", spec.name, "--profile", name, "--sign", str(signer.key)]) for name in blessed[:1]
    ]


def _signer_data(signer: Signer | None, *, dry_run: bool) -> Json:
    if signer is None:
        return None
    made = signer.public is None and not dry_run
    return {"principal": signer.principal, "key": str(signer.key), "key_made": made, "signers": _SIGNERS}


def _print_draft(
    app: App,
    drafted: ProjectDraft,
    directory: Path,
    lacking: Mapping[str, Sequence[str]],
    next_: Sequence[str],
    signer: Signer | None,
    *,
    dry_run: bool,
    locked: str | None,
) -> None:
    values = drafted.values
    verb = "would be written" if dry_run else "written"
    app.out.line(f"{directory}: {verb}, vLLM {values.version} ({values.commit[:12]}), {drafted.spec}")
    for fit in drafted.fits:
        if fit.fault is not None:
            app.out.line(f"  left out: {fit.id}, a patch of nvllm's: {fit.fault}")
    for line in lacking_lines(lacking):
        app.out.line(f"  {line}")
    carried = [fit.id for fit in drafted.fits if fit.fault is None]
    if carried:
        app.out.line(f"  nvllm's patches: {', '.join(carried)}")
    for change in drafted.changes:
        app.out.line(f"  your patch: {change.id}, from {change.diff.name}")
    more = sorted(set(values.differs) - set(drafted.template.spec.vllm.differs))
    if more:
        app.out.line(f"  the wheel differs from its source in {', '.join(more)}: read them before you trust it")
    brings = sorted(set(values.brings) - set(drafted.template.spec.vllm.brings))
    if brings:
        app.out.line(
            f"  the wheel brings {', '.join(brings)}, which its source lacks: look where its build has them from"
        )
    for need in drafted.decisions:
        app.out.line(f"  decide: {need.where}: {need.now}: {need.then}")
    if locked:
        app.out.line(f"  locked: {locked}")
    if signer is not None:
        made = "" if signer.public is not None else ", would be made" if dry_run else ", new, without a passphrase"
        app.out.line(f"  signed by: {signer.principal}, in {_SIGNERS}; key {signer.key}{made}")
    app.out.line("next:")
    for command in next_:
        app.out.line(f"  {command}")
