"""NV344, tasks lost: the machines that a trial was sent to were lost, again and again."""

from __future__ import annotations

import pytest

from nvllm.bisect.driver import PendingTrial, dispatch
from nvllm.bisect.journal import Log
from nvllm.bisect.records import Lost, Sent, Tried
from nvllm.core.refusal import Refused
from nvllm.trials.ending import MOST_LOSSES
from nvllm.trials.trial import Built
from support.bisect_world import GOOD, SimulatedBench, free, start


class Doomed(SimulatedBench):
    """One machine, which is lost with every task."""

    count = 1
    one_host = False
    names = iter("abcdefgh")

    def task(self, built: Built, attempt: int, reason: str) -> PendingTrial:
        sent = Sent(next(self.names), built.chosen, built.build_hash, "sha256:1", "sha256:2", "cpu-1", attempt)
        return PendingTrial(sent, lambda: Lost(sent.task, sent.chosen, "the power failed"))


def test_a_trial_that_no_machine_survives() -> None:
    log = Log.of(start(free(2)))
    with pytest.raises(Refused) as caught:
        dispatch(log, Doomed(lambda _: GOOD))
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV344", "p01, p02")
    assert refusal.found == f"{MOST_LOSSES} tasks lost, the last because: the power failed"
    assert refusal.cure == "look at the machines: nvllm fleet status --on ADDRESS"
    records = [one.record for one in log.entries]
    assert [one.attempt for one in records if isinstance(one, Sent)] == [1, 2, 3]
    assert not [one for one in records if isinstance(one, Tried)]
