"""Beliefs about flaky failures: rates with intervals, the position of the culprit, and the most useful next trial.

A *hit* is a trial that shows the effect, a *miss* one that does not. Sets that contain the culprit hit at one mean
rate, all others at another. Two sets with the same mean need not hit equally often: each set is one build, an
*artifact*, and artifacts may differ. The rate of an artifact is drawn once, from a beta distribution around its mean,
and holds for all its trials. With the mean r and the intraclass correlation c of two trials of one artifact, the
distribution is Beta(r s, (1 - r) s) for s = (1 - c) / c. The probability of h hits and m misses, in one fixed order, is

    B(r s + h, (1 - r) s + m) / B(r s, (1 - r) s),    and r^h (1 - r)^m at c = 0,

which is independent of other artifacts but not a product over its own trials: the tenth trial of one artifact says much
less about the mean than the first trial of the tenth artifact. At c near 1 all trials of an artifact are one sample.

A set may have several artifacts, if its trials load what was compiled several times (`Count.apart`). Then either each
of them has a rate of its own, or all of a set share one, as where the source of the set and not the compile decides it.
Both are in the grid, with half of the probability of each c above 0: so neither many trials of one artifact count as
many artifacts, nor many artifacts of one set as many sets.

Neither the two means nor c are known: they are a triple from a grid, narrowed by the trials of all sets, and every
probability is a sum over the grid. The prior has 0.85 on c = 0, because sets are built from the same locked bytes by
one toolchain, and 0.08 on c above 0.1. The trials of a dozen artifacts seldom exclude a c of 0.1, so this prior decides
how many trials a certificate takes where artifacts do not differ. Where they do, it does not protect a certificate by
itself: `Search.confirmed` tries further artifacts that must agree. A set of which nothing is
known has the one mean or the other with equal chances. To settle on the likelier one first would learn too small a rate
of false alarms, because a set with a few of them would then count as one with the culprit.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nvllm.core.statistics import cumulative

AMORTISED = 8.0
"""Trials of one image in a typical flaky search: the price of a build is divided by it."""


@dataclass(frozen=True, slots=True)
class Count:
    """Hits and misses of a set. APART has those of each of its artifacts, if it has several."""

    hits: int = 0
    misses: int = 0
    apart: tuple[Count, ...] = ()

    @property
    def artifacts(self) -> tuple[Count, ...]:
        return self.apart or (self,)


@dataclass(frozen=True, slots=True)
class Beta:
    """A rate whose distribution is Beta(A, B)."""

    a: float = 1.0
    b: float = 1.0

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def plus(self, seen: Count) -> Beta:
        """Return the belief after SEEN."""
        return Beta(self.a + seen.hits, self.b + seen.misses)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the central interval that holds the rate with probability LEVEL."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def quantile(self, probability: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):  # halvings of a range of 1, to 1e-15
            middle = (low + high) / 2
            low, high = (middle, high) if cumulative(self.a, self.b, middle) < probability else (low, middle)
        return (low + high) / 2


@dataclass(frozen=True, eq=False, slots=True)
class Grid:
    """Triples: the mean rate of hits of a set that contains the culprit (HOLDS), that of any OTHER set, and the
    correlation of two trials of one artifact (ALIKE).

    EACH: the artifacts of one set have rates of their own in a triple, and do not share one. It says nothing where the
    correlation is 0, and where no set has several. There are few grids, and each equals only itself: so what trials say
    about all its triples is looked up at once.
    """

    holds: tuple[float, ...]
    other: tuple[float, ...]
    alike: tuple[float, ...]
    each: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """The triples of GRID, with LOGS, the logarithms of their weights, up to a constant."""

    grid: Grid
    logs: tuple[float, ...]

    def after(self, seen: Iterable[Sequence[float]]) -> Rates:
        """Return the rates after evidence, of which each of SEEN has the logarithm for each triple."""
        return Rates(self.grid, _added([self.logs, *seen]))

    def but(self, seen: Sequence[float]) -> Rates:
        """Return the rates without the evidence SEEN, which is in them."""
        return Rates(self.grid, tuple(map(operator.sub, self.logs, seen)))

    def if_holds(self, seen: Count) -> tuple[float, ...]:
        """Return the logarithm of the probability of SEEN, of a set that contains the culprit, for each triple."""
        return _if_holds(self.grid, seen)

    def if_other(self, seen: Count) -> tuple[float, ...]:
        """Return the logarithm of the probability of SEEN, of a set that lacks the culprit, for each triple."""
        return _if_other(self.grid, seen)

    def if_either(self, seen: Count) -> tuple[float, ...]:
        """Return the logarithm of the probability of SEEN, of a set that may contain the culprit or not."""
        return _if_either(self.grid, seen)


def _added(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the sum of ROWS, number by number."""
    return functools.reduce(lambda total, row: tuple(map(operator.add, total, row)), rows[1:], tuple(rows[0]))


