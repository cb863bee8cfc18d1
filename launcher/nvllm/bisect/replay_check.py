"""Repeats the decisions of a journal from its trials alone: they are the same on every machine.

A journal says what was tried and what followed from it. To trust the result of a journal from elsewhere, each record
is compared with what the search asks for, or concludes, at that point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from nvllm.bisect import records, search
from nvllm.bisect.answer import Done, NextTrial
from nvllm.bisect.combinations import PatchSet, set_hash
from nvllm.bisect.lookahead import MOST_MACHINES, Slots, lookahead
from nvllm.bisect.records import BisectState, End, JournalEntry, Judged, Lost, Sent, Tried
from nvllm.core.refusal import Refusal, Refused, refuse_any
from nvllm.trials.trial import Built

MOST_JOBS = 16
"""Trials that may run at the same time."""

_HOSTS = (Slots(4, one_host=True), Slots(MOST_JOBS, one_host=True))
_FLEETS = (Slots(4), Slots(MOST_MACHINES))
"""The slots to check, few first: most runs have no more, and it is quick."""


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
        Refusal("NV804", f"{where}:{number + 1}", expected, actual, cure)
        for number, expected, actual in _differing(entries)
    )
    return answer(records.fold(entry.record for entry in entries))


def _differing(entries: Sequence[JournalEntry]) -> Iterator[tuple[int, str, str]]:
    """Yield each record that differs from the search's decision: its number, the decision, and the record."""
    state = records.fold([entries[0].record])
    openings = deque([_Opening(state)], maxlen=MOST_JOBS)
    now = openings[0]
    for number, entry in enumerate(entries[1:], 1):
        record = entry.record
        expected = recorded = ""
        match record:
            case Sent():
                expected, recorded = (
                    _due(state, [now], record.chosen, _FLEETS, "task for"),
                    f"a task for {_named(state, record.chosen)}",
                )
            case Tried() if not record.by_hand and not record.task:  # a task was decided when it was sent
                expected, recorded = (
                    _due(state, openings, record.chosen, _HOSTS, "trial of"),
                    f"a trial of {_named(state, record.chosen)}",
                )
            case Judged():
                about = f" of {_named(state, record.chosen)}"
                concluded = search.concluded(state.problem, state.evidence, frozenset(record.chosen))
                expected = (concluded.outcome if concluded else "no verdict yet") + about
                recorded = record.outcome + about
            case End():
                expected, recorded = _end(state), _ending(record)
        if expected != recorded:
            yield number, expected, recorded
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
        self._ahead: dict[Slots, frozenset[PatchSet]] = {}

    def ahead(self, slots: Slots) -> frozenset[PatchSet]:
        """Return the sets that would have been tried in SLOTS at the same time."""
        if slots not in self._ahead:
            asked = isinstance(answer(self.state), NextTrial)
            trials = lookahead(self.state.problem, self.state.evidence, slots) if asked else []
            self._ahead[slots] = frozenset(trial.chosen for trial in trials)
        return self._ahead[slots]


def _due(
    state: BisectState, openings: Iterable[_Opening], tried: Iterable[str], kinds: Iterable[Slots], what: str
) -> str:
    """Return the set that the search wants in STATE: TRIED, if it wants that, or wanted it ahead in OPENINGS.

    Trials that run at the same time are recorded one after the other, so the opening may be several records back. KINDS
    are the slots that there may have been; WHAT says what is wanted, a ``trial of`` or a ``task for`` the set.
    """
    chosen, due = frozenset(tried), answer(state)
    asked = due.chosen if isinstance(due, NextTrial) else None
    if asked != chosen and any(chosen in opening.ahead(slots) for slots in kinds for opening in openings):
        asked = chosen
    return f"no further {what.split()[0]}" if asked is None else f"a {what} {_named(state, asked)}"


def _end(state: BisectState) -> str:
    due = answer(state)
    if not isinstance(due, Done):
        return "a search that goes on"
    return _ending(End(due.culprits, due.exact, due.certified))


def _ending(end: End) -> str:
    sure = "certified" if end.certified else "not certified"
    return f"the end {', '.join(end.culprits)} ({'exact' if end.exact else 'a range'}, {sure})"


def _named(state: BisectState, chosen: Iterable[str]) -> str:
    return f"{set_hash(chosen)} ({', '.join(state.problem.combinations.ordered(chosen)) or 'no patch'})"
