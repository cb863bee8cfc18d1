"""The search for the patches that cause an effect: chooses the next set to try, or says what was found.

`propose` is a pure function of the problem and the evidence so far. Each call runs the whole search on the evidence, up
to the first set with too few trials, and asks for one more trial of that set. So the journal is the only state: to
resume is to ask again, and to withdraw a verdict is to ask with less evidence.

Two ends are proved first: the LOW set lacks the effect, and the HIGH set, which contains it, shows it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from nvllm.bisect import judge, posterior
from nvllm.bisect.combinations import PatchSet, halves, minimise, split
from nvllm.bisect.posterior import Rates
from nvllm.bisect.problem import Problem, SearchEvidence, Verdict
from nvllm.core.refusal import Refused
from nvllm.trials.trial import TrialOutcome

_ENDLESS = 10
"""Trials that one culprit may take, as a multiple of the patience of one set; then it is reported as a range."""

_BETWEEN_WATCHES = 6
"""Trials of a flaky search for each further trial of the bad end, which shows whether the rate is still the same."""

_MOST_DETOURS = 8
"""Untestable sets between two sets, after which what lies between them counts as one piece."""

_LOOSE_DOUBT = 0.05
"""The doubt that a set search leaves on its way. Its certificate tries the sets again that the answer rests on."""

Purpose = Literal["end", "search", "certificate", "watch"]
"""What a trial is for: to prove an end, to find the culprits, to prove the result, or to see whether the rate falls."""


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

    CULPRITS, in the order of the series: in set mode the cause; in ordered mode the patch with which the effect begins,
    or the range of patches that contains it if the sets between cannot be tested. ALONG: patches that no set with the
    cause can lack, each with the culprits that require it; whether they are a part of the cause cannot be told. EXACT:
    it is no range. FIRST, in ordered mode: every shorter prefix was tried and lacks the effect.
    CERTIFIED: every line of the certificate holds, and all together leave no more doubt than the confidence allows.
    REST is everything without the culprits: if it shows the effect, there is another cause. FURTHER are the causes
    found there. STOPPED says why the search ended before its end. POSTERIOR is the probability of each item to be a
    culprit; see `beliefs`.
    """

    culprits: tuple[str, ...]
    exact: bool
    certificate: tuple[Line, ...]
    certified: bool
    flaky: bool
    posterior: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()
    along: tuple[tuple[str, tuple[str, ...]], ...] = ()
    first: bool = False
    rest: Line | None = None
    further: tuple[Done, ...] = ()
    stopped: str = ""

    @property
    def whole(self) -> PatchSet:
        """The culprits, with what comes along."""
        return frozenset((*self.culprits, *(name for name, _ in self.along)))


class _TrialNeeded(Exception):  # noqa: N818 - it carries the next trial out of the search, and is no error
    def __init__(self, trial: NextTrial) -> None:
        super().__init__(trial.reason)
        self.trial = trial


class _RateFell(Exception):  # noqa: N818 - it ends the search with the best answer so far, and is no error
    pass


def propose(problem: Problem, evidence: SearchEvidence) -> NextTrial | Done:
    """Return the next trial to run, or what was found. Raises Refused NV801 if an end does not behave as declared.

    The set of the next trial is closed, free of conflicts, and not given up. Where a limit of the settings is reached,
    or the failure rate has fallen, the answer is the best so far, which is not certified.
    """
    try:
        return _Search(problem, evidence).run()
    except _RateFell as fell:
        return replace(_best(problem, evidence, str(fell)), certified=False)
    except _TrialNeeded as needed:
        trial = needed.trial
    assert problem.combinations.valid(trial.chosen)
    stopped = problem.reached(evidence)
    return _best(problem, evidence, stopped) if stopped else trial