def known(holds: float, other: float) -> Rates:
    """Return the rates HOLDS and OTHER, known exactly, of artifacts that do not differ: for simulations."""
    return Rates(Grid((holds,), (other,), (0.0,), (False,)), (0.0,))


_LOG_2 = math.log(2)

_SHOWS = (0.04, 0.1, 0.18, 0.26, 0.34, 0.42, 0.5, 0.58, 0.66, 0.74, 0.82, 0.89, 0.94, 0.97, 0.99, 0.998)
"""Failure rates of a set that is bad, before the first trial: all as likely, but those near 1 less: nobody calls them
flaky."""

_STRAY = (0.0005, 0.01, 0.03, 0.06, 0.1, 0.15, 0.22, 0.32, 0.45, 0.6)
"""Failure rates of a set that is good: of false alarms. The declared failure seldom shows where its cause is absent."""

_SHOWS_COARSE = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.88, 0.97)
_STRAY_COARSE = (0.0005, 0.02, 0.06, 0.15, 0.35)
"""The same where artifacts differ: their spread makes a finer grid useless."""

ALIKE = ((0.0, 0.85), (0.06, 0.07), (0.15, 0.04), (0.35, 0.02), (0.85, 0.02))
"""Intraclass correlations of the trials of one artifact, each with its probability before the first trial."""


def _shows_weight(rate: float) -> float:
    return 1.0 if rate < 0.95 else 0.3


def _stray_weight(rate: float) -> float:
    return 4.0 if rate == _STRAY[0] else 1 / (1 + 10 * rate)


def _triples() -> Iterator[tuple[float, float, float, float]]:
    """Yield each mean rate of bad and of good sets, the correlation, and the logarithm of their probability."""
    for alike, chance in ALIKE:
        shows_at, stray_at = (_SHOWS_COARSE, _STRAY_COARSE) if alike else (_SHOWS, _STRAY)
        pairs = [(bad, good) for bad in shows_at for good in stray_at if bad > good]
        whole = sum(_shows_weight(bad) * _stray_weight(good) for bad, good in pairs)
        for bad, good in pairs:
            yield bad, good, alike, math.log(chance * _shows_weight(bad) * _stray_weight(good) / whole)


@functools.cache
def unknown(*, fix: bool = False, same_bytes: bool = False, several: bool = False) -> Rates:
    """Return the rates before any trial. FIX: a hit is a pass. SAME_BYTES: artifacts cannot differ. SEVERAL: sets have
    several artifacts."""
    triples = [(*triple, False) for triple in _triples() if not (same_bytes and triple[2])]
    if several:
        halved = [(bad, good, alike, log - _LOG_2 if alike else log, each) for bad, good, alike, log, each in triples]
        triples = [*halved, *((*triple[:4], True) for triple in halved if triple[2])]
    holds, other, alike, logs, each = zip(*triples, strict=True)
    if fix:
        holds, other = (tuple(1 - rate for rate in rates) for rates in (other, holds))
    return Rates(Grid(holds, other, alike, each), logs)


def likelihood(rates: Sequence[float], alike: Sequence[float], seen: Count) -> tuple[float, ...]:
    """Return the logarithm of the probability of SEEN, in one fixed order, of an artifact with each mean of RATES.

    ALIKE has the correlation of two trials of the artifact, for each of RATES.
    """
    return tuple(_log_chance(rate, same, seen) for rate, same in zip(rates, alike, strict=True))


def _of_set(rates: Sequence[float], grid: Grid, seen: Count) -> tuple[float, ...]:
    """Return the logarithm of the probability of SEEN, of a set with the mean of RATES, for each triple of GRID."""
    if not (seen.apart and any(grid.each)):
        return likelihood(rates, grid.alike, seen)
    own = _added([likelihood(rates, grid.alike, artifact) for artifact in seen.apart])
    shared = likelihood(rates, grid.alike, seen)
    return tuple(apart if each else other for apart, other, each in zip(own, shared, grid.each, strict=True))


