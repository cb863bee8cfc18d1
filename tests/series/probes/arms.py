"""Runs inside a container, on several source trees: chosen probes of each, in a process of its own.

No test is in here. What the trees share is imported once, before the processes part. Its argument is JSON, tree to
names of probes; it prints one line of JSON, tree to name to result.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - for every process after this one
import transformers  # noqa: F401
import triton  # noqa: F401

TREES = Path("/nvllm-test/trees")


def results(tree: str, names: Sequence[str]) -> dict[str, Any]:
    """Return what the probes NAMES find on TREE. To be called once in a process."""
    root = str(TREES / tree)
    sys.path.insert(0, root)
    # vLLM asks what a model is in a process of its own.
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ["PYTHONPATH"]])
    for module in ("batches", "blocks", "brought", "grammars", "requested"):
        importlib.import_module(module)
    probes = importlib.import_module("world").PROBES
    found: dict[str, Any] = {"file": importlib.import_module("vllm").__file__}
    for name in names:
        try:
            found[name] = probes[name]()
        except Exception:  # noqa: BLE001 - a probe that fails is a result; the test that needs it judges it
            found[name] = {"failed": traceback.format_exc()}
    return found


def forked(tree: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the results of a child process; its own words go to stderr."""
    place = Path("/tmp", f"{tree}.json")
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        try:
            place.write_text(json.dumps(results(tree, names)))
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def main() -> None:
    wanted: dict[str, list[str]] = json.loads(sys.argv[1])
    first, *others = wanted.items()
    found = {first[0]: forked(*first)}  # alone: it leaves behind what vLLM remembers of the model
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found |= dict(zip((tree for tree, _ in others), pool.map(lambda one: forked(*one), others), strict=True))
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
