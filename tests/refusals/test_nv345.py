"""NV345, not the result: the answer of a machine does not fit its task, or lacks its evidence."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from nvllm.core.refusal import Refused
from nvllm.fleet import tasks
from support.task_samples import TASK, answered


def test_evidence_that_was_changed_on_its_way() -> None:
    told = replace(answered(TASK), content=base64.b64encode(b"another").decode())
    with pytest.raises(Refused) as caught:
        tasks.answer(tasks.answer_line(told), "spark")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV345", "spark: .content")
    assert refusal.expected == f"evidence of sha256 {told.evidence}"
    assert refusal.cure == "install the same version of nvllm on every machine"
