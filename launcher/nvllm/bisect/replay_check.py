"""Repeats the decisions of a journal from its trials alone: they are the same on every machine.

A journal says what was tried and what followed from it. To trust the result of a journal from elsewhere, each record
is compared with what the search asks for, or concludes, at that point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from nvllm.bisect import forecast, records, search
from nvllm.bisect.combinations import PatchSet, set_hash
from nvllm.bisect.lookahead import MOST_MACHINES, lookahead
from nvllm.bisect.records import BisectState, End, JournalEntry, Judged, Lost, Sent, Tried
from nvllm.bisect.search import Done, NextTrial
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.trials.trial import Built

MOST_JOBS = 16
"""Trials that may run at the same time."""

_FEW_JOBS = 4
"""The number of jobs to check first: most runs have no more, and it is quick."""


def answer(state: BisectState) -> NextTrial | Done | Refused:
    """Return the next trial of STATE, what was found, or the refusal that ends the search (NV801)."""
    try:
        return search.propose(state.problem, state.evidence)
    except Refused as refused:
        return refused


def repeat(entries: Sequence[JournalEntry], where: str) -> NextTrial | Done | Refused:
    """Repeat the decisions of ENTRIES, a journal that messages call WHERE, and return their `answer`.

    Raises Refused NV804 for each record that the search did not decide: a trial that it did not ask for at that point
    or ahead of it, a verdict that the trials do not allow, or an end that they do not lead to. `back`, `skip`, limits
    and verdicts by hand are the user's decisions and are accepted.
    """
    cure = "copy the journal again from where it was written, or use the version of nvllm which wrote it"
    refuse_any(
        Refusal("NV804", f"{where}:{number + 1}", expected, found, cure)
        for number, expected, found in _differing(entries)
    )
    return answer(records.fold(entry.record for entry in entries))


def _differing(entries: Sequence[JournalEntry]) -> Iterator[tuple[int, str, str]]:
    """Yield each record that differs from the search's decision: its number, the decision, and the record."""
    state = records.fold([entries[0].record])
    openings = deque([_Opening(state)], maxlen=MOST_JOBS)
    now = openings[0]
    for number, entry in enumerate(entries[1:], 1):
        record = entry.record
        expected = found = ""
        match record:
            case Sent():
                expected, found = now.sent(record), f"a task for {_named(state, record.chosen)}"
            case Tried() if not record.by_hand and not record.task:  # a task was decided when it was sent
                expected, found = _trial(state, openings, record), f"a trial of {_named(state, record.chosen)}"
            case Judged():
                about = f" of {_named(state, record.chosen)}"
                concluded = search.concluded(state.problem, state.evidence, frozenset(record.chosen))
                expected, found = (concluded.outcome if concluded else "no verdict yet") + about, record.outcome + about
            case End():
                expected, found = _end(state), _ending(record)
        if expected != found:
            yield number, expected, found
        state = state.after(record)
        if isinstance(record, End):
            openings.clear()  # all trials that ran ahead are recorded before the end
        if not isinstance(record, Judged | Sent | Lost):
            now = _Opening(state)
        if not isinstance(record, Built | Judged | End | Sent | Lost):
            openings.appendleft(now)


class _Opening:
    """A state in which trials may have started, several at the same time."""

    def __init__(self, state: BisectState) -> None:
        self.state = state
        self._ahead: dict[int, frozenset[PatchSet]] = {}
        self._machines: dict[int, frozenset[PatchSet]] = {}

    def ahead(self, jobs: int) -> frozenset[PatchSet]:
        """Return the sets that JOBS trials at the same time would have tried."""
        if jobs not in self._ahead:
            asked = isinstance(answer(self.state), NextTrial)
            found = forecast.ahead(self.state.problem, self.state.evidence, jobs) if asked else []
            self._ahead[jobs] = frozenset(one.chosen for one in found)
        return self._ahead[jobs]

    def sent(self, sent: Sent) -> str:
        """Return the task that the search wants in this state: that of SENT, if any number of machines gets it."""
        wanted = answer(self.state)
        asked = frozenset(sent.chosen)
        if not isinstance(wanted, NextTrial):
            return "no further task"
        if wanted.chosen != asked and not any(asked in self._on(machines) for machines in (_FEW_JOBS, MOST_MACHINES)):
            asked = wanted.chosen
        return f"a task for {_named(self.state, asked)}"

    def _on(self, machines: int) -> frozenset[PatchSet]:
        if machines not in self._machines:
            found = lookahead(self.state.problem, self.state.evidence, machines)
            self._machines[machines] = frozenset(one.chosen for one in found)
        return self._machines[machines]


def _trial(state: BisectState, openings: Iterable[_Opening], tried: Tried) -> str:
    """Return the trial that the search wants in STATE: TRIED, if it wants that, or wanted it ahead in OPENINGS.

    Trials that run at the same time are recorded one after the other, so the opening may be several records back.
    """
    chosen, wanted = frozenset(tried.chosen), answer(state)
    asked = wanted.chosen if isinstance(wanted, NextTrial) else None
    if asked != chosen and any(chosen in one.ahead(jobs) for jobs in (_FEW_JOBS, MOST_JOBS) for one in openings):
        asked = chosen
    return "no further trial" if asked is None else f"a trial of {_named(state, asked)}"


def _end(state: BisectState) -> str:
    wanted = answer(state)
    if not isinstance(wanted, Done):
        return "a search that goes on"
    return _ending(End(wanted.culprits, wanted.exact, wanted.certified))


def _ending(end: End) -> str:
    sure = "certified" if end.certified else "not certified"
    return f"the end {', '.join(end.culprits)} ({'exact' if end.exact else 'a range'}, {sure})"


def _named(state: BisectState, chosen: Iterable[str]) -> str:
    return f"{set_hash(chosen)} ({', '.join(state.problem.combinations.ordered(chosen)) or 'no patch'})"
