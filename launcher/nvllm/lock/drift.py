"""The differences between two locks, by kind, for `nvllm lock --check` and `nvllm explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from nvllm.core.lock import (
    Lock,
    LockedDeb,
    LockedDebianBase,
    LockedFile,
    LockedModel,
    LockedPatch,
    LockedRegistryBase,
    LockedSeries,
    LockedVllm,
    LockedWheel,
)
from nvllm.patches.series import Patch

DriftKind = (
    Literal["alias-changed", "arguments-changed", "base-changed", "commit-changed", "device-code-changed"]
    | Literal["difference-changed"]
    | Literal["distribution-changed", "epoch-changed", "index-changed", "inputs-changed", "platform-changed"]
    | Literal["series-changed", "snapshot-changed", "toolchain-changed"]
    | Literal["deb-added", "deb-moved", "deb-removed", "deb-replaced"]
    | Literal["model-added", "model-moved", "model-removed", "model-replaced"]
    | Literal["patch-added", "patch-changed", "patch-order-changed", "patch-removed"]
    | Literal["source-moved", "source-replaced", "template-changed"]
    | Literal["wheel-added", "wheel-excluded", "wheel-moved", "wheel-omits", "wheel-removed", "wheel-replaced"]
)
"""``moved`` is another version or revision; ``replaced`` is other bytes under the same version."""


@dataclass(frozen=True, slots=True, order=True)
class Drift:
    """One difference: its KIND, the NAME of what differs, and its values in the two locks (None: absent)."""

    kind: DriftKind
    name: str
    before: str | None
    after: str | None


def compare(old: Lock, new: Lock) -> tuple[Drift, ...]:
    """Return every difference between the locks OLD and NEW of one image, sorted; none if they are equal."""
    drifts = (
        *_whole(old, new),
        *_base(old.base, new.base),
        *_vllm(old.vllm, new.vllm),
        *_packages("wheel", _wheels(old.wheels), _wheels(new.wheels)),
        *_each("wheel-excluded", _versions(old.excluded), _versions(new.excluded)),
        *_each("wheel-omits", _omitted(old.wheels), _omitted(new.wheels)),
        *_series(old.series, new.series),
        *_models(old.models, new.models),
        *_each("template-changed", _templates(old), _templates(new)),
    )
    return tuple(sorted(drifts, key=lambda drift: (drift.kind, drift.name)))


def _whole(old: Lock, new: Lock) -> Iterator[Drift]:
    yield from _changed("inputs-changed", "inputs", old.inputs, new.inputs)
    yield from _changed("platform-changed", "platform", old.platform, new.platform)
    yield from _changed("epoch-changed", "epoch", str(old.epoch), str(new.epoch))
    yield from _each("toolchain-changed", old.toolchain, new.toolchain)
    yield from _each("toolchain-changed", _tools(old), _tools(new))
    yield from _changed("alias-changed", "aliases", _aliases(old), _aliases(new))
    yield from _each("device-code-changed", _device_code(old), _device_code(new))


def _templates(lock: Lock) -> Mapping[str, str]:
    return {template.path: f"sha256 {template.sha256}, {template.size} bytes" for template in lock.templates}


def _tools(lock: Lock) -> Mapping[str, str]:
    files = (*(tool.file for tool in lock.tools), *lock.vllm.native_files)
    return {file.filename: f"sha256 {file.sha256}, {file.size} bytes" for file in files}


def _aliases(lock: Lock) -> str:
    return ", ".join(f"{name} {version} of {distribution}" for name, version, distribution in lock.aliases)


def _device_code(lock: Lock) -> Mapping[str, str]:
    """Return a description of the device code of each library, for people."""
    return {
        f"{one.wheel}: {one.path}": "; ".join(
            [
                ", ".join(f"{count} {code}" for code, count in one.architectures.items()),
                *(
                    f"{target}: {code.cubin} compiled, {code.ptx} as PTX, {code.none} without"
                    for target, code in one.targets.items()
                ),
            ]
        )
        for one in lock.device_code
    }


def _changed(kind: DriftKind, name: str, before: str | None, after: str | None) -> Iterator[Drift]:
    if before != after:
        yield Drift(kind, name, before, after)


def _each(kind: DriftKind, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Drift]:
    for name in sorted(old.keys() | new.keys()):
        yield from _changed(kind, name, old.get(name), new.get(name))


@dataclass(frozen=True, slots=True)
class _Package:
    """The version and the file of a package, to be compared."""

    version: str
    file: LockedFile

    @property
    def content(self) -> str:
        return f"sha256 {self.file.sha256}, {self.file.size} bytes"

    @property
    def address(self) -> str:
        return f"{self.file.index}: {self.file.path}"


def _debs(packages: Iterable[LockedDeb]) -> Mapping[str, _Package]:
    return {deb.name: _Package(f"{deb.version} ({deb.architecture})", deb.file) for deb in packages}


def _wheels(wheels: Iterable[LockedWheel]) -> Mapping[str, _Package]:
    return {wheel.name: _Package(wheel.version, wheel.file) for wheel in wheels}


def _versions(wheels: Iterable[LockedWheel]) -> Mapping[str, str]:
    return {wheel.name: wheel.version for wheel in wheels}


def _omitted(wheels: Iterable[LockedWheel]) -> Mapping[str, str]:
    return {wheel.name: ", ".join(wheel.omitted) for wheel in wheels if wheel.omitted}


_PACKAGE_KINDS: Mapping[str, tuple[DriftKind, DriftKind, DriftKind, DriftKind]] = {
    "deb": ("deb-added", "deb-removed", "deb-moved", "deb-replaced"),
    "wheel": ("wheel-added", "wheel-removed", "wheel-moved", "wheel-replaced"),
    "source": ("source-moved", "source-moved", "source-moved", "source-replaced"),
}


def _packages(of: str, old: Mapping[str, _Package], new: Mapping[str, _Package]) -> Iterator[Drift]:
    added, removed, moved, replaced = _PACKAGE_KINDS[of]
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            kind = added if before is None else removed
            yield Drift(kind, name, before.version if before else None, after.version if after else None)
        elif before.version != after.version:
            yield Drift(moved, name, before.version, after.version)
        elif before.content != after.content:
            yield Drift(replaced, name, before.content, after.content)
        else:
            # The same bytes from another place: an index or a pool directory changed.
            yield from _changed("index-changed", name, before.address, after.address)


def _base(old: LockedDebianBase | LockedRegistryBase, new: LockedDebianBase | LockedRegistryBase) -> Iterator[Drift]:
    yield from _changed("base-changed", "base", _base_text(old), _base_text(new))
    snapshots = [base.snapshot if isinstance(base, LockedDebianBase) else None for base in (old, new)]
    yield from _changed("snapshot-changed", "base", snapshots[0], snapshots[1])
    sides = [_debs(base.packages) if isinstance(base, LockedDebianBase) else {} for base in (old, new)]
    yield from _packages("deb", sides[0], sides[1])


def _base_text(base: LockedDebianBase | LockedRegistryBase) -> str:
    if isinstance(base, LockedRegistryBase):
        return f"image {base.image}, Python {base.python}"
    return f"Debian {base.suite}{' with security updates' if base.security else ''}, Python {base.python}"


def _vllm(old: LockedVllm, new: LockedVllm) -> Iterator[Drift]:
    yield from _changed("commit-changed", "vllm", old.commit, new.commit)
    yield from _changed("distribution-changed", "vllm", old.distribution, new.distribution)
    sides = [{"vllm": _Package(vllm.version, vllm.source)} for vllm in (old, new)]
    yield from _packages("source", sides[0], sides[1])
    differs = [
        {d.path: f"source {d.source_sha256}, wheel {d.wheel_sha256}" for d in vllm.differs} for vllm in (old, new)
    ]
    yield from _each("difference-changed", differs[0], differs[1])
    gone, come = sorted(set(old.arguments) - set(new.arguments)), sorted(set(new.arguments) - set(old.arguments))
    yield from _changed("arguments-changed", "vllm serve", ", ".join(gone) or None, ", ".join(come) or None)


def _series(old: LockedSeries, new: LockedSeries) -> Iterator[Drift]:
    yield from _changed("series-changed", "series", old.series, new.series)
    before, after = ({patch.id: patch_text(patch) for patch in series.patches} for series in (old, new))
    for name in sorted(before.keys() | after.keys()):
        kind: DriftKind = "patch-changed"
        if name not in before or name not in after:
            kind = "patch-added" if name not in before else "patch-removed"
        yield from _changed(kind, name, before.get(name), after.get(name))
    order, new_order = ([name for name in side if name in before and name in after] for side in (before, after))
    yield from _changed("patch-order-changed", "series", ", ".join(order), ", ".join(new_order))


def patch_text(patch: LockedPatch | Patch) -> str:
    """Return the status of PATCH, and the sha256 of its file if it has one."""
    return patch.status if patch.sha256 is None else f"{patch.status}, sha256 {patch.sha256}"


def _models(old: Mapping[str, LockedModel], new: Mapping[str, LockedModel]) -> Iterator[Drift]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            kind: DriftKind = "model-added" if before is None else "model-removed"
            yield Drift(kind, name, _pin(before) if before else None, _pin(after) if after else None)
        elif before.revision != after.revision:
            yield Drift("model-moved", name, _pin(before), _pin(after))
        elif before != after:
            yield Drift("model-replaced", name, _model_text(before), _model_text(after))


def _pin(model: LockedModel) -> str:
    return model.tree if model.revision is None else f"{model.repo} {model.revision}"


def _model_text(model: LockedModel) -> str:
    followed = f", following {model.follow}" if model.follow is not None else ""
    return f"{model.kind} {model.repo or ''}{followed}, {model.tree}, {len(model.files)} files"
