"""What is measured on GPUs, of one commit on one machine with four of them: `python -m gpu.everything PLACE IMAGE`.

PLACE is what lay.py laid out, with the engines. IMAGE is a second directory with `engines`, `registry`, `repository`
and `tool`; all pieces of `pack_layers.py` are in its `pieces`, and its `zeroer` is what `benchmarks/gpu --lay` made.
Lanes run side by side; each has one GPU and processors of its own, and runs its commands one after the other. What is
timed to a hundredth follows when all lanes have ended. Each command writes its results and its log into the directory
of `--output`. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpu.machine import Place

Command = Sequence[str]
"""Its words, in which {place}, {image}, {output}, {commit} and {machine} stand for what they are here."""

PYTHON = (sys.executable, "-m")
COMMIT = ("--output", "{output}", "--commit", "{commit}")
FACTS = (*COMMIT, "--machine", "{machine}")
ALONE = ("unshare", "--mount", "--net", "sh", "-ec", 'mount -t tmpfs tmpfs /run; exec "$@"', "sh")
"""What comes before a command that starts engines: a network, and a /run for their sockets, of its own."""
EMPTY = (
    "unshare",
    "--mount",
    "sh",
    "-ec",
    'mkdir -p /opt/nvllm; mount -t tmpfs tmpfs /run; mount -t tmpfs tmpfs /opt/nvllm; exec "$@"',
    "sh",
)
"""What comes before a command that must find nothing of an image, which other commands have mounted there."""


def measured(*words: str) -> Command:
    return (*PYTHON, "gpu.run", "{place}", "--only", *words, *FACTS)


TRITON = ("--attention", "TRITON_ATTN")
ZEROER = ("--sources", "{image}/zeroer", "--kernels", "{place}/kernels", *COMMIT)


@dataclass(frozen=True)
class Lane:
    """COMMANDS by the names of their results, on GPU number CARD, with this SHARE of 64 processors."""

    card: int
    share: int
    commands: Mapping[str, Command]


LANES: Mapping[str, Lane] = {
    "sized": Lane(0, 12, {"sized": measured("sized", "--trials", "3")}),
    "containers": Lane(1, 10, {"containers": (*ALONE, *PYTHON, "gpu.containers", "{place}", *FACTS)}),
    "image": Lane(1, 12, {"whole": (*ALONE, *PYTHON, "gpu.whole", "{image}", "{image}/pieces", *TRITON, *FACTS)}),
    "shapes": Lane(2, 12, {"shapes": measured("shapes"), "adapted": measured("adapted")}),
    "repeats": Lane(3, 18, {"repeats": measured("repeats", "--seconds", "1150")}),
}
TIMED = Lane(
    0,
    64,
    {
        "zeroer": (*EMPTY, *PYTHON, "benchmarks.gpu", *ZEROER),
        "loads": measured("loads", "--rounds", "100"),
    },
)
"""What follows the lanes, with all processors: beside them its intervals were 7 % to each side, and not 1.5 %."""

NAMES = (*LANES, "timed")


def processors(shares: Sequence[int]) -> list[list[int]]:
    """Return which processors of this machine those have whose SHARES of it, in 64ths, follow each other."""
    every = sorted(os.sched_getaffinity(0))
    ends = [end * len(every) // 64 for end in itertools.accumulate(shares, initial=0)]
    return [every[begin:end] for begin, end in itertools.pairwise(ends)]


def run(lane: Lane, cpus: Sequence[int], asked: argparse.Namespace) -> bool:
    """Run the commands of LANE on the processors CPUS; return whether all ended well."""
    place, image = Place(asked.place.resolve()), asked.image.resolve()
    machine = f"{asked.machine}, {len(cpus)} of these here"
    statuses = []
    for results, words in lane.commands.items():
        output = asked.output / f"{results}.json"
        values = {"place": place.root, "image": image, "output": output, "commit": asked.commit, "machine": machine}
        on_card = ["taskset", "--cpu-list", ",".join(map(str, cpus)), "sh", "tests/gpu/card.sh", str(lane.card)]
        argv = [*on_card, *(word.format(**values) for word in words)]
        path = os.pathsep.join([place.commands(), str(place.root / "site")])
        with output.with_suffix(".log").open("w") as log:
            print(shlex.join(argv), file=log, flush=True)
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(argv, stdout=log, stderr=log, env=environment, cwd=place.repository, check=False)
        print(f"{results}: exit status {done.returncode}", flush=True)
        statuses.append(done.returncode)
    return not any(statuses)


def main(argv: Sequence[str]) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m gpu.everything", description=__doc__.split("\n\n")[0])
    parser.add_argument("place", type=Path, metavar="PLACE")
    parser.add_argument("image", type=Path, metavar="IMAGE")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="where to keep what was seen")
    parser.add_argument("--commit", required=True, help="what is run, as `git rev-parse HEAD` says it")
    parser.add_argument("--machine", required=True, help="what it runs on, in words that end with its processors")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, help="lanes, or what is timed (default: all)"
    )
    asked = parser.parse_args(argv)
    asked.output.mkdir(parents=True, exist_ok=True)
    asked.output = asked.output.resolve()
    cpus = dict(zip(LANES, processors([lane.share for lane in LANES.values()]), strict=True))
    with ThreadPoolExecutor(len(asked.only)) as pool:
        lanes = [name for name in asked.only if name in LANES]
        ended = list(pool.map(lambda name: run(LANES[name], cpus[name], asked), lanes))
    if "timed" in asked.only:
        (every,) = processors([TIMED.share])
        ended.append(run(TIMED, every, asked))
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
