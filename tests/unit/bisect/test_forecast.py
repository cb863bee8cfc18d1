"""What a search still costs, as far as it can be said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvllm.bisect import records
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.records import Built, Tried
from support.bisect_world import SimulatedBench, all_of, free, start


def test_a_forecast_is_what_it_then_costs() -> None:
    for count in (2, 8, 16):
        state = records.fold([start(free(count), "ordered")])
        seen = state.forecast
        costs = []
        for culprit in free(count).order:
            bench = SimulatedBench(all_of(frozenset({culprit})))
            drive(Log.of(start(free(count), "ordered")), bench)
            costs.append(len(bench.tries))
        assert (seen.most_builds, seen.most_trials) == (max(costs), state.start.max_trials)
        assert seen.builds == pytest.approx(sum(costs) / count)


def test_a_forecast_of_a_flaky_search_counts_more_trials_than_builds() -> None:
    seen = records.fold([start(free(8), "ordered", flaky=True)]).forecast
    assert seen.trials > 2 * seen.builds


def test_a_forecast_says_minutes_as_soon_as_something_was_built_and_tried() -> None:
    first = start(free(4), "ordered")
    assert records.fold([first]).forecast.minutes is None
    built = Built(first.high, "tree", "build", "image", 120.0)
    tried = Tried(first.high, "bad", "", None, "", 60.0, recalled=False, reason="")
    state = records.fold([first, built, tried])
    seen = state.forecast
    assert seen.minutes == pytest.approx(2 * seen.builds + seen.trials)
    assert seen.most_trials == 399
    assert seen.most_minutes is None


def test_hours_that_are_limited_are_the_most_that_it_takes() -> None:
    first = replace(start(free(4), "ordered"), max_hours=2.0)
    built = Built(first.high, "tree", "build", "image", 1800.0)
    assert records.fold([first, built]).forecast.most_minutes == pytest.approx(90)
