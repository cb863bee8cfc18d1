"""What two logs say of saved code; that an engine writes such logs is the end-to-end suite's to show."""

from __future__ import annotations

import pytest

from nvllm.trials.aot_load import FAILED, LOADED, READY, SAVED, judged


@pytest.mark.parametrize(
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
    trial = judged(cold, warm, "e" * 64, seconds=2.0)
    assert (trial.outcome, trial.kind, trial.seconds) == (outcome, kind, 2.0)
    assert trial.stage == ("harness" if outcome == "untestable" else None)
    assert trial.evidence == "e" * 64
