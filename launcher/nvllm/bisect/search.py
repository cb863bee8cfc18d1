"""The search for the patches that cause an effect: chooses the next set to try, or says what was found.

`propose` is a pure function of the problem and the evidence so far. Each call runs the whole search on the evidence, up
to the first set with too few trials, and asks for one more trial of that set. So the journal is the only state: to
resume is to ask again, and to withdraw a verdict is to ask with less evidence.

Two ends are proved first: the LOW set lacks the effect, and the HIGH set, which contains it, shows it.
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
"""Trials that one culprit may take, as a multiple of the patience of one set; then it is reported as a range."""

Purpose = Literal["end", "search", "certificate"]
"""What a trial is for: to prove an end, to find the culprits, or to prove the result."""


@dataclass(frozen=True, slots=True)
class NextTrial:
    """The search needs one more trial of CHOSEN. REASON tells people why."""

    chosen: PatchSet
    reason: str
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Line:
    """One set of a certificate: its ROLE in the proof, and its verdict.

    HOLDS: it is the verdict that the proof needs, and it is sure enough: `Settings.repeats` trials that agree if the
    failure is steady, `Settings.confidence` if it is flaky.
    """

    role: str
    chosen: PatchSet
    verdict: Verdict
    holds: bool


@dataclass(frozen=True, slots=True)
class Done:
    """What was found.

    CULPRITS, in the order of the series: in set mode the minimal set; in ordered mode the patch with which the effect
    begins, or the range of patches that contains it if the sets between cannot be tested. EXACT: it is no range.
    CERTIFIED: every line of the certificate holds, and all together leave no more doubt than the confidence allows.
    POSTERIOR is the probability of each item to be a culprit; see `beliefs`.
    """

    culprits: tuple[str, ...]
    exact: bool
    certificate: tuple[Line, ...]
    certified: bool
    flaky: bool
    posterior: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()


class _TrialNeeded(Exception):  # noqa: N818 - it carries the next trial out of the search, and is no error
    def __init__(self, trial: NextTrial) -> None:
        super().__init__(trial.reason)
        self.trial = trial


def propose(problem: Problem, evidence: SearchEvidence) -> NextTrial | Done:
    """Return the next trial to run, or what was found. Raises Refused NV801 if an end does not behave as declared.

    The set of the next trial is closed, free of conflicts, and not given up.
    """
    try:
        return _Search(problem, evidence).run()
    except _TrialNeeded as needed:
        trial = needed.trial
    assert problem.combinations.valid(trial.chosen)
    return trial


def concluded(problem: Problem, evidence: SearchEvidence, chosen: PatchSet) -> Verdict | None:
    """Return the verdict on CHOSEN that its own trials in EVIDENCE allow, or None while it is open."""
    search = _Search(problem, evidence)
    try:
        if chosen in (problem.low, problem.high):
            search.prove_ends()
        return search.verdict(chosen, "", 1 - problem.settings.confidence)
    except (_TrialNeeded, Refused):
        return None


def beliefs(problem: Problem, evidence: SearchEvidence) -> tuple[tuple[str, float], ...]:
    """Return the probability of each item to be a culprit after EVIDENCE; it may be final.

    In an ordered search there is one culprit, so the probabilities add up to 1. A set search looks for the last patch
    that is needed; nothing is known yet about the patches before it, and each is assumed to be needed with probability
    1/n for n items. Nothing is known before both ends are proved.
    """
    search = _Search(problem, evidence)
    try:
        return search.run().posterior
    except (_TrialNeeded, Refused):
        return tuple(search.weights.items())


class _Search:
    """One run over the evidence. Raises _TrialNeeded where the evidence ends."""

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
        ends = self.problem.ends
        bad, good = self.evidence.tally(ends["bad"]), self.evidence.tally(ends["good"])
        needed = end_proof.next_end(bad, good, replace(self.settings, flaky=self.flaky))
        if needed is not None:
            self.want(ends[needed.end], needed.reason, "end")

    def want(self, chosen: PatchSet, reason: str, purpose: Purpose) -> NoReturn:
        raise _TrialNeeded(NextTrial(chosen, reason, purpose))

    def rates(self, but: PatchSet | None = None) -> Rates:
        """Return the rates of hits after the trials of both ends, except those of the set BUT.

        The trials of an end must not count twice: as its own trials, and in the rate that they are compared with.
        """
        if self.settings.rates is not None:
            return self.settings.rates
        low, high = (
            Tally() if end == but else self.evidence.tally(end) for end in (self.problem.low, self.problem.high)
        )
        holds, other = end_proof.priors(self.problem.find)
        return Rates(holds.plus(self.problem.count(high)), other.plus(self.problem.count(low)))

    def verdict(self, chosen: PatchSet, reason: str, doubt: float, purpose: Purpose = "search") -> Verdict:
        """Return the verdict on CHOSEN for the search. The ends have the outcomes that were proved."""
        if chosen not in (self.problem.low, self.problem.high):
            return self.weigh(chosen, reason, doubt, purpose, 1)
        tally = self.evidence.tally(chosen)
        return Verdict(self._outcome(shown=chosen == self.problem.high), tally, self._sure(chosen))

    def weigh(self, chosen: PatchSet, reason: str, doubt: float, purpose: Purpose, least: int) -> Verdict:
        """Return the verdict on CHOSEN by its trials, after asking for as many as it needs or patience allows.

        A steady failure needs LEAST trials, a flaky one as many as leave at most DOUBT.
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
        """Return the certificate's line about CHOSEN, after asking for trials until it leaves at most DOUBT.

        WANTED: the set must show the effect. These trials need no new build, and they reveal a flaky failure that was
        taken for a steady one before it makes the answer wrong.
        """
        found = self.weigh(chosen, f"the certificate, {role}", doubt, "certificate", self.settings.repeats)
        sure = found.confidence is None or found.confidence >= self.settings.confidence
        holds = found.outcome != "untestable" and self.problem.effect(found.outcome) == wanted and sure
        return Line(role, chosen, found, holds)

    def certified(self, lines: Sequence[Line]) -> bool:
        """Return whether LINES prove the result, and note what they lack."""
        if any(line.verdict.outcome != "untestable" and not line.holds for line in lines):
            self.notes.append(
                "--patience ran out before every line of the certificate was as sure as --confidence requires"
            )
        doubts = sum(1 - line.verdict.confidence for line in lines if line.verdict.confidence is not None)
        if not all(line.holds for line in lines):
            return False
        if doubts > 1 - self.settings.confidence + 1e-9:
            self.notes.append(f"every line holds, but together they leave a doubt of {doubts:.3f}: raise --patience")
            return False
        return True

    def prefix(self, pinned: PatchSet, rest: tuple[str, ...], length: int) -> PatchSet:
        """Return the closed set of the low end, PINNED, and the first LENGTH patches of REST."""
        return self.combinations.closed(self.problem.low | pinned | set(rest[:length]))

    def suspect(self, rest: tuple[str, ...], cells: Sequence[tuple[int, int]], weights: Sequence[float]) -> None:
        """Set the probability of each of REST. WEIGHTS are those of each cell to contain the last needed patch.

        The patches of one of CELLS cannot be told apart and share its probability.
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
        """Return (low, high): the first LOW patches of REST lack the effect, the first HIGH show it, and no number
        between can be tested. LOW is -1 if it is not known that the pinned patches alone lack the effect."""
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
        """Set the probabilities when the last needed patch of REST is between LOW and HIGH."""
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
        """Find a minimal set: pin the last patch that is needed, drop the patches after it, and repeat."""
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
        """Prove that no patch can be dropped from SHOWN, which shows the effect; drop those that can with ddmin."""

        def shows(chosen: PatchSet) -> bool:
            return self.problem.effect(self.verdict(chosen, "a smaller set", share).outcome)

        while True:
            outcomes = [
                self.verdict(self.combinations.without(shown, [one]), f"without {one}", share, "certificate").outcome
                for one in self.combinations.ordered(shown - self.problem.low)
            ]
            if not any(one == "untestable" or self.problem.effect(one) for one in outcomes):
                break
            if any(self.problem.effect(one) for one in outcomes):
                self.notes.append("the failure is not monotone: the prefix search kept a patch that is not needed")
            smaller = minimise(self.combinations, shown, self.problem.low, shows)
            if smaller == shown:
                self.notes.append("some smaller sets cannot be tested, so a patch of the set may not be needed")
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

    def _membership(self, without: Line) -> float:
        """Return the probability that a patch is needed: that the set WITHOUT it lacks the effect."""
        found = without.verdict
        if found.outcome == "untestable":
            return 0.5
        sure = 1.0 if found.confidence is None else found.confidence
        return 1 - sure if self.problem.effect(found.outcome) else sure

    def acquit(self, others: Sequence[str], whole: Verdict) -> dict[str, float]:
        """Return the probabilities of OTHERS, one of which is needed only if the verdict WHOLE is wrong."""
        doubt = 0.0 if whole.confidence is None else 1 - whole.confidence
        return {one: doubt / len(others) for one in others}


def _likely(cells: Sequence[tuple[int, int]], weights: Sequence[float], probability: float) -> tuple[int, int]:
    """Return the shortest range of neighbouring CELLS that contains the culprit with PROBABILITY."""
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
    """Return where to cut the candidates low+1..high for the shortest search.

    If two cuts are equally good on average and at worst, the later part is the smaller: a culprit that is found late
    leaves more patches to search for a second one.
    """
    size = high - low
    power = 1 << (size - 1).bit_length()
    return low + min(power // 2, size - power // 4)


def minimise(
    combinations: Combinations, start: PatchSet, base: PatchSet, shows: Callable[[PatchSet], bool]
) -> PatchSet:
    """Return a minimal part of START that shows the effect: no patch can be dropped from it. This is ddmin.

    Only closed sets are tried: patches are dropped together with those that require them, and tried together with
    those that they require. Without requirements it is Zeller's and Hildebrandt's ddmin. BASE stays in every set.
    START shows the effect, and SHOWS tests other sets. If SHOWS is false for a set that cannot be tested, the result
    still shows the effect but may contain a patch that is not needed.
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
    """Return the first of CANDIDATES that is a proper part of CURRENT and shows the effect."""
    return next((one for one in candidates if one < current and shows(one)), None)


def _parts(items: Sequence[str], count: int) -> Iterator[Sequence[str]]:
    """Yield ITEMS in COUNT consecutive parts of nearly equal size."""
    for index in range(count):
        yield items[index * len(items) // count : (index + 1) * len(items) // count]
