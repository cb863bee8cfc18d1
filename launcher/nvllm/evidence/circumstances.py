"""The circumstances of a run: the host as it is now, and the state of the project's repository."""

from __future__ import annotations

import itertools
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nvllm.core import clock, proc
from nvllm.core.paths import Places, Project
from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.evidence import arms
from nvllm.evidence.arms import Arm
from nvllm.evidence.records import RUN_SCHEMA, TRACE_RULES, ArmState, HostState, Kind, Margins, RunManifest, TraceRules
from nvllm.host import survey
from nvllm.image import presence
from nvllm.image.identity import Build
from nvllm.trials.answers import ProbeState

_GIT = 20.0
"""Seconds that git may take."""


def manifest(
    kind: Kind,
    build: Build,
    states: Sequence[ArmState],
    runs: int,
    probe: ProbeState,
    host: HostState,
    project: Project,
    places: Places,
    margins: Margins,
    *,
    trace: TraceRules | None = None,
    until_decided: bool = False,
    cold: bool = True,
    per_engine: int = 1,
) -> RunManifest:
    """Return the manifest of a run of KIND: RUNS of each arm in STATES, PER_ENGINE in each engine, asked PROBE on HOST.

    MARGINS, TRACE (None: no traces), UNTIL_DECIDED and COLD are as the manifest has them.

    Raises Refused NV302 if there is no image here that counts as that of BUILD for PROJECT.
    """
    built = presence.proved(build, project, places)
    if built is None:
        raise Refused([presence.unbuilt(build.spec.name)])
    return RunManifest(
        schema=RUN_SCHEMA,
        kind=kind,
        image=build.spec.name,
        image_id=built.image_id,
        build_hash=build.build_hash,
        patches=tuple(patch.id for patch in build.patches),
        ablated=tuple(sorted({name for state in states for name in state.on})),
        arms=tuple(states),
        runs=runs,
        probe=probe,
        host=host,
        traced=trace is not None,
        trace=trace or TRACE_RULES,
        margins=margins,
        until_decided=until_decided,
        cold=cold,
        per_engine=per_engine,
        created=clock.now(),
    )


def ablated_arms(build: Build, profile: str, compared: Sequence[Arm]) -> list[ArmState]:
    """Return the arms of PROFILE that are COMPARED; what the profile names besides is on in all of them."""
    differing = {name for arm in compared for name in arm}
    always = [name for name in build.spec.profiles[profile].sentinels if name not in differing]
    return [ArmState(arms.name(arm), profile, tuple(sorted([*always, *arm])), arm) for arm in compared]


def artifact_arms(build: Build, profile: str, count: int) -> list[ArmState]:
    """Return an arm for each of COUNT compiles of PROFILE, with its sentinels."""
    present = tuple(sorted(build.spec.profiles[profile].sentinels))
    return [ArmState(f"artifact-{number}", profile, present, (), number) for number in range(1, count + 1)]


def profile_arms(build: Build, profiles: Sequence[str]) -> list[ArmState]:
    """Return an arm for each of PROFILES, as it is; one that is named again gets another name."""
    states: list[ArmState] = []
    for number, profile in enumerate(profiles):
        name = profile
        for again in itertools.count(2):
            if name not in {*profiles[:number], *(state.name for state in states)}:
                break
            name = f"{profile}-{again}"
        states.append(ArmState(name, profile, tuple(sorted(build.spec.profiles[profile].sentinels)), ()))
    return states


def swept_arms(build: Build, profiles: Sequence[str]) -> list[ArmState]:
    """Return the arms of a sweep of PROFILES: each, and the first one again, asked as its `evaluate-as:` says."""
    rules = {name: build.spec.profiles[name].campaign.evaluate_as or "" for name in profiles}
    return [replace(state, evaluated=rules[state.profile]) for state in profile_arms(build, [*profiles, profiles[0]])]


def host_state(project: Project, places: Places, engine: Engine) -> HostState:
    """Return the state of this host, of ENGINE and of the repository of PROJECT."""
    facts = survey.host_facts(places, engine)
    commit = _git(project.root, "rev-parse", "HEAD").strip()
    about = facts.engine
    return HostState(
        machine=facts.cpu.machine or platform.machine(),
        kernel=platform.release(),
        processor=f"{facts.cpu.kind}, {facts.cpu.count} processors",
        memory=facts.mem_total,
        gpus=tuple(f"{gpu.name}, driver {gpu.driver}" for gpu in facts.gpus),
        engine="" if about is None else f"{about.product} {about.version}",
        commit=commit,
        # Files that git does not know change nothing of what the commit says.
        dirty=bool(commit and _git(project.root, "status", "--porcelain", "--untracked-files=no").strip()),
    )


def _git(root: Path, *words: str) -> str:
    """Return what git says below ROOT; empty if it is not installed, or knows no repository there."""
    try:
        done = proc.run(["git", "-C", str(root), *words], env=proc.environment({}), timeout=_GIT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
