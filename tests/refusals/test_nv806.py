"""NV806: a journal cannot be written. The limit on the size of files stands for the disk that is full."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from nvllm.bisect import journal
from nvllm.bisect.records import Skip
from nvllm.core.refusal import Refused
from support.bisect_world import free, start


def test_a_disk_that_fills(tmp_path: Path) -> None:
    made = journal.create(tmp_path / "journal.jsonl", start(free(2)))
    before = made.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 9, hard))
    try:
        with pytest.raises(Refused) as caught:
            made.append(Skip(("p01",)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (found,) = caught.value.refusals
    assert (found.code, found.where, caught.value.exit_code) == ("NV806", str(made.path), 1)
    assert (found.expected, found.found) == ("a record on the disk", "File too large")
    assert found.cure == f"df -h {tmp_path} && nvllm gc"
    assert made.path.read_bytes() == before


def test_a_journal_that_is_gone(tmp_path: Path) -> None:
    made = journal.create(tmp_path / "journal.jsonl", start(free(2)))
    made.path.unlink()
    with pytest.raises(Refused) as caught:
        made.append(Skip(("p01",)))
    (found,) = caught.value.refusals
    assert (found.code, found.found) == ("NV806", "No such file or directory")
