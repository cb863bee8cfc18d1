"""The cache: trials of earlier bisects, by image, probe and host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.search import Done
from nvllm.bisect.trial_cache import TrialCache
from nvllm.trials.trial import Trial
from support.bisect_world import BAD, GOOD, SimulatedBench, all_of, free, start


def test_trials_come_back_in_their_order_and_to_their_own_key_only(tmp_path: Path) -> None:
    cache = TrialCache(tmp_path / "cache", "test", "host")
    trials = (Trial("bad", "exit 3", None, "ab" * 32, 1.5), Trial("untestable", stage="boot"), GOOD)
    for trial in trials:
        cache.remember("b1", trial)
    assert cache.recall("b1") == trials
    assert (
        cache.recall("b2")
        == replace(cache, test="other").recall("b1")
        == replace(cache, host="other").recall("b1")
        == ()
    )
    cache.forget("b1", [GOOD])
    assert cache.recall("b1") == trials[:-1]  # what another bisect may have tried stays
    cache.forget("b1", trials)
    assert cache.recall("b1") == ()


def test_a_torn_line_costs_that_line(tmp_path: Path) -> None:
    cache = TrialCache(tmp_path, "test", "host")
    cache.remember("b", BAD)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"outcome":"go')
    cache.remember("b", GOOD)
    assert cache.recall("b") == (BAD, GOOD)


@given(st.binary())
def test_what_cannot_be_read_is_not_there(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        cache = TrialCache(Path(name), "test", "host")
        cache.remember("b", GOOD)
        (path,) = Path(name).iterdir()
        path.write_bytes(data)
        assert all(isinstance(trial, Trial) for trial in cache.recall("b"))


def test_a_memo_that_cannot_be_written_costs_nothing_now(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    TrialCache(tmp_path / "cache", "test", "host").remember("b", GOOD)


def test_a_second_bisect_runs_no_trial_again(tmp_path: Path) -> None:
    cache = TrialCache(tmp_path, "test", "host")
    first, second = (SimulatedBench(all_of(frozenset({"p03", "p06"}))) for _ in range(2))
    one = drive(Log.of(start(free(8))), first, cache=cache)
    other = drive(Log.of(start(free(8))), second, cache=cache)
    assert isinstance(one, Done)
    assert one == other
    assert first.tries
    assert not second.tries
