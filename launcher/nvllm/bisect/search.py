"""The search for the patches behind an effect: which set to try next, or what was found.

`propose` is a pure function of the problem and of the evidence so far. It runs the whole search on the evidence
every time, up to the first set about which the evidence says too little, and asks for one more trial of that.
So there is no state to save beside the journal: resuming is asking again, and taking a verdict back is asking
with less evidence.

Two ends are proved first: a LOW set without the effect and, above it, a HIGH set with it. The effect is the declared
failure, or, to find a fix, its absence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from nvllm.bisect import end_proof, posterior
from nvllm.bisect.combinations import Combinations
from nvllm.bisect.posterior import Rates
from nvllm.bisect.problem import Problem, SearchEvidence
from nvllm.bisect.verdict import PatchSet, Tally, TrialOutcome, Verdict
from nvllm.core.refusal import Refused

_ENDLESS = 10
"""So many times the patience of one set, spent on one culprit, and it is reported as a range."""


Purpose = Literal["end", "search", "certificate"]
"""What a trial is for: to prove an end, to find the culprits, or to prove that what was found is right."""


@dataclass(frozen=True, slots=True)
class NextTrial:
    """One more trial is wanted of CHOSEN. REASON says what for, as people read it."""

    chosen: PatchSet
    reason: str
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Line:
    """One set of a certificate: its ROLE in the proof, and its verdict.

    HOLDS: the verdict is the one needed, and sure enough: `Settings.repeats` trials that agree where the failure
    always shows, `Settings.confidence` where it is flaky.
    """

    role: str
    chosen: PatchSet
    verdict: Verdict
    holds: bool


@dataclass(frozen=True, slots=True)
class Done:
    """What was found.

    CULPRITS, in the order of the series: in set mode the minimal set, without what only closes it; in ordered mode the
    patch with which the effect begins, or the range that holds it where what lies between cannot be tested.
    CERTIFIED: every line of the certificate holds, and the doubts of all together are no more than the confidence
    allows. POSTERIOR is the probability of each item to be a culprit; see `beliefs`.
    """

    culprits: tuple[str, ...]
    exact: bool
    certificate: tuple[Line, ...]
    certified: bool
    flaky: bool
    posterior: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()


class _TrialNeeded(Exception):  # noqa: N818 - it carries the request out of the search, and is no error
    def __init__(self, request: NextTrial) -> None:
        super().__init__(request.reason)
        self.request = request


def propose(problem: Problem, evidence: SearchEvidence) -> NextTrial | Done:
    """Return the next trial to run, or what was found. Raises Refused NV801 if an end is not as declared.

    A request is never for a set that is not closed or holds a conflict, nor for one that was given up.
    """
    try:
        return _Search(problem, evidence).run()
    except _TrialNeeded as wanted:
        request = wanted.request
    assert problem.combinations.valid(request.chosen)
    return request


def concluded(problem: Problem, evidence: SearchEvidence, chosen: PatchSet) -> Verdict | None:
    """Return the verdict that EVIDENCE allows on CHOSEN by itself, or None while it is open."""
    search = _Search(problem, evidence)
    try:
        if chosen in (problem.low, problem.high):
            search.prove_ends()
        return search.verdict(chosen, "", 1 - problem.settings.confidence)
    except (_TrialNeeded, Refused):
        return None


def beliefs(problem: Problem, evidence: SearchEvidence) -> tuple[tuple[str, float], ...]:
    """Return the probability of each item to be a culprit, by what is known so far; of a search that is over, its end.

    In an ordered search there is one culprit, so the probabilities add up to 1. A set search looks for the last patch
    that is needed; of the patches before that one nothing is known yet, and each is taken to be needed with a
    chance of one in the number of items. Before both ends are proved nothing is known at all.
    """
    search = _Search(problem, evidence)
    try:
        return search.run().posterior
    except (_TrialNeeded, Refused):
        return tuple(search.weights.items())


class _Search:
    """One run over the evidence. It raises _TrialNeeded where the evidence ends."""

    def __init__(self, problem: Problem, evidence: SearchEvidence) -> None:
        self.problem = problem
        self.evidence = evidence
        self.settings = problem.settings
        self.combinations = problem.combinations
        self.items = problem.items
        self.size = len(self.items)
        self.notes: list[str] = []
        self.flaky = self.settings.flaky or any(tally.mixed for tally in evidence.tallies.values())
        self.weights = dict.fromkeys(self.items, 0.0)
        self.suspect(self.items, [(0, self.size)], [1.0])

    def run(self) -> Done:
        self.prove_ends()
        return self.ordered() if self.problem.mode == "ordered" else self.minimal()

    # The ends, and single sets

    def prove_ends(self) -> None:
        low, high = self.evidence.tally(self.problem.low), self.evidence.tally(self.problem.high)
        wanted = end_proof.next_end(self.problem.find, low, high, replace(self.settings, flaky=self.flaky))
        if wanted is not None:
            self.want(self.problem.high if wanted.high else self.problem.low, wanted.reason, "end")

    def want(self, chosen: PatchSet, reason: str, purpose: Purpose) -> NoReturn:
        raise _TrialNeeded(NextTrial(chosen, reason, purpose))

    def rates(self, but: PatchSet | None = None) -> Rates:
        """Return the rates of hits, as the trials of both ends have narrowed them, without those of the set BUT.

        The trials of an end must not speak for it twice: once as what they are, and once as the rate to expect.
        """
        if self.settings.rates is not None:
            return self.settings.rates
        low, high = (
            Tally() if end == but else self.evidence.tally(end) for end in (self.problem.low, self.problem.high)
        )
        holds, other = end_proof.priors(self.problem.find)
        return Rates(holds.plus(self.problem.count(high)), other.plus(self.problem.count(low)))

    def verdict(self, chosen: PatchSet, reason: str, doubt: float, purpose: Purpose = "search") -> Verdict:
        """Return the verdict on CHOSEN that the search goes on with. The ends are what they were proved to be."""
        if chosen not in (self.problem.low, self.problem.high):
            return self.weigh(chosen, reason, doubt, purpose, 1)
        tally = self.evidence.tally(chosen)
        return Verdict(self._outcome(shown=chosen == self.problem.high), tally, self._sure(chosen))

    def weigh(self, chosen: PatchSet, reason: str, doubt: float, purpose: Purpose, least: int) -> Verdict:
        """Return what the trials of CHOSEN say, asking for more of them until it is said, or patience ends.

        A failure that always shows takes LEAST trials, a flaky one as many as leave no more than DOUBT.
        """
        tally = self.evidence.tally(chosen)
        if tally.blocked:
            return Verdict("untestable", tally)
        if tally.conclusive < (1 if self.flaky else least):
            nth = f", trial {tally.conclusive + 1} of {least}" if least > 1 and not self.flaky else ""
            self.want(chosen, f"{reason}{nth}", purpose)
        if not self.flaky:
            return Verdict("bad" if tally.bad else "good", tally)
        chance = posterior.shows(self.rates(but=chosen), self.problem.count(tally))
        sure = max(chance, 1 - chance)
        if sure < 1 - doubt and tally.conclusive < self.settings.patience:
            self.want(chosen, f"{reason}: {tally}, {sure:.3f} sure", purpose)
        return Verdict(self._outcome(shown=chance > 0.5), tally, sure)

    def _outcome(self, *, shown: bool) -> TrialOutcome:
        return "bad" if shown == (self.problem.find == "break") else "good"

    def _sure(self, chosen: PatchSet) -> float | None:
        if not self.flaky:
            return None
        chance = posterior.shows(self.rates(but=chosen), self.problem.count(self.evidence.tally(chosen)))
        return max(chance, 1 - chance)

    def line(self, role: str, chosen: PatchSet, doubt: float, *, wanted: bool) -> Line:
        """Return the line of a certificate about CHOSEN, asking for trials until it leaves no more than DOUBT.

        WANTED: the effect must show there. One trial more than the search needed costs no build, and a failure that
        is flaky without anybody knowing is noticed here, where it would make the answer wrong.
        """
        found = self.weigh(chosen, f"the certificate, {role}", doubt, "certificate", self.settings.repeats)
        sure = found.confidence is None or found.confidence >= self.settings.confidence
        holds = found.outcome != "untestable" and self.problem.effect(found.outcome) == wanted and sure
        return Line(role, chosen, found, holds)

    def certified(self, lines: Sequence[Line]) -> bool:
        """Return whether LINES prove what was found, and note what they lack."""
        if any(line.verdict.outcome != "untestable" and not line.holds for line in lines):
            self.notes.append("--patience ended before every set of the certificate was as sure as --confidence asks")
        doubts = sum(1 - line.verdict.confidence for line in lines if line.verdict.confidence is not None)
        if not all(line.holds for line in lines):
            return False
        if doubts > 1 - self.settings.confidence + 1e-9:
            self.notes.append(f"all lines hold, but together leave {doubts:.3f} of doubt: raise --patience")
            return False
        return True

    def prefix(self, pinned: PatchSet, rest: tuple[str, ...], length: int) -> PatchSet:
        """Return the closed set of PINNED and the first LENGTH of REST, on top of the low end."""
        return self.combinations.closed(self.problem.low | pinned | set(rest[:length]))

    def suspect(self, rest: tuple[str, ...], cells: Sequence[tuple[int, int]], weights: Sequence[float]) -> None:
        """Note how likely each of REST is a culprit. WEIGHTS say in which of CELLS the last one that is needed is.

        Neighbours of one cell cannot be told apart.
        """
        behind = 0.0
        for (low, high), weight in reversed(list(zip(cells, weights, strict=True))):
            for item in reversed(rest[max(low, 0) : high]):
                alone = weight / (high - max(low, 0))
                self.weights[item] = alone + (behind / self.size if self.problem.mode == "set" else 0.0)
                behind += alone

    # Ordered search

    def ordered(self) -> Done:
        low, high = self.locate(frozenset(), self.items, 0, 1 - self.settings.confidence)
        culprits = self.items[low:high]
        exact = high - low == 1
        if not exact:
            between = [self.evidence.tally(self.prefix(frozenset(), self.items, m)) for m in range(low + 1, high)]
            why = "cannot be tested" if all(one.blocked for one in between) else "took too many trials"
            self.notes.append(f"what lies between these patches {why}: one of them is the culprit")
        doubt = (1 - self.settings.confidence) / 2
        lines = tuple(
            self.line(role, self.prefix(frozenset(), self.items, length), doubt, wanted=length == high)
            for role, length in (("with the culprit", high), ("without it", low))
        )
        certified = self.certified(lines) and exact
        weights = tuple(self.weights.items())
        return Done(culprits, exact, lines, certified, self.flaky, weights, tuple(self.notes))

    def locate(self, pinned: PatchSet, rest: tuple[str, ...], low: int, share: float) -> tuple[int, int]:
        """Return (low, high): the effect is absent with LOW patches of REST and present with HIGH, and none
        between can be tested. LOW is -1 where not even the pinned patches alone are known to lack it."""
        if self.flaky:
            return self._locate_flaky(pinned, rest, low, share)
        high = len(rest)
        blocked: set[int] = set()
        self.narrow(rest, low, high)
        while candidates := [m for m in range(low + 1, high) if m not in blocked]:
            middle = split(low, high)
            m = min(candidates, key=lambda one: (abs(one - middle), one))
            found = self.verdict(self.prefix(pinned, rest, m), f"{high - low} candidates left", share)
            if found.outcome == "untestable":
                blocked.add(m)
            elif self.problem.effect(found.outcome):
                high = m
            else:
                low = m
            self.narrow(rest, low, high)
        return low, high

    def narrow(self, rest: tuple[str, ...], low: int, high: int) -> None:
        """Note that the last of REST that is needed is between LOW and HIGH."""
        self.suspect(rest, [(0, max(low, 0)), (max(low, 0), high), (high, len(rest))], [0.0, 1.0, 0.0])

    def _locate_flaky(self, pinned: PatchSet, rest: tuple[str, ...], low: int, share: float) -> tuple[int, int]:
        sets = {m: self.prefix(pinned, rest, m) for m in range(max(low + 1, 0), len(rest))}
        tallies = {m: self.evidence.tally(chosen) for m, chosen in sets.items()}
        open_to = [m for m, tally in tallies.items() if not tally.blocked]
        cuts = [low, *open_to, len(rest)]
        cells = list(itertools.pairwise(cuts))
        if len(cells) == 1:
            self.suspect(rest, cells, [1.0])
            return cells[0]
        prior = [(high - low) / (len(rest) - cuts[0]) for low, high in cells]
        place = {m: index + 1 for index, m in enumerate(open_to)}
        seen = {place[m]: self.problem.count(tallies[m]) for m in open_to if tallies[m].conclusive}
        held = posterior.belief(self.rates(), prior, seen)
        self.suspect(rest, cells, held.weights)
        best = max(range(len(cells)), key=lambda index: held.weights[index])
        if held.weights[best] >= 1 - share:
            return cells[best]
        if sum(count.hits + count.misses for count in seen.values()) >= _ENDLESS * self.settings.patience:
            return _likely(cells, held.weights, 1 - share)
        built = frozenset(index for m, index in place.items() if sets[m] in self.evidence.built)
        m = open_to[posterior.choose(held, list(place.values()), built, self.settings.build_price) - 1]
        leader = rest[cells[best][1] - 1]
        reason = f"{leader} is the culprit with probability {held.weights[best]:.3f}"
        return self.want(sets[m], reason, "search")

    # Set search

    def minimal(self) -> Done:
        """Find a minimal set: pin the last patch that is needed, drop what lies behind it, and start again."""
        share = (1 - self.settings.confidence) / (math.ceil(math.log2(self.size + 1)) + 4)
        pinned: PatchSet = frozenset()
        rest, shown = self.items, self.problem.high
        alone = self.verdict(self.problem.low, "the low end", share)
        while not self.problem.effect(alone.outcome):
            low, high = self.locate(pinned, rest, -1 if alone.outcome == "untestable" else 0, share)
            shown = self.prefix(pinned, rest, high)
            pinned, rest = pinned | set(rest[max(low, 0) : high]), rest[: max(low, 0)]
            if not rest:
                break
            alone = self.verdict(self.prefix(pinned, rest, 0), "the patches found so far, alone", share)
            if self.problem.effect(alone.outcome):
                shown = self.prefix(pinned, rest, 0)
                self.weights |= self.acquit(rest, alone)
        return self.certify(shown, share)

    def certify(self, shown: PatchSet, share: float) -> Done:
        """Prove that nothing can go from SHOWN, which shows the effect; take out what can, by ddmin."""

        def shows(chosen: PatchSet) -> bool:
            return self.problem.effect(self.verdict(chosen, "a smaller set", share).outcome)

        while True:
            outcomes = self.drop_each(shown, share)
            if not any(one == "untestable" or self.problem.effect(one) for one in outcomes):
                break
            if any(self.problem.effect(one) for one in outcomes):
                self.notes.append("not monotone: a patch that the prefix search needed is not needed; ddmin went on")
            smaller = minimise(self.combinations, shown, self.problem.low, shows)
            if smaller == shown:
                self.notes.append("some smaller sets cannot be tested, so one patch of the set may not be needed")
                break
            shown = smaller
        found = self.combinations.ordered(shown - self.problem.low)
        dropped = [(f"without {one}", self.combinations.without(shown, [one])) for one in found]
        certificate = (
            self.line("the set", shown, share, wanted=True),
            *(self.line(role, chosen, share, wanted=False) for role, chosen in dropped),
            self.line("none of it", self.problem.low, share, wanted=False),
        )
        certified = self.certified(certificate)
        weights = self.acquit([one for one in self.items if one not in found], certificate[0].verdict)
        weights |= {one: self._membership(line) for one, line in zip(found, certificate[1:-1], strict=True)}
        in_order = tuple((one, weights[one]) for one in self.items)
        return Done(found, certified, certificate, certified, self.flaky, in_order, tuple(dict.fromkeys(self.notes)))

    def drop_each(self, shown: PatchSet, share: float) -> list[TrialOutcome]:
        """Return for each patch of SHOWN what the set without it (and without what requires it) comes to."""
        return [
            self.verdict(self.combinations.without(shown, [one]), f"without {one}", share, "certificate").outcome
            for one in self.combinations.ordered(shown - self.problem.low)
        ]

    def _membership(self, without: Line) -> float:
        """Return how sure it is that a patch is needed: as sure as that the set WITHOUT it lacks the effect."""
        found = without.verdict
        if found.outcome == "untestable":
            return 0.5
        sure = 1.0 if found.confidence is None else found.confidence
        return 1 - sure if self.problem.effect(found.outcome) else sure

    def acquit(self, others: Sequence[str], whole: Verdict) -> dict[str, float]:
        """Return the weights of OTHERS, which WHOLE says are not needed: one of them is, if that verdict is wrong."""
        doubt = 0.0 if whole.confidence is None else 1 - whole.confidence
        return {one: doubt / len(others) for one in others}


def _likely(cells: Sequence[tuple[int, int]], weights: Sequence[float], probability: float) -> tuple[int, int]:
    """Return the shortest range of neighbouring CELLS that holds the culprit with PROBABILITY."""
    return min(
        (
            (cells[first][0], cells[last][1])
            for first in range(len(cells))
            for last in range(first, len(cells))
            if sum(weights[first : last + 1]) >= probability
        ),
        key=lambda one: (one[1] - one[0], one),
    )


def split(low: int, high: int) -> int:
    """Return where to cut the candidates low+1..high: as short a search as can be, shorter for the later ones.

    Where two cuts are equally good on average and at worst, the later half gets the smaller part: a culprit found
    late leaves more patches to search for a second one.
    """
    size = high - low
    power = 1 << (size - 1).bit_length()
    return low + min(power // 2, size - power // 4)


def minimise(
    combinations: Combinations, start: PatchSet, base: PatchSet, shows: Callable[[PatchSet], bool]
) -> PatchSet:
    """Return a part of START that shows the effect and of which no closed set one smaller does: ddmin.

    Only closed sets are tried. Taking a part out takes its dependants along; a part alone brings what it requires.
    Without any requirement this is Zeller's and Hildebrandt's ddmin.

    BASE stays in every set. START shows the effect. SHOWS says it of other sets, false where that cannot be
    told: the result still shows the effect then, but something may be left in it that is not needed.
    """
    current, granularity = start, 2
    while True:
        items = combinations.ordered(current - base)
        if not items:
            return current
        granularity = min(granularity, len(items))
        parts = list(_parts(items, granularity))
        alone = [combinations.closed(base | set(part)) for part in parts]
        smaller = _first(alone, current, shows)
        if smaller is not None:
            current, granularity = smaller, 2
            continue
        smaller = _first([combinations.without(current, part) for part in parts], current, shows)
        if smaller is not None:
            current, granularity = smaller, max(granularity - 1, 2)
        elif granularity >= len(items):
            return current
        else:
            granularity = min(2 * granularity, len(items))


def _first(candidates: Iterable[PatchSet], current: PatchSet, shows: Callable[[PatchSet], bool]) -> PatchSet | None:
    """Return the first of CANDIDATES that is smaller than CURRENT and shows the effect."""
    return next((one for one in candidates if one < current and shows(one)), None)


def _parts(items: Sequence[str], count: int) -> Iterator[Sequence[str]]:
    """Yield ITEMS in COUNT neighbouring parts of nearly one size."""
    for index in range(count):
        yield items[index * len(items) // count : (index + 1) * len(items) // count]
