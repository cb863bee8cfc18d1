"""The memo: trials of earlier bisects, by image, probe and host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nvllm.bisect.driver import drive
from nvllm.bisect.journal import MemoryLog
from nvllm.bisect.search import Done
from nvllm.bisect.trial_cache import Memo
from nvllm.bisect.verdict import Trial
from support.bisect_world import BAD, GOOD, SimulatedBench, all_of, free, start


def test_trials_come_back_in_their_order_and_to_their_own_key_only(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo", "test", "host")
    trials = (Trial("bad", "exit 3", None, "ab" * 32, 1.5), Trial("untestable", stage="boot"), GOOD)
    for trial in trials:
        memo.remember("b1", trial)
    assert memo.recall("b1") == trials
    assert (
        memo.recall("b2") == replace(memo, test="other").recall("b1") == replace(memo, host="other").recall("b1") == ()
    )
    memo.forget("b1")
    assert memo.recall("b1") == ()


def test_a_torn_line_costs_that_line(tmp_path: Path) -> None:
    memo = Memo(tmp_path, "test", "host")
    memo.remember("b", BAD)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"outcome":"go')
    memo.remember("b", GOOD)
    assert memo.recall("b") == (BAD, GOOD)


@given(st.binary())
def test_what_cannot_be_read_is_not_there(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        memo = Memo(Path(name), "test", "host")
        memo.remember("b", GOOD)
        (path,) = Path(name).iterdir()
        path.write_bytes(data)
        assert all(isinstance(trial, Trial) for trial in memo.recall("b"))


def test_a_memo_that_cannot_be_written_costs_nothing_now(tmp_path: Path) -> None:
    (tmp_path / "memo").touch()
    Memo(tmp_path / "memo", "test", "host").remember("b", GOOD)


def test_a_second_bisect_runs_no_trial_again(tmp_path: Path) -> None:
    memo = Memo(tmp_path, "test", "host")
    first, second = (SimulatedBench(all_of(frozenset({"p03", "p06"}))) for _ in range(2))
    one = drive(MemoryLog.of(start(free(8))), first, memo=memo)
    other = drive(MemoryLog.of(start(free(8))), second, memo=memo)
    assert isinstance(one, Done)
    assert one == other
    assert first.tries
    assert not second.tries
