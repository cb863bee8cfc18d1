"""What clearing the pages of new blocks costs on a GPU, and that it is right: `python benchmarks/gpu`.

Needs an NVIDIA GPU of 24 GB or more, torch, Triton, and what vLLM 0.21.0 imports; no compiled part of vLLM. The
sources that run are laid out first; where there is no index, do that elsewhere (`--lay DIR`), copy the repository and
DIR, and name it (`--sources DIR`). Prints correctness, end-to-end proof and timings; `--output FILE` keeps them as
JSON, each as soon as it is there. The exit status is 1 if a byte was wrong or a script failed, and 0 if a target was
missed, which is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import table  # noqa: E402

Keep = Callable[[str, Any], None]


def script(name: str, tree: str, sources: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a script of this directory on TREE of SOURCES, in a process of its own, and return what it printed last.

    A script that ends with an error has ``failed`` in what is returned, beside all that it printed before.
    """
    path = os.pathsep.join(map(str, [sources / tree, sources, ROOT]))
    inherited = os.environ.get("PYTHONPATH")
    argv = [sys.executable, "-m", f"benchmarks.gpu.{name}", *arguments]
    env = os.environ | {"PYTHONPATH": f"{path}{os.pathsep}{inherited}" if inherited else path}
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=False)
    return printed(done.stdout, f"benchmarks.gpu.{name} on the {tree} tree", done.returncode)


def printed(text: str, name: str, status: int) -> dict[str, Any]:
    """Return the last line of TEXT that is JSON, with ``failed`` if NAME ended with another STATUS than 0."""
    result: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                result = json.loads(line)
            except json.JSONDecodeError:
                continue
    if status or not result:
        result["failed"] = f"{name}: exit status {status}"
    return result


def driver() -> str:
    """Return the version of NVIDIA's driver."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def first_launch(kernels: Path) -> dict[str, Any]:
    """Measure the first launch with what first_fire.py laid out in KERNELS, and return what it printed."""
    argv = [sys.executable, str(kernels / "first_fire.py"), "measure", str(kernels)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("{")]
    result = printed(done.stdout, shlex.join(argv), done.returncode)
    if "ok" in result:  # it measured all; that the layer is not fast enough is a result
        result.pop("failed", None)
    return {"printed": "\n".join(lines), **result}


def measure(sources: Path, kernels: Path | None, repetitions: int, commit: str, keep: Keep) -> None:
    """Run every script, of COMMIT, and KEEP each result under its name as soon as it is there."""
    keep("sources", json.loads((sources / "sources.json").read_text(encoding="utf-8")))
    stock, patched = (script("recycling", tree, sources, ["cuda:0"]) for tree in ("stock", "patched"))
    keep("recycling", merged(stock, patched))
    keep("correctness", script("correctness", "patched", sources, ["cuda:0"]))
    timing = script("timing", "patched", sources, [str(repetitions)])
    if "environment" in timing:
        keep("environment", timing["environment"] | {"driver": driver(), "commit": commit})
    keep("timings", timing.get("timings", {}) | {key: timing[key] for key in ("failed",) if key in timing})
    if kernels is not None:
        keep(table.FIRST, first_launch(kernels))


def merged(stock: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """Return what recycling found on both trees, by shape and arm; ``failed`` names the trees on which it failed."""
    failed = [tree["failed"] for tree in (stock, patched) if "failed" in tree]
    shapes = [*dict.fromkeys(shape for tree in (stock, patched) for shape in tree if shape != "failed")]
    results: dict[str, Any] = {shape: stock.get(shape, {}) | patched.get(shape, {}) for shape in shapes}
    return results | ({"failed": "; ".join(failed)} if failed else {})


def keeper(output: Path | None, results: dict[str, Any]) -> Keep:
    """Return what adds a result to RESULTS and writes them all to OUTPUT, if there is one, so that none is lost."""

    def keep(name: str, result: Any) -> None:
        results[name] = result
        if output is not None:
            scratch = output.with_suffix(".new")
            scratch.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            scratch.replace(output)

    return keep


def parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    options = argparse.ArgumentParser(prog="python benchmarks/gpu", description=__doc__.split("\n\n")[0])
    options.add_argument("--sources", type=Path, metavar="DIR", help="sources that are laid out already")
    options.add_argument(
        "--kernels", type=Path, metavar="DIR", help="time first launches too: `first_fire.py lay DIR` made it"
    )
    options.add_argument("--lay", type=Path, metavar="DIR", help="lay the sources out in DIR, and no more")
    options.add_argument("--show", type=Path, metavar="FILE", help="print the tables of FILE again, and no more")
    options.add_argument("--output", type=Path, metavar="FILE", help="write what was measured to FILE")
    options.add_argument("--commit", default="not recorded", help="what is run, as `git rev-parse HEAD` says it")
    options.add_argument("--repetitions", type=int, default=100, metavar="N", help="of each call (default 100)")
    return options


def main(argv: Sequence[str]) -> int:
    chosen = parser().parse_args(argv)
    if chosen.show is not None:
        print(table.document(json.loads(chosen.show.read_text(encoding="utf-8"))))
        return 0
    if chosen.lay is not None:
        lay(chosen.lay)
        return 0
    with tempfile.TemporaryDirectory(prefix="nvllm-gpu-") as scratch:
        sources = chosen.sources
        if sources is None:
            sources = Path(scratch)
            lay(sources)
        results: dict[str, Any] = {}
        measure(sources, chosen.kernels, chosen.repetitions, chosen.commit, keeper(chosen.output, results))
    print(table.document(results))
    return 0 if table.right(results) else 1


def lay(directory: Path) -> None:
    sys.path.insert(0, str(ROOT / "launcher"))
    from benchmarks.gpu import sources

    sources.lay(directory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
