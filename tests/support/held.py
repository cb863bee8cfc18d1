"""nvllm that stops at one boundary of a task: the real program, with a wait before or after one of its functions.

The file `stop` in NVLLM_HOME names the boundary. Once there, nvllm writes the file `stopped` beside it, and goes on
when `stop` is gone. Without that file nothing is changed.
"""

from __future__ import annotations

import functools
import os
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any

from nvllm.cli.main import main

BEFORE = {
    "started": ("nvllm.fleet.tasks", "task"),
    "accepted": ("nvllm.fleet.images", "pull_image"),
    "pulling": ("nvllm.sources.store:Store", "adopt"),
    "pulled": ("nvllm.trials.bench:EngineBench", "trial"),
    "sent": ("nvllm.fleet.cluster:RayCluster", "carry"),
}
AFTER = {
    "answered": ("nvllm.fleet.worker:Worker", "answer"),
    "delivered": ("nvllm.fleet.cluster:RayCluster", "carry"),
}


def _wait(stop: Path) -> None:
    stop.with_name("stopped").touch()
    while stop.exists():
        time.sleep(0.05)


def _hold(stop: Path) -> None:
    """Make nvllm wait at the boundary that STOP names, as long as there is STOP."""
    boundary = stop.read_text()
    where, name = (BEFORE | AFTER)[boundary]
    owner = pkgutil.resolve_name(where)
    real = getattr(owner, name)

    @functools.wraps(real)
    def held(*words: Any, **named: Any) -> Any:
        if boundary in BEFORE:
            _wait(stop)
            return real(*words, **named)
        result = real(*words, **named)
        _wait(stop)
        return result

    setattr(owner, name, held)


if __name__ == "__main__":
    found = Path(os.environ["NVLLM_HOME"], "stop")
    if found.exists():
        _hold(found)
    sys.exit(main())
