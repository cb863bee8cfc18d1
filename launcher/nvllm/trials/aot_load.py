"""Tests whether an engine loads the compiled code that its previous start saved.

A launch plan has no directory for compiled code, so the image is started twice as the plan says, on one cache directory
that outlives the containers. The gate is left out, because it compares what `serve` prepares.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nvllm.core import paths
from nvllm.core.paths import Places
from nvllm.core.plan import RUN_DIRECTORY, LaunchPlan, PlannedCommand, Workbench
from nvllm.core.refusal import refuse
from nvllm.engine.engine import Engine
from nvllm.serve import timeline
from nvllm.serve.startup import labels
from nvllm.trials.trial import Trial, TrialResult, evidenced

READY = "Application startup complete."
LOADED = "Directly load AOT compilation from path"
SAVED = "saved AOT compiled function to"
FAILED = "Compiling model again due to a load failure"

_POLL = 0.5
"""Seconds between two looks at the log. An engine that loads takes at least ten."""
_TAIL = 3000
"""Characters of the log in a refusal: the last traceback of vLLM, with its reason."""
_HUNG = "Engine core initialization failed"


def trial(engine: Engine, plan: LaunchPlan, where: Places, began: float) -> TrialResult:
    """Start the engine of PLAN twice on one cache, and return whether the second start loads what the first saved.

    Good: it loads the code. Bad: it reports a failure and compiles again. Untestable at the harness: nothing was
    saved, as in a profile that does not compile, or the log says neither. BEGAN is the monotonic time, in seconds, at
    which the trial began. The second start's log is the evidence. Raises Refused as `start` does.
    """
    paths.ensure(where.runs)
    with tempfile.TemporaryDirectory(prefix=f"{plan.instance}-cache-", dir=where.runs) as directory:
        cold, warm = (start(engine, plan, Path(directory)) for _ in range(2))
    return evidenced(judged(cold, warm, seconds=time.monotonic() - began), warm.encode())


def judged(cold: str, warm: str, *, seconds: float) -> Trial:
    """Return the trial that the logs of the first start, COLD, and of the second, WARM, amount to."""
    if FAILED in warm:
        return Trial("bad", "compiled again", seconds=seconds)
    if SAVED in cold and LOADED in warm:
        return Trial("good", seconds=seconds)
    return Trial("untestable", "nothing loaded" if SAVED in cold else "nothing saved", "harness", seconds=seconds)


def start(engine: Engine, plan: LaunchPlan, cache: Path, environment: Mapping[str, str] | None = None) -> str:
    """Start the engine of PLAN on CACHE with ENVIRONMENT added, wait until it is ready, stop it, and return its log.

    Raises Refused NV703 if it exits before it is ready, and NV702 if it is not ready in time.
    """
    user, _, group = plan.user.partition(":")
    os.chown(cache, int(user), int(group))  # where nvllm runs as root, the engine runs as another user
    bare = replace(
        plan,
        command=PlannedCommand((), plan.command.engine),
        environment={**plan.environment, **(environment or {})},
        mounts=tuple(mount for mount in plan.mounts if mount.target != RUN_DIRECTORY),
    )
    container = engine.start_workbench(Workbench(bare, str(cache)), labels(plan, cache))
    try:
        return _until_ready(engine, plan, container)
    finally:
        engine.kill(container)
        engine.remove(container)


def _until_ready(engine: Engine, plan: LaunchPlan, container: str) -> str:
    where, cure = f"container {plan.instance}", f"nvllm serve {plan.image} --profile {plan.profile}"
    deadline = time.monotonic() + plan.limits.start_timeout
    while True:
        state = engine.state(container)  # before the log: the log of a container that has exited is complete
        log = b"".join(engine.logs(container, follow=False)).decode("utf-8", "replace")
        if READY in log:
            return log
        if state is None or state.exit_code is not None or _HUNG in log:
            raise refuse("NV703", where, "an engine that runs", _last_lines(log), cure)
        if time.monotonic() > deadline:
            expected = f"ready within {plan.limits.start_timeout} s"
            raise refuse("NV702", where, expected, _last_lines(log), cure)
        time.sleep(_POLL)


def _last_lines(log: str) -> str:
    text = "\n".join(timeline.without_evidence(log.splitlines()))
    return f"its last lines:\n{text[-_TAIL:]}"
