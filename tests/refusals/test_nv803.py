"""NV803: the journal is of another series, lock, probe or host than there is now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvllm.bisect.inputs import check_unchanged
from nvllm.core.refusal import Refused
from nvllm.trials.trial import BisectProbe
from support.bisect_world import free, start


def test_everything_that_is_another_is_named() -> None:
    before = start(free(3))
    now = replace(before, inputs="ef" * 32, probe=BisectProbe(("./probe.sh",), "01" * 32), host="cpu-aarch64")
    check_unchanged(before, before, "journal.jsonl")
    with pytest.raises(Refused) as caught:
        check_unchanged(before, now, "journal.jsonl")
    assert caught.value.exit_code == 3
    assert [(one.code, one.where, one.expected, one.found) for one in caught.value.refusals] == [
        ("NV803", "journal.jsonl: host", "cpu-x86_64", "cpu-aarch64"),
        ("NV803", "journal.jsonl: lock and series", "ab" * 12, "ef" * 12),
        ("NV803", "journal.jsonl: probe", "cd" * 12, "01" * 12),
    ]
    with pytest.raises(Refused) as caught:
        check_unchanged(replace(before, same_bytes=True), before, "journal.jsonl")
    assert [(one.where, one.expected, one.found) for one in caught.value.refusals] == [
        ("journal.jsonl: profile", "compiles nothing at boot", "may compile at boot")
    ]


def test_each_cure_says_how_to_go_on() -> None:
    before = start(free(3))
    now = replace(before, inputs="ef" * 32, probe=BisectProbe(("./probe.sh",), "01" * 32), host="cpu-aarch64")
    with pytest.raises(Refused) as caught:
        check_unchanged(before, now, "journal.jsonl")
    *others, probe = [one.cure for one in caught.value.refusals]
    assert all("--discard" in one for one in others)
    assert probe.startswith("nvllm bisect probe --image cpu --keep none")
