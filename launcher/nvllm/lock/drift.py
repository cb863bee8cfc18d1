"""The differences between two locks, by kind, for `nvllm lock --check` and `nvllm explain`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nvllm.core.lock import (
    Lock,
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
        *(drift for kind, texts in _TEXTS for drift in _each(kind, texts(old), texts(new))),
        *_packages("deb", _debs(old.base), _debs(new.base)),
        *_packages("source", _source(old.vllm), _source(new.vllm)),
        *_packages("wheel", _wheels(old.wheels), _wheels(new.wheels)),
        *_arguments(set(old.vllm.arguments), set(new.vllm.arguments)),
        *_patches(old.series, new.series),
        *_models(old.models, new.models),
    )
    return tuple(sorted(drifts, key=lambda drift: (drift.kind, drift.name)))


def _tools(lock: Lock) -> Mapping[str, str]:
    files = (*(tool.file for tool in lock.tools), *lock.vllm.native_files)
    return {file.filename: f"sha256 {file.sha256}, {file.size} bytes" for file in files}


def _aliases(lock: Lock) -> str:
    return ", ".join(f"{name} {version} of {distribution}" for name, version, distribution in lock.aliases)


def _device_code(lock: Lock) -> Mapping[str, str]:
    """Return a description of the device code of each library, for people."""
    return {
        f"{library.wheel}: {library.path}": "; ".join(
            [
                ", ".join(f"{count} {code}" for code, count in library.architectures.items()),
                *(
                    f"{target}: {code.cubin} compiled, {code.ptx} as PTX, {code.none} without"
                    for target, code in library.targets.items()
                ),
            ]
        )
        for library in lock.device_code
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


def _debs(base: LockedDebianBase | LockedRegistryBase) -> Mapping[str, _Package]:
    packages = base.packages if isinstance(base, LockedDebianBase) else ()
    return {deb.name: _Package(f"{deb.version} ({deb.architecture})", deb.file) for deb in packages}


def _source(vllm: LockedVllm) -> Mapping[str, _Package]:
    return {"vllm": _Package(vllm.version, vllm.source)}


def _wheels(wheels: Iterable[LockedWheel]) -> Mapping[str, _Package]:
    return {wheel.name: _Package(wheel.version, wheel.file) for wheel in wheels}


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


def _snapshot(base: LockedDebianBase | LockedRegistryBase) -> Mapping[str, str]:
    return {"base": base.snapshot} if isinstance(base, LockedDebianBase) and base.snapshot is not None else {}


def _base_text(base: LockedDebianBase | LockedRegistryBase) -> str:
    if isinstance(base, LockedRegistryBase):
        return f"image {base.image}, Python {base.python}"
    return f"Debian {base.suite}{' with security updates' if base.security else ''}, Python {base.python}"


def _arguments(old: set[str], new: set[str]) -> Iterator[Drift]:
    gone, come = ", ".join(sorted(old - new)), ", ".join(sorted(new - old))
    yield from _changed("arguments-changed", "vllm serve", gone or None, come or None)


def _patches(old: LockedSeries, new: LockedSeries) -> Iterator[Drift]:
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


_TEXTS: Sequence[tuple[DriftKind, Callable[[Lock], Mapping[str, str]]]] = (
    ("inputs-changed", lambda lock: {"inputs": lock.inputs}),
    ("platform-changed", lambda lock: {"platform": lock.platform}),
    ("epoch-changed", lambda lock: {"epoch": str(lock.epoch)}),
    ("toolchain-changed", lambda lock: {**lock.toolchain, **_tools(lock)}),
    ("alias-changed", lambda lock: {"aliases": _aliases(lock)}),
    ("device-code-changed", _device_code),
    ("base-changed", lambda lock: {"base": _base_text(lock.base)}),
    ("snapshot-changed", lambda lock: _snapshot(lock.base)),
    ("commit-changed", lambda lock: {"vllm": lock.vllm.commit}),
    ("distribution-changed", lambda lock: {"vllm": lock.vllm.distribution}),
    (
        "difference-changed",
        lambda lock: {
            file.path: f"source {file.source_sha256}, wheel {file.wheel_sha256}" for file in lock.vllm.differs
        },
    ),
    ("wheel-excluded", lambda lock: {wheel.name: wheel.version for wheel in lock.excluded}),
    ("wheel-omits", lambda lock: {wheel.name: ", ".join(wheel.omitted) for wheel in lock.wheels if wheel.omitted}),
    ("series-changed", lambda lock: {"series": lock.series.series}),
    (
        "template-changed",
        lambda lock: {file.path: f"sha256 {file.sha256}, {file.size} bytes" for file in lock.templates},
    ),
)
"""Each kind of difference that needs no rule of its own, and the texts of a lock that it is found by, by name."""
