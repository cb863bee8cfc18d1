"""Weighs the evidence on single sets: what their trials conclude, and which trial is missing for that.

A search is a generator. It asks for the verdict on one set after another, and goes on while the evidence has one. Where
it has none, the search yields the trial that is missing; else it returns what it found. Nobody resumes a search: a new
trial is new evidence, and with that a new search takes the same steps and comes further.
"""

from __future__ import annotations

import functools
import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import replace
from typing import NoReturn, TypeAlias, TypeVar

from nvllm.bisect import homogeneity, judge, posterior
from nvllm.bisect.answer import Done, Line, NextTrial, Purpose, Stopped
from nvllm.bisect.combinations import PatchSet, halves
from nvllm.bisect.homogeneity import BuildSpread
from nvllm.bisect.posterior import Compared, Rates
from nvllm.bisect.problem import EndName, Problem, SearchEvidence, Verdict
from nvllm.trials.trial import TrialOutcome

_ENDLESS = 10
"""Trials that one culprit may take, as a multiple of the patience of one set; then it is reported as a range."""

_BETWEEN_WATCHES = 12
"""Trials of a flaky search for each further trial of the bad end, which shows whether the rate is still the same."""

LOOSE_DOUBT = 0.1
"""The doubt that a flaky search leaves on its way. Its certificate tries the sets again that the answer rests on, and
others where these do not suffice, because builds may differ."""

_ALONE = 0.9
"""How sure a set must be by its own trials before those of comparable sets count for it."""

_EACH = 8
"""Trials of one artifact after which another artifact says more."""

_ARTIFACTS = 6
"""The most artifacts that are built to settle one line of a certificate."""

_BUILDS = 2
"""The trials of all other artifacts for one line, as a multiple of the patience of one set."""

_NEARLY = 2
"""Builds besides everything without the culprit that must lack the effect."""

_REFUTES = 10
"""How many times as sure as a line a build is that refutes a certificate: lines that hold agree with one another."""

_SURELY_DIFFER = 0.5
"""The share of the doubt that `Settings.confidence` leaves at which builds surely differ: then the search ends, because
more trials of the same builds prove nothing."""

_IN_TURN = 20.0
"""How strongly sets that were tried in turn must differ (`judge.difference`). It is less than a certificate needs:
this is for rates that change with time, and without them all trials count."""

_NOT_IN_TURN = "sets of the certificate, tried in turn, do not surely differ: raise --patience, unless the rate changes"

T = TypeVar("T")
Asking: TypeAlias = Generator[NextTrial | Stopped, None, T]
"""Returns T if the evidence suffices for it; else yields what ends the search here."""


def step(asking: Asking[T]) -> NextTrial | Stopped | T:
    """Return what ends ASKING: what it yields first, or what it returns."""
    try:
        return next(asking)
    except StopIteration as ended:
        result: T = ended.value
        return result


