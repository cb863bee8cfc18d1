"""Let atheris look for what breaks the readers, led by what they execute.

`python tests/fuzz/guided.py --seconds 10 [READER...]`. The readers and checks are those of `test_readers.py`; it begins
at the seeds and the corpus. What breaks a reader is written to `.fuzz/READER/`, and the exit status is 1: give the file
a name that says what it is, and put it into `corpus`. Without atheris, which is no dependency, this says how to get it,
and ends with 0.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
FOUND = ROOT / ".fuzz"
MOST = 1 << 16
"""Bytes of the largest input."""


def all_readers(names: list[str], seconds: int) -> int:
    """Run each reader in NAMES for SECONDS in a process of its own, and return how many broke."""

    def one(name: str) -> bool:
        argv = [sys.executable, __file__, "--one", "--seconds", str(seconds), name]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
        runs = [line for line in done.stderr.splitlines() if line.startswith("Done ")]
        sys.stdout.write(f"{name}: {'; '.join(runs) or done.stderr[-4000:]}\n")
        sys.stdout.flush()
        return done.returncode != 0

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum(pool.map(one, names))


def one_reader(name: str, seconds: int) -> None:
    """Run the reader NAME for SECONDS. Does not return."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["nvllm"]), contextlib.suppress(ImportError):
        from support import fuzzed, fuzzing

    reader = fuzzing.READERS[name]
    place, found = Path(tempfile.mkdtemp(prefix="nvllm-guided-")), FOUND / name.replace(" ", "-")
    found.mkdir(parents=True, exist_ok=True)
    (place / "seeds").mkdir()
    (place / "seeds/seed").write_bytes(fuzzed.seed(reader))
    for path in (CORPUS / name).glob("*"):
        (place / "seeds" / path.name).write_bytes(path.read_bytes())

    def check(data: bytes) -> None:
        fuzzing.check(reader, data, place)

    options = [f"-max_total_time={seconds}", f"-max_len={MOST}", f"-artifact_prefix={found}/", "-rss_limit_mb=2048"]
    options += ["-timeout=20", "-print_final_stats=1", "-verbosity=1"]
    atheris.Setup([sys.argv[0], *options, str(place / "seeds")], check)
    atheris.Fuzz()


def main() -> int:
    """Read the command line, and return the exit status."""
    sys.path[:0] = [str(ROOT / "launcher"), str(ROOT / "tests")]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    try:
        importlib.import_module("atheris")
    except ImportError:
        sys.stderr.write("guided fuzzing needs atheris: .venv/bin/pip install atheris\n")
        return 0
    if asked.one:
        one_reader(asked.readers[0], asked.seconds)
    from support.fuzzing import READERS

    return min(1, all_readers(asked.readers or list(READERS), asked.seconds))


if __name__ == "__main__":
    sys.exit(main())
