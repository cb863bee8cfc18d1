"""Layers that travel to a machine with most of their files: the same bytes there, or none."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu import lay_layers, pack_layers
from nvllm.core.progress import Silent
from nvllm.layers import tarlayer
from nvllm.layers.cache import LayerCache
from nvllm.layers.oci import Image
from nvllm.layers.tarlayer import Layer, TarEntry

LARGE = {f"site/torch/lib{number}.so": os.urandom(5000 + number) for number in range(3)}
ENTRIES = (
    tarlayer.directory("site"),
    *(tarlayer.blob(path, data, executable=True) for path, data in LARGE.items()),
    tarlayer.blob("site/torch/again.so", LARGE["site/torch/lib0.so"]),
    tarlayer.blob("site/only-here.so", os.urandom(6000)),
    tarlayer.blob(f"site/{'long/' * 40}small.py", b"x = 1\n"),
    tarlayer.link("site/link", "torch"),
)
FACTORS = {"base": ENTRIES, "other": (*ENTRIES[:3], tarlayer.blob("site/other", b"other"))}


class Ground:
    """Two packed layers, the machine's files, and what the machine gets."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pack_layers, "PIECE", 1000)  # several pieces
        self.machine, self.pieces, self.cache = top / "machine", top / "pieces", LayerCache(top / "there")
        self.machine.mkdir()
        for path, data in LARGE.items():
            (self.machine / Path(path).name).write_bytes(data)
        here = LayerCache(top / "here")
        self.layers = tuple(here.layer(kind, {}, self.writer(kind, entries)) for kind, entries in FACTORS.items())
        files = [file for file in self.machine.iterdir() if file.name != "lib2.so"]
        lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}\n" for file in files]
        config = json.dumps({"config": {"Labels": {"nvllm.image": "demo"}}}).encode()
        self.image = Image(config, self.layers)
        pack_layers.pack(self.pieces, [self.image], pack_layers.of_machine(lines), 5000)

    @staticmethod
    def writer(kind: str, entries: tuple[TarEntry, ...]) -> Callable[[Path], Layer]:
        return lambda path: tarlayer.write(kind, entries, epoch=1, path=path, progress=Silent())

    @property
    def places(self) -> list[Path]:
        return sorted(self.pieces.iterdir())

    def lay(self) -> None:
        lay_layers.lay(self.places, self.cache.directory, lambda _: None)

    def described(self, change: Callable[[str], str]) -> None:
        (file,) = self.pieces.rglob(lay_layers.MANIFEST)
        file.write_text(change(file.read_text()))


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(tmp_path, monkeypatch)


def test_layers_are_made_again_byte_for_byte(ground: Ground) -> None:
    ground.lay()
    for layer in ground.layers:
        made = ground.cache.made(layer.kind, {})
        assert made is not None
        assert (made.diff_id, made.path.read_bytes()) == (layer.diff_id, layer.path.read_bytes())
    assert lay_layers.packed(ground.places)["images"] == {"demo": ground.image.id}
    assert len(ground.places) > 1
    sizes = [sum(file.stat().st_size for file in place.glob("*.zst")) for place in ground.places]
    assert max(sizes) <= 5000
    travelled = b"".join(lay_layers.unpacked(file.read_bytes()) for file in sorted(ground.pieces.rglob("*.zst")))
    there = {Path(path).name: data in travelled for path, data in LARGE.items()}
    assert there == {"lib0.so": False, "lib1.so": False, "lib2.so": True}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda ground: (ground.machine / "lib1.so").write_bytes(os.urandom(5001)), "lib1.so: changed"),
        (lambda ground: (ground.machine / "lib1.so").unlink(), "lib1.so: not there"),
        (
            lambda ground: ground.places[0].joinpath("layers.0000.zst").write_bytes(b""),
            "not the bytes that were packed",
        ),
        (lambda ground: ground.places[0].joinpath("layers.0001.zst").unlink(), "layers.0001.zst: in none of"),
        (
            lambda ground: ground.described(
                lambda text: text.replace("sha256:" + ground.layers[0].diff_id[7:17], "sha256:0123456789")
            ),
            "layer base: sha256",
        ),
    ],
)
def test_what_is_not_as_it_was_packed_makes_no_layer(
    ground: Ground, change: Callable[[Ground], object], told: str
) -> None:
    change(ground)
    with pytest.raises(SystemExit) as caught:
        ground.lay()
    assert told in str(caught.value)
    assert [path.name for path in ground.cache.directory.iterdir()] == []
