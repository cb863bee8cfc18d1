"""Lay out the vLLM sources that the benchmark runs: 0.21.0 as it is, the same with the series, a kernel of 0.28.0.

The pinned files are those of the tests of the series. This is the only part that needs nvllm and an index.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path

from benchmarks.gpu.excerpt import call, excerpt

from nvllm.core.lock import LockedFile
from nvllm.core.paths import places
from nvllm.core.progress import Silent
from nvllm.patches import patching, patchset, seriesfile
from nvllm.patches.source import DirectoryTree
from nvllm.sources import fetch
from nvllm.sources.indexes import Sources
from nvllm.sources.store import Store

ROOT = Path(__file__).parents[2]
SERIES = "v0.21.0"

_UPSTREAM = """\
# From the source of vLLM 0.28.0; laid out by benchmarks/gpu.
from collections.abc import Iterable
from itertools import product as iprod
from typing import Any

import numpy as np
import torch

from vllm.triton_utils import tl, triton
from vllm.v1.kv_cache_interface import AttentionSpec

PIN_MEMORY = torch.cuda.is_available()


"""


def lay(directory: Path) -> None:
    """Lay the sources out in DIRECTORY: `stock`, `patched`, `upstream_zeroer.py`; `sources.json` says what they are.

    :raises nvllm.core.refusal.Refused: when a pinned file cannot be had, or a patch does not apply.
    """
    pins = json.loads((ROOT / "tests/series/sources.json").read_text(encoding="utf-8"))
    locked = {name: LockedFile(**pins[name]) for name in ("vllm-0.21.0", "vllm-0.28.0")}
    store = Store(places(dict(os.environ)).store)
    fetch.fetch(list(locked.values()), store, Sources(None, dict(os.environ)), Silent(), offline=False)
    directory.mkdir(parents=True, exist_ok=True)
    stock, patched = directory / "stock", directory / "patched"
    for tree in (stock, patched):
        shutil.rmtree(tree, ignore_errors=True)
    _unpack(store.path(locked["vllm-0.21.0"].sha256), stock)
    shutil.copytree(stock, patched)
    _patch(patched)
    _upstream(store.path(locked["vllm-0.28.0"].sha256), directory / "upstream_zeroer.py")
    zeroer = (patched / "vllm/nvllm/page_zeroer.py").read_bytes()
    called = call(zeroer.decode()).encode()
    facts = {name: file.sha256 for name, file in locked.items()} | {
        "page_zeroer.py": hashlib.sha256(zeroer).hexdigest(),
        "a call of page_zeroer.py": hashlib.sha256(called).hexdigest(),
    }
    (directory / "sources.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _upstream(distribution: Path, target: Path) -> None:
    """Write the kernel of vLLM 0.28.0, from its source DISTRIBUTION, as the module TARGET."""
    with tarfile.open(distribution) as archive:
        texts = {
            path: _text(archive, f"vllm-0.28.0/{path}")
            for path in ("vllm/utils/torch_utils.py", "vllm/v1/worker/utils.py")
        }
    target.write_text(
        _UPSTREAM
        + excerpt(texts["vllm/utils/torch_utils.py"], ["async_tensor_h2d"])
        + "\n\n"
        + excerpt(texts["vllm/v1/worker/utils.py"], ["_zero_kv_blocks_kernel", "KVBlockZeroer"]),
        encoding="utf-8",
    )


def _unpack(distribution: Path, tree: Path) -> None:
    """Unpack the Python files of DISTRIBUTION, a source distribution, into TREE: they are all that runs here."""
    with tarfile.open(distribution) as archive:
        for member in archive:
            _, _, path = member.name.partition("/")
            if member.isreg() and path.startswith("vllm/") and path.endswith(".py"):
                source = archive.extractfile(member)
                assert source is not None, path
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                (tree / path).write_bytes(source.read())


def _patch(tree: Path) -> None:
    directory, label = ROOT / "patches" / SERIES, f"patches/{SERIES}"
    series = seriesfile.load(directory, label)
    carried = [patch.id for patch in series.patches if patch.status == "carried"]
    diffs = seriesfile.diffs(directory, patchset.choose(series, carried), label)
    for path, content in patching.apply_all(DirectoryTree(tree), list(diffs.values())).items():
        assert content is not None, path
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)


def _text(archive: tarfile.TarFile, name: str) -> str:
    member = archive.extractfile(name)
    assert member is not None, name
    return member.read().decode()
