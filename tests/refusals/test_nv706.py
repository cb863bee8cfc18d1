"""NV706, restarts exhausted: the engine died more often than the profile lets it be started again."""

from __future__ import annotations

from support.plansamples import PLAN
from support.service_world import World, made

__all__ = ["made"]


def test_one_death_more_than_restarts(made: World) -> None:
    made.engine.fates = [made.engine.dies] * 3
    refusal = made.refusal()
    assert (refusal.code, refusal.where) == ("NV706", f"instance {PLAN.instance}")
    assert refusal.expected == "at most 2 restarts within 3600 s, the profile's restart"
    lines = refusal.found.splitlines()
    assert lines[0] == "3 deaths:"
    assert [line.split(" ", 1)[1] for line in lines[1:4]] == ["NV703 engine died: exit status 139"] * 3
    assert lines[-1] == "Segmentation fault"
    assert refusal.cure == f"less {made.run.log}"
    assert made.engine.asked == ["start", "kill", "remove"] * 3
    assert (made.state().stage, len(made.state().deaths)) == ("failed", 3)
