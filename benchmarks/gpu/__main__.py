"""What clearing the pages of new blocks costs on a GPU, and that it is right: `python benchmarks/gpu`.

Needs an NVIDIA GPU of 24 GB or more, torch, Triton, and what vLLM 0.21.0 imports; no compiled part of vLLM. The
sources that run are laid out first; where there is no index, do that elsewhere (`--lay DIR`), copy the repository and
DIR, and name it (`--sources DIR`). Prints correctness, end-to-end proof and timings; `--output FILE` keeps them as
JSON. The exit status is 1 if a byte was wrong, and 0 if a target was missed, which is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import table  # noqa: E402


class FailedError(Exception):
    """A script ended with an error; what it wrote stands above."""


def script(name: str, tree: str, sources: Path, arguments: Sequence[str]) -> Any:
    """Run a script of this directory on TREE of SOURCES, in a process of its own, and return what it printed."""
    path = os.pathsep.join(map(str, [sources / tree, sources, ROOT]))
    inherited = os.environ.get("PYTHONPATH")
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.gpu.{name}", *arguments],
        env=os.environ | {"PYTHONPATH": f"{path}{os.pathsep}{inherited}" if inherited else path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FailedError(f"benchmarks.gpu.{name} on the {tree} tree: exit status {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def driver() -> str:
    """Return the version of NVIDIA's driver."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def first_launch(kernels: Path) -> dict[str, Any]:
    """Measure the first launch with what first_fire.py laid out in KERNELS, and return what it printed."""
    argv = [sys.executable, str(kernels / "first_fire.py"), "measure", str(kernels)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    *lines, last = done.stdout.splitlines() or [""]
    try:
        return {"printed": "\n".join(lines), **json.loads(last)}
    except json.JSONDecodeError:
        raise FailedError(f"{shlex.join(argv)}: exit status {done.returncode}") from None


def measured(sources: Path, kernels: Path | None, repetitions: int) -> dict[str, Any]:
    """Run every script and return all they printed."""
    stock, patched = (script("recycling", tree, sources, ["cuda:0"]) for tree in ("stock", "patched"))
    correctness = script("correctness", "patched", sources, ["cuda:0"])
    timing = script("timing", "patched", sources, [str(repetitions)])
    first = {} if kernels is None else {table.FIRST: first_launch(kernels)}
    return {
        "environment": timing["environment"] | {"driver": driver()},
        "sources": json.loads((sources / "sources.json").read_text(encoding="utf-8")),
        "correctness": correctness,
        "recycling": {shape: stock[shape] | patched[shape] for shape in stock},
        "timings": timing["timings"],
        **first,
    }


def parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    found = argparse.ArgumentParser(prog="python benchmarks/gpu", description=__doc__.split("\n\n")[0])
    found.add_argument("--sources", type=Path, metavar="DIR", help="sources that are laid out already")
    found.add_argument(
        "--kernels", type=Path, metavar="DIR", help="time first launches too: `first_fire.py lay DIR` made it"
    )
    found.add_argument("--lay", type=Path, metavar="DIR", help="lay the sources out in DIR, and no more")
    found.add_argument("--show", type=Path, metavar="FILE", help="print the tables of FILE again, and no more")
    found.add_argument("--output", type=Path, metavar="FILE", help="write what was measured to FILE")
    found.add_argument("--repetitions", type=int, default=100, metavar="N", help="of each call (default 100)")
    return found


def main(argv: Sequence[str]) -> int:
    chosen = parser().parse_args(argv)
    if chosen.show is not None:
        print(table.document(json.loads(chosen.show.read_text(encoding="utf-8"))))
        return 0
    if chosen.lay is not None:
        lay(chosen.lay)
        return 0
    with tempfile.TemporaryDirectory(prefix="nvllm-gpu-") as place:
        sources = chosen.sources
        if sources is None:
            sources = Path(place)
            lay(sources)
        try:
            found = measured(sources, chosen.kernels, chosen.repetitions)
        except FailedError as error:
            print(error, file=sys.stderr)
            return 1
    if chosen.output is not None:
        chosen.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table.document(found))
    return 0 if table.right(found) else 1


def lay(place: Path) -> None:
    sys.path.insert(0, str(ROOT / "launcher"))
    from benchmarks.gpu import sources

    sources.lay(place)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
