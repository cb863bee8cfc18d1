"""The instances of this host as they are now: what their state files say, held against the engine's containers."""

from __future__ import annotations

from dataclasses import dataclass

from nvllm.core.paths import Places
from nvllm.engine.engine import Engine
from nvllm.host import locks
from nvllm.serve import health
from nvllm.serve.rundir import InstanceState, all_below


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """An instance called NAME at its STAGE; SUPERVISED says whether a process looks after it.

    The stage is that of its state, but "gone" without its container, and "silent" if it is ready and does not answer.

    STATE is None for a container of another home, which has no state here; CONTAINER is its id.
    """

    name: str
    stage: str
    supervised: bool
    container: str
    state: InstanceState | None

    @property
    def running(self) -> bool:
        """Whether its engine has been ready and still runs, as far as is known here."""
        return self.stage in {"ready", "running"}


def seen(engine: Engine, places: Places) -> tuple[SeenInstance, ...]:
    """Return the instances that PLACES or ENGINE know, those with a state first."""
    containers = {container.name: container for container in engine.containers() if container.by_nvllm}
    locked = {lock.holder.instance for lock in locks.status(places.locks) if lock.holder is not None}
    states = [state for run in all_below(places.runs) if (state := run.read_state()) is not None]
    instances = []
    for state in states:
        running = state.instance in containers and containers[state.instance].running
        supervised = state.instance in locked
        stage = current_stage(state, running=running, supervised=supervised)
        # An engine that starts answers nothing yet: only one that was ready can have fallen silent.
        if stage == "ready" and not health.healthy(state.port):
            stage = "silent"
        instances.append(SeenInstance(state.instance, stage, supervised, state.container, state))
    known = {state.instance for state in states}
    for name, container in containers.items():
        if name not in known:
            instances.append(SeenInstance(name, "running", supervised=False, container=container.id, state=None))
    return tuple(instances)


def current_stage(state: InstanceState, *, running: bool, supervised: bool) -> str:
    """Return the stage of STATE, or "gone" if it should have a container and none is RUNNING.

    Between two engines of a service there is no container, but it is SUPERVISED.
    """
    lost = {"starting": not running, "ready": not running, "restarting": not supervised}
    return "gone" if lost.get(state.stage, False) else state.stage
