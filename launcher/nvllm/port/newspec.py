"""What the spec of an image needs at another release of vLLM: what can be written, and what a person decides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

from nvllm.core import reading
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.core.spec import ImageSpec
from nvllm.lock import arguments, release_wheels, variables
from nvllm.lock.release_wheels import ReleaseWheels
from nvllm.patches import patchset
from nvllm.patches.series import Patch, Series
from nvllm.port.written import moved_nodes
from nvllm.spec import template
from nvllm.spec.template import Values

State = Literal["change", "decide", "unread"]
"""``change``: the port writes it; ``decide``: a person does; ``unread``: nothing here could be asked about it."""


@dataclass(frozen=True, slots=True)
class Need:
    """One place of a spec, WHERE, that was NOW and must be THEN; for what is no change, THEN is in words."""

    where: str
    state: State
    now: str
    then: str


@dataclass(frozen=True, slots=True)
class NewRelease:
    """The release that a spec moves to: VERSION, COMMIT (None in a dry run that does not know it), SERIES, its Python
    files SOURCES by path, of the archive that messages call ARCHIVE, and the ids CARRIED by its series. OLD_SOURCES are
    the Python files of the release that the spec has."""

    version: str
    commit: str | None
    series: str
    sources: Mapping[str, bytes]
    archive: str
    carried: frozenset[str]
    old_sources: Mapping[str, bytes]


def values(spec: ImageSpec, series: Series, release: NewRelease, wheels: ReleaseWheels | None) -> Values:
    """Return what SPEC, whose patches are of SERIES, says at RELEASE; without WHEELS what it says of wheels stays."""
    enable = [name for name in spec.patches.enable if name in release.carried]
    kept = [patch for patch in series.patches if patch.id in enable]
    old = spec.vllm.version
    return Values(
        name=spec.name,
        description=spec.description.replace(old, release.version),
        version=release.version,
        commit=release.commit or spec.vllm.commit,
        differs=wheels.differs if wheels is not None else spec.vllm.differs,
        brings=wheels.brings if wheels is not None else spec.vllm.brings,
        requirements=wheels.requirements if wheels is not None else spec.python.requirements,
        aliases=[release_wheels.alias(alias.version, old, release.version) for alias in spec.python.aliases],
        series=release.series,
        enable=enable,
        sentinels={
            name: patchset.narrowed(profile.sentinels, series, kept)
            for name, profile in spec.profiles.items()
            if profile.sentinels
        },
    )


def needs(
    spec: ImageSpec, moved: Values, release: NewRelease, wheels: ReleaseWheels | None, instead: tuple[State, str]
) -> tuple[Need, ...]:
    """Return what SPEC needs at RELEASE, where it says MOVED, in the order of a spec.

    INSTEAD is what is said where there are no WHEELS.

    Raises Refused NV606 and NV620 if RELEASE's source does not show its arguments or the variables that it reads.
    """
    listed = [
        *_changes(spec, moved, release),
        *(_without_wheels(spec, *instead) if wheels is None else _of_wheels(spec, wheels)),
    ]
    refusals: list[Refusal] = []
    for looked_up in (environment, _arguments):
        try:
            listed += looked_up(spec, release)
        except Refused as refused:
            refusals += refused.refusals
    refuse_any(refusals)
    return tuple(listed)


def old_proofs(root: Path, patches: Sequence[Patch], old: str, release: NewRelease) -> Iterator[Need]:
    """Yield the files below ROOT with tests of those of PATCHES that are carried that are for the release OLD: by a
    parameter that the file lacks for the new one, or because they name it. Such a test says nothing of the patch at
    RELEASE. PATCHES are those of the series that is moved, or of the one for RELEASE. Of a file that the project lacks,
    such as a proof of nvllm's own patches, nothing has to be decided."""
    new = release.version
    listed: dict[str, list[str]] = {}
    for patch in patches:
        for node in moved_nodes(patch.proved_by, old, new) if patch.id in release.carried else ():
            listed.setdefault(node.partition("::")[0], []).append(node)
    for file, nodes in listed.items():
        content = _content(root / file)
        tests = f"{len(set(nodes))} of its tests"
        parameter = any(node.endswith(f"[{new}]") for node in nodes)
        if not (root / file).exists():
            yield Need("patches: proved-by", "unread", f"{file}, {tests}", "not in this project")
        elif parameter and not _names(content, new):
            yield Need("patches: proved-by", "decide", f"{file}, {tests}", f"give them the parameter {new}")
        elif not parameter and _names(content, old):
            yield Need("patches: proved-by", "decide", f"{file}, {tests}", f"it names {old}: let it test {new}")


def _content(path: Path) -> str | None:
    try:
        return reading.text(path, reading.SOURCE)
    except (OSError, UnicodeDecodeError):
        return None


def _names(content: str | None, version: str) -> bool:
    """Return whether CONTENT names VERSION; of a file that cannot be read nothing is known, so it may."""
    return content is None or re.search(rf"(?<![0-9.]){re.escape(version)}(?![0-9]|\.[0-9])", content) is not None


