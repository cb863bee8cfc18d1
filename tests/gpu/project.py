"""The project, the image and the state of a machine whose GPU no image of the repository is for.

Image `sm90` is image sm120 for compute capability 9.0: its pins, patches and settings, its profile `tiny-blessed`, and
further profiles for what a test asks. It is not built, because the machine has neither an engine nor an index: its
files are those that `lay.py` laid out, of the same wheels, where the image would have them, and the Python and torch of
the machine. A record says that it was built, as a build would write it.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

import nvllm
from gpu.container import OWN
from gpu.machine import Place
from nvllm.core import canonical
from nvllm.core.lock import Lock, LockedModel
from nvllm.core.paths import Places, Project
from nvllm.image import buildrecord, identity
from nvllm.image.identity import Build
from nvllm.lock import lockdoc
from nvllm.models import modeltree
from nvllm.spec import specfile

IMAGE, OF = "sm90", "sm120"
TREES = "/opt/trees"
"""Where the image has the packages that `lay.py` laid out."""

TINY, GDN = "tiny-lfm2", "qwen3-next"
BILLIONS, CONTEXT = "qwen3-next-large", 4096
"""The model of `large_model.py`, and the most tokens that it knows places of."""
LARGE, LARGE_EAGER = "large-blessed", "large-eager"
"""Its profiles; a project has them only if it has the model."""
GENERAL = {"max-model-len": 128, "gpu-memory-utilization": 0.1}
EAGER, SWITCHED_OFF = "tiny-eager", "tiny-switched-off"
"""What a bench compares: eager, and the same with every switch off."""

LLAMA, ADAPTER, ADAPTED = "tiny-llama", "support", "llama-adapted"
"""A model without a state, a LoRA adapter for it, and the profile that serves both."""
FORKED = "tiny-forked"
"""sm120's `tiny-blessed`, whose API server forks the engine; otherwise it starts a program that imports vLLM again."""
FORKED_512, FORKED_CHUNKED = "tiny-512-forked", "tiny-chunked-forked"
"""Two profiles with other bounds, started so."""
COMPILED, EAGER_FOUR = "tiny-compiled", "tiny-eager-four"
"""What campaigns compare: sm120's own profile of that name, for one request at once, and an eager one for four."""
STEPS_OF_20_MS, STEPS_OF_21_MS = "tiny-20-ms", "tiny-21-ms"
"""Eager, on a tree whose worker sleeps in each step."""

FORK = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}
"""Saves an import of vLLM in each start: the API server forks the engine."""
OF_512 = {**GENERAL, "max-model-len": 512, "max-num-seqs": 16, "kv-cache-memory-bytes": 64 << 20}
CHUNKED = {
    **GENERAL,
    "max-model-len": 512,
    "max-num-seqs": 64,
    "max-num-batched-tokens": 128,
    "kv-cache-memory-bytes": 512 << 20,
}
OF_LARGE = {
    "max-model-len": CONTEXT,
    "max-num-seqs": 64,
    "max-num-batched-tokens": 2048,
    "gpu-memory-utilization": 0.2,
    "kv-cache-memory-bytes": 7 << 28,
    "additional-config.gdn_prefill_backend": "triton",
}
"""Prompts in parts, and a KV cache in which 64 requests have room until they have some 550 tokens."""
TAKEN = {**GENERAL, "max-num-seqs": 2, "kv-cache-memory-bytes": 64 << 20, "enforce-eager": True}
PROFILES: Mapping[str, Mapping[str, Any]] = {
    # A profile for development can also be served by few trials.
    "tiny-blessed": {"dev": True},
    "tiny-extended": {"dev": True},
    "gdn-blessed": {
        "dev": True,
        "model": GDN,
        "arguments": {
            **GENERAL,
            "max-num-seqs": 8,
            "kv-cache-memory-bytes": 256 << 20,
            "additional-config.gdn_prefill_backend": "triton",
        },
    },
    "tiny-512": {"dev": True, "arguments": OF_512},
    ADAPTED: {"dev": True, "model": LLAMA, "adapters": [ADAPTER]},
    FORKED: {"dev": True, "environment": FORK},
    FORKED_512: {"dev": True, "arguments": OF_512, "environment": FORK},
    "tiny-chunked": {"dev": True, "arguments": CHUNKED},
    FORKED_CHUNKED: {"dev": True, "arguments": CHUNKED, "environment": FORK},
    EAGER: {"blessed": False, "arguments": TAKEN},
    SWITCHED_OFF: {"blessed": False, "arguments": TAKEN, "sentinels": []},
    COMPILED: {
        "blessed": False,
        "dev": True,
        "arguments": {**GENERAL, "max-num-seqs": 1, "kv-cache-memory-bytes": 64 << 20},
        "environment": FORK,
    },
    EAGER_FOUR: {"blessed": False, "arguments": {**TAKEN, "max-num-seqs": 4}},
    STEPS_OF_20_MS: {"blessed": False, "arguments": TAKEN, "environment": {**FORK, "NVLLM_TEST_SHARE": "0"}},
    STEPS_OF_21_MS: {"blessed": False, "arguments": TAKEN, "environment": {**FORK, "NVLLM_TEST_SHARE": "0.05"}},
    LARGE: {"dev": True, "model": BILLIONS, "arguments": OF_LARGE, "environment": FORK},
    LARGE_EAGER: {
        "blessed": False,
        "model": BILLIONS,
        "arguments": {**OF_LARGE, "enforce-eager": True},
        "environment": FORK,
    },
}
"""The profiles of the image: what differs from tiny-blessed of sm120."""

