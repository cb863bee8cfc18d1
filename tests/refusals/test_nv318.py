"""NV318, extension not compiled: by the compiler, or for a target whose file the wheel does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refused
from support.native_world import NativeWorld


def test_the_compiler_s_errors_are_in_the_refusal_and_the_next_build_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = NativeWorld(tmp_path, monkeypatch)
    world.engine.fails = "[1/2] one.cpp\none.cpp:3:1: error: expected ';'\nninja: build stopped\n"
    with pytest.raises(Refused) as caught:
        world.builder("native").patches()
    (refusal,) = caught.value.refusals
    log = world.engine.directories[0] / "log"
    assert (refusal.code, refusal.where, refusal.cure) == ("NV318", str(log), f"less {log}")
    assert refusal.found == "one.cpp:3:1: error: expected ';'"
    world.engine.fails = ""
    assert [layer.kind for layer in world.builder("native").patches()] == ["native", "record"]


def test_an_extension_that_the_wheel_lacks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = NativeWorld(tmp_path, monkeypatch, targets=("_C", "other"))
    with pytest.raises(Refused) as caught:
        world.builder("native").patches()
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == ("NV318", ".vllm.native.targets", "vllm/other.abi3.so")