def text(old: str, moved: Values) -> str:
    """Return OLD, the text of a spec, with the values MOVED. Comments stay, also those about the old release."""
    return template.moved(old, moved)


def _changes(spec: ImageSpec, moved: Values, release: NewRelease) -> Iterator[Need]:
    vllm, python = spec.vllm, spec.python
    pairs: list[tuple[str, Sequence[str], Sequence[str]]] = [
        ("vllm.version", [vllm.version], [moved.version]),
        (
            "vllm.commit",
            [vllm.commit],
            [release.commit or "what git says, or the archive"],
        ),
        ("vllm.differs", vllm.differs, moved.differs),
        ("vllm.brings", vllm.brings, moved.brings),
        ("python.requirements", python.requirements, moved.requirements),
        *(
            (f"python.aliases.{alias.name}", [alias.version], [version])
            for alias, version in zip(python.aliases, moved.aliases, strict=True)
        ),
        ("patches.series", [spec.patches.series], [moved.series]),
        ("patches.enable", spec.patches.enable, moved.enable),
        *((f"profiles.{name}.sentinels", spec.profiles[name].sentinels, new) for name, new in moved.sentinels.items()),
    ]
    absent = {"vllm.differs": not vllm.differs, "vllm.brings": not vllm.brings}
    for where, before, after in pairs:
        gone, come = [name for name in before if name not in after], [name for name in after if name not in before]
        if gone or come:  # a list that the spec lacks has no line that could be edited
            yield Need(where, "decide" if absent.get(where) else "change", ", ".join(gone), ", ".join(come))


def _without_wheels(spec: ImageSpec, state: State, why: str) -> Iterator[Need]:
    yield Need("python.requirements, vllm.differs", state, "", why)
    if spec.python.exclude or spec.python.omit:
        yield Need("python.exclude, python.omit", state, "", why)
    if spec.device_code is not None:
        yield Need("device-code", state, "", why)


def _of_wheels(spec: ImageSpec, wheels: ReleaseWheels) -> Iterator[Need]:
    """Yield what is left out of wheels and is no longer in them, or in none that was read."""
    name, names = canonicalize_name(spec.vllm.distribution), {wheel.name for wheel in wheels.resolved}
    for exclusion in spec.python.exclude:
        if canonicalize_name(exclusion.name) not in names:
            yield Need("python.exclude", "decide", exclusion.name, "remove it: nothing asks for it any more")
    unread = []
    for omission in spec.python.omit:
        distribution = canonicalize_name(omission.distribution)
        if distribution not in names:
            yield Need("python.omit", "decide", f"{omission.distribution}: {omission.path}", "remove it: no such wheel")
        elif distribution != name:
            unread.append(distribution)
        elif omission.path not in wheels.members:
            yield Need("python.omit", "decide", f"{omission.distribution}: {omission.path}", "remove it: no such file")
    if unread:
        listed = ", ".join(sorted(set(unread)))
        yield Need("python.omit", "unread", "", f"files of {listed}: nvllm build refuses those that are gone")
    yield from _device_code(spec, wheels)


def _device_code(spec: ImageSpec, wheels: ReleaseWheels) -> Iterator[Need]:
    rules = spec.device_code
    if rules is None:
        return
    others = sorted({canonicalize_name(each) for each in rules.wheels} - {canonicalize_name(spec.vllm.distribution)})
    for exception in rules.lacking:
        if not others and exception.library not in wheels.members:
            yield Need(
                "device-code.lacking", "decide", exception.library, "remove it: vLLM's wheel has no such library"
            )
    then = f"nvllm lock looks into the libraries of {', '.join(rules.wheels)} for {', '.join(spec.targets)}"
    yield Need("device-code", "unread", "", then)


def environment(spec: ImageSpec, release: NewRelease) -> Iterator[Need]:
    """Yield the variables of SPEC that RELEASE does not read, that it reads otherwise, and that are not vLLM's.

    Raises Refused NV620 if its source does not show the variables that it reads.
    """
    for where, name in variables.unread(spec, release.sources, release.archive):
        yield Need(where, "decide", name, f"remove it: vLLM {release.version} does not read it")
    for where, now, old, new in variables.changed(spec, release.old_sources, release.sources):
        then = f"keep, change or remove it: vLLM {release.version} reads it as {new}, {spec.vllm.version} as {old}"
        yield Need(where, "decide", now, then)
    foreign = variables.foreign(spec)
    if foreign:
        yield Need("environment", "unread", ", ".join(foreign), "not vLLM's own: its source does not show who reads it")


def _arguments(spec: ImageSpec, release: NewRelease) -> Iterator[Need]:
    """Yield what `nvllm lock` would refuse with NV603."""
    names = arguments.known(release.sources, release.archive)
    label = "spec"
    for refusal in arguments.unknown(spec, names, label):
        where = refusal.where.removeprefix(f"{label}: .")
        yield Need(where, "decide", refusal.found, f"{refusal.cure}: vLLM {release.version} does not know it")
