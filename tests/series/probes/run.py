"""Runs inside a container, on one source tree of vLLM: what vLLM's own classes do there, as one line of JSON.

No test is in here. The tests beside this directory run it on the stock tree and on the patched one and judge what
it printed. Each probe goes through classes of the tree; what stands in is named where it does: an attention
backend, layers without weights, and Triton's interpreter in place of a GPU.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from typing import Any

import batches  # noqa: F401 - its probes
import blocks  # noqa: F401
import brought  # noqa: F401
import grammars  # noqa: F401
import requested  # noqa: F401
import second_runner  # noqa: F401
import vllm
from world import PROBES


def main() -> None:
    logging.getLogger("vllm").setLevel(logging.WARNING)
    asked = json.loads(sys.argv[1]) if sys.argv[1:] else PROBES
    results: dict[str, Any] = {"version": vllm.__version__, "file": vllm.__file__}
    for name, function in PROBES.items():
        if name not in asked:
            continue
        try:
            results[name] = function()
        except Exception:  # noqa: BLE001 - a probe that fails is a result; the test that needs it shows it
            results[name] = {"failed": traceback.format_exc()}
    sys.stdout.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
