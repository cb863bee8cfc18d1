"""Packing trees for a machine without an index, and laying them out there: what is taken, and that it comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu import lay, machine, pack
from nvllm.lock import lockdoc

ROOT = Path(__file__).parents[2]
LOCK = lockdoc.read(ROOT / "manifests/sm120.lock.json", "manifests/sm120.lock.json")


def test_what_the_machine_has_is_not_taken_but_for_what_depends_on_its_version() -> None:
    names = {wheel.name for wheel in pack.needed(LOCK, {"Torch", "triton", "transformers"})}
    assert "transformers" in names
    assert names.isdisjoint({"torch", "triton", "vllm", *pack.UNUSED})
    assert {wheel.name for wheel in LOCK.wheels} >= pack.UNUSED | pack.VERSIONED | pack.LIBRARIES


def test_a_pip_list_is_read() -> None:
    assert pack.distributions("torch==2.11.0\n\nnumpy==2.5.2\n") == {"torch", "numpy"}


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-cp38-abi3-manylinux_2_24_x86_64.whl", True),
        ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp312-cp312-manylinux_2_28_aarch64.whl", False),
    ],
)
def test_a_wheel_for_another_python_or_machine_is_seen(filename: str, fits: bool) -> None:
    assert pack.loadable(filename, "3.12") is fits


def test_what_no_test_loads_stays_behind() -> None:
    assert pack.unloaded("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so")
    assert pack.unloaded("vllm/third_party/deep_gemm/include/cute/arch/mma.hpp")
    assert not pack.unloaded("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so")
    assert not pack.unloaded("vllm-0.21.0.dist-info/METADATA")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Pieces of a tree whose `stock` has two files, of which `changed` has one anew, and another one."""
    source = tmp_path / "source"
    for name, text in {"stock/a": "old", "stock/b": "same", "changed/a": "new", "changed/c/d": "more"}.items():
        (source / "trees" / name).parent.mkdir(parents=True, exist_ok=True)
        (source / "trees" / name).write_text(text)
    place = tmp_path / "pieces"
    place.mkdir()
    whole = place / "vllm.tar.xz"
    pack.archive(source, whole)
    (place / lay.MANIFEST).write_text(json.dumps({whole.name: pack.split(whole, 100)}))
    return place


def test_pieces_come_back_whole_and_the_stock_tree_stays_stock(packed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    first = min(packed.glob("vllm.tar.xz.*"))
    assert first.stat().st_size == 100  # there are several
    first.rename(other / first.name)
    lay.lay([packed, other], tmp_path / "laid")
    trees = tmp_path / "laid/trees"
    assert {name: (trees / "patched" / name).read_text() for name in ("a", "b", "c/d")} == {
        "a": "new",
        "b": "same",
        "c/d": "more",
    }
    assert (trees / "stock/a").read_text() == "old"
    assert (trees / "stock/b").stat().st_ino == (trees / "patched/b").stat().st_ino


def test_a_piece_that_is_missing_or_damaged_is_named(packed: Path, tmp_path: Path) -> None:
    piece = max(packed.glob("vllm.tar.xz.*"))
    data = piece.read_bytes()
    piece.write_bytes(bytes(len(data)))
    with pytest.raises(SystemExit, match="not the bytes that were packed"):
        lay.lay([packed], tmp_path / "laid")
    piece.unlink()
    with pytest.raises(SystemExit, match=f"{piece.name}: in none of"):
        lay.lay([packed], tmp_path / "laid")


def test_a_process_sees_its_sentinels_and_a_sealed_cache(tmp_path: Path) -> None:
    process = machine.Process(
        "patched", ["python", "a b"], tmp_path, ["poison"], {}, {"launch.json": "{'x'}"}, tmp_path / "c", True, ["i"]
    )
    text = machine.script(machine.Place(tmp_path), process)
    assert text.endswith("exec python 'a b'")
    assert "touch /run/nvllm/poison" in text
    assert text.index("remount,bind,ro") < text.index(f"mount -t tmpfs tmpfs {machine.CACHE}/i")


def test_a_log_says_what_fired_and_what_was_missing() -> None:
    log = "x nvllm.sentinel name=poison enabled=true\ny nvllm.sentinel name=poison first_fire\n"
    log += "nvllm.kernels miss key=K name=a.json\n"
    assert machine.sentinels(log) == {"poison": ["enabled=true", "first_fire"]}
    assert machine.missed(log) == ["a.json"]
    assert machine.last_json('{"a": 1}\nno\n{"b"') == {"a": 1}
