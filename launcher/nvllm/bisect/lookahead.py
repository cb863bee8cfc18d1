"""Which trials run at the same time on several machines: the next one, and those that most likely follow from it.

Every trial of the list is one that the search itself would ask for, if the trials before it end as is likely. So the
search on N machines asks for nothing else than the search on one, and comes to the same answer in fewer rounds: both
ends are proved at once, both halves of the half that is next are tried with it, and a certificate is tried whole.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.forecast import guess_next
from nvllm.bisect.problem import Problem, SearchEvidence
from nvllm.bisect.search import NextTrial, propose
from nvllm.trials.trial import Trial

MOST_MACHINES = 64

_SELDOM = 0.1
"""The chance below which an outcome is not guessed."""

_EXPECTED = 0.95
"""The chance that an end behaves as declared, and that a certificate holds."""

_BEFORE = 0.1
"""Trials of each outcome that a set is taken to have had before its first one: a second trial seldom differs."""

_TOO_UNLIKELY = 0.03
"""The chance below which no machine gets a trial: it waits for one that is surer to be needed."""

_GUESSES = 4
"""Guessed trials to look at, for each machine."""


def lookahead(problem: Problem, evidence: SearchEvidence, machines: int) -> list[NextTrial]:
    """Return up to MACHINES trials to run at the same time, the surest to be needed first; the first is the next one.

    A set is in the list as often as it is to be tried at the same time. The list for fewer machines is its beginning.
    """
    first = propose(problem, evidence)
    assert isinstance(first, NextTrial)
    found: list[NextTrial] = []
    known: set[tuple[PatchSet, int]] = set()
    order = itertools.count()
    waiting = [(-1.0, next(order), evidence, first)]
    for _ in range(_GUESSES * MOST_MACHINES):
        if not waiting or len(found) >= machines:
            break
        chance, _, before, wanted = heapq.heappop(waiting)
        nth = (wanted.chosen, before.tally(wanted.chosen).trials)
        if nth not in known:  # two outcomes may lead to the same trial
            known.add(nth)
            found.append(wanted)
        if len(found) < machines:
            for trial, likely in _outcomes(problem, before, wanted):
                guessed = _after(before, wanted, trial)
                answer = guess_next(problem, guessed) if -chance * likely >= _TOO_UNLIKELY else None
                if answer is not None:
                    heapq.heappush(waiting, (chance * likely, next(order), guessed, answer))
    return found


def to_send(
    problem: Problem, evidence: SearchEvidence, under_way: Sequence[PatchSet], machines: int
) -> list[NextTrial]:
    """Return the trials to begin now, while UNDER_WAY has the set of each trial that runs on one of MACHINES."""
    running = Counter(under_way)
    found: list[NextTrial] = []
    for one in lookahead(problem, evidence, machines):
        if running[one.chosen]:
            running[one.chosen] -= 1
        else:
            found.append(one)
    return found[: machines - len(under_way)]


def _outcomes(problem: Problem, evidence: SearchEvidence, wanted: NextTrial) -> tuple[tuple[Trial, float], ...]:
    """Return the outcomes of the trial WANTED that are likely, each with its chance. Untestable is not guessed."""
    seen = evidence.tally(wanted.chosen)
    if seen.conclusive:
        bad = (seen.bad + _BEFORE) / (seen.conclusive + 2 * _BEFORE)
    elif wanted.purpose == "end":
        bad = _EXPECTED if wanted.chosen == problem.ends["bad"] else 1 - _EXPECTED
    elif wanted.purpose == "certificate":  # each set of it but the cause, which was tried, lacks the effect
        bad = _EXPECTED if problem.find == "fix" else 1 - _EXPECTED
    else:
        bad = 0.5
    both = ((Trial("bad"), bad), (Trial("good"), 1 - bad))
    return tuple((trial, likely) for trial, likely in both if likely >= _SELDOM)


def _after(evidence: SearchEvidence, wanted: NextTrial, trial: Trial) -> SearchEvidence:
    """Return EVIDENCE as if WANTED had ended as TRIAL."""
    guess = evidence.tally(wanted.chosen).plus(trial)
    return replace(
        evidence,
        tallies={**evidence.tallies, wanted.chosen: guess},
        built={*evidence.built, wanted.chosen},
        tried=evidence.trials + 1,
    )