@functools.lru_cache(maxsize=16384)
def _if_holds(grid: Grid, seen: Count) -> tuple[float, ...]:
    return _of_set(grid.holds, grid, seen)


@functools.lru_cache(maxsize=16384)
def _if_other(grid: Grid, seen: Count) -> tuple[float, ...]:
    return _of_set(grid.other, grid, seen)


@functools.lru_cache(maxsize=16384)
def _if_either(grid: Grid, seen: Count) -> tuple[float, ...]:
    both = zip(_if_holds(grid, seen), _if_other(grid, seen), strict=True)
    return tuple(max(holds, other) + math.log1p(math.exp(-abs(holds - other))) - _LOG_2 for holds, other in both)


@functools.lru_cache(maxsize=65536)
def _log_chance(rate: float, alike: float, seen: Count) -> float:
    if not alike:
        return seen.hits * math.log(rate) + seen.misses * math.log1p(-rate)
    size = (1 - alike) / alike
    hit, miss, log = rate * size, (1 - rate) * size, math.lgamma
    drawn = log(hit + seen.hits) + log(miss + seen.misses) - log(size + seen.hits + seen.misses)
    return drawn - log(hit) - log(miss) + log(size)


_NEGLIGIBLE = 25.0
"""How much less likely a triple of rates is than the likeliest one, as a logarithm, when it may be left out."""


@dataclass(frozen=True, slots=True)
class LikelyTriples:
    """The likely triples of RATES: a search spends most of its time on them."""

    rates: Rates
    chosen: tuple[bool, ...]

    def of(self, values: Iterable[float]) -> tuple[float, ...]:
        """Return those of VALUES, which has one for each triple, that belong to a likely one."""
        return tuple(itertools.compress(values, self.chosen))

    def if_holds(self, seen: Count) -> tuple[float, ...]:
        return self.of(self.rates.if_holds(seen))

    def if_other(self, seen: Count) -> tuple[float, ...]:
        return self.of(self.rates.if_other(seen))

    def if_either(self, seen: Count) -> tuple[float, ...]:
        return self.of(self.rates.if_either(seen))

    def next_hits(self, seen: Count) -> tuple[Sequence[float], Sequence[float]]:
        first, second = _next_hits(self.rates.grid, seen)
        return self.of(first), self.of(second)


def _likely_triples(rates: Rates) -> LikelyTriples:
    least = max(rates.logs) - _NEGLIGIBLE
    return LikelyTriples(rates, tuple([log >= least for log in rates.logs]))


def _total(logs: Iterable[float], top: float) -> float:
    return sum(map(math.exp, [log - top for log in logs]))


def shows(
    rates: Rates,
    seen: Count,
    above: Sequence[Count] = (),
    below: Sequence[Count] = (),
    pairs: Sequence[tuple[Count, Count]] = (),
) -> float:
    """Return the probability that a set with the trials SEEN contains the culprit, from a prior of one half.

    ABOVE are the trials of bigger sets, BELOW those of smaller ones; each set is an artifact of its own. If a bigger
    set lacks the culprit, so does this one, and if a smaller one contains it, this one does: the failure is taken as
    monotone. A bigger set that contains it, or a smaller one that does not, says nothing, so it counts for neither.
    PAIRS are the trials of two bigger sets that have nothing in common but this one: if it lacks a patch that is
    needed, so does at least one of them. None of these trials are a part of RATES.
    """
    likely = _likely_triples(rates)
    before = likely.of(rates.logs)
    containing = [before, likely.if_holds(seen)]
    lacking = [before, likely.if_other(seen)]
    for bigger in above:
        holds, other = likely.if_holds(bigger), likely.if_other(bigger)
        containing.append(holds)
        lacking.append(tuple(map(max, holds, other)))
    for first, second in pairs:
        one_holds, one_lacks = likely.if_holds(first), likely.if_other(first)
        two_holds, two_lacks = likely.if_holds(second), likely.if_other(second)
        containing.append(_added([one_holds, two_holds]))
        either = [_added([one_holds, two_lacks]), _added([one_lacks, two_holds]), _added([one_lacks, two_lacks])]
        lacking.append(tuple(map(max, *either)))
    for smaller in below:
        holds, other = likely.if_holds(smaller), likely.if_other(smaller)
        containing.append(tuple(map(max, holds, other)))
        lacking.append(other)
    sums = [_added(columns) for columns in (containing, lacking)]
    top = max(map(max, sums))
    chances = [_total(logs, top) for logs in sums]
    return chances[0] / (chances[0] + chances[1])


