"""The service of a profile: everything that `nvllm serve` does, in order, until the engine has ended for good.

1. `examined`: every check, and the launch plan; a refusal ends it here.
2. The locks of serve hash, port and GPUs are taken (`supervisor.hold_locks`), and held to the end.
3. An orphan, a container that a killed supervisor left, is ended (`stopping`), and every check made again.
4. The blessed cache is copied and hashed (`staged_cache.staged`); the copy becomes a mount of the plan.
5. The run directory is written, with what the gate compares (`startup`, `rundir`), and the engine creates the container
   of the plan and starts it (`engine/containers.py`).
6. The log says how far the start has come (`timeline`); it is ready with the first generation (`health`).
7. From then on it is watched (`supervisor.Supervisor`).
8. If the engine dies and the profile has a `restart`: a pause, every check again, and on with step 4.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from nvllm.cache.blessings import Blessings
from nvllm.core.catalogue import Blame
from nvllm.core.paths import Places, Project
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.core.spec import RestartRules
from nvllm.host.locks import HeldLocks
from nvllm.serve import owners, staged_cache, startup, stopping, supervisor
from nvllm.serve.examination import Depth, Examination, examine
from nvllm.serve.health import Generation
from nvllm.serve.rundir import Death, RunDirectory
from nvllm.serve.staged_cache import MountedCache
from nvllm.serve.supervisor import Supervisor

LONGEST_PAUSE = 600.0
"""Seconds: a pause before a restart is not doubled beyond, so that a repaired host serves again soon."""

_LINE = 400
"""Characters of a line of a dead engine's log that are kept."""

_DEATHS: Collection[Blame | None] = frozenset({"engine", "stuck engine"})
"""What an engine is started again after: it ended, is stuck or silent, or a restart of it did not become ready.

A refused check, a changed cache or a start that was not the blessed one ends the service."""


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """What is to be served: PROFILE of IMAGE. COMMAND is what the holder of its locks is called; see `examine`."""

    project: Project
    places: Places
    image: str
    profile: str
    command: str
    paranoid: bool
    progress: Progress


def examined(service: ServiceRequest) -> Examination:
    """Examine SERVICE for a start. Raises Refused if there is nothing to examine, such as no lock."""
    arguments = (service.project, service.places, service.image, service.profile)
    try:
        return examine(*arguments, Depth.START, paranoid=service.paranoid, progress=service.progress)
    except Refused:  # what else is missing is said with it
        refuse_any(examine(*arguments, Depth.SHOW, paranoid=service.paranoid, progress=service.progress).refusals)
        raise


def run(service: ServiceRequest, examination: Examination, announce: Callable[[Supervisor, Generation], None]) -> None:
    """Serve SERVICE, whose EXAMINATION may have refusals, until it has ended; call ANNOUNCE when it is first ready.

    Returns when `nvllm stop` has asked for the end. Raises Refused with the refusals of EXAMINATION, what
    `Supervisor.serve` raises, and after a death NV706 (too many) and NV707 (a restart would serve something else).
    """
    instance, orphan = examination.plan.instance, examination.orphan
    with supervisor.hold_locks(examination, service.places, service.command) as held_locks:
        # Behind the locks, which refuse first: a serve that does not start takes no name from another project.
        owners.claim(service.project, service.places, instance)
        if orphan is not None and examination.engine is not None:
            container = orphan.container[:12]
            service.progress.note(f"ORPHAN {instance}: nobody supervises container {container}; it is ended")
            stopping.end_orphan(examination.engine, service.places, instance, orphan)
            examination = examined_again(service, examination)  # the memory of the host is another one now
        deaths: tuple[Death, ...] = ()
        while True:
            died = _one_engine(service, examination, held_locks, deaths, announce)
            if died is None:
                return
            deaths = (*deaths, died)
            with _between_engines(service, instance):
                deaths = _paused(service, examination, deaths)
                directory = RunDirectory(service.places.run(instance))
                if directory.asked_to_stop:
                    directory.change_stage("stopped", "asked to stop")
                    return
                examination = examined_again(service, examination)


def examined_again(service: ServiceRequest, first: Examination) -> Examination:
    """Return a new examination of SERVICE, whose FIRST one was served. Raises Refused NV707 if it has become another.

    The locks that are held are those of FIRST, and who blessed a profile did not allow it to come back unblessed.
    """
    again = examined(service)
    refuse_any(again.refusals)
    if _what_is_held(again) != _what_is_held(first):
        raise refuse(
            "NV707",
            f"profile {service.profile} of image {service.image}",
            f"what was served before: {_identity(first)}",
            _identity(again),
            service.command,
        )
    return again


def _what_is_held(of: Examination) -> tuple[object, ...]:
    """Return what a restart may not change: what the locks are held for, who may ask, and whether it is blessed."""
    return supervisor.keys(of.plan), of.plan.access, of.manifest is None


