"""The journal: what is on the disk after any death, what is refused, and that a resumed bisect ends the same.

Its state is a fold over the records: what counts, what is withdrawn, what is shared.
"""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvllm.bisect import journal
from nvllm.bisect.answer import Done
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Journal
from nvllm.bisect.records import Back, End, JournalEntry, Judged, Limits, Skip, Tried
from nvllm.core import durable
from nvllm.core.refusal import Refused
from nvllm.trials.trial import Built, Trial
from support.bisect_world import SimulatedBench, all_of, free, start

START = start(free(4), "ordered")
SMALL = start(free(2), "ordered")
RECORDS = (
    Built(("p01",), "tree", "build", "image", 1.5),
    Tried(("p01",), "untestable", "", "boot", "", 2.25, recalled=False, reason="4 candidates left"),
    Judged(("p01",), "untestable", "boot", None),
    Judged((), "good", "", 0.998),
    Back(("p01",)),
    Skip(("p01", "p02")),
    Limits(50, 2.5),
    End(("p03",), exact=True, certified=True),
)


def killed(path: Path, tries: Path, when: int) -> bool:
    """Drive the bisect at PATH in a child that is killed at the boundary WHEN, and say whether it was.

    Every write reaches the file in two parts. TRIES gets a byte for each trial that is begun.
    """
    child = os.fork()
    if child == 0:
        left = when
        whole = os.pwrite

        def die(point: str, path: str = "") -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def half(descriptor: int, text: bytes, place: int) -> int:
            return whole(descriptor, text[: len(text) // 2] if len(text) > 200 else text, place)

        class Bench(SimulatedBench):
            def trial(self, built: Built) -> Trial:
                with tries.open("ab") as stream:
                    stream.write(b".")
                return super().trial(built)

        try:
            os.pwrite = half  # type: ignore[assignment]  # for what the journal passes it
            durable.reached = die
            try:
                log = journal.load(path)
            except Refused:
                log = journal.create(path, SMALL)
            drive(log, Bench(all_of(frozenset({"p02"}))))
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bisect/journal.jsonl"
    made = journal.create(path, START, clock=lambda: 12.0004)
    for record in RECORDS:
        made.append(record)
    assert [entry.record for entry in journal.load(path).entries] == [START, *RECORDS]
    assert {entry.when for entry in journal.load(path).entries} == {12.0}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.thorough
def test_killed_at_any_boundary_it_ends_the_same_and_repeats_one_trial_at_most(tmp_path: Path) -> None:
    whole, tries = tmp_path / "whole", tmp_path / "whole-tries"
    assert not killed(whole, tries, 0)
    expected = [entry.record for entry in journal.load(whole).entries]
    trials = tries.stat().st_size
    boundary = 0
    while True:
        boundary += 1
        path, tries = tmp_path / f"j{boundary}", tmp_path / f"t{boundary}"
        if not killed(path, tries, boundary):
            break
        assert not killed(path, tries, 0)
        assert [entry.record for entry in journal.load(path).entries] == expected
        assert tries.stat().st_size <= trials + 1
    assert boundary > 4 * len(expected)


def test_killed_over_and_over_it_still_ends(tmp_path: Path) -> None:
    path, tries = tmp_path / "journal", tmp_path / "tries"
    kills = 0
    while killed(path, tries, 17):
        kills += 1
        assert kills < 100
    assert journal.load(path).entries[-1].record == End(("p02",), exact=True, certified=True)
    journaled = sum(isinstance(entry.record, Tried) for entry in journal.load(path).entries)
    assert journaled <= tries.stat().st_size <= journaled + kills


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400))
def test_a_torn_last_line_is_dropped_and_written_over(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    path.unlink(missing_ok=True)
    made = journal.create(path, START)
    made.append(RECORDS[0])
    before = path.read_bytes()
    made.append(RECORDS[1])
    path.write_bytes(path.read_bytes()[: len(before) + cut])
    torn = not path.read_bytes().endswith(b"\n") or path.read_bytes() == before
    again = journal.load(path)
    assert len(again.entries) == (2 if torn else 3)
    again.append(RECORDS[5])
    assert [entry.record for entry in journal.load(path).entries][-1] == RECORDS[5]
    assert len(journal.load(path).entries) == len(again.entries)


def test_a_line_of_which_a_part_never_reached_the_disk_is_dropped(tmp_path: Path) -> None:
    made = journal.create(tmp_path / "j", START)
    made.append(RECORDS[0])
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-30] + b"\0" * 29 + b"\n")
    assert len(journal.load(tmp_path / "j").entries) == 1