class Search(ABC):
    """One run over EVIDENCE."""

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
        self.possible = self.items
        """The shortest range, or set, that is known to contain the answer."""
        self.complete: Done | None = None
        """What was found, while a search for further causes goes on."""
        self.decided: dict[PatchSet, bool] = {}
        """Whether a set of a flaky search shows the effect, as far as that is decided."""
        self._by_itself: dict[PatchSet, float] = {}
        self._by_all: dict[PatchSet, float] = {}
        """The probability of each set that was weighed to show the effect: by its own trials, and with others'."""
        self._says: dict[PatchSet | str, Sequence[float]] = {}
        """What the trials of each source say about the rates, and what is LEARNT from all of them."""
        self._before = problem.rates_before(evidence)
        self._learnt = self._before
        self.beyond: Search | None = None
        """The search for further causes, while it goes on."""

    @property
    def _refuting(self) -> float:
        """The doubt that a build may leave which refutes a certificate."""
        return (1 - self.settings.confidence) / _REFUTES

    @abstractmethod
    def located(self) -> Asking[Done]:
        """Return what was found. The ends are proved."""

    def prove_ends(self) -> Asking[None]:
        """Raises Refused NV801 if an end does not behave as declared."""
        ends = self.problem.ends
        bad, good = self.evidence.tally(ends["bad"]), self.evidence.tally(ends["good"])
        needed = judge.next_end(bad, good, replace(self.settings, flaky=self.flaky))
        if needed is not None:
            yield from self.want(ends[needed.end], needed.reason, "end")

    def watch(self, *, at_the_end: bool) -> Asking[None]:
        """Ask for another trial of the bad end if it is due, or end the search if its failure rate has fallen."""
        ends = self.problem.ends
        bad, good = self.evidence.tally(ends["bad"]), self.evidence.tally(ends["good"])
        pairs = judge.proof(bad, good, self.settings).pairs or bad.conclusive
        seen = judge.watch(bad.order, pairs)
        if seen.fallen:
            yield Stopped(f"the failure rate has fallen: {seen}")
        others = self.evidence.trials - bad.trials - good.trials
        # a cause that shows more rarely looks like builds that differ, and is to be searched for
        doubt = _SURELY_DIFFER * (1 - self.settings.confidence)
        if not self.problem.further and homogeneity.differ(self.rates()) > 1 - doubt:
            yield Stopped("this differs from build to build")
        due = (bad.conclusive - pairs) * _BETWEEN_WATCHES <= others - _BETWEEN_WATCHES
        if due or seen.doubtful or (at_the_end and not seen.steady):
            if bad.blocked:
                yield Stopped("the bad end cannot be tested any more, so its failure rate may have changed")
            yield from self.want(ends["bad"], f"whether the failure rate is still the same: {seen}", "watch")

    def differ_in_turn(self, whole: PatchSet, parts: Iterable[PatchSet]) -> Asking[bool]:
        """Return whether WHOLE and each of PARTS differ where they are tried in turn, after asking for such trials.

        So the certificate of a flaky search does not rest on sets that were tried at different times. It comes after
        the lines, which ask for other builds: many trials of these alone would make them look surer than they are.
        """
        if not self.flaky or self.settings.rates is not None:
            return True
        proved = True
        enough = min(_IN_TURN, 1 / (1 - self.settings.confidence))
        asked: dict[PatchSet, str] = {}
        for part in parts:
            bad, good = (whole, part) if self.problem.find == "break" else (part, whole)
            ends: dict[PatchSet | str, EndName] = {self._source(bad): "bad", self._source(good): "good"}
            turns = judge.in_turn([(ends.get(self._source(chosen)), mark) for chosen, mark in self.evidence.history])
            odds = judge.difference(turns.bad, turns.good, enough, 1)
            if odds.pairs is not None:
                continue
            blocked = len(ends) < 2 or any(self.evidence.tally(chosen).blocked for chosen in (whole, part))
            if blocked or len(turns.bad) >= self.settings.patience:
                proved = False
                continue
            after_whole = ends[self._source(part)] == turns.waiting
            asked[part if after_whole else whole] = f"{odds.value:.3g} of {enough:.3g}"
        if asked:
            chosen = next((part for part in asked if part != whole), whole)
            yield from self.want(chosen, f"in turn with the other sets: evidence {asked[chosen]}", "certificate")
        if not proved:
            self.notes.append(_NOT_IN_TURN)
        return proved

    def spread(self, culprits: Iterable[str]) -> BuildSpread:
        """Return how much builds differ, if CULPRITS are the answer."""
        cause = self.combinations.closed(culprits)
        counts = {
            self._source(chosen): (chosen, self.problem.count(tally)) for chosen, tally in self.evidence.tallies.items()
        }
        tried = [(chosen, count) for chosen, count in counts.values() if count.hits + count.misses]
        return homogeneity.spread(
            self._before,
            [count for chosen, count in tried if cause <= chosen],
            [count for chosen, count in tried if not cause <= chosen],
        )

    def with_others(self, whole: PatchSet) -> tuple[PatchSet, ...]:
        """Return WHOLE with either half of the other patches.

        If WHOLE lacks a patch that is needed, so does one of the two, unless both require that patch.
        """
        others = self.combinations.ordered(self.problem.high - whole)
        return tuple(itertools.islice(halves(self.combinations, whole, self.problem.high, others), 2))

    def confirmed(self, done: Done) -> Asking[bool]:
        """Return whether further builds agree with the certificate of DONE.

        Bigger sets with all its culprits must show the effect. Everything without one of several must not, nor
        everything without a single one and another patch, nor any set without one that ever did and may do so often.
        """
        if len(done.culprits) > 1:
            rests = [self.combinations.without(self.problem.high, [patch]) for patch in done.culprits]
            lacking = [rest | self.problem.low for rest in rests]
        else:
            lacking = [*self._nearly(self.combinations.without(self.problem.high, done.culprits) | self.problem.low)]
        whole = self.combinations.closed(done.culprits)
        affected = [chosen for chosen, tally in self.evidence.tallies.items() if self.problem.count(tally).hits]
        lacking += [
            chosen
            for chosen in affected
            if not whole <= chosen != self.problem.low and self._alone(chosen) > LOOSE_DOUBT
        ]
        expected = dict.fromkeys(self.with_others(done.certificate[0].chosen), True)
        for chosen, shows in (expected | dict.fromkeys(lacking, False)).items():
            for doubt in (LOOSE_DOUBT, self._refuting):  # the second only where the first contradicts
                verdict = yield from self.weigh(chosen, "another build that must agree", doubt, "certificate", 1)
                agrees = verdict.outcome == "untestable" or self.problem.effect(verdict.outcome) == shows
                if agrees:
                    break
            if not agrees:
                return False
        return True

    def _nearly(self, whole: PatchSet) -> tuple[PatchSet, ...]:
        """Return other builds of what WHOLE is a build of: it without a patch that hardly is a culprit.

        If each of them, and WHOLE, by chance is a build that seldom fails, a cause in WHOLE stays hidden.
        """
        if self.settings.same_bytes:
            return ()
        smaller = [self.combinations.without(whole, [patch]) for patch in self.combinations.ordered(whole)]
        dropped = {part: sum(self.weights.get(patch, 0.0) for patch in whole - part) for part in smaller}
        sets = sorted((part for part in smaller if self.problem.low < part), key=dropped.__getitem__)
        return tuple(dict.fromkeys(sets))[:_NEARLY]

    def still_shows(self, rest: Line) -> Asking[bool]:
        """Return whether REST, everything without the culprits, surely shows the effect if the first verdict, which is
        less sure, says so."""
        verdict = rest.verdict
        if rest.holds and self.problem.effect(verdict.outcome):
            verdict = yield from self.weigh(rest.chosen, "everything without it", self._refuting, "certificate", 1)
        return self.problem.effect(verdict.outcome)

    def compare_builds(self) -> Asking[None]:
        """Ask for another trial of the build that has the fewest, unless each has enough to show that it differs."""
        tallies = self.evidence.tallies
        few = [chosen for chosen, tally in tallies.items() if not tally.blocked and tally.conclusive < _EACH]
        if few:
            yield from self.want(self._fewest(few), "whether builds differ", "certificate")

    def want(self, chosen: PatchSet, reason: str, purpose: Purpose) -> Asking[NoReturn]:
        yield NextTrial(chosen, reason, purpose)
        raise AssertionError("a search goes on after the trial that it lacks")

    def rates(self, but: Collection[PatchSet] = ()) -> Rates:
        """Return the rates of hits after the trials of both ends and of all other sets, except those of BUT.

        The trials of a set must not count twice: as its own, and in the rate that they are compared with.
        """
        if self.settings.rates is not None:
            return self.settings.rates
        if not self._says:
            for chosen in (self.problem.high, self.problem.low, *self.evidence.tallies):
                self._says.setdefault(self._source(chosen), self._heard(self._before, chosen))
            self._learnt = self._before.after(self._says.values())
        own = {self._source(chosen) for chosen in but}
        return functools.reduce(Rates.but, (self._says[origin] for origin in own if origin in self._says), self._learnt)

    def _source(self, chosen: PatchSet) -> PatchSet | str:
        """Return what stands for the patched source of CHOSEN: sets of one source share their trials."""
        return self.evidence.trees.get(chosen, "") or chosen

    def _by_source(self, sets: Iterable[PatchSet]) -> Sequence[PatchSet]:
        """Return one of SETS for each source."""
        return tuple({self._source(chosen): chosen for chosen in sets}.values())

    def _heard(self, rates: Rates, chosen: PatchSet) -> Sequence[float]:
        """Return what the trials of CHOSEN say about each pair of RATES."""
        seen = self.problem.count(self.evidence.tally(chosen))
        if chosen == self.problem.high:
            return rates.if_holds(seen)
        if chosen == self.problem.low:
            return rates.if_other(seen)
        return rates.if_either(seen)

    def verdict(self, chosen: PatchSet, reason: str, doubt: float, purpose: Purpose = "search") -> Asking[Verdict]:
        """Return the verdict on CHOSEN for the search. The ends have the outcomes that were proved."""
        if chosen not in (self.problem.low, self.problem.high):
            return (yield from self.weigh(chosen, reason, doubt, purpose, 1))
        tally = self.evidence.tally(chosen)
        return Verdict(self._outcome(shows=chosen == self.problem.high), tally, self._sure(chosen))

    def weigh(
        self,
        chosen: PatchSet,
        reason: str,
        doubt: float,
        purpose: Purpose,
        least: int,
        others: Sequence[PatchSet] = (),
    ) -> Asking[Verdict]:
        """Return the verdict on CHOSEN by its trials, after asking for as many as it needs or patience allows.

        A set needs LEAST trials, and where the failure is flaky as many more as leave at most DOUBT. A set that is
        given up is judged by the conclusive trials that it has. OTHERS are sets that settle this one too, if the
        failure is monotone: their trials say more than many of one artifact.
        """
        tally = self.evidence.tally(chosen)
        if tally.unknown:
            return Verdict("untestable", tally)
        if tally.conclusive < least and not tally.blocked:
            nth = f", trial {tally.conclusive + 1} of {least}" if least > 1 else ""
            again = f", again after {tally.stage}" if tally.untestable else ""
            yield from self.want(chosen, f"{reason}{nth}{again}", purpose)
        if not self.flaky:
            return Verdict("bad" if tally.bad else "good", tally)
        alone, chance = self._alone(chosen), self._with_comparable(chosen)
        sure, settled = max(chance, 1 - chance), max(alone, 1 - alone) >= min(_ALONE, 1 - doubt)
        tried = sum(self.evidence.tally(other).conclusive for other in others)
        tired = tally.conclusive >= self.settings.patience
        asked = self._artifact(chosen, others) if settled or tired else chosen
        seen = self.evidence.tally(asked)
        patient = seen.conclusive < self.settings.patience and tried < _BUILDS * self.settings.patience
        if (sure < 1 - doubt or not settled) and patient and not tally.blocked:
            about = "" if asked == chosen else ", by another build,"
            yield from self.want(asked, f"{reason}{about}: {seen}, {sure:.3f} sure", purpose)
        if sure >= 1 - doubt:
            self.decided[chosen] = chance > 0.5
        return Verdict(self._outcome(shows=chance > 0.5), tally, sure)

    def _alone(self, chosen: PatchSet) -> float:
        """Return the probability that CHOSEN shows the effect, by its own trials."""
        if chosen not in self._by_itself:
            seen = self.problem.count(self.evidence.tally(chosen))
            self._by_itself[chosen] = posterior.shows(self.rates([chosen]), seen)
        return self._by_itself[chosen]

    def _with_comparable(self, chosen: PatchSet) -> float:
        """Return the probability that CHOSEN shows the effect, by its trials and those of bigger and smaller sets.

        Where its own trials say the opposite, the failure is not monotone, or builds differ, and they alone count.
        """
        if chosen in self._by_all:
            return self._by_all[chosen]
        alone = self._alone(chosen)
        ends = (self.problem.low, self.problem.high)
        comparable = self._by_source(
            other for other in self.evidence.tallies if other not in ends and (other < chosen or other > chosen)
        )
        counts = {
            other: self.problem.count(self.evidence.tally(other))
            for other in comparable
            if self._source(other) != self._source(chosen)
        }
        above = {other: count for other, count in counts.items() if other > chosen}
        below = [count for other, count in counts.items() if other < chosen]
        pairs = []
        for first, second in itertools.combinations(list(above), 2):
            if first & second == chosen and first in above and second in above:
                pairs.append((above.pop(first), above.pop(second)))
        seen = self.problem.count(self.evidence.tally(chosen))
        joint = posterior.shows(self.rates([chosen, *counts]), seen, [*above.values()], below, pairs)
        contradicted = (alone > 0.5) != (joint > 0.5) and max(alone, 1 - alone) >= _ALONE
        self._by_all[chosen] = alone if contradicted else joint
        return self._by_all[chosen]

    def _artifact(self, chosen: PatchSet, others: Sequence[PatchSet]) -> PatchSet:
        """Return the set whose next trial is worth most to settle CHOSEN: of those with trials the one with the
        fewest, or the next of OTHERS if each has enough."""
        candidates = [chosen]
        for other in others:
            tally = self.evidence.tally(other)
            if tally.blocked:
                continue
            if not tally.conclusive:
                fewest = min(self.evidence.tally(candidate).conclusive for candidate in candidates)
                return other if fewest >= _EACH else self._fewest(candidates)
            candidates.append(other)
        return self._fewest(candidates)

    def _fewest(self, candidates: Iterable[PatchSet]) -> PatchSet:
        return min(candidates, key=lambda candidate: self.evidence.tally(candidate).conclusive)

    def _outcome(self, *, shows: bool) -> TrialOutcome:
        return "bad" if shows == (self.problem.find == "break") else "good"

    def _sure(self, chosen: PatchSet) -> float | None:
        if not self.flaky:
            return None
        chance = self._with_comparable(chosen)
        return max(chance, 1 - chance)

    def line(
        self, role: str, chosen: PatchSet, doubt: float, others: Sequence[PatchSet] = (), *, effect: bool | None
    ) -> Asking[Line]:
        """Return the certificate's line about CHOSEN, after asking for trials until it leaves at most DOUBT.

        EFFECT: the set must show the effect; None: it may or not. These trials need no new build, and they reveal a
        flaky failure that was taken for a steady one before it makes the answer wrong.
        """
        verdict = yield from self.weigh(
            chosen, f"the certificate, {role}", doubt, "certificate", self.settings.repeats, others
        )
        tally = verdict.tally
        sure = (
            tally.conclusive >= self.settings.repeats
            if verdict.confidence is None
            else verdict.confidence >= 1 - max(doubt, 1 - self.settings.confidence)
        )
        fits = effect is None or self.problem.effect(verdict.outcome) == effect
        return Line(role, chosen, verdict, verdict.outcome != "untestable" and fits and sure)

    def everything_else(self, culprits: Iterable[str], doubt: float) -> Asking[Line | None]:
        """Return the line about the bigger end without CULPRITS; None if that is the smaller end, which is proved."""
        rest = self.combinations.without(self.problem.high, culprits) | self.problem.low
        if rest == self.problem.low:
            return None
        line = yield from self.line("everything without it", rest, LOOSE_DOUBT if self.flaky else doubt, effect=None)
        if line.verdict.outcome == "untestable":
            self.notes.append("everything without it cannot be tested, so there may be another cause")
        elif not line.holds:
            self.notes.append("whether everything without it shows the effect is not sure: there may be another cause")
        return line

    def between(self, first: PatchSet, lower: PatchSet, upper: PatchSet) -> tuple[PatchSet, ...]:
        """Return FIRST and further closed sets between LOWER and UPPER: artifacts that settle what they settle."""
        items = self.combinations.ordered(upper - lower)
        ends = (self.problem.low, self.problem.high)
        sets = [first, *itertools.islice(halves(self.combinations, lower, upper, items), _ARTIFACTS)]
        return tuple(dict.fromkeys(chosen for chosen in sets if chosen not in ends))[: _ARTIFACTS - 1]

    def certified(self, lines: Sequence[Line]) -> bool:
        """Return whether LINES prove the result, and note what they lack."""
        if any(line.verdict.outcome != "untestable" and not line.holds for line in lines):
            self.notes.append(
                "--patience ran out before every line of the certificate was as sure as --confidence requires"
                if self.flaky
                else "a set of the certificate could not be tried as often as --repeats requires"
            )
        sure = {line.chosen: line.verdict.confidence for line in lines}  # two lines may be about one set
        doubts = sum(1 - confidence for confidence in sure.values() if confidence is not None)
        if not all(line.holds for line in lines):
            return False
        if doubts > 1 - self.settings.confidence + 1e-9:
            self.notes.append(f"every line holds, but together they leave a doubt of {doubts:.3f}: raise --patience")
            return False
        return True

    def prefix(self, pinned: PatchSet, rest: tuple[str, ...], length: int) -> PatchSet:
        """Return the closed set of the low end, PINNED, and the first LENGTH patches of REST."""
        return self.combinations.closed(self.problem.low | pinned | set(rest[:length]))

    def _prefixes(self, pinned: PatchSet, rest: tuple[str, ...]) -> Sequence[PatchSet]:
        """Return `prefix` for each length from 0, in one pass: a series of 256 patches has as many in each step."""
        each = (self.combinations.closed([patch]) for patch in rest)
        return tuple(itertools.accumulate(each, operator.or_, initial=self.prefix(pinned, rest, 0)))

    def suspect(self, rest: tuple[str, ...], cells: Sequence[tuple[int, int]], weights: Sequence[float]) -> None:
        """Set the probability of each of REST. WEIGHTS are those of each cell to contain the last needed patch.

        The patches of one of CELLS cannot be told apart and share its probability.
        """
        behind, others = 0.0, 1 / self.size if self.problem.mode == "set" else 0.0
        for (low, high), weight in reversed(list(zip(cells, weights, strict=True))):
            inside = rest[max(low, 0) : high]
            alone = weight / max(1, len(inside))
            for item in reversed(inside):
                self.weights[item] = alone + behind * others
                behind += alone

    def locate_flaky(self, pinned: PatchSet, rest: tuple[str, ...], low: int, share: float) -> Asking[tuple[int, int]]:
        """Return (low, high) as `OrderedSearch.locate` does, for a flaky failure, with a doubt of SHARE at most.

        Where no further trial would settle that, it is the likely range.
        """
        all_sets = self._prefixes(pinned, rest)
        sets = {m: all_sets[m] for m in range(max(low + 1, 0), len(rest))}
        tallies = {m: self.evidence.tally(chosen) for m, chosen in sets.items()}
        open_to = [m for m, tally in tallies.items() if not tally.unknown]
        cuts = [low, *open_to, len(rest)]
        cells = list(itertools.pairwise(cuts))
        if len(cells) == 1:
            self.suspect(rest, cells, [1.0])
            return cells[0]
        prior = [(high - low) / (len(rest) - cuts[0]) for low, high in cells]
        index_of = {m: index + 1 for index, m in enumerate(open_to)}
        seen = {index_of[m]: self.problem.count(tallies[m]) for m in open_to if tallies[m].conclusive}
        ends = (self.problem.low, self.problem.high)
        others = self._by_source(chosen for chosen in self.evidence.tallies if chosen not in (*ends, *sets.values()))
        lower, upper = ([all_sets[max(cell[end], 0)] for cell in cells] for end in (0, 1))
        compared = [
            Compared(
                sum(prefix <= chosen for prefix in upper),
                sum(m < 0 or not chosen <= prefix for (m, _), prefix in zip(cells, lower, strict=True)),
                self.problem.count(self.evidence.tally(chosen)),
            )
            for chosen in others
        ]
        belief = posterior.belief(self.rates({*sets.values(), *others}), prior, seen, compared)
        self.suspect(rest, cells, belief.weights)
        best = max(range(len(cells)), key=lambda index: belief.weights[index])
        sure = self.settings.confidence if self.problem.mode == "ordered" else 1 - share
        likely = posterior.likely_range(cells, belief.weights, sure)
        inside = pinned - self.problem.low
        self.possible = self.combinations.ordered(inside | set(rest[max(likely[0], 0) : likely[1]]))
        if belief.weights[best] >= 1 - share:
            for m, chosen in sets.items():
                if tallies[m].conclusive:
                    self.decided[chosen] = m >= cells[best][1]
            return cells[best]
        candidates = [index_of[m] for m in open_to if not tallies[m].blocked]
        if (
            not candidates
            or sum(count.hits + count.misses for count in seen.values()) >= _ENDLESS * self.settings.patience
        ):
            return likely
        built = frozenset(index for m, index in index_of.items() if sets[m] in self.evidence.built)
        m = open_to[posterior.choose(belief, candidates, built, self.settings.build_price) - 1]
        if self.problem.mode == "set" and tallies[m].conclusive >= max(self.settings.patience, _EACH):
            return likely  # it is neither bad nor good, for a weaker cause; the patches of the range are dropped singly
        leader = rest[cells[best][1] - 1]
        reason = f"{leader} is the culprit with probability {belief.weights[best]:.3f}"
        return (yield from self.want(sets[m], reason, "search"))
