"""The first launch of the page zeroer in a process: from the kernels layer of an image, and with nothing compiled.

    python -m benchmarks.gpu.first_fire lay DIRECTORY      where nvllm is: layer and patched files, for sm_90a too
    python DIRECTORY/first_fire.py measure DIRECTORY       where a GPU, torch and Triton are, and neither nvllm nor vLLM

Each measurement is a process of its own, in which the CUDA context exists before the clock starts. The zeroer launches
once when it is made, which is at the start of an engine: *first*. *call* is the first call, in a step of a request.
With the layer there is no C compiler on the search path, what is compiled would have nowhere to go, and the cache
manager refuses to compile. Triton's compilation listener and the absence of new files
say that nothing was compiled; the bytes that were cleared, and those that were not, say that the right thing ran.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvllm.core.lock import Lock

IMAGE_CACHE = Path("/opt/nvllm/triton")
EXPECTATIONS = Path("/run/nvllm/launch.json")
STATES = {
    "cold": "nothing compiled: Triton, ptxas and a C compiler run",
    "kernel": "the kernel compiled before, the modules in C not",
    "layer": "the kernels layer, strict, no C compiler, no place to write",
}


def stand_in(tree: Path) -> None:
    """Make the patched modules below TREE importable without the rest of vLLM."""
    import triton
    import triton.language

    stand_ins: dict[str, dict[str, object]] = {
        "vllm": {"__path__": [str(tree / "vllm")]},
        "vllm.v1": {"__path__": []},
        "vllm.v1.kv_cache_interface": {name: type(name, (), {}) for name in ("AttentionSpec", "MambaSpec")},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.triton_utils": {"triton": triton, "tl": triton.language},
    }
    for name, contents in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module


def fire(tree: Path) -> None:
    """Launch the zeroer of TREE for the first time in this process and print what it took, as JSON."""
    import torch

    buffers = [torch.full((64, 1 << 18), 7, dtype=torch.int32, device="cuda") for _ in range(16)]
    torch.cuda.synchronize()  # the context is there, and so is the memory
    stand_in(tree)
    import triton
    from vllm.nvllm.page_zeroer import PageZeroer
    from vllm.nvllm.pages import Segment

    events: list[tuple[str, bool]] = []

    def listen(*, src: Any, cache_hit: bool, **_: object) -> None:
        events.append((src.fn.__name__, cache_hit))

    triton.knobs.compilation.listener = listen
    page = buffers[0].stride(0) * 4
    began = time.perf_counter()
    zeroer = PageZeroer(
        torch.device("cuda"), pin_memory=True, segments=[Segment(buffer.data_ptr(), page, page) for buffer in buffers]
    )
    torch.cuda.synchronize()
    made = (time.perf_counter() - began) * 1e3
    taken = []
    calls = ([1], [2, 3], list(range(4, 20)), [20], [21])
    for ids in calls:
        began = time.perf_counter()
        zeroer.zero_block_ids(ids)
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - began) * 1e3)
    cleared = sorted({block for ids in calls for block in ids})
    right = all(
        not buffer[cleared].any().item() and bool((buffer[[at for at in range(64) if at not in cleared]] == 7).all())
        for buffer in buffers
    )
    times = {"first_ms": made, "call_ms": taken[0], "later_ms": statistics.median(taken[1:])}
    result = {**times, "events": events, "right": right}
    print(json.dumps({**result, "device": torch.cuda.get_device_name(), "triton": triton.__version__}))


def _run(state: str, directory: Path, cache: Path) -> dict[str, Any]:
    """Measure one process in STATE and return what it printed, and how many files it left in CACHE."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "TRITON_DISABLE_LINE_INFO": "1"}
    if state == "layer":
        environment |= {
            "TRITON_CACHE_MANAGER": "nvllm_triton_cache:LayeredCache",
            "PYTHONPATH": str(directory / "site"),
            "PATH": "/nonexistent",
            "CC": "/nonexistent/cc",
        }
    before = {path for path in cache.rglob("*") if path.is_file()} if cache.is_dir() else set()
    argv = [sys.executable, "-B", str(Path(__file__).resolve()), "fire", str(directory)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{state}: {done.stderr[-3000:]}")
    after = {path for path in cache.rglob("*") if path.is_file()} if cache.is_dir() else set()
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**result, "new_files": len(after - before), "missed": done.stderr.count("nvllm.kernels miss")}


