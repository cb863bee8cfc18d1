"""What two logs say of saved code; that an engine writes such logs is the end-to-end suite's to show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.host.facts import ContainerState
from nvllm.trials.aot_load import FAILED, LOADED, READY, SAVED, judged, start
from support.plansamples import PLAN
from support.rows import each_row


@each_row(
    ("cold", "warm", "outcome", "kind"),
    [
        (f"{SAVED} /cache/1\n{READY}", f"{LOADED} /cache/1\n{READY}", "good", ""),
        (f"{SAVED} /cache/1\n{READY}", f"{FAILED}\n{SAVED} /cache/1\n{READY}", "bad", "compiled again"),
        (f"{SAVED} /cache/1\n{READY}", READY, "untestable", "nothing loaded"),
        (READY, READY, "untestable", "nothing saved"),
        (READY, f"{LOADED} /cache/1\n{READY}", "untestable", "nothing saved"),
    ],
)
def test_the_verdict_is_what_the_second_start_says(cold: str, warm: str, outcome: str, kind: str) -> None:
    trial = judged(cold, warm, seconds=2.0)
    assert (trial.outcome, trial.kind, trial.seconds) == (outcome, kind, 2.0)
    assert trial.stage == ("harness" if outcome == "untestable" else None)


COMPILED = '2026-11-20T10:00:20Z (EngineCore pid=75) nvllm.kernels compiled {"arguments": "x_ptr: *bf16"}\n'
REASON = "2026-11-20T10:00:19Z ValueError: the last word\n"


@each_row(("log", "last"), [(REASON + 100 * COMPILED, REASON), (2 * COMPILED, 2 * COMPILED)])
def test_the_reason_of_an_engine_that_ends_is_not_hidden_by_what_was_compiled(
    tmp_path: Path, log: str, last: str
) -> None:
    def logs(container: str, *, follow: bool) -> Iterator[bytes]:
        yield log.encode()

    def done(*_: object) -> None:
        pass

    made_up: dict[str, Any] = {
        "start_workbench": lambda *_: "4f",
        "state": lambda _: ContainerState(1, out_of_memory=False),
        "logs": logs,
        "kill": done,
        "remove": done,
    }
    plan = replace(PLAN, user=f"{os.getuid()}:{os.getgid()}")
    with pytest.raises(Refused) as caught:
        start(cast("Engine", SimpleNamespace(**made_up)), plan, tmp_path)
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found) == ("NV703", f"its last lines:\n{last.rstrip()}")
