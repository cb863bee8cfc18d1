"""The search for the patches that cause an effect: chooses the next set to try, or says what was found.

`propose` is a pure function of the problem and the evidence so far. Each call runs the whole search on the evidence, up
to the first set with too few trials: there the search, a generator, yields one more trial of that set. So the journal
is the only state: to resume is to ask again, and to withdraw a verdict is to ask with less evidence.

Two ends are proved first: the LOW set lacks the effect, and the HIGH set, which contains it, shows it.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from nvllm.bisect import homogeneity, posterior
from nvllm.bisect.answer import Done, NextTrial, Stopped
from nvllm.bisect.combinations import PatchSet
from nvllm.bisect.minimal import SetSearch
from nvllm.bisect.ordered import OrderedSearch
from nvllm.bisect.problem import Problem, SearchEvidence, Verdict
from nvllm.bisect.weighing import Asking, Search, step
from nvllm.core.refusal import Refused

_SUSPECT = 0.045
"""How probable builds that differ must be for further trials of the same builds, which may tell."""

_RARER = 2
"""How much more patience a set gets in a search for a further cause, which may show more rarely than the first."""

_MAY_DIFFER = "builds may differ too much for a certificate"
_UNEVEN = "sets that should fail equally often do not: another patch changes how often it fails"
_NOT_CONFIRMED = "another build contradicts the certificate: the failure is not monotone"
_REST_SHOWS = "everything without it shows the effect too: there is another cause"
_OR_DIFFER = ", or builds differ"


def propose(problem: Problem, evidence: SearchEvidence) -> NextTrial | Done:
    """Return the next trial to run, or what was found. Raises Refused NV801 if an end does not behave as declared.

    The set of the next trial is closed, free of conflicts, and not given up. Where a limit of the settings is reached,
    or the failure rate has fallen, the answer is the best so far, which is not certified.
    """
    search = _search(problem, evidence)
    answer = step(_run(search))
    match answer:
        case Done():
            return answer
        case Stopped(reason):
            return replace(_best(problem, evidence, reason), certified=False)
        case NextTrial(chosen):
            assert problem.combinations.valid(chosen)
            stopped = problem.reached(evidence)
            return _best(problem, evidence, stopped) if stopped else answer


def _best(problem: Problem, evidence: SearchEvidence, stopped: str) -> Done:
    """Return the best answer that EVIDENCE allows, for a search that ended because of STOPPED.

    The watch of the failure rate, which may be what ended the search, is left out: it hides no trial.
    """
    search = _search(problem, evidence)
    with contextlib.suppress(Refused):
        step(_located(search))
    if (complete := _complete(search)) is not None:
        return replace(complete, stopped=stopped)
    spread = search.spread(search.possible) if search.flaky and search.settings.rates is None else None
    return Done(
        search.possible,
        exact=False,
        certificate=(),
        certified=False,
        flaky=search.flaky,
        posterior=tuple(search.weights.items()),
        notes=tuple(search.notes),
        stopped=stopped,
        spread=spread,
    )


def _complete(search: Search) -> Done | None:
    """Return what SEARCH has found, with what its search for further causes has found."""
    beyond = None if search.beyond is None else _complete(search.beyond)
    return search.complete if search.complete is None or beyond is None else replace(search.complete, further=(beyond,))


def concluded(problem: Problem, evidence: SearchEvidence, chosen: PatchSet) -> Verdict | None:
    """Return the verdict on CHOSEN that its own trials in EVIDENCE allow, or None while it is open."""

    def verdict(search: Search) -> Asking[Verdict]:
        if chosen in (problem.low, problem.high):
            yield from search.prove_ends()
        return (yield from search.verdict(chosen, "", 1 - problem.settings.confidence))

    try:
        answer = step(verdict(_search(problem, evidence)))
    except Refused:
        return None
    return answer if isinstance(answer, Verdict) else None


def beliefs(problem: Problem, evidence: SearchEvidence) -> tuple[tuple[str, float], ...]:
    """Return the probability of each item to be a culprit after EVIDENCE; it may be final.

    In an ordered search there is one culprit, so the probabilities add up to 1. A set search looks for the last patch
    that is needed; nothing is known yet about the patches before it, and each is assumed to be needed with probability
    1/n for n items. Nothing is known before both ends are proved.
    """
    search = _search(problem, evidence)
    with contextlib.suppress(Refused):
        answer = step(_located(search))
        if isinstance(answer, Done):
            return answer.posterior
    return tuple(search.weights.items()) if search.complete is None else search.complete.posterior


def _search(problem: Problem, evidence: SearchEvidence) -> Search:
    return OrderedSearch(problem, evidence) if problem.mode == "ordered" else SetSearch(problem, evidence)


def _run(search: Search) -> Asking[Done]:
    """Return what SEARCH finds, while its failure rate is watched."""
    yield from search.prove_ends()
    watched = search.flaky and search.settings.rates is None
    if watched:
        yield from search.watch(at_the_end=False)
    done = yield from search.located()
    if watched:
        done = yield from _if_builds_agree(search, done)
        if done.certified:
            yield from search.watch(at_the_end=True)
    return _with_spread(search, (yield from _with_further(search, done)))


def _with_spread(search: Search, done: Done) -> Done:
    """Return DONE with the spread of its builds, if the failure is flaky."""
    differing = search.flaky and search.settings.rates is None and done.spread is None
    return replace(done, spread=search.spread(done.culprits)) if differing else done


def _if_builds_agree(search: Search, done: Done) -> Asking[Done]:
    """Return DONE, if it is certified with the spread of its builds. Then it is so no more if they differ, or if that
    cannot be told.

    Asks for trials of further builds that must agree, and for more of the same builds while these may tell.
    """
    if not done.certified:
        return done
    spread, rest, note = search.spread(done.culprits), done.rest, ""
    otherwise = "" if spread.by_fact else _OR_DIFFER
    if rest is not None and (yield from search.still_shows(rest)):
        note = _REST_SHOWS + otherwise
    elif spread.differs:
        if spread.chance < search.settings.confidence:
            yield from search.compare_builds()
        note = _UNEVEN if spread.by_fact else _MAY_DIFFER
    elif not (spread.mixed or spread.by_fact):
        yield from search.compare_builds()
        note = _MAY_DIFFER
    elif not (yield from search.confirmed(done)):
        if not spread.by_fact:
            yield from search.compare_builds()
        note = _NOT_CONFIRMED + otherwise
    elif spread.chance > max(_SUSPECT, 1 - search.settings.confidence):
        yield from search.compare_builds()
        note = _MAY_DIFFER if spread.chance > max(homogeneity.DOUBT, 1 - search.settings.confidence) else ""
    return replace(done, spread=spread, certified=not note, notes=(*done.notes, *filter(None, [note])))


def _located(search: Search) -> Asking[Done]:
    """Return what SEARCH finds."""
    yield from search.prove_ends()
    return (yield from _with_further(search, (yield from search.located())))


def _agreed(search: Search) -> Asking[Done]:
    """Return what SEARCH, one for a further cause, finds; see `_if_builds_agree`."""
    yield from search.prove_ends()
    done = yield from search.located()
    if search.flaky and search.settings.rates is None:
        done = yield from _if_builds_agree(search, done)
    return _with_spread(search, (yield from _with_further(search, done)))


def _may_show(search: Search, rest: PatchSet) -> Asking[bool]:
    """Return whether REST, everything without the culprits, ever shows the effect, after enough trials of it.

    They are as many as bound its rate by `posterior.SOUND` if none shows it: a further cause may show more rarely.
    """
    tally = search.evidence.tally(rest)
    seen = search.problem.count(tally)
    patient = tally.conclusive < search.settings.patience and not tally.blocked
    if patient and not seen.hits and posterior.at_most(seen) > posterior.SOUND:
        yield from search.want(rest, f"how often everything without it shows the effect: {tally}", "certificate")
    return seen.hits > 0


def _with_further(search: Search, done: Done) -> Asking[Done]:
    """Return DONE with the causes that are found without it, if they are wanted and there are any."""
    rest = done.rest
    if not search.problem.further or rest is None:
        return done
    evidence = search.evidence
    if search.flaky and search.settings.rates is None:
        if not (yield from _may_show(search, rest.chosen)):
            return done
        evidence = evidence.within(rest.chosen)
    elif not rest.holds or not search.problem.effect(rest.verdict.outcome):
        return done
    search.complete = done
    settings = replace(search.settings, patience=_RARER * search.settings.patience)
    search.beyond = _search(replace(search.problem, high=rest.chosen, settings=settings), evidence)
    try:
        second = yield from _agreed(search.beyond)
    except Refused as refused:
        search.beyond = None
        return replace(done, notes=(*done.notes, f"a further cause cannot be searched for: {refused}"))
    search.beyond = None
    other = dict(second.posterior)
    chances = tuple((name, max(chance, other.get(name, 0.0))) for name, chance in done.posterior)
    return replace(done, further=(replace(second, further=()), *second.further), posterior=chances)
