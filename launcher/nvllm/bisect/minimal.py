"""The set search: a set of patches that shows the effect and of which none can be dropped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from nvllm.bisect.answer import Done, Line
from nvllm.bisect.combinations import PatchSet, first_showing, halves, minimise
from nvllm.bisect.density import leave_out
from nvllm.bisect.problem import Verdict
from nvllm.bisect.weighing import LOOSE_DOUBT, Asking, Search
from nvllm.trials.trial import TrialOutcome

_MOST_DETOURS = 8
"""Untestable sets between two sets, after which what lies between them counts as one piece."""


class SetSearch(Search):
    """A search over all closed sets: pin a patch that is needed, drop the patches that are not."""

    def located(self) -> Asking[Done]:
        """Find a minimal set: pin a patch that is needed, drop the patches that are not, and repeat."""
        share = (1 - self.settings.confidence) / (math.ceil(math.log2(self.size + 1)) + 4)
        doubt = max(share, LOOSE_DOUBT)
        pinned, showing = self.problem.low, self.problem.high
        apart: set[str] = set()  # patches that were pinned together with others, and may not be needed
        while pinned != showing:
            chosen = self.smaller(pinned, showing)
            verdict = yield from self.verdict(chosen, "the patches found so far, alone", doubt)
            if verdict.outcome == "untestable" and chosen != pinned:
                chosen = pinned
                verdict = yield from self.verdict(chosen, "the patches found so far, alone", doubt)
            if self.problem.effect(verdict.outcome):
                showing = chosen
                continue
            lacks = None if verdict.outcome == "untestable" else chosen
            lower, showing = yield from self.squeeze(pinned, lacks, showing, doubt)
            added = showing - lower
            if len(self.combinations.tops(added)) > 1:
                apart |= added
            pinned = self.combinations.closed(pinned | added)
        return (yield from self.certify(showing, apart, share))

    def smaller(self, pinned: PatchSet, showing: PatchSet) -> PatchSet:
        """Return the next set to try without some patches of SHOWING, none of which may be needed; it has PINNED."""
        rest = self.combinations.ordered(showing - pinned)
        if self.flaky or pinned == self.problem.low:  # the smaller end lacks the effect: that was proved
            return pinned
        return self.prefix(pinned, rest, len(rest) - leave_out(self.size, self.needed(pinned), len(rest), 0))

    def needed(self, pinned: PatchSet) -> int:
        """Return how many patches of PINNED are known to be needed: not those that only come along."""
        return len(self.combinations.tops(pinned - self.problem.low))

    def squeeze(
        self, pinned: PatchSet, lacks: PatchSet | None, showing: PatchSet, doubt: float
    ) -> Asking[tuple[PatchSet, PatchSet]]:
        """Return two sets, of which the first lacks the effect and the second, which is bigger, shows it, and no set
        between can be tested. PINNED is in both; LACKS is None if PINNED itself cannot be tested."""
        if self.flaky:
            rest = self.combinations.ordered(showing - pinned)
            low, high = yield from self.locate_flaky(pinned, rest, 0 if lacks is not None else -1, doubt)
            return self.prefix(pinned, rest, max(low, 0)), self.prefix(pinned, rest, high)
        lower, blocked = lacks or pinned, set[PatchSet]()
        while True:
            items = self.combinations.ordered(showing - lower)
            rest = self.combinations.ordered(showing - pinned)
            self.weights |= {item: 0.0 for item in self.items if item not in showing}
            inside = [0.0 if item in lower else 1 / len(items) for item in rest]
            self.suspect(rest, [(index, index + 1) for index in range(len(rest))], inside)
            self.possible = self.combinations.ordered(showing - self.problem.low)
            out = leave_out(self.size, self.needed(pinned), len(rest), len(items)) if len(items) > 1 else 0
            parts = halves(self.combinations, lower, showing, items, len(items) - out)
            chosen = next((part for part in parts if part not in blocked), None)
            if chosen is None or sum(lower < untestable < showing for untestable in blocked) >= _MOST_DETOURS:
                return lower, showing
            verdict = yield from self.verdict(chosen, f"{len(items)} candidates left", doubt)
            if verdict.outcome == "untestable":
                blocked.add(chosen)
            elif self.problem.effect(verdict.outcome):
                showing = chosen
            else:
                lower = chosen

    def certify(self, showing: PatchSet, apart: Set[str], share: float) -> Asking[Done]:
        """Prove that no patch can be dropped from SHOWING, which shows the effect; drop those that can.

        Those of APART are dropped one at a time, because nothing said yet that they are needed. If another can be
        dropped, a bigger set lacked the effect that a smaller one shows, and ddmin takes over.
        """

        def shows(chosen: PatchSet) -> Asking[bool]:
            verdict = yield from self.verdict(chosen, "a smaller set", share, "certificate")
            return self.problem.effect(verdict.outcome)

        while True:
            self.possible = self.combinations.ordered(showing - self.problem.low)
            needed = self.combinations.tops(showing - self.problem.low)
            dropped = {patch: self.combinations.without(showing, [patch]) for patch in needed}
            smaller = yield from first_showing([dropped[patch] for patch in needed if patch in apart], showing, shows)
            if smaller is not None:
                showing = smaller
                continue
            outcomes: list[TrialOutcome] = []
            for patch, chosen in dropped.items():
                others = self._lacking(patch, chosen)
                verdict = yield from self.weigh(chosen, f"without {patch}", LOOSE_DOUBT, "certificate", 1, others)
                outcomes.append(verdict.outcome)
            if not any(self.problem.effect(outcome) for outcome in outcomes):
                break
            smaller = yield from minimise(self.combinations, showing, self.problem.low, shows)
            if smaller == showing:
                break
            showing = smaller
        if "untestable" in outcomes:
            unsure = ", ".join(
                patch for patch, outcome in zip(needed, outcomes, strict=True) if outcome == "untestable"
            )
            self.notes.append(f"the set without it cannot be tested, so it may not be needed: {unsure}")
        if self._hidden():
            self.notes.append("the failure is not monotone: a set lacks the effect that a part of it shows")
        share = (1 - self.settings.confidence) / (len(needed) + 1)
        certificate = [(yield from self.line("the set", showing, share, self.with_others(showing), effect=True))]
        for patch, chosen in dropped.items():
            others = self._lacking(patch, chosen)
            certificate.append((yield from self.line(f"without {patch}", chosen, share, others, effect=False)))
        certificate.append((yield from self.line("none of it", self.problem.low, share, effect=False)))
        rest = yield from self.everything_else(needed, share)
        certified = self.certified(certificate) and (yield from self.differ_in_turn(showing, dropped.values()))
        alike = self.combinations.ordered(showing - self.problem.low - set(needed))
        along = tuple(
            (patch, tuple(top for top in needed if patch in self.combinations.closed([top]))) for patch in alike
        )
        weights = self.acquit([patch for patch in self.items if patch not in showing], certificate[0].verdict)
        weights |= {patch: self._membership(line) for patch, line in zip(needed, certificate[1:-1], strict=True)}
        weights |= dict.fromkeys(alike, 1 / self.size)
        in_order = tuple((patch, weights[patch]) for patch in self.items)
        notes = tuple(dict.fromkeys(self.notes))
        return Done(
            needed,
            certified,
            tuple(certificate),
            certified,
            self.flaky,
            in_order,
            notes,
            along,
            rest=rest,
            lacking=self.evidence.tally(self.problem.low),
        )

    def _lacking(self, patch: str, chosen: PatchSet) -> tuple[PatchSet, ...]:
        """Return bigger sets than CHOSEN without PATCH: if one lacks the effect, so does CHOSEN."""
        upper = self.combinations.without(self.problem.high, [patch]) | self.problem.low
        return self.between(upper, chosen, upper) if chosen < upper else ()

    def _hidden(self) -> bool:
        """Return whether a set lacks the effect although a part of it shows it."""
        if self.flaky:
            chances = {
                chosen: self._alone(chosen) for chosen, tally in self.evidence.tallies.items() if tally.conclusive
            }
            sure = {
                chosen: chance
                for chosen, chance in chances.items()
                if max(chance, 1 - chance) >= self.settings.confidence
            }
            tried = {chosen: chance > 0.5 for chosen, chance in sure.items()}
            known: Mapping[PatchSet, bool] = {**tried, self.problem.high: True, self.problem.low: False}
        else:
            known = {
                chosen: self.problem.count(tally).hits > 0
                for chosen, tally in self.evidence.tallies.items()
                if tally.conclusive
            }
        showing = [chosen for chosen, shows in known.items() if shows]
        return any(part < chosen for chosen, shows in known.items() if not shows for part in showing)

    def _membership(self, without: Line) -> float:
        """Return the probability that a patch is needed: that the set WITHOUT it lacks the effect."""
        verdict = without.verdict
        if verdict.outcome == "untestable":
            return 0.5
        sure = 1.0 if verdict.confidence is None else verdict.confidence
        return 1 - sure if self.problem.effect(verdict.outcome) else sure

    def acquit(self, others: Sequence[str], whole: Verdict) -> dict[str, float]:
        """Return the probabilities of OTHERS, one of which is needed only if the verdict WHOLE is wrong."""
        doubt = 0.0 if whole.confidence is None else 1 - whole.confidence
        return {name: doubt / len(others) for name in others}
