"""Fresh instances: their names, their ports, and what is cleared of them."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from nvllm.engine.engine import Engine
from nvllm.host.facts import INSTANCE_LABEL, ContainerFact
from nvllm.serve import fresh
from nvllm.serve.fresh import FreshInstances
from support.plansamples import build, places, project


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
    """Not those of another project either: it may hold the lock of its own."""
    mine = project(tmp_path)
    left = f"nvllm-demo-eager-ablate-{mine.id[:7]}-1-1"
    others = ("nvllm-demo-eager", "nvllm-demo-eager-ablate-0000000-1-1", f"nvllm-demo-eager-bisect-{mine.id[:7]}-1-1")
    engine = Containers((left, *others))
    FreshInstances(mine, places(tmp_path), cast("Engine", engine), "ablate", "nvllm ablate").clear("demo", "eager")
    assert engine.removed == [left]


def test_one_profile_is_replaced() -> None:
    of = build()
    changed = fresh.with_profile(of, "eager", replace(of.spec.profiles["eager"], sentinels=()))
    assert changed.spec.profiles["eager"].sentinels == ()
