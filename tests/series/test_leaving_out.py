"""Each proof that a series names fails on the whole series without its patch, and what requires it.

A proof is called with what the probes find there, in place of what they find on the whole series. Those of the
running engine are left out, because each would cost two of its starts.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nvllm.patches import seriesfile
from nvllm.patches.series import Patch, Series
from support.series_trees import Tree

pytestmark = pytest.mark.series

ROOT = Path(__file__).parents[2]
VERSIONS = ("0.21.0", "0.28.0", "0.32.0", "0.33.0")
UNBUILT = ("0.21.0", "0.28.0", "0.33.0")
"""Series that `make test` builds no image of. Their trees take a minute and a half each, so a long run tries them."""
ELSEWHERE = (
    "tests/series/test_engine.py",
    "tests/series/test_engine_lora.py",
    "tests/series/test_engine_gdn.py",
    "tests/series/test_engine_conv.py",
    "tests/e2e/test_series_source.py",
)
"""The last two do the same for their own proofs; for the others `nvllm patch prove` does, which starts their engine."""

FAILING = (AssertionError, LookupError, TypeError, FileNotFoundError, pytest.fail.Exception)
"""How a proof fails where code of the series is not there at all: its probe finds None, or its file is not there."""


def series(version: str) -> Series:
    return seriesfile.load(ROOT / "patches" / f"v{version}", f"patches/v{version}")


def proofs(patch: Patch) -> list[str]:
    return [node for node in patch.proved_by if node.partition("::")[0] not in ELSEWHERE]


CASES = [
    pytest.param(
        version,
        patch.id,
        node,
        id=f"{version}-{patch.id}-{node.rpartition('::')[2].partition('[')[0]}",
        marks=[pytest.mark.long] if version in UNBUILT else [],
    )
    for version in VERSIONS
    for patch in series(version).patches
    if patch.status == "carried"
    for node in proofs(patch)
]


def without(version: str, name: str) -> tuple[str, ...]:
    """Return the carried patches of the series but NAME, and what requires it."""
    gone, kept = {name}, []
    for patch in series(version).patches:
        if gone & {patch.id, *patch.requires}:
            gone.add(patch.id)
        elif patch.status == "carried":
            kept.append(patch.id)
    return tuple(kept)


@cache
def function(node: str) -> Callable[..., None]:
    file, _, name = node.partition("::")
    spec = importlib.util.spec_from_file_location(f"proofs_in_{Path(file).stem}", ROOT / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., None] = vars(module)[name.partition("[")[0]]
    return found


def called(node: str, **values: object) -> None:
    """Call the proof NODE with those of VALUES that it takes."""
    proof = function(node)
    proof(**{name: values[name] for name in inspect.signature(proof).parameters})


class Asked(dict[str, Any]):
    """Results that remember which of them were asked for."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        super().__init__(found)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


@pytest.fixture(scope="module")
def left_out(
    behaviour: Callable[[str, str], dict[str, Any]], trees: Callable[..., Tree], arms: Callable[..., Mapping[str, Any]]
) -> Callable[[str], Mapping[str, Mapping[str, Any]]]:
    """What the probes that its proofs ask for find without each patch of a version."""

    @cache
    def found(version: str) -> Mapping[str, Mapping[str, Any]]:
        wanted: dict[str, Sequence[str]] = {}
        stock, patched = behaviour(version, "stock"), behaviour(version, "patched")
        for case in CASES:
            at, name, node = (str(value) for value in case.values)
            if at == version:
                asked = Asked(patched)
                # On the whole series it passes: what fails without a patch fails for the want of it.
                called(node, version=version, stock=stock, patched=asked, trees=trees)
                wanted[name] = sorted({*wanted.get(name, ()), *asked.names})
        made = {name: trees(version, *without(version, name)) for name in wanted}
        results: Mapping[str, Mapping[str, Any]] = arms(made, wanted)
        return results

    return found


@pytest.mark.parametrize(("version", "patch", "node"), CASES)
def test_without_its_patch_a_proof_fails(
    version: str,
    patch: str,
    node: str,
    behaviour: Callable[[str, str], dict[str, Any]],
    trees: Callable[..., Tree],
    left_out: Callable[[str], Mapping[str, Mapping[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patched, stock = left_out(version)[patch], behaviour(version, "stock")
    monkeypatch.setenv("NVLLM_PATCHES", ",".join(without(version, patch)))  # as `nvllm patch prove` asks
    with pytest.raises(FAILING):
        called(node, version=version, stock=stock, patched=patched, trees=trees)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_patch_has_a_proof_that_is_tried(version: str) -> None:
    apart = {
        patch.id
        for patch in series(version).patches
        if patch.status == "carried" and not [node for node in patch.proved_by if "test_engine.py" not in node]
    }
    assert apart == set()
