"""Fresh instances: their names, their ports, and what is cleared of them."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact
from nvllm.serve import fresh, owners
from nvllm.serve.examination import Depth, Examination
from nvllm.serve.fresh import FreshInstances
from support.plansamples import PLAN, build, places, project
from support.serve_world import examination


@dataclass
class Containers:
    """An engine with containers, which keeps what is removed."""

    names: tuple[str, ...]
    removed: list[str] = field(default_factory=list)

    def containers(self) -> tuple[ContainerFact, ...]:
        return tuple(ContainerFact(one, {INSTANCE_LABEL: one}, running=True, id=one) for one in self.names)

    def kill(self, container: str) -> None:
        pass

    def remove(self, container: str) -> None:
        self.removed.append(container)


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", fresh.free_port()))


def test_only_instances_of_the_purpose_are_cleared(tmp_path: Path) -> None:
    """Not those of another project or home either: it may hold the lock of its own."""
    mine, home, other = project(tmp_path), places(tmp_path).id[:7], places(tmp_path / "other").id[:7]
    left = f"nvllm-demo-eager-ablate-{mine.id[:7]}-{home}-1-1"
    others = (
        "nvllm-demo-eager",
        f"nvllm-demo-eager-ablate-0000000-{home}-1-1",
        f"nvllm-demo-eager-ablate-{mine.id[:7]}-{other}-1-1",
        f"nvllm-demo-eager-bisect-{mine.id[:7]}-{home}-1-1",
    )
    engine = Containers((left, *others))
    FreshInstances(mine, places(tmp_path), cast("Engine", engine), "ablate", "nvllm ablate").clear("demo", "eager")
    assert engine.removed == [left]


def test_a_trial_is_its_projects_until_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And if its process was killed, until the next one of the same purpose clears what is left."""
    mine, other, where = project(tmp_path / "mine"), project(tmp_path / "other"), places(tmp_path)
    names = []

    def examined(*arguments: Any) -> Examination:
        names.append(arguments[3].name)
        return examination(replace(PLAN, instance=names[-1]), None)

    monkeypatch.setattr(fresh, "examine_build", examined)
    engine = cast("Engine", Containers(()))
    trials = FreshInstances(mine, where, engine, "bisect", "nvllm bisect run")
    with trials.examined(build(), "eager", Depth.UNBLESSED):
        assert owners.owner(where, names[0]) == str(mine.root)
        with pytest.raises(Refused) as caught:
            owners.check(other, where, names[0])
        assert caught.value.refusals[0].code == "NV921"
    assert owners.owner(where, names[0]) is None
    killed = f"nvllm-demo-eager-bisect-{mine.id[:7]}-{where.id[:7]}-1-1"
    owners.claim(mine, where, killed)
    trials.clear("demo", "eager")
    assert list(where.instances.glob("nvllm-*")) == []


def test_one_profile_is_replaced() -> None:
    of = build()
    changed = fresh.with_profile(of, "eager", replace(of.spec.profiles["eager"], sentinels=()))
    assert changed.spec.profiles["eager"].sentinels == ()
