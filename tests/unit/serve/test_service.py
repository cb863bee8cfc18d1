"""A service: what happens after a death, with and without a restart, and when a supervisor left its container."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.core.spec import RestartRules
from nvllm.host import locks
from nvllm.host.checks import Outcome
from nvllm.serve import service, supervisor
from nvllm.serve.examination import Examination, after_orphan
from support.plansamples import PLAN, FrontEnd
from support.serve_world import ID
from support.service_world import PAUSE, RULES, Clock, World, examination, made, orphaned

__all__ = ["made"]


def test_an_engine_that_dies_is_started_again(made: World) -> None:
    made.engine.fates = [made.engine.dies, made.stopped_by_the_user]
    made.serve()
    assert made.engine.asked == ["start", "kill", "remove", "start", "stop"]
    assert made.announced == 1, "its first readiness is the result of the command"
    state = made.state()
    assert (state.stage, state.reason) == ("stopped", "asked to stop")
    (death,) = state.deaths
    assert death.reason == "NV703 engine died: exit status 139"
    assert death.lines[-1] == "Segmentation fault"
    assert [note for note in made.noted.notes if note.startswith(("DIED", "RESTARTED"))] == [
        f"DIED {PLAN.instance}: {death.reason}; restart 1 of 2 within 3600 s, in 0 s",
        f"RESTARTED {PLAN.instance} after {death.reason}",
    ]
    events = [json.loads(line) for line in (made.run.path / "evidence.jsonl").read_text().splitlines()]
    assert [one["event"] for one in events if one["event"] in {"started", "death", "stopped"}] == [
        "started", "death", "started", "stopped",
    ]  # fmt: skip
    assert made.run.log.read_text().count("Segmentation fault") == 1, "the log goes on"


def test_it_is_off_by_default(made: World, front: FrontEnd) -> None:
    made.examination = examination(front, made.engine, None)
    made.engine.fates = [made.engine.dies]
    assert made.refusal().code == "NV703"
    assert (made.state().stage, made.state().deaths) == ("failed", ())


def test_what_never_was_ready_is_not_started_again(made: World, front: FrontEnd) -> None:
    front.status = 500
    assert made.refusal().code == "NV704"
    assert made.engine.asked.count("start") == 1


def test_a_restart_that_does_not_become_ready_counts(made: World, front: FrontEnd) -> None:
    def dies_and_its_heirs_do_not_answer() -> None:
        front.status = 500
        made.engine.dies()

    made.engine.fates = [dies_and_its_heirs_do_not_answer]
    assert made.refusal().code == "NV706"
    assert [one.reason.split()[0] for one in made.state().deaths] == ["NV703", "NV704", "NV704"]


def test_an_end_that_is_no_death_is_not_followed(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a cache that was changed while it was served."""
    changed = Refused([Refusal("NV907", "cache", "its bytes", "others", "nvllm bless")])

    def tampered() -> None:
        raise changed

    made.engine.fates = [tampered]
    assert made.refusal().code == "NV907"
    assert made.engine.asked == ["start", "kill", "remove"]


def test_every_restart_passes_every_check(made: World) -> None:
    refusal = Refusal("NV903", "manifest", "a cache that may be served", "a revocation", "nvllm bless")
    made.engine.fates = [made.engine.dies]
    made.examined = [replace(made.examination, refusals=(refusal,))]
    assert made.refusal() == refusal
    state = made.state()
    assert (state.stage, state.reason, len(state.deaths)) == ("failed", "a revocation", 1)


def test_it_is_asked_to_stop_in_the_pause(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "pause", lambda _rules, _deaths: 60.0)
    sleep = time.sleep

    def slept(seconds: float) -> None:
        if made.state().stage == "restarting":
            made.stopped_by_the_user()
        sleep(min(seconds, 0.01))

    monkeypatch.setattr(time, "sleep", slept)
    made.engine.fates = [made.engine.dies]
    made.serve()
    assert (made.state().stage, made.state().reason) == ("stopped", "asked to stop")
    assert made.engine.asked == ["start", "kill", "remove"]


def test_it_is_asked_to_stop_after_the_pause(made: World) -> None:
    """While everything is checked again: there is no container that `nvllm stop` could stop."""
    made.engine.fates = [made.engine.dies]

    def asked(*_arguments: Any, **_options: Any) -> Examination:
        made.stopped_by_the_user()
        return made.examination

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "examine", asked)
        refusal = made.refusal()
    assert refusal.found.startswith("it was asked to stop")
    assert (made.state().stage, made.engine.asked.count("start")) == ("failed", 2)


def test_an_interrupt_in_the_pause_is_recorded(made: World) -> None:
    made.noted.interrupt_at = "DIED"
    made.engine.fates = [made.engine.dies]
    with pytest.raises(KeyboardInterrupt):
        made.serve()
    assert (made.state().stage, made.state().reason) == ("stopped", "interrupted")


def test_pauses_double_up_to_a_limit() -> None:
    assert [PAUSE(RestartRules(pause=4), deaths) for deaths in (1, 2, 3, 20)] == [4.0, 8.0, 16.0, 600.0]


def test_old_deaths_do_not_count(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "time", Clock(2 * RULES.within))
    made.engine.fates = [made.engine.dies] * 5 + [made.stopped_by_the_user]
    made.serve()
    assert made.engine.asked.count("start") == 6, "five deaths, each long after the one before"
    assert len(made.state().deaths) == 1


# Orphans


def test_an_orphan_is_ended_and_the_profile_served(made: World) -> None:
    first = made.examination
    made.examination = replace(first, orphan=orphaned(made))
    made.examined = [first]
    made.serve()
    assert made.engine.asked == ["stop", "start", "stop"]
    assert [note for note in made.noted.notes if note.startswith("ORPHAN")] == [
        f"ORPHAN {PLAN.instance}: nobody supervises container {ID[:12]}; it is ended"
    ]


def test_an_orphan_lives_on_if_anything_is_refused(made: World) -> None:
    other = Refusal("NV903", "manifest", "a cache that may be served", "a revocation", "nvllm bless")
    made.examination = replace(made.examination, orphan=orphaned(made), refusals=(other,))
    assert made.refusal() == other
    assert made.engine.asked == []


def test_an_orphan_stays_where_another_serve_came_first(made: World) -> None:
    """Between the examination and the locks another process took them."""
    made.examination = replace(made.examination, orphan=orphaned(made))
    holder = locks.Holder(1, "2026-11-20T10:00:00Z", "nvllm serve", PLAN.instance)
    keys = supervisor.keys(made.examination.plan)
    with locks.acquire_all(made.places.locks, keys, holder), pytest.raises(Refused) as caught:
        made.serve()
    assert {one.code for one in caught.value.refusals} == {"NV508"}
    assert made.engine.asked == []


def test_an_examination_leaves_out_what_ends_with_an_orphan(made: World) -> None:
    left = orphaned(made)
    by_it = [Refusal(code, code, "", "", "") for code in ("NV505", "NV507", "NV508")]
    other = Refusal("NV506", "NV506", "", "", "")
    outcomes = tuple(Outcome(one.code, one.code, "refused", "", (one,)) for one in (*by_it, other))
    found = after_orphan(made.places, replace(made.examination, refusals=(*by_it, other), outcomes=outcomes))
    assert (found.orphan, found.refusals) == (left, (other,))
    assert [one.state for one in found.outcomes] == ["ok", "ok", "ok", "refused"]
    assert found.outcomes[0].detail == f"container {ID[:12]} is an orphan, which `nvllm serve` ends first"
