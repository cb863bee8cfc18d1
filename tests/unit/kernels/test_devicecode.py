"""Which code runs where, what a wheel holds, and what the lock says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.lock import CodeFor, LockedLibrary
from nvllm.core.spec import DeviceCode, Lacking
from nvllm.kernels import devicecode, fatbin
from nvllm.kernels.devicecode import Library
from support import codesamples
from support.codesamples import code

TARGETS = ("sm_120a", "sm_121a")


@pytest.mark.parametrize(
    ("text", "runs_on"),
    [
        ("cubin sm_120", ["sm_120a", "sm_121a"]),
        ("cubin sm_121", ["sm_121a"]),
        ("cubin sm_120a", ["sm_120a"]),
        ("cubin sm_121a", ["sm_121a"]),
        ("cubin sm_120f", ["sm_120a", "sm_121a"]),
        ("cubin sm_100f", []),
        ("cubin sm_100", []),
        ("cubin sm_90a", []),
        ("cubin sm_80", []),
        ("ptx sm_80", ["sm_120a", "sm_121a"]),
        ("ptx sm_90", ["sm_120a", "sm_121a"]),
        ("ptx sm_90a", []),
        ("ptx sm_120f", ["sm_120a", "sm_121a"]),
        ("ptx sm_121", ["sm_121a"]),
        ("ptx sm_120a", ["sm_120a"]),
    ],
)
def test_which_code_runs_on_which_target(text: str, runs_on: list[str]) -> None:
    assert [target for target in TARGETS if devicecode.runs(code(text), target)] == runs_on


def test_machine_code_is_taken_before_ptx() -> None:
    assert devicecode.reach((code("ptx sm_80"), code("cubin sm_120")), "sm_121a") == "cubin"
    assert devicecode.reach((code("ptx sm_80"), code("cubin sm_100")), "sm_121a") == "ptx"
    assert devicecode.reach((code("ptx sm_121"), code("cubin sm_100")), "sm_120a") == "none"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    both = codesamples.container([code("cubin sm_90a"), code("cubin sm_120")])
    old = codesamples.container([code("cubin sm_90a")])
    return codesamples.wheel(
        tmp_path,
        {
            "p/_C.abi3.so": codesamples.library(both, both, old),
            "p/libx.so.2": codesamples.library(codesamples.container([code("ptx sm_80")])),
            "p/plain.so": codesamples.library(section=".text"),
            "p/notes.sox": b"no library",
        },
    )


def test_the_libraries_of_a_wheel(wheel: Path) -> None:
    first, second = devicecode.libraries(wheel, wheel.name)
    assert first == Library(
        "p/_C.abi3.so", {(code("cubin sm_90a"), code("cubin sm_120")): 2, (code("cubin sm_90a"),): 1}
    )
    assert second == Library("p/libx.so.2", {(code("ptx sm_80"),): 1})


def test_a_wheel_is_looked_into_once(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = devicecode.cached_libraries(wheel, wheel.name, "a" * 64, tmp_path / "memory")
    monkeypatch.setattr(fatbin, "modules", None)
    assert devicecode.cached_libraries(wheel, wheel.name, "a" * 64, tmp_path / "memory") == first


def test_a_damaged_memory_is_made_anew(wheel: Path, tmp_path: Path) -> None:
    first = devicecode.cached_libraries(wheel, wheel.name, "a" * 64, tmp_path / "memory")
    (path,) = (tmp_path / "memory").iterdir()
    path.write_text("[{}]")
    assert devicecode.cached_libraries(wheel, wheel.name, "a" * 64, tmp_path / "memory") == first
    assert path.read_text() != "[{}]"


def test_the_lock_counts_compilations_and_what_each_target_gets(wheel: Path) -> None:
    first, second = devicecode.libraries(wheel, wheel.name)
    assert devicecode.locked("p", first, TARGETS) == LockedLibrary(
        "p",
        "p/_C.abi3.so",
        {"cubin sm_120": 2, "cubin sm_90a": 3},
        {"sm_120a": CodeFor(2, 0, 1), "sm_121a": CodeFor(2, 0, 1)},
    )
    assert devicecode.locked("p", second, TARGETS).targets["sm_121a"] == CodeFor(0, 1, 0)


def test_a_library_that_is_listed_may_lack_code() -> None:
    found = [LockedLibrary("p", "p/old.so", {"cubin sm_90a": 1}, {"sm_120a": CodeFor(0, 0, 1)})]
    assert list(devicecode.lacking(found, DeviceCode(("p",), (Lacking("p/old.so", "nobody calls it"),)), "x")) == []