def test_a_journal_that_never_got_its_first_line_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"n":0,')
    journal.create(tmp_path / "j", START)
    assert journal.load(tmp_path / "j").entries[0].record == START


def test_a_journal_is_set_aside_when_the_new_one_is_whole_and_not_before(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk that is full."""
    path, aside = tmp_path / "journal.jsonl", tmp_path / "journal-1.jsonl"
    journal.create(path, START).append(RECORDS[0])
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        with pytest.raises(Refused) as caught:
            journal.create(path, SMALL, aside)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [one.code for one in caught.value.refusals] == ["NV806"]
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {path.name: before}
    journal.create(path, SMALL, aside)  # there is room again
    assert aside.read_bytes() == before
    assert [entry.record for entry in journal.load(path).entries] == [SMALL]


def test_killed_while_one_is_set_aside_there_is_the_old_journal_or_the_new_one(tmp_path: Path) -> None:
    path, aside = tmp_path / "journal.jsonl", tmp_path / "journal-1.jsonl"
    starts, boundary = [], 0
    while True:
        boundary += 1
        aside.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        journal.create(path, START)
        before = path.read_bytes()
        child = os.fork()
        if child == 0:
            left = boundary

            def die(point: str, path: str = "") -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            try:
                durable.reached = die
                journal.create(path, SMALL, aside)
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        starts.append(journal.load(path).entries[0].record)
        assert before in (path.read_bytes(), aside.read_bytes() if aside.exists() else b"")
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            break
    assert starts[0] == START
    assert starts[-1] == SMALL
    assert boundary > 4


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the kernel refuses the write in the middle of a line."""
    path = tmp_path / "journal.jsonl"
    made = journal.create(path, START)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        with pytest.raises(Refused) as caught:
            made.append(RECORDS[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.refusals[0].code == "NV806"
    assert path.read_bytes() == before
    made.append(RECORDS[0])  # there is room again
    assert [entry.record for entry in journal.load(path).entries] == [START, RECORDS[0]]


def test_a_bisect_goes_on_after_the_disk_was_full(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    made: Journal = journal.create(path, START)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 700, hard))
    bench = SimulatedBench(all_of(frozenset({"p03"})))
    try:
        with pytest.raises(Refused):
            drive(made, bench)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    done = drive(journal.load(path), bench)
    assert isinstance(done, Done)
    assert done.culprits == ("p03",)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_single_bit_that_changed_is_refused(tmp_path: Path, place: int, bit: int) -> None:
    path = tmp_path / "journal.jsonl"
    if not path.exists():
        made = journal.create(path, SMALL, clock=lambda: 1.5)
        for record in (Tried(("p01",), "good", "", None, "", 2.25, False, "why"), Skip(("p02",))):
            made.append(record)
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(data)
    with pytest.raises(Refused) as caught:
        journal.load(changed)
    assert {one.code for one in caught.value.refusals} == {"NV804"}


def test_a_journal_of_the_first_format_is_read_and_continued(tmp_path: Path) -> None:
    path, old = tmp_path / "journal.jsonl", replace(SMALL, schema="nvllm.journal/1")
    text, chain = journal.line(0, JournalEntry(1.0, old), "")
    assert chain == ""
    newer = (b'"chain"', b'"max_trials"', b'"max_hours"', b'"further"')
    for name in newer[1:]:  # what the first format did not have
        start_of = text.index(name + b":")
        text = text[:start_of] + text[text.index(b",", start_of) + 1 :]
    path.write_bytes(text)
    made = journal.load(path)
    made.append(Skip(("p01",)))
    assert [one.record for one in journal.load(path).entries] == [old, Skip(("p01",))]
    assert not any(name in path.read_bytes() for name in newer[:1])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1"])
def test_what_is_no_time_is_refused(tmp_path: Path, number: str) -> None:
    path = tmp_path / "journal.jsonl"
    text, _ = journal.line(0, JournalEntry(1.5, replace(SMALL, schema="nvllm.journal/1")), "")
    path.write_bytes(text.replace(b'"time":1.5', b'"time":' + number.encode()))
    with pytest.raises(Refused) as caught:
        journal.load(path)
    assert [one.code for one in caught.value.refusals] == ["NV804"]
