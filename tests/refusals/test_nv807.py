"""NV807: a bisect of the image is there already, and would be thrown away."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.bisect import journal
from nvllm.core.refusal import Refused
from support.bisect_world import free, start


def test_a_second_start_keeps_the_first_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal.create(path, start(free(2)))
    before = path.read_bytes()
    with pytest.raises(Refused) as caught:
        journal.create(path, start(free(3)))
    (found,) = caught.value.refusals
    assert (found.code, found.where, caught.value.exit_code) == ("NV807", str(path), 2)
    assert found.expected == "no journal"
    assert found.found.startswith("the journal of a bisect of cpu, which ")
    assert found.cure == "nvllm bisect run --image cpu"
    assert path.read_bytes() == before
