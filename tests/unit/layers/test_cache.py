"""The layer cache: a layer is made once, and what is not whole is never taken for it."""

from __future__ import annotations

import errno
import fcntl
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.layers import tarlayer
from nvllm.layers.cache import LayerCache
from nvllm.layers.tarlayer import Layer


class _Maker:
    """Makes a layer of TEXT and counts how often."""

    def __init__(self, text: bytes = b"x") -> None:
        self.text = text
        self.made = 0

    def __call__(self, path: Path) -> Layer:
        self.made += 1
        return tarlayer.write("demo", [tarlayer.blob("a", self.text)], epoch=1, path=path, progress=Silent())


def test_a_layer_is_made_once(tmp_path: Path) -> None:
    make = _Maker()
    first = LayerCache(tmp_path / "cache").layer("demo", {"a": 1}, make)
    assert LayerCache(tmp_path / "cache").layer("demo", {"a": 1}, make) == first
    assert make.made == 1
    assert first.path.is_file()
    note = json.loads(first.path.with_suffix(".json").read_bytes())
    assert note == {"kind": "demo", "diff_id": first.diff_id, "size": first.size, "factors": {"a": 1}}


def test_other_factors_or_another_kind_is_another_layer(tmp_path: Path) -> None:
    cache, make = LayerCache(tmp_path), _Maker()
    for kind, factors in (("demo", {"a": 1}), ("demo", {"a": 2}), ("demo", {"b": 1}), ("other", {"a": 1})):
        cache.layer(kind, factors, make)
    assert make.made == 4


@given(st.dictionaries(st.text(), st.integers(0, 9) | st.text(), max_size=5))
def test_a_key_does_not_depend_on_the_order_of_factors(factors: dict[str, int | str]) -> None:
    cache = LayerCache(Path("/nonexistent"))
    assert cache.key("demo", factors) == cache.key("demo", dict(reversed(factors.items())))
    assert cache.key("demo", factors) != cache.key("demo", {**factors, "one more": 0})
    assert cache.tree(factors).name == f"{cache.key('tree', factors)}.tree"


DAMAGES: dict[str, Callable[[Layer], object]] = {
    "no layer": lambda layer: layer.path.unlink(),
    "short layer": lambda layer: layer.path.write_bytes(layer.path.read_bytes()[:-1]),
    "no note": lambda layer: layer.path.with_suffix(".json").unlink(),
    "torn note": lambda layer: layer.path.with_suffix(".json").write_bytes(b'{"diff_id":'),
    "empty note": lambda layer: layer.path.with_suffix(".json").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_whole_is_made_again(tmp_path: Path, damage: str) -> None:
    cache, make = LayerCache(tmp_path), _Maker()
    first = cache.layer("demo", {}, make)
    DAMAGES[damage](first)
    assert cache.layer("demo", {}, make) == first
    assert make.made == 2
    assert cache.layer("demo", {}, make) == first
    assert make.made == 2


def test_a_layer_that_could_not_be_made_is_not_there(tmp_path: Path) -> None:
    cache = LayerCache(tmp_path)

    def fail(path: Path) -> Layer:
        path.write_bytes(b"half")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        cache.layer("demo", {}, fail)
    make = _Maker()
    cache.layer("demo", {}, make)
    assert make.made == 1


def test_the_cache_is_the_owners_alone(tmp_path: Path) -> None:
    LayerCache(tmp_path / "cache").layer("demo", {}, _Maker())
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def _at_once(count: int, action: Callable[[], object]) -> None:
    threads = [threading.Thread(target=action) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def test_a_layer_and_a_tree_that_are_wanted_at_the_same_time_are_made_once(tmp_path: Path) -> None:
    make, gate, found = _Maker(), threading.Barrier(5), []
    trees: list[Path] = []

    def put(path: Path) -> None:
        trees.append(path)
        path.mkdir()

    def build() -> None:
        gate.wait(30)
        cache = LayerCache(tmp_path)
        found.append((cache.layer("demo", {}, make), cache.unpacked({}, put)))

    _at_once(5, build)
    assert (make.made, len(trees)) == (1, 1)
    assert len(found) == 5
    assert len(set(found)) == 1
    assert found[0][1] == LayerCache(tmp_path).tree({})


def test_a_tree_that_could_not_be_made_is_made_the_next_time(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        LayerCache(tmp_path).unpacked({}, fail)
    assert LayerCache(tmp_path).unpacked({}, lambda path: path.mkdir()).is_dir()


def test_nothing_is_made_where_no_lock_can_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such file system can be mounted by just any user, so the system call is made to answer as one does."""

    def missing(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    make = _Maker()
    with pytest.raises(Refused) as caught:
        LayerCache(tmp_path).layer("demo", {}, make)
    (found,) = caught.value.refusals
    assert (found.code, found.where, found.expected) == ("NV513", str(tmp_path), "hard file locks (flock)")
    assert found.cure == "set NVLLM_HOME to a directory on a local disk"
    assert make.made == 0
