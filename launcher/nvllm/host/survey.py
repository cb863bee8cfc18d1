"""A survey of this host: what it is now with its engine and its locks, and every check of it for a launch plan."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from nvllm.core.gaterules import GateRules
from nvllm.core.paths import Places
from nvllm.core.plan import LaunchPlan
from nvllm.host import checks, facts, gate_records, locks
from nvllm.host.checks import DiskNeed, Outcome, Subject
from nvllm.host.facts import ContainerFact, EngineFacts, EngineProblem, HostFacts
from nvllm.host.gates import GateState

_RUN_BYTES = 200 * 2**20
"""Disk space for a run directory: two rotated logs of the engine, evidence and sentinels."""


class AnsweringEngine(Protocol):
    """What is asked of an engine here. The engine itself is in a room above."""

    def facts(self) -> EngineFacts: ...

    def containers(self) -> tuple[ContainerFact, ...]: ...


def host_facts(places: Places, engine: AnsweringEngine | EngineProblem) -> HostFacts:
    """Return the facts of this host and of ENGINE."""
    host = replace(facts.probe([places.runs]), locks=locks.probe(places.locks), home=places.id)
    if isinstance(engine, EngineProblem):
        return replace(host, engine_problem=engine)
    return replace(host, engine=engine.facts(), containers=engine.containers())


def outcomes(
    plan: LaunchPlan, host: HostFacts, sentinels: frozenset[str], places: Places, required: GateRules
) -> tuple[Outcome, ...]:
    """Return the outcome of every check of HOST for PLAN, whose image's patches read SENTINELS.

    REQUIRED are the gates that its profile requires.
    """
    need = DiskNeed(str(places.runs), _RUN_BYTES, "logs and evidence of the run")
    filed = gate_records.filed(places.gates) if required != GateRules() else ()
    return checks.outcomes(Subject(plan, host, (need,), sentinels, GateState(required, filed, time.time())))