@dataclass(frozen=True, slots=True)
class Belief:
    """Where in a sequence of patches the culprit is: WEIGHTS[i] is the probability of patch i.

    RUNS are neighbouring patches that the trials so far do not tell apart. SEEN has the trials by the length of the
    prefix that was tried.
    """

    weights: tuple[float, ...]
    likely: LikelyTriples
    runs: tuple[PatchRun, ...]
    seen: Mapping[int, Count]

    def chances(self, lengths: Sequence[int]) -> Iterator[list[tuple[int, float, float]]]:
        """Yield, for the prefix of each of LENGTHS, a row for the patches that it does not tell apart: how many they
        are, the probability of each to be the culprit, and the chance of the next hit if it is.

        What the artifact of a prefix did so far counts.
        """
        untried = [self._means(hits) for hits in self.likely.next_hits(Count())]
        for length in lengths:
            if length in self.seen:
                inside, outside = map(self._means, self.likely.next_hits(self.seen[length]))
            else:
                inside, outside = untried
            rows = list[tuple[int, float, float]]()
            for run, hit, stray in zip(self.runs, inside, outside, strict=True):
                within = min(max(length, run.start), run.end)
                rows += [(within - run.start, run.weight, hit), (run.end - within, run.weight, stray)]
            yield [row for row in rows if row[0]]

    def _means(self, hits: Sequence[float]) -> list[float]:
        """Return the mean of HITS, which has the chance for each triple, if the culprit is in each of the runs."""
        return [sum(map(operator.mul, run.share, hits)) if run.share else sum(hits) / len(hits) for run in self.runs]


@dataclass(frozen=True, slots=True)
class PatchRun:
    """The patches from START to before END: each is the culprit with the probability WEIGHT.

    SHARE has the probability of each likely triple if one of them is; it is empty where that is far-fetched.
    """

    start: int
    end: int
    weight: float
    share: Sequence[float]


_FAR_FETCHED = 1e-6
"""The probability of a culprit below which its rates are not worth computing."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The trials SEEN of a set that is no prefix.

    It contains the culprit if that is one of the first HOLDS patches, and lacks it if that is none of the first LACKS.
    If it is one between, the set may contain it or not.
    """

    holds: int
    lacks: int
    seen: Count


def belief(
    rates: Rates, prior: Sequence[float], seen: Mapping[int, Count], compared: Sequence[Compared] = ()
) -> Belief:
    """Return the belief after SEEN and COMPARED, from PRIOR.

    SEEN has the trials by the length of the prefix that was tried, COMPARED those of other sets. RATES has neither.
    """
    likely = _likely_triples(rates)
    changes: dict[int, list[tuple[Sequence[float], Sequence[float]]]] = {}
    first: list[Sequence[float]] = []

    for other in (*(Compared(length, length, count) for length, count in seen.items()), *compared):
        starts = (0, other.holds, other.lacks, len(prior))
        chances = (likely.if_holds(other.seen), likely.if_either(other.seen), likely.if_other(other.seen))
        steps = [
            (start, chance)
            for (start, end), chance in zip(itertools.pairwise(starts), chances, strict=True)
            if end > start
        ]
        first.append(steps[0][1])
        for (_, earlier), (start, later) in itertools.pairwise(steps):
            changes.setdefault(start, []).append((earlier, later))
    logs = list(_added([likely.of(rates.logs), *first]))
    firsts, rows = sorted({0, *changes}), list[list[float]]()
    for start in firsts:
        for old, new in changes.get(start, ()):
            logs = [log - a + b for log, a, b in zip(logs, old, new, strict=True)]
        rows.append(logs)
    top = max(map(max, rows))
    runs = list[PatchRun]()
    for (start, end), row in zip(itertools.pairwise([*firsts, len(prior)]), rows, strict=True):
        raw = list(map(math.exp, [log - top for log in row]))
        total = sum(raw)
        share = tuple([part / total for part in raw]) if total else ()
        for before, alike in itertools.groupby(prior[start:end]):
            runs.append(PatchRun(start, start + len(list(alike)), before * total, share))
            start = runs[-1].end
    whole = sum((run.end - run.start) * run.weight for run in runs)
    scaled = [replace(run, weight=run.weight / whole) for run in runs]
    kept = tuple([run if run.weight > _FAR_FETCHED else replace(run, share=()) for run in scaled])
    weights = [run.weight for run in kept for _ in range(run.start, run.end)]
    return Belief(tuple(weights), likely, kept, seen)


