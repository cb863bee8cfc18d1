"""Which trials run at the same time in several slots: the next one, and those that most likely follow from it.

Every trial of the list is one that the search itself would ask for, if the trials before it end as is likely. So the
search in N slots asks for nothing else than the search in one, and comes to the same answer in fewer rounds: both
ends are proved at once, both halves of the half that is next are tried with it, and a certificate is tried whole.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nvllm.bisect.answer import NextTrial
from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.forecast import guess_next
from nvllm.bisect.problem import Problem, SearchEvidence
from nvllm.bisect.search import propose
from nvllm.trials.trial import Trial

MOST_MACHINES = 64
"""Trials at once; the driver has one thread for each."""

_SELDOM = 0.1
"""The chance below which an outcome is not guessed."""

_EXPECTED = 0.95
"""The chance that an end behaves as declared, and that a certificate holds."""

_BEFORE = 0.1
"""Trials of each outcome that a set is taken to have had before its first one: a second trial seldom differs."""

_TOO_UNLIKELY = 0.03
"""The chance below which no slot gets a trial: it waits for one that is surer to be needed."""

_GUESSES = 4
"""Trials whose outcomes are guessed, for each slot."""

_EVEN = ((Trial("bad"), 0.5), (Trial("good"), 0.5))
"""The guesses of one host, whatever it tries: a replay of its journals, also of earlier ones, repeats them."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Where trials run at the same time: COUNT slots, each on a machine of its own, or all on ONE_HOST.

    One host tries no set twice at the same time: two engines of one image and profile have the same serve hash, and
    only one of them can lock it. Until both ends are proved it tries nothing else: without them there is no search.
    """

    count: int
    one_host: bool = False


def lookahead(problem: Problem, evidence: SearchEvidence, slots: Slots) -> list[NextTrial]:
    """Return the trials to run at the same time in SLOTS, the surest to be needed first; the first is the next one.

    A set is in the list as often as it is to be tried at the same time. The list for fewer slots is its beginning.
    """
    first = propose(problem, evidence)
    assert isinstance(first, NextTrial)
    trials: list[NextTrial] = []
    known: set[tuple[PatchSet, int]] = set()
    order = itertools.count()
    # heapq gives the least first, so a chance is negative; of equal ones the number decides.
    waiting = [(-1.0, next(order), evidence, first)]
    # For a fleet the same whatever its size: the list for fewer machines is the beginning of that for more.
    guesses = _GUESSES * (slots.count if slots.one_host else MOST_MACHINES)
    while waiting and len(trials) < slots.count:
        chance, _, before, asked = heapq.heappop(waiting)
        nth = (asked.chosen, 0 if slots.one_host else before.tally(asked.chosen).trials)
        if nth not in known:  # two outcomes may lead to the same trial
            known.add(nth)
            trials.append(asked)
        if len(trials) == slots.count or not guesses:
            continue
        guesses -= 1
        for trial, likely in _EVEN if slots.one_host else _outcomes(problem, before, asked):
            unlikely = not slots.one_host and -chance * likely < _TOO_UNLIKELY
            answer = None if unlikely else guess_next(problem, guessed := before.after(asked.chosen, trial))
            if answer is None or (slots.one_host and first.purpose == "end" and answer.purpose != "end"):
                continue
            heapq.heappush(waiting, (chance * likely, next(order), guessed, answer))
    return trials


def to_begin(
    problem: Problem, evidence: SearchEvidence, under_way: Sequence[PatchSet], slots: Slots
) -> list[NextTrial]:
    """Return the trials to begin now, while UNDER_WAY has the set of each trial that runs in one of SLOTS."""
    running = Counter(under_way)
    waiting: list[NextTrial] = []
    for trial in lookahead(problem, evidence, slots):
        if running[trial.chosen]:
            running[trial.chosen] -= 1
        else:
            waiting.append(trial)
    return waiting[: slots.count - len(under_way)]


def _outcomes(problem: Problem, evidence: SearchEvidence, asked: NextTrial) -> tuple[tuple[Trial, float], ...]:
    """Return the outcomes of the trial ASKED that are likely, each with its chance. Untestable is not guessed."""
    seen = evidence.tally(asked.chosen)
    if seen.conclusive:
        bad = (seen.bad + _BEFORE) / (seen.conclusive + 2 * _BEFORE)
    elif asked.purpose == "end":
        bad = _EXPECTED if asked.chosen == problem.ends["bad"] else 1 - _EXPECTED
    elif asked.purpose == "certificate":  # each set of it but the cause, which was tried, lacks the effect
        bad = _EXPECTED if problem.find == "fix" else 1 - _EXPECTED
    else:
        bad = 0.5
    both = ((Trial("bad"), bad), (Trial("good"), 1 - bad))
    return tuple((trial, likely) for trial, likely in both if likely >= _SELDOM)
