"""The ordered search: the patch with which the effect begins, or the range of patches that contains it."""

from __future__ import annotations

from nvllm.bisect.answer import Done
from nvllm.bisect.combinations import PatchSet, split
from nvllm.bisect.weighing import LOOSE_DOUBT, Asking, Search


class OrderedSearch(Search):
    """A search over the prefixes of the series."""

    def located(self) -> Asking[Done]:
        doubt = (1 - self.settings.confidence) / 2
        low, high = yield from self.locate(frozenset(), self.items, 0, 1 - self.settings.confidence)
        culprits = self.items[low:high]
        self.possible = culprits
        exact = high - low == 1
        if not exact:
            between = [self.evidence.tally(self.prefix(frozenset(), self.items, m)) for m in range(low + 1, high)]
            why = "cannot be tested" if all(tally.blocked for tally in between) else "took too many trials"
            self.notes.append(f"what lies between these patches {why}: one of them is the culprit")
        below, above = (self.prefix(frozenset(), self.items, length) for length in (low, high))
        rest_of = self.combinations.without(self.problem.high, culprits) | self.problem.low
        without = self.between(rest_of, below, rest_of)
        if not self.settings.same_bytes and self.settings.rates is None:
            # builds with the culprit do not settle what lies below it, but tell how much builds differ
            culprit = self.combinations.closed(culprits) | self.problem.low
            without += self.with_others(above) or self.with_others(culprit)
        lines = (
            (yield from self.line("with the culprit", above, doubt, self.with_others(above), effect=True)),
            (yield from self.line("without it", below, doubt, without, effect=False)),
        )
        rest = yield from self.everything_else(culprits, doubt)
        certified = self.certified(lines) and exact and (yield from self.differ_in_turn(above, [below]))
        first = exact and all(self._lacks(self.prefix(frozenset(), self.items, m)) for m in range(low + 1))
        if certified and self.flaky:
            self.raise_to(culprits[0], 1 - sum(1 - (line.verdict.confidence or 0.0) for line in lines))
        weights = tuple(self.weights.items())
        notes, lacking = tuple(self.notes), self.evidence.tally(self.problem.low)
        return Done(
            culprits, exact, lines, certified, self.flaky, weights, notes, first=first, rest=rest, lacking=lacking
        )

    def raise_to(self, culprit: str, chance: float) -> None:
        """Raise the probability of CULPRIT to CHANCE: other builds than those of prefixes count for a certificate."""
        before = self.weights[culprit]
        if before < chance:
            self.weights = {name: weight * (1 - chance) / (1 - before) for name, weight in self.weights.items()}
            self.weights[culprit] = chance

    def _lacks(self, chosen: PatchSet) -> bool:
        """Return whether CHOSEN was tried and lacks the effect."""
        if chosen == self.problem.low:
            return True
        if self.flaky:
            return self.decided.get(chosen) is False
        seen = self.problem.count(self.evidence.tally(chosen))
        return seen.misses > 0 and not seen.hits

    def locate(self, pinned: PatchSet, rest: tuple[str, ...], low: int, share: float) -> Asking[tuple[int, int]]:
        """Return (low, high): the first LOW patches of REST lack the effect, the first HIGH show it, and no number
        between can be tested. LOW is -1 if it is not known that the pinned patches alone lack the effect."""
        if self.flaky:
            return (yield from self.locate_flaky(pinned, rest, low, max(share, LOOSE_DOUBT)))
        high = len(rest)
        blocked: set[int] = set()
        self.narrow(rest, low, high)
        while candidates := [m for m in range(low + 1, high) if m not in blocked]:
            middle = split(low, high)
            m = min(candidates, key=lambda length: (abs(length - middle), length))
            chosen = self.prefix(pinned, rest, m)
            verdict = yield from self.verdict(chosen, f"{high - low} candidates left", share)
            if verdict.outcome == "untestable":
                blocked.add(m)
            elif self.problem.effect(verdict.outcome):
                high = m
            else:
                low = m
            self.narrow(rest, low, high)
            self.possible = rest[max(low, 0) : high]
        return low, high

    def narrow(self, rest: tuple[str, ...], low: int, high: int) -> None:
        """Set the probabilities when the last needed patch of REST is between LOW and HIGH."""
        self.suspect(rest, [(0, max(low, 0)), (max(low, 0), high), (high, len(rest))], [0.0, 1.0, 0.0])
