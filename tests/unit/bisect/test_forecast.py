"""What a search still costs, as far as it can be said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvllm.bisect import records
from nvllm.bisect.driver import drive
from nvllm.bisect.journal import Log
from nvllm.bisect.problem import Mode
from nvllm.bisect.records import Tried
from nvllm.trials.trial import Built
from support.bisect_world import SimulatedBench, all_of, free, start
from support.rows import each_row


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


def test_a_forecast_of_many_patches_rules_none_out() -> None:
    """Each of 256 patches is the culprit with less than half a percent, before the first trial."""
    seen = records.fold([start(free(256), "ordered")]).forecast
    bench = SimulatedBench(all_of(frozenset({"p200"})))
    drive(Log.of(start(free(256), "ordered")), bench)
    assert seen.most_builds >= len(bench.tries) == 11


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


@pytest.mark.thorough
@each_row("mode", ["ordered", "set"])
def test_a_forecast_is_kept_at_every_step(mode: Mode) -> None:
    """What has been ruled out costs nothing more: the search never takes more than was said at any time."""
    for culprit in free(8).order:
        log = Log.of(start(free(8), mode, repeats=3))
        drive(log, SimulatedBench(all_of(frozenset({culprit}))))
        places = [place for place, entry in enumerate(log.entries) if isinstance(entry.record, Tried)]
        costs = []
        for done, place in enumerate(places):
            state = records.fold(entry.record for entry in log.entries[:place])
            seen = state.forecast
            left = {log.entries[one].record for one in range(place, len(log.entries))}
            assert sum(isinstance(one, Built) for one in left) <= seen.most_builds
            costs.append(seen.trials - (len(places) - done))
        assert costs[-1] == 0  # one trial is left, and is said to be
        assert max(map(abs, costs)) <= 5  # the culprits that are left differ in their cost


def test_a_forecast_where_two_are_needed_goes_on_from_the_one_that_is_known() -> None:
    log = Log.of(start(free(8), "set", repeats=3))
    drive(log, SimulatedBench(all_of(frozenset({"p03", "p06"}))))
    places = [place for place, entry in enumerate(log.entries) if isinstance(entry.record, Tried)]
    for done, place in enumerate(places[6:], 6):
        seen = records.fold(entry.record for entry in log.entries[:place]).forecast
        assert seen.trials <= 2 * (len(places) - done) + 10