@functools.lru_cache(maxsize=16384)
def _next_hits(grid: Grid, seen: Count) -> tuple[Sequence[float], Sequence[float]]:
    """Return the chance that the next trial of a set with the trials SEEN is a hit, for each triple of GRID: if it
    contains the culprit, and if not. The next trial is of the artifact with the fewest."""
    least = min(seen.artifacts, key=lambda artifact: artifact.hits + artifact.misses)
    so_far = [_so_far(least if each else seen, same) for each, same in zip(grid.each, grid.alike, strict=True)]
    first, second = (
        [rate + (share - rate) * weight for rate, (share, weight) in zip(means, so_far, strict=True)]
        for means in (grid.holds, grid.other)
    )
    return first, second


def _so_far(seen: Count, same: float) -> tuple[float, float]:
    """Return the share of hits of an artifact with the trials SEEN, and its weight beside the mean rate of its set.

    SAME is the correlation of two of its trials.
    """
    count = seen.hits + seen.misses
    return (seen.hits / count, same * count / (1 + same * (count - 1))) if count else (0.0, 0.0)


def likely_range(cells: Sequence[tuple[int, int]], weights: Sequence[float], probability: float) -> tuple[int, int]:
    """Return the shortest range of neighbouring CELLS that contains the culprit with PROBABILITY."""
    spans, last, inside = list[tuple[int, int]](), 0, 0.0
    for first, weight in enumerate(weights):
        while inside < probability and last < len(cells):
            inside, last = inside + weights[last], last + 1
        if inside >= probability:
            spans.append((cells[first][0], cells[last - 1][1]))
        inside -= weight
    return min(spans, key=lambda span: (span[1] - span[0], span), default=(cells[0][0], cells[-1][1]))


def choose(believed: Belief, candidates: Sequence[int], built: frozenset[int], build_price: float) -> int:
    """Return the length in CANDIDATES of the prefix whose next trial is worth most for its price.

    Its worth is the extrinsic Jensen-Shannon divergence: how far the outcome expected under each hypothesis is from the
    one expected under all others. Unlike entropy, it keeps rewarding trials that separate the likeliest hypothesis from
    the rest, as a search that stops at a confidence needs. A prefix that is not in BUILT also costs BUILD_PRICE trials.
    """

    chances = dict(zip(candidates, believed.chances(candidates), strict=True))

    def value(length: int) -> tuple[float, int]:
        worth = _worth(chances[length])
        return worth / (1.0 if length in built else 1 + build_price / AMORTISED), -length

    return max(candidates, key=value)


def _worth(rows: Sequence[tuple[int, float, float]]) -> float:
    """Return the worth of a trial, with a row of `Belief.chances` for the patches that it does not tell apart."""
    mean = sum([count * weight * chance for count, weight, chance in rows])
    return sum(
        count * weight * _divergence(chance, (mean - weight * chance) / (1 - weight))
        for count, weight, chance in rows
        if 1e-12 < weight < 1 - 1e-12
    )


def _divergence(first: float, second: float) -> float:
    """Return the Kullback-Leibler divergence, in nats, between two coins."""
    least, most = 1e-12, 1 - 1e-12
    if not (least < first < most and least < second < most):  # seldom, and a search spends a third of its time here
        first, second = min(max(first, least), most), min(max(second, least), most)
    return first * math.log(first / second) + (1 - first) * math.log((1 - first) / (1 - second))


SOUND = 0.1
"""The upper bound of its rate up to which everything without the culprits is said to lack the effect."""


def at_most(seen: Count) -> float:
    """Return the upper bound, at 95 %, of the rate of hits of an artifact with the trials SEEN (Clopper-Pearson)."""
    return Beta(1.0 + seen.hits, seen.misses).quantile(0.95) if seen.misses else 1.0


def more_often(seen: Count, others: Count) -> float:
    """Return Fisher's exact p-value, one-sided, of SEEN hitting no more often than OTHERS."""
    trials, hits = seen.hits + seen.misses, seen.hits + others.hits
    whole = trials + others.hits + others.misses
    ways = sum(
        math.comb(trials, k) * math.comb(whole - trials, hits - k) for k in range(seen.hits, min(trials, hits) + 1)
    )
    return ways / math.comb(whole, hits)