def _best(problem: Problem, evidence: SearchEvidence, stopped: str) -> Done:
    """Return the best answer that EVIDENCE allows, for a search that ended because of STOPPED.

    The watch of the failure rate, which may be what ended the search, is left out: it hides no trial.
    """
    search = _Search(problem, evidence)
    with contextlib.suppress(_TrialNeeded, Refused):
        search.prove_ends()
        search.search_further(search.located())
    if search.complete is not None:
        return replace(search.complete, stopped=stopped)
    return Done(
        search.possible,
        exact=False,
        certificate=(),
        certified=False,
        flaky=search.flaky,
        posterior=tuple(search.weights.items()),
        notes=tuple(search.notes),
        stopped=stopped,
    )


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
        search.prove_ends()
        return search.search_further(search.located()).posterior
    except (_TrialNeeded, Refused):
        return tuple(search.weights.items()) if search.complete is None else search.complete.posterior


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
        self.possible = self.items
        """The shortest range, or set, that is known to contain the answer."""
        self.complete: Done | None = None
        """What was found, while a search for further causes goes on."""
        self.decided: dict[PatchSet, bool] = {}
        """Whether a set of a flaky search shows the effect, as far as that is decided."""
        self._says: dict[PatchSet | str, Sequence[float]] = {}
        """What the trials of each source say about the rates, and what is LEARNT from all of them."""
        self._learnt = posterior.unknown()

    def run(self) -> Done:
        self.prove_ends()
        watched = self.flaky and self.settings.rates is None
        if watched:
            self.watch(at_the_end=False)
        done = self.located()
        if watched:
            self.watch(at_the_end=True)
        return self.search_further(done)

    def located(self) -> Done:
        return self.ordered() if self.problem.mode == "ordered" else self.minimal()

    def search_further(self, done: Done) -> Done:
        """Return DONE with the causes that are found without it, if they are wanted and there are any."""
        rest = done.rest
        if not self.problem.further or rest is None or not rest.holds or not self.problem.effect(rest.verdict.outcome):
            return done
        self.complete = done
        others = _Search(replace(self.problem, high=rest.chosen), self.evidence)
        try:
            others.prove_ends()
            found = others.search_further(others.located())
        except _TrialNeeded:
            if others.complete is not None:
                self.complete = replace(done, further=(others.complete,))
            raise
        except Refused as refused:
            return replace(done, notes=(*done.notes, f"a further cause cannot be searched for: {refused}"))
        other = dict(found.posterior)
        chances = tuple((one, max(chance, other.get(one, 0.0))) for one, chance in done.posterior)
        return replace(done, further=(replace(found, further=()), *found.further), posterior=chances)

    # The ends, and single sets

    def prove_ends(self) -> None:
        ends = self.problem.ends
        bad, good = self.evidence.tally(ends["bad"]), self.evidence.tally(ends["good"])
        needed = judge.next_end(bad, good, replace(self.settings, flaky=self.flaky))
        if needed is not None:
            self.want(ends[needed.end], needed.reason, "end")

    def watch(self, *, at_the_end: bool) -> None:
        """Ask for another trial of the bad end if it is due. Raises _RateFell if its failure rate has fallen."""
        ends = self.problem.ends
        bad, good = self.evidence.tally(ends["bad"]), self.evidence.tally(ends["good"])
        pairs = judge.proof(bad, good, self.settings).pairs or bad.conclusive
        seen = judge.watch(bad.order, pairs)
        if seen.fallen:
            raise _RateFell(f"the failure rate has fallen: {seen}")
        others = self.evidence.trials - bad.trials - good.trials
        due = (bad.conclusive - pairs) * _BETWEEN_WATCHES <= others - _BETWEEN_WATCHES
        if due or (at_the_end and not seen.held):
            if bad.blocked:
                raise _RateFell("the bad end cannot be tested any more, so its failure rate may have changed")
            self.want(ends["bad"], f"whether the failure rate is still the same: {seen}", "watch")

    def want(self, chosen: PatchSet, reason: str, purpose: Purpose) -> NoReturn:
        raise _TrialNeeded(NextTrial(chosen, reason, purpose))

    def rates(self, but: Collection[PatchSet] = ()) -> Rates:
        """Return the rates of hits after the trials of both ends and of all other sets, except those of BUT.

        The trials of a set must not count twice: as its own, and in the rate that they are compared with.
        """
        if self.settings.rates is not None:
            return self.settings.rates
        if not self._says:
            before = posterior.unknown(fix=self.problem.find == "fix")
            for chosen in (self.problem.high, self.problem.low, *self.evidence.tallies):
                self._says.setdefault(self._source(chosen), self._heard(before, chosen))
            self._learnt = before.after(self._says.values())
        own = {self._source(chosen) for chosen in but}
        return functools.reduce(Rates.but, (self._says[one] for one in own if one in self._says), self._learnt)

    def _source(self, chosen: PatchSet) -> PatchSet | str:
        """Return what stands for the patched source of CHOSEN: sets of one source share their trials."""
        return self.evidence.trees.get(chosen, "") or chosen

    def _heard(self, rates: Rates, chosen: PatchSet) -> Sequence[float]:
        """Return what the trials of CHOSEN say about each pair of RATES."""
        seen = self.problem.count(self.evidence.tally(chosen))
        if chosen == self.problem.high:
            return posterior.likelihood(rates.holds, seen)
        if chosen == self.problem.low:
            return posterior.likelihood(rates.other, seen)
        return posterior.either(rates.holds, rates.other, seen)

    def verdict(self, chosen: PatchSet, reason: str, doubt: float, purpose: Purpose = "search") -> Verdict:
        """Return the verdict on CHOSEN for the search. The ends have the outcomes that were proved."""
        if chosen not in (self.problem.low, self.problem.high):
            return self.weigh(chosen, reason, doubt, purpose, 1)
        tally = self.evidence.tally(chosen)
        return Verdict(self._outcome(shown=chosen == self.problem.high), tally, self._sure(chosen))

    def weigh(self, chosen: PatchSet, reason: str, doubt: float, purpose: Purpose, least: int) -> Verdict:
        """Return the verdict on CHOSEN by its trials, after asking for as many as it needs or patience allows.

        A steady failure needs LEAST trials, a flaky one as many as leave at most DOUBT. A set that is given up is
        judged by the conclusive trials that it has.
        """
        tally = self.evidence.tally(chosen)
        if tally.unknown:
            return Verdict("untestable", tally)
        if tally.conclusive < (1 if self.flaky else least) and not tally.blocked:
            nth = f", trial {tally.conclusive + 1} of {least}" if least > 1 and not self.flaky else ""
            again = f", again after {tally.stage}" if tally.untestable else ""
            self.want(chosen, f"{reason}{nth}{again}", purpose)
        if not self.flaky:
            return Verdict("bad" if tally.bad else "good", tally)
        chance = posterior.shows(self.rates([chosen]), self.problem.count(tally))
        sure = max(chance, 1 - chance)
        if sure < 1 - doubt and tally.conclusive < self.settings.patience and not tally.blocked:
            self.want(chosen, f"{reason}: {tally}, {sure:.3f} sure", purpose)
        if sure >= 1 - doubt:
            self.decided[chosen] = chance > 0.5
        return Verdict(self._outcome(shown=chance > 0.5), tally, sure)

    def _outcome(self, *, shown: bool) -> TrialOutcome:
        return "bad" if shown == (self.problem.find == "break") else "good"

    def _sure(self, chosen: PatchSet) -> float | None:
        if not self.flaky:
            return None
        chance = posterior.shows(self.rates([chosen]), self.problem.count(self.evidence.tally(chosen)))
        return max(chance, 1 - chance)

    def line(self, role: str, chosen: PatchSet, doubt: float, *, wanted: bool | None) -> Line:
        """Return the certificate's line about CHOSEN, after asking for trials until it leaves at most DOUBT.

        WANTED: the set must show the effect; None: it may or not. These trials need no new build, and they reveal a
        flaky failure that was taken for a steady one before it makes the answer wrong.
        """
        found = self.weigh(chosen, f"the certificate, {role}", doubt, "certificate", self.settings.repeats)
        tally = found.tally
        sure = (
            tally.conclusive >= self.settings.repeats
            if found.confidence is None
            else found.confidence >= self.settings.confidence
        )
        fits = wanted is None or self.problem.effect(found.outcome) == wanted
        return Line(role, chosen, found, found.outcome != "untestable" and fits and sure)

    def everything_else(self, culprits: Iterable[str], doubt: float) -> Line | None:
        """Return the line about the bigger end without CULPRITS; None if that is the smaller end, which is proved."""
        rest = self.combinations.without(self.problem.high, culprits) | self.problem.low
        if rest == self.problem.low:
            return None
        line = self.line("everything without it", rest, doubt, wanted=None)
        if line.verdict.outcome == "untestable":
            self.notes.append("everything without it cannot be tested, so there may be another cause")
        elif not line.holds:
            self.notes.append("whether everything without it shows the effect is not sure: there may be another cause")
        return line

    def certified(self, lines: Sequence[Line]) -> bool:
        """Return whether LINES prove the result, and note what they lack."""
        if any(line.verdict.outcome != "untestable" and not line.holds for line in lines):
            self.notes.append(
                "--patience ran out before every line of the certificate was as sure as --confidence requires"
                if self.flaky
                else "a set of the certificate could not be tried as often as --repeats requires"
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
        doubt = (1 - self.settings.confidence) / 2
        low, high = self.locate(frozenset(), self.items, 0, 1 - self.settings.confidence)
        culprits = self.items[low:high]
        self.possible = culprits
        exact = high - low == 1
        if not exact:
            between = [self.evidence.tally(self.prefix(frozenset(), self.items, m)) for m in range(low + 1, high)]
            why = "cannot be tested" if all(one.blocked for one in between) else "took too many trials"
            self.notes.append(f"what lies between these patches {why}: one of them is the culprit")
        lines = tuple(
            self.line(role, self.prefix(frozenset(), self.items, length), doubt, wanted=length == high)
            for role, length in (("with the culprit", high), ("without it", low))
        )
        rest = self.everything_else(culprits, doubt)
        certified = self.certified(lines) and exact
        first = exact and all(self._lacks(self.prefix(frozenset(), self.items, m)) for m in range(low + 1))
        weights = tuple(self.weights.items())
        notes = tuple(self.notes)
        return Done(culprits, exact, lines, certified, self.flaky, weights, notes, first=first, rest=rest)

    def _lacks(self, chosen: PatchSet) -> bool:
        """Return whether CHOSEN was tried and lacks the effect."""
        if chosen == self.problem.low:
            return True
        if self.flaky:
            return self.decided.get(chosen) is False
        seen = self.problem.count(self.evidence.tally(chosen))
        return seen.misses > 0 and not seen.hits

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
            self.possible = rest[max(low, 0) : high]
        return low, high

    def narrow(self, rest: tuple[str, ...], low: int, high: int) -> None:
        """Set the probabilities when the last needed patch of REST is between LOW and HIGH."""
        self.suspect(rest, [(0, max(low, 0)), (max(low, 0), high), (high, len(rest))], [0.0, 1.0, 0.0])

    def _locate_flaky(self, pinned: PatchSet, rest: tuple[str, ...], low: int, share: float) -> tuple[int, int]:
        sets = {m: self.prefix(pinned, rest, m) for m in range(max(low + 1, 0), len(rest))}
        tallies = {m: self.evidence.tally(chosen) for m, chosen in sets.items()}
        open_to = [m for m, tally in tallies.items() if not tally.unknown]
        cuts = [low, *open_to, len(rest)]
        cells = list(itertools.pairwise(cuts))
        if len(cells) == 1:
            self.suspect(rest, cells, [1.0])
            return cells[0]
        prior = [(high - low) / (len(rest) - cuts[0]) for low, high in cells]
        place = {m: index + 1 for index, m in enumerate(open_to)}
        seen = {place[m]: self.problem.count(tallies[m]) for m in open_to if tallies[m].conclusive}
        held = posterior.belief(self.rates(set(sets.values())), prior, seen)
        self.suspect(rest, cells, held.weights)
        best = max(range(len(cells)), key=lambda index: held.weights[index])
        likely = posterior.likely_range(cells, held.weights, 1 - share)
        inside = pinned - self.problem.low
        self.possible = self.combinations.ordered(inside | set(rest[max(likely[0], 0) : likely[1]]))
        if held.weights[best] >= 1 - share:
            for m, chosen in sets.items():
                if tallies[m].conclusive:
                    self.decided[chosen] = m >= cells[best][1]
            return cells[best]
        candidates = [place[m] for m in open_to if not tallies[m].blocked]
        if not candidates or sum(one.hits + one.misses for one in seen.values()) >= _ENDLESS * self.settings.patience:
            return likely
        built = frozenset(index for m, index in place.items() if sets[m] in self.evidence.built)
        m = open_to[posterior.choose(held, candidates, built, self.settings.build_price) - 1]
        leader = rest[cells[best][1] - 1]
        reason = f"{leader} is the culprit with probability {held.weights[best]:.3f}"
        return self.want(sets[m], reason, "search")

    # Set search

    def minimal(self) -> Done:
        """Find a minimal set: pin a patch that is needed, drop the patches that are not, and repeat."""
        share = (1 - self.settings.confidence) / (math.ceil(math.log2(self.size + 1)) + 4)
        doubt = max(share, _LOOSE_DOUBT)
        pinned, shown = self.problem.low, self.problem.high
        apart: set[str] = set()  # patches that were pinned together with others, and may not be needed
        while pinned != shown:
            alone = self.verdict(pinned, "the patches found so far, alone", doubt)
            if self.problem.effect(alone.outcome):
                shown = pinned
                break
            lacks = None if alone.outcome == "untestable" else pinned
            lower, shown = self.squeeze(pinned, lacks, shown, doubt)
            added = shown - lower
            if len(self.combinations.tops(added)) > 1:
                apart |= added
            pinned = self.combinations.closed(pinned | added)
        return self.certify(shown, apart, share)

    def squeeze(
        self, pinned: PatchSet, lacks: PatchSet | None, shown: PatchSet, doubt: float
    ) -> tuple[PatchSet, PatchSet]:
        """Return two sets, of which the first lacks the effect and the second, which is bigger, shows it, and no set
        between can be tested. PINNED is in both; LACKS is None if PINNED itself cannot be tested."""
        if self.flaky:
            rest = self.combinations.ordered(shown - pinned)
            low, high = self._locate_flaky(pinned, rest, 0 if lacks is not None else -1, doubt)
            return self.prefix(pinned, rest, max(low, 0)), self.prefix(pinned, rest, high)
        lower, blocked = lacks or pinned, set[PatchSet]()
        while True:
            items = self.combinations.ordered(shown - lower)
            rest = self.combinations.ordered(shown - pinned)
            self.weights |= {one: 0.0 for one in self.items if one not in shown}
            inside = [0.0 if one in lower else 1 / len(items) for one in rest]
            self.suspect(rest, [(index, index + 1) for index in range(len(rest))], inside)
            self.possible = self.combinations.ordered(shown - self.problem.low)
            chosen = next((one for one in halves(self.combinations, lower, shown, items) if one not in blocked), None)
            if chosen is None or len([one for one in blocked if lower < one < shown]) >= _MOST_DETOURS:
                return lower, shown
            found = self.verdict(chosen, f"{len(items)} candidates left", doubt)
            if found.outcome == "untestable":
                blocked.add(chosen)
            elif self.problem.effect(found.outcome):
                shown = chosen
            else:
                lower = chosen

    def certify(self, shown: PatchSet, apart: Set[str], share: float) -> Done:
        """Prove that no patch can be dropped from SHOWN, which shows the effect; drop those that can.

        Those of APART are dropped one at a time, because nothing said yet that they are needed. If another can be
        dropped, a bigger set lacked the effect that a smaller one shows, and ddmin takes over.
        """

        def verdict(chosen: PatchSet, role: str = "a smaller set") -> TrialOutcome:
            return self.verdict(chosen, role, share, "certificate").outcome

        def shows(chosen: PatchSet) -> bool:
            return self.problem.effect(verdict(chosen))

        while True:
            self.possible = self.combinations.ordered(shown - self.problem.low)
            found = self.combinations.tops(shown - self.problem.low)
            dropped = {one: self.combinations.without(shown, [one]) for one in found}
            spare = next((one for one in found if one in apart and shows(dropped[one])), None)
            if spare is not None:
                shown = dropped[spare]
                continue
            outcomes = [verdict(chosen, f"without {one}") for one, chosen in dropped.items()]
            if not any(self.problem.effect(one) for one in outcomes):
                break
            smaller = minimise(self.combinations, shown, self.problem.low, shows)
            if smaller == shown:
                break
            shown = smaller
        if "untestable" in outcomes:
            unsure = ", ".join(one for one, outcome in zip(found, outcomes, strict=True) if outcome == "untestable")
            self.notes.append(f"the set without it cannot be tested, so it may not be needed: {unsure}")
        if self._hidden():
            self.notes.append("the failure is not monotone: a set lacks the effect that a part of it shows")
        certificate = (
            self.line("the set", shown, share, wanted=True),
            *(self.line(f"without {one}", chosen, share, wanted=False) for one, chosen in dropped.items()),
            self.line("none of it", self.problem.low, share, wanted=False),
        )
        rest = self.everything_else(found, share)
        certified = self.certified(certificate)
        alike = self.combinations.ordered(shown - self.problem.low - set(found))
        along = tuple((one, tuple(top for top in found if one in self.combinations.closed([top]))) for one in alike)
        weights = self.acquit([one for one in self.items if one not in shown], certificate[0].verdict)
        weights |= {one: self._membership(line) for one, line in zip(found, certificate[1:-1], strict=True)}
        weights |= dict.fromkeys(alike, 1 / self.size)
        in_order = tuple((one, weights[one]) for one in self.items)
        notes = tuple(dict.fromkeys(self.notes))
        return Done(found, certified, certificate, certified, self.flaky, in_order, notes, along, rest=rest)

    def _hidden(self) -> bool:
        """Return whether a set lacks the effect although a part of it shows it."""
        if self.flaky:
            known: Mapping[PatchSet, bool] = {**self.decided, self.problem.high: True, self.problem.low: False}
        else:
            known = {
                chosen: self.problem.count(tally).hits > 0
                for chosen, tally in self.evidence.tallies.items()
                if tally.conclusive
            }
        showing = [chosen for chosen, shown in known.items() if shown]
        return any(part < chosen for chosen, shown in known.items() if not shown for part in showing)

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