def _identity(of: Examination) -> str:
    blessed = "not blessed" if of.manifest is None else "blessed"
    key = "no key" if of.plan.access.key_file is None else f"key {of.plan.access.key_file}"
    return f"serve hash {of.plan.serve_hash[:12]}, {of.plan.access.publish}:{of.plan.port}, {key}, {blessed}"


def _one_engine(
    service: ServiceRequest,
    examination: Examination,
    held_locks: HeldLocks,
    deaths: tuple[Death, ...],
    announce: Callable[[Supervisor, Generation], None],
) -> Death | None:
    """Start one engine and watch it. Return None when it was asked to stop, its death if it may be started again.

    DEATHS are those of the engines before it. Raises Refused for every other end, as `Supervisor.serve` does.
    """
    rules = examination.profile.restart
    with staged_cache.staged(examination, service.places) as cache:
        running = Supervisor(examination, service.places, held_locks, service.progress, cache, deaths=deaths)
        if cache is not None:
            # From here on an older blessing of this serve hash is refused, also one that somebody put back (NV906).
            Blessings.of_project(service.project, service.places).versions.saw(cache.manifest)
            service.progress.note(f"BLESSED {cache.manifest.label} v{cache.manifest.version}: {_evidence(cache)}")

        def ready(generation: Generation) -> None:
            if deaths:
                service.progress.note(f"RESTARTED {running.plan.instance} after {deaths[-1].reason}")
            else:
                announce(running, generation)

        try:
            running.serve(ready)
        except Refused as refused:
            # A first start that fails ends the service; what was ready once is started again (docs/serving.md).
            started = running.ready is not None or bool(deaths)
            restartable = rules is not None and started and not running.run.asked_to_stop
            if not restartable or any(refusal.blame not in _DEATHS for refusal in refused.refusals):
                raise
            lines = tuple(line[:_LINE] for line in running.tail)
            reasons = [
                f"{refusal.code} {refusal.title}: {refusal.found.splitlines()[0]}" for refusal in refused.refusals
            ]
            return Death(time.time(), "; ".join(reason.removesuffix(startup.LAST_LINES) for reason in reasons), lines)
    return None


def _evidence(cache: MountedCache) -> str:
    claim, tree = cache.manifest.claim, cache.manifest.tree
    return f"{claim.boots} fresh boots; {len(tree.files)} files, tree {tree.hash[:12]}, {cache.staged.level}"


@contextlib.contextmanager
def _between_engines(service: ServiceRequest, instance: str) -> Iterator[None]:
    """Record how the service ended if it ends in the context, where no engine runs that would record it."""
    try:
        yield
    except BaseException as error:
        RunDirectory(service.places.run(instance)).change_stage(*supervisor.ended_by(error))
        raise


def _paused(service: ServiceRequest, examination: Examination, deaths: tuple[Death, ...]) -> tuple[Death, ...]:
    """Record the last of DEATHS and wait before a restart; return the DEATHS that still count.

    Returns early if `nvllm stop` asks for the end. Raises Refused NV706 if there were too many.
    """
    plan, run = examination.plan, RunDirectory(service.places.run(examination.plan.instance))
    rules = examination.profile.restart or RestartRules()
    last = deaths[-1]
    recent = tuple(death for death in deaths if death.when > last.when - rules.within)
    run.say(last.when, "death", {"instance": plan.instance, "reason": last.reason, "lines": list(last.lines)})
    state = run.read_state()
    if state is not None:
        run.write_state(replace(state, stage="restarting", reason=last.reason, deaths=recent))
    if len(recent) > rules.attempts:
        raise Refused([_given_up(service, examination, rules, recent)])
    seconds = pause(rules, len(recent))
    note = f"{last.reason}; restart {len(recent)} of {rules.attempts} within {rules.within} s, in {seconds:.0f} s"
    service.progress.note(f"DIED {plan.instance}: {note}")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not run.asked_to_stop:
        time.sleep(min(supervisor.PAUSE, seconds))
    return recent


def pause(rules: RestartRules, deaths: int) -> float:
    """Return the seconds before the restart after so many DEATHS that count."""
    return min(rules.pause * 2.0 ** (deaths - 1), LONGEST_PAUSE)


def _given_up(
    service: ServiceRequest, examination: Examination, rules: RestartRules, recent: tuple[Death, ...]
) -> Refusal:
    """Return NV706 for RECENT, the deaths that are more than RULES allow."""
    run = RunDirectory(service.places.run(examination.plan.instance))
    listed = [f"{time.strftime('%H:%M:%S', time.gmtime(death.when))} {death.reason}" for death in recent]
    return Refusal(
        "NV706",
        f"instance {examination.plan.instance}",
        f"at most {rules.attempts} restarts within {rules.within} s, the profile's restart",
        "\n".join([f"{len(recent)} deaths:", *listed, "the last lines of the last one:", *recent[-1].lines]),
        run.log_cure,
    )