def measure(directory: Path, repetitions: int) -> None:
    """Print the table: the median of REPETITIONS processes in each state, the states in turn."""
    if IMAGE_CACHE.exists() or EXPECTATIONS.exists():
        raise SystemExit(f"{IMAGE_CACHE} or {EXPECTATIONS} is there already: this is no machine to measure on")
    shutil.copytree(directory / "cache", IMAGE_CACHE)
    EXPECTATIONS.parent.mkdir(parents=True)
    EXPECTATIONS.write_text('{"cache": {}}')
    results: dict[str, list[dict[str, Any]]] = {state: [] for state in STATES}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(-1, repetitions):  # the first round warms the disk's cache and is not counted
            for state in STATES:
                cache = Path(scratch, f"{state}{number}")
                if state == "kernel":
                    shutil.copytree(directory / "cache", cache)
                    for stub in cache.rglob("*.so"):
                        stub.unlink()
                result = _run(state, directory, cache)
                if number >= 0:
                    results[state].append(result)
    print(
        f"{results['cold'][0]['device']}, Triton {results['cold'][0]['triton']}, {repetitions} processes in each state"
    )
    print(
        f"{'state':8} {'first ms':>9} {'min':>8} {'max':>8} {'call ms':>8} {'later ms':>9}  compiled  new files  right"
    )
    middle = {}
    for state, runs in results.items():
        first = [run["first_ms"] for run in runs]
        middle[state] = statistics.median(first)
        compiled = sum(not hit for run in runs for _, hit in run["events"])
        files = sum(run["new_files"] for run in runs)
        call, later = (statistics.median(run[name] for run in runs) for name in ("call_ms", "later_ms"))
        right = all(run["right"] for run in runs)
        print(
            f"{state:8} {middle[state]:9.1f} {min(first):8.1f} {max(first):8.1f} {call:8.3f} {later:9.3f} "
            f"{compiled:9d} {files:10d}  {right}"
        )
    for state, meaning in STATES.items():
        print(f"{state}: {meaning}")
    print(f"first fire from the layer: 1/{middle['cold'] / middle['layer']:.1f} of the cold one")
    wrong = [
        run for run in results["layer"] if run["missed"] or run["new_files"] or not all(hit for _, hit in run["events"])
    ]
    ok = not wrong and all(run["right"] for runs in results.values() for run in runs)
    print(json.dumps({"ok": ok, "runs": results}))
    raise SystemExit(0 if ok and middle["layer"] * 10 <= middle["cold"] else 1)


def _for_python(lock: Lock, python: str) -> Lock:
    """Return LOCK for a machine with PYTHON (``3.12``): Triton's wheel for it is among the tools of every lock.

    Its base has another Python, so the base is left out.
    """
    from dataclasses import replace

    from nvllm.core.lock import LockedRegistryBase
    from nvllm.kernels import toolchain

    tag = f"-cp{python.replace('.', '')}-"
    machine = lock.platform.replace("linux/amd64", "x86_64").replace("linux/arm64", "aarch64")
    (triton,) = [
        tool
        for tool in lock.tools
        if tool.name == toolchain.TRITON
        and tag in tool.file.filename
        and tool.file.filename.endswith(f"_{machine}.whl")
    ]
    wheels = tuple(triton if wheel.name == toolchain.TRITON else wheel for wheel in lock.wheels)
    base = LockedRegistryBase("registry", python, f"none@sha256:{64 * '0'}", f"/usr/bin/python{python}")
    return replace(lock, base=base, wheels=wheels)


def lay(output: Path, python: str | None) -> None:
    """Lay out in OUTPUT the kernels layer of image sm120 for sm_90a besides, and what `measure` needs of the patches.

    PYTHON is the one of the machine, where it is not the image's: Triton's wheel for it is another.
    """
    from dataclasses import replace

    from nvllm.core.paths import find_project, places
    from nvllm.core.progress import Silent
    from nvllm.core.refusal import refuse_any
    from nvllm.image import identity
    from nvllm.image.builder import LayerBuilder
    from nvllm.kernels import kernellayer, toolchain
    from nvllm.layers.cache import LayerCache
    from nvllm.patches import seriesfile
    from nvllm.sources import fetch
    from nvllm.sources.indexes import Sources
    from nvllm.sources.store import Store

    own, project = places(dict(os.environ)), find_project(None, Path(__file__).parent)
    made, stale = identity.load_build(project, "sm120", None)
    refuse_any(stale)
    made = replace(made, spec=replace(made.spec, targets=("sm_90a", *made.spec.targets)))
    if python not in (None, made.lock.base.python):
        made = replace(made, lock=_for_python(made.lock, python))
    store, lock = Store(own.store), made.lock
    vllm = next(wheel.file for wheel in lock.wheels if wheel.name == lock.vllm.distribution)
    needed = [lock.vllm.source, vllm, *toolchain.inputs(lock)]
    fetch.fetch(needed, store, Sources(None, os.environ), Silent(), offline=False)
    directory = project.series(made.spec.patches.series)
    diffs = seriesfile.diffs(directory, made.patches, project.show(directory))
    builder = LayerBuilder(
        made, tuple(diffs[patch.id] for patch in made.patches), store, LayerCache(own.layers), Silent()
    )
    kernels = builder.kernel_sources()
    assert kernels is not None
    with builder.kernel_compiler() as bench:
        for entry in bench.entries(kernels):
            parts = entry.path.removeprefix(f"{kernellayer.ROOT}/")
            target = output / ("cache/" + parts if parts != entry.path else "site/" + Path(parts).name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(entry.content().read())
    for path, data in kernels.files.items():
        (output / path).parent.mkdir(parents=True, exist_ok=True)
        (output / path).write_bytes(data)
    shutil.copy(__file__, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lay", "measure", "fire"])
    parser.add_argument("place", type=Path)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--python", help="of the machine, such as 3.12 (default: the image's)")
    asked = parser.parse_args()
    directory = asked.place.resolve()
    if asked.what == "lay":
        lay(directory, asked.python)
    elif asked.what == "fire":
        fire(directory)
    else:
        measure(directory, asked.repetitions)


if __name__ == "__main__":
    main()
