"""NV707, not the same service: after a death the profile is no longer what was served before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvllm.core.refusal import Refused
from nvllm.core.spec import Access
from nvllm.serve import service
from support import blessings_world
from support.service_world import World, made

__all__ = ["made"]


def test_another_serve_hash_another_port_and_another_key(made: World) -> None:
    """One list of all changes that came back."""
    plan = made.examination.plan
    wrong = []
    with_key = replace(plan, access=Access(key_file="/keys/api"))
    for changed in (replace(plan, serve_hash="e" * 64), replace(plan, port=plan.port + 1), with_key):
        made.engine.asked.clear()
        made.engine.fates = [made.engine.dies]
        made.examined = [replace(made.examination, plan=changed)]
        refusal = made.refusal()
        expected = (
            f"what was served before: serve hash {plan.serve_hash[:12]}, 127.0.0.1:{plan.port}, no key, not blessed"
        )
        key = "key /keys/api" if changed is with_key else "no key"
        found = f"serve hash {changed.serve_hash[:12]}, 127.0.0.1:{changed.port}, {key}, not blessed"
        seen = (refusal.code, refusal.expected, refusal.found, refusal.cure, made.engine.asked.count("start"))
        if seen != ("NV707", expected, found, made.served.command, 1):
            wrong.append(seen)
    assert wrong == []
    assert (made.state().stage, len(made.state().deaths)) == ("failed", 1)


def test_a_blessed_profile_does_not_come_back_unblessed(made: World) -> None:
    """Not even where everything else is the same, as after `blessed: true` was taken out of its spec."""
    manifest = blessings_world.bless(blessings_world.TREE)
    with pytest.raises(Refused) as caught:
        service.examined_again(made.served, replace(made.examination, manifest=manifest))
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.found.rpartition(", ")[2]) == ("NV707", "not blessed")
