"""NV521, supervisor does not end: it still holds its locks after its engine was stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.host import locks
from nvllm.host.locks import Holder, Key
from nvllm.serve import startup, stopping
from support.plansamples import PLAN, places
from support.serve_world import FakeEngine


def test_a_supervisor_that_was_itself_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by SIGSTOP: it cannot see that its engine is gone. This process holds the locks in its place."""
    monkeypatch.setattr(stopping, "RELEASE", 0.2)
    where, engine = places(tmp_path), FakeEngine()
    engine.start(PLAN, startup.labels(PLAN, where.run(PLAN.instance)))
    holder = Holder(os.getpid(), "2026-11-20T10:00:00Z", "nvllm serve demo --profile eager", PLAN.instance)
    with locks.acquire_all(where.locks, [Key("port", "8000")], holder), pytest.raises(Refused) as caught:
        stopping.stop(cast("Engine", engine), where, PLAN.instance)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where, refusal.found) == ("NV521", f"instance {PLAN.instance}", str(holder))
    assert refusal.cure == f"kill -KILL {os.getpid()}"
    assert engine.asked == ["start", "stop"], "its engine is stopped all the same"
