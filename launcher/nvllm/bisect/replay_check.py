"""The decisions of a journal, made again from its evidence alone: on any machine they are the same ones.

A journal says what was tried, and what followed. Whoever trusts the end of one that came from elsewhere wants to know
that it follows indeed; so each record is compared with what the search asks for and concludes where it stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from nvllm.bisect import driver, journal, search
from nvllm.bisect.combinations import set_hash
from nvllm.bisect.journal import BisectState, Built, End, JournalEntry, Judged, Tried
from nvllm.bisect.search import Done, NextTrial
from nvllm.bisect.verdict import PatchSet
from nvllm.core.refusal import Refusal, Refused, refuse_any

MOST_JOBS = 16
"""Trials that may run at the same time."""

_FEW_JOBS = 4
"""As many as most run; what so few may come to is soon known."""


def answer(state: BisectState) -> NextTrial | Done | Refused:
    """Return what STATE comes to: the next trial, what was found, or why nothing can be (NV801)."""
    try:
        return search.propose(state.problem, state.evidence)
    except Refused as refused:
        return refused


def repeat(entries: Sequence[JournalEntry], where: str) -> NextTrial | Done | Refused:
    """Make the decisions of ENTRIES, a journal that messages call WHERE, again, and return what they come to.

    Raises Refused NV804 with each record that is no decision of the search: a trial that was not asked for where it
    stands, nor ahead of one that was; a verdict that its trials do not allow; an end that they do not lead to.
    What a user decided, by `back` and `skip`, is taken as it is.
    """
    refuse_any(
        Refusal(
            "NV804",
            f"{where}:{number + 1}",
            expected,
            found,
            "copy the journal again from where it was written, or replay it with the nvllm that wrote it",
        )
        for number, expected, found in _differing(entries)
    )
    return answer(journal.fold(entry.record for entry in entries))


def _differing(entries: Sequence[JournalEntry]) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each record that is no decision of the search, what would be one, and what it is."""
    state = journal.fold([entries[0].record])
    openings = deque([_Opening(state)], maxlen=MOST_JOBS)
    for number, entry in enumerate(entries[1:], 1):
        record = entry.record
        said = None
        match record:
            case Tried():
                said = _trial(state, openings, record)
            case Judged():
                said = _verdict(state, record)
            case End():
                said = _end(state, record)
        if said is not None:
            yield number, *said
        state = state.after(record)
        if isinstance(record, End):
            openings.clear()  # what was ahead of the last trial is written down before the end
        if not isinstance(record, Built | Judged | End):
            openings.appendleft(_Opening(state))


class _Opening:
    """A state in which trials may have begun, several at the same time."""

    def __init__(self, state: BisectState) -> None:
        self.state = state
        self._ahead: dict[int, frozenset[PatchSet]] = {}

    def ahead(self, jobs: int) -> frozenset[PatchSet]:
        """Return the sets that JOBS trials at the same time would have been of."""
        if jobs not in self._ahead:
            asked = isinstance(answer(self.state), NextTrial)
            found = driver.ahead(self.state.problem, self.state.evidence, jobs) if asked else []
            self._ahead[jobs] = frozenset(request.chosen for request in found)
        return self._ahead[jobs]


def _trial(state: BisectState, openings: Iterable[_Opening], tried: Tried) -> tuple[str, str] | None:
    """Say what was to be tried instead of TRIED, if STATE did not ask for it, nor one of OPENINGS ahead of its time.

    Trials that run at the same time are written one after the other, so what one was asked by may lie some back.
    """
    chosen, wanted = frozenset(tried.chosen), answer(state)
    if isinstance(wanted, NextTrial) and wanted.chosen == chosen:
        return None
    if any(chosen in opening.ahead(jobs) for jobs in (_FEW_JOBS, MOST_JOBS) for opening in openings):
        return None
    asked = f"a trial of {_named(state, wanted.chosen)}" if isinstance(wanted, NextTrial) else "no further trial"
    return asked, f"a trial of {_named(state, chosen)}"


def _verdict(state: BisectState, judged: Judged) -> tuple[str, str] | None:
    chosen = frozenset(judged.chosen)
    found = search.concluded(state.problem, state.evidence, chosen)
    expected = found.outcome if found is not None else "no verdict yet"
    about = _named(state, chosen)
    return None if expected == judged.outcome else (f"{expected} of {about}", f"{judged.outcome} of {about}")


def _end(state: BisectState, end: End) -> tuple[str, str] | None:
    wanted = answer(state)
    if not isinstance(wanted, Done):
        return "a search that goes on", _ending(end)
    expected = End(wanted.culprits, wanted.exact, wanted.certified)
    return None if expected == end else (_ending(expected), _ending(end))


def _ending(end: End) -> str:
    sure = "certified" if end.certified else "not certified"
    return f"the end {', '.join(end.culprits)} ({'exact' if end.exact else 'a range'}, {sure})"


def _named(state: BisectState, chosen: PatchSet) -> str:
    return f"{set_hash(chosen)} ({', '.join(state.problem.combinations.ordered(chosen)) or 'no patch'})"