NEED = {"capabilities": ["9.0"], "driver": "580.65.06"}
LOCAL = {"VLLM_HOST_IP": "127.0.0.1"}
"""Without a network of its own an engine finds no address to talk to itself."""


@dataclass(frozen=True)
class Ground:
    """Where a test works: PLACE, which lay.py laid out, a PROJECT, state and cache below HOME, and an ENGINE."""

    place: Place
    project: Path
    home: Path
    engine: Path

    @property
    def places(self) -> Places:
        return Places(self.home / "cache", self.home / "state")


def spec(trees: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of the image, as YAML has it. TREES are the hashes of models that are directories, by name."""
    source = Path(nvllm.__file__).parents[2] / f"images/{OF}.yaml"
    whole: dict[str, Any] = copy.deepcopy(yaml.safe_load(source.read_text(encoding="utf-8")))
    tiny, models = whole["profiles"]["tiny-blessed"], whole["models"]
    profiles = {name: {**copy.deepcopy(tiny), "gpu": NEED, **more} for name, more in PROFILES.items()}
    whole |= {
        "name": IMAGE,
        "description": "Image sm120 for compute capability 9.0, for tests",
        "platforms": ["linux/amd64"],
        "targets": ["sm_90a"],
        "models": {TINY: models[TINY]} | {name: {"kind": "directory", "tree": tree} for name, tree in trees.items()},
        "profiles": {name: profile for name, profile in profiles.items() if profile["model"] in {TINY, *trees}},
    }
    whole["base"]["python"] = python()
    whole["runtime"]["environment"] |= LOCAL
    return whole


def python() -> str:
    """Return the version of this Python, as a lock has it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def whole(directory: Path, arguments: Mapping[str, str]) -> Project:
    """Write into DIRECTORY a project with image sm120 as it is, and with IMAGE, and return it.

    IMAGE is sm120 for compute capability 9.0, so that all layers are the same but kernels and identity, with two of its
    profiles, which have these ARGUMENTS besides.
    """
    project = Project(directory)
    copies(directory, (f"images/{OF}.yaml", f"manifests/{OF}.lock.json", f"manifests/{OF}.digests.json"))
    text = yaml.safe_load(project.spec(OF).read_text(encoding="utf-8"))
    text |= {
        "name": IMAGE,
        "platforms": ["linux/amd64"],
        "targets": ["sm_90a"],
        "models": {TINY: text["models"][TINY]},
        "profiles": {name: {**text["profiles"][name], "gpu": NEED} for name in (EAGER, "tiny-blessed")},
    }
    for profile in text["profiles"].values():
        profile["arguments"] = {**profile["arguments"], **arguments}
        # On 9.0 vLLM would warm up DeepGEMM, which compiles with nvcc; on 12.x it has no use for it.
        profile["environment"] = {**profile["environment"], **FORK, "VLLM_USE_DEEP_GEMM": "0"}
    project.spec(IMAGE).write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
    old = lockdoc.read(project.lock(OF), f"manifests/{OF}.lock.json")
    lock_as_image(project, replace(old, models={TINY: old.models[TINY]}))
    return project


def copies(directory: Path, files: Sequence[str] = ()) -> None:
    """Copy into the project DIRECTORY the series and FILES of this repository."""
    repository = Path(nvllm.__file__).parents[2]
    for name in ("images", "manifests", "patches"):
        (directory / name).mkdir(parents=True)
    shutil.copytree(repository / "patches/v0.21.0", directory / "patches/v0.21.0")
    for name in files:
        shutil.copy(repository / name, directory / name)


def lock_as_image(project: Project, lock: Lock) -> None:
    """Write LOCK, one of sm120, as that of IMAGE, whose spec PROJECT has."""
    inputs = specfile.inputs(specfile.of(project, IMAGE), project.platform)
    lockdoc.write(project.lock(IMAGE), replace(lock, image=IMAGE, inputs=inputs))


def write(ground: Ground, models: Mapping[str, Path]) -> Build:
    """Write project, image and build record into GROUND, and return the build. MODELS are directories, by name."""
    repository = Path(nvllm.__file__).parents[2]
    project = Project(ground.project)
    copies(ground.project)
    directories = {name: LockedModel("directory", *modeltree.tree_of(path)) for name, path in models.items()}
    trees = {name: model.tree for name, model in directories.items()}
    project.spec(IMAGE).write_text(yaml.safe_dump(spec(trees), sort_keys=False), encoding="utf-8")
    old = lockdoc.read(repository / f"manifests/{OF}.lock.json", f"manifests/{OF}.lock.json")
    base = replace(old.base, python=python())
    lock_as_image(project, replace(old, base=base, models={TINY: old.models[TINY], **directories}))
    build, stale = identity.load_build(project, IMAGE, None)
    assert not stale, stale
    return build


def lay(ground: Ground, build: Build) -> None:
    """Lay out the files of the image of BUILD, what the stand-in for an engine says of it, and the build record."""
    digest = f"sha256:{build.build_hash}"
    image = {
        "Id": digest,
        "RootFS": {"Layers": []},
        "RepoTags": list(build.tags),
        "Os": "linux",
        "Architecture": "amd64",
        "Size": 0,
    }
    described = {"said": image, "root": root(ground, build)}
    (ground.engine / "image.json").write_text(json.dumps(described), encoding="utf-8")
    record(ground, build, digest)


def record(ground: Ground, build: Build, image: str) -> None:
    """Write the record that BUILD became the image with the id IMAGE, as a build would."""
    buildrecord.write(ground.places.builds, buildrecord.Record(IMAGE, build.build_hash, image, (), None, "built"))


def root(ground: Ground, build: Build) -> dict[str, str]:
    """Lay out the files of the image of BUILD, and return where they and the machine's own are, by path in the image.

    What a container has of the machine besides, at its top, is not in it.
    """
    files = ground.engine / "image"
    own = files / "nvllm"
    own.mkdir(parents=True)
    (own / "identity.json").write_text(canonical.pretty(identity.identity(build, ())), encoding="utf-8")
    (own / "triton").mkdir()
    for target, source in identity.runtime_paths().items():
        shutil.copy(source, files / Path(target).relative_to("opt"))
    mounted = {
        "/opt/nvllm": str(own),
        "/opt/nvllm/triton": str(ground.place.root / "kernels/cache"),
        "/opt/venv": str(environment(files / "venv", build)),
        f"{TREES}/vllm": str(ground.place.tree("patched")),
        f"{TREES}/kernels": str(ground.place.root / "kernels/site"),
        f"{TREES}/site": str(ground.place.root / "site"),
    }
    mounted["/etc/ld.so.cache"] = str(libraries(files))
    hidden = {path for path in (sys.base_prefix, *packages()) if Path(path).parts[1] in OWN - {"opt"}}
    return mounted | {path: path for path in hidden}


def libraries(directory: Path) -> Path:
    """Write into DIRECTORY a list of the machine's libraries with those of the driver, and return it.

    NVIDIA's container toolkit does so in each container; a machine may only name them in LD_LIBRARY_PATH.
    """
    named = [
        Path(name) for name in (*os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/usr/local/nvidia/lib64") if name
    ]
    directories = dict.fromkeys(str(path) for path in named if (path / "libcuda.so.1").exists())
    rules, cache = directory / "ld.so.conf", directory / "ld.so.cache"
    rules.write_text("\n".join(["include /etc/ld.so.conf", *directories]) + "\n", encoding="utf-8")
    subprocess.run(["ldconfig", "-X", "-C", cache, "-f", rules], check=True, capture_output=True)
    return cache


def packages() -> list[str]:
    """Return where the machine's own packages are."""
    return [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]


def environment(directory: Path, build: Build) -> Path:
    """Make DIRECTORY the Python environment of the image of BUILD, and return it.

    It finds vLLM, what the machine lacks, and what the machine has, in this order.
    """
    venv.EnvBuilder(symlinks=True).create(directory)
    own = directory.parent.joinpath(*Path(build.scheme.site).relative_to("opt").parts)
    paths = [f"{TREES}/{name}" for name in ("vllm", "site", "kernels")] + packages()
    (own / "trees.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    script = directory / "bin/vllm"
    script.write_text(
        f"#!{build.scheme.interpreter}\nimport sys\nfrom vllm.entrypoints.cli.main import main\n"
        "if __name__ == '__main__':  # the engine's processes import this file again\n    sys.exit(main())\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return directory
