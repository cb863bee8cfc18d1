"""Ending instances: `nvllm stop`, and orphans, whose supervisor was killed and left the container behind.

Whoever ends an engine lets its requests finish for as long as its profile says; vLLM takes no new ones meanwhile.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nvllm.core.paths import Places
from nvllm.core.plan import LaunchPlan
from nvllm.core.refusal import Refusal, collected, refuse, refuse_any
from nvllm.engine.engine import Engine
from nvllm.host import locks
from nvllm.host.facts import RUN_LABEL, ContainerFact
from nvllm.host.locks import Holder
from nvllm.serve.rundir import InstanceState, RunDirectory, all_below
from nvllm.serve.startup import POLL, STOP_PATIENCE

_UNENDED = frozenset({"starting", "ready", "restarting"})
"""The stages in which an instance has not ended, by its state."""

RELEASE = 15.0
"""Seconds that a supervisor may take to end after its container did: it looks once a second, and reads the rest of the
log."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A running container of this state directory that no process supervises: its id, and its STATE if it has one."""

    container: str
    state: InstanceState | None

    def explains(self, refusal: Refusal, plan: LaunchPlan) -> bool:
        """Return whether REFUSAL, of a serve of PLAN, will be gone when the orphan is: its name, its port, its memory.

        What the host then has free is examined again.
        """
        own_port = self.state is not None and self.state.port == plan.port
        return refusal.code in {"NV505", "NV508"} or (refusal.code == "NV507" and own_port)


def orphan(engine: Engine, places: Places, instance: str) -> Orphan | None:
    """Return the container of INSTANCE if it is an orphan of PLACES, else None.

    A container that another process supervises is none, nor one that was started from another state directory: its
    supervisor would hold its locks there.
    """
    run = RunDirectory(places.run(instance))
    of_run = [
        container
        for container in engine.containers()
        if container.by_nvllm and container.labels.get(RUN_LABEL) == str(run.path)
    ]
    running = next((container for container in of_run if container.name == instance and container.running), None)
    if running is None or holder_of(places, instance) is not None:
        return None
    return Orphan(running.id, run.read_state())


def end_orphan(engine: Engine, places: Places, instance: str, abandoned: Orphan) -> None:
    """End the orphan ABANDONED of INSTANCE, and record it. The caller holds the locks of a serve of it.

    Raises Refused NV920 if its state cannot be written.
    """
    engine.stop(abandoned.container, _patience(abandoned.state))
    _record(RunDirectory(places.run(instance)), "ended by the next serve; its supervisor was gone")


def stop(engine: Engine, places: Places, instance: str) -> str:
    """Stop INSTANCE, and return the id of its container. One whose container vanished gets its state corrected.

    Raises Refused NV107 if nothing of that name is there to be stopped, NV921 if it is another home's, NV521 if its
    supervisor does not end, and NV920 if its state cannot be written.
    """
    by_nvllm = [container for container in engine.containers() if container.by_nvllm]
    containers = {container.name: container for container in by_nvllm if not container.of_another(places.id)}
    run = RunDirectory(places.run(instance))
    state = run.read_state()
    holder = holder_of(places, instance)
    if instance not in containers and holder is None and (state is None or state.stage not in _UNENDED):
        refuse_any(
            Refusal(
                "NV921", instance, f"an instance of the home of {places.state}", "one of another home", container.stop
            )
            for container in by_nvllm
            if container.name == instance and container.of_another(places.id)
        )
        listed = ", ".join(sorted({*containers, *unended(engine, places)})) or "nothing is being served"
        raise refuse("NV107", "docker engine", f"an instance: {listed}", instance, "nvllm status")
    unwritten: list[Refusal] = []
    # Before the container ends: a supervisor that was not asked takes it for a death, and may start another engine.
    if run.path.is_dir():
        with collected(unwritten):  # it is stopped anyway; its supervisor then reports that it ended by itself
            run.ask_to_stop()
    container = _end(engine, containers, instance, state)
    _wait_for_supervisor(places, instance)
    _record(run, "stopped; its supervisor was gone" if instance in containers else "stopped; its container was gone")
    refuse_any(unwritten)
    return container


def unended(engine: Engine, places: Places) -> tuple[str, ...]:
    """Return the names of the instances of PLACES that have not ended: by a container, a state, or a lock.

    A container that was started from another state directory is none of them.
    """
    containers = {
        container.name
        for container in engine.containers()
        if container.by_nvllm and container.labels.get(RUN_LABEL) == str(places.run(container.name))
    }
    known = [(run.path.name, run.read_state()) for run in all_below(places.runs)]
    return tuple(
        name
        for name, state in known
        if name in containers or holder_of(places, name) is not None or (state is not None and state.stage in _UNENDED)
    )


def _end(engine: Engine, containers: Mapping[str, ContainerFact], instance: str, state: InstanceState | None) -> str:
    """Stop the container of INSTANCE, if it has one, and return its id, or the one that its STATE names."""
    if instance in containers:
        engine.stop(containers[instance].id, _patience(state))
        return containers[instance].id
    return state.container if state is not None else ""


def _patience(state: InstanceState | None) -> int:
    """Return the seconds from the request to stop to the kill of an engine with STATE: its requests may finish."""
    return STOP_PATIENCE + (state.drain if state is not None else 0)


def _record(run: RunDirectory, reason: str) -> None:
    """Record in RUN that its instance ended for REASON, unless its supervisor has recorded an end."""
    state = run.read_state()
    if state is not None and state.stage in _UNENDED:
        run.write_state(replace(state, stage="stopped", reason=reason))


def holder_of(places: Places, instance: str) -> Holder | None:
    """Return the process that holds a lock for INSTANCE, None if there is none."""
    holders = (lock.holder for lock in locks.status(places.locks) if lock.holder is not None)
    return next((holder for holder in holders if holder.instance == instance), None)


def _wait_for_supervisor(places: Places, instance: str) -> None:
    """Wait until INSTANCE holds no lock, so that it can be served again. Raises Refused NV521 after `RELEASE`."""
    deadline = time.monotonic() + RELEASE
    while (holder := holder_of(places, instance)) is not None:
        if time.monotonic() > deadline:
            cure = shlex.join(["kill", "-KILL", str(holder.pid)])
            expected = f"its supervisor ends within {RELEASE:.0f} s after its container"
            raise refuse("NV521", f"instance {instance}", expected, str(holder), cure)
        time.sleep(POLL)
