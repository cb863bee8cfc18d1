"""A LoRA adapter behind a blessed server: `python -m gpu.adapted PLACE SCRATCH CASE`.

It stands on what `blessing.py` stands on. A first blessing has the kernels of one plain request alone, so the server
reports what requests for the adapter lack, and whose they were. `--extend` asks the whole workload; then requests that
are drawn from the server's own schema ask the adapter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from gpu import blessing
from gpu.blessing import Bench
from gpu.project import ADAPTED, ADAPTER, LLAMA

DRAWN = 400


def extended(bench: Bench) -> None:
    """Bless with one request alone, ask the adapter, add what was missing, and ask it again."""
    few = ("--unsafe-trials", "1")
    if bench.bless("bless", ADAPTED, *few, module="gpu.fewer"):
        bench.served("serve", ADAPTED, ADAPTER)
        if bench.bless("extend", ADAPTED, "--extend", *few):
            bench.served("serve extended", ADAPTED, ADAPTER, DRAWN)


CASES: Mapping[str, Callable[[Bench], None]] = {"extended": extended}

if __name__ == "__main__":
    blessing.run(sys.argv[1:], CASES, LLAMA, ADAPTER)
