"""Whether artifacts differ: the correlation of the trials of one, and the test of homogeneity."""

from __future__ import annotations

import random

from nvllm.bisect import homogeneity, posterior
from nvllm.bisect.posterior import Count


def test_where_artifacts_cannot_differ_their_trials_are_those_of_one() -> None:
    """Counts that are too uneven are seen all the same, and blamed on no artifact."""
    rates = posterior.unknown(fix=True, same_bytes=True)
    assert set(rates.grid.alike) == {0.0}
    even = homogeneity.spread(rates, [Count(5, 5)] * 3, [Count(0, 10)])
    assert (even.by_fact, even.low, even.high, even.chance, even.differs) == (True, 0.0, 0.0, 0.0, False)
    assert homogeneity.spread(rates, [Count(19, 1), Count(2, 18)], [Count(0, 10)]).differs
    assert not homogeneity.spread(posterior.unknown(), [Count(5, 5)] * 3, [Count(0, 10)]).by_fact


def test_artifacts_that_differ_are_told_from_those_that_do_not() -> None:
    before = posterior.unknown()
    even = homogeneity.spread(before, [Count(5, 5), Count(6, 4), Count(9, 11)], [Count(0, 10), Count(0, 12)])
    uneven = homogeneity.spread(before, [Count(10, 0), Count(0, 12), Count(9, 1)], [Count(0, 10), Count(0, 12)])
    assert (even.artifacts, even.trials, even.low, even.mixed, even.differs) == (5, 62, 0.0, True, False)
    assert (uneven.mixed, uneven.differs) == (True, True)
    assert uneven.low > 0.1
    assert even.p > 0.3 > 0.01 > uneven.p


ONE_BAD = Count(5, 5, (Count(5, 0), Count(0, 5)))
"""A set whose first artifact always fails and whose second one never does."""


def test_artifacts_of_one_set_that_differ_are_told_from_a_failure_that_is_flaky() -> None:
    before = posterior.unknown(several=True)
    apart = homogeneity.spread(before, [ONE_BAD, ONE_BAD], [Count(0, 10, (Count(0, 5), Count(0, 5)))])
    mixed = Count(5, 5, (Count(3, 2), Count(2, 3)))
    alike = homogeneity.spread(before, [mixed, mixed], [Count(0, 10, (Count(0, 5), Count(0, 5)))])
    assert (apart.artifacts, apart.sets, apart.trials, apart.mixed, apart.differs) == (6, 3, 30, True, True)
    assert (alike.artifacts, alike.sets, alike.differs) == (6, 3, False)
    assert apart.chance > 0.99 > 0.2 > alike.chance
    together = [Count(5, 5), Count(5, 5)]
    assert not homogeneity.spread(before, together, [Count(0, 10)]).differs  # the same trials, not told apart


def test_the_test_of_homogeneity_is_wrong_as_often_as_it_says() -> None:
    rng = random.Random(2)
    p = []
    for _ in range(40):
        hits = [sum(rng.random() < 0.4 for _ in range(8)) for _ in range(4)]
        p.append(homogeneity.uneven(tuple(Count(one, 8 - one) for one in hits)))
    assert sum(one < 0.05 for one in p) <= 6
