"""Artifacts that several starts load: what one engine compiled, outside the tree store, and the start that loads it.

They are evidence: no blessing names them, and `gc` does not know of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvllm.cache import staging
from nvllm.cache.cachetree import Tree
from nvllm.cache.staging import Staged
from nvllm.cache.store import TreeStore
from nvllm.core.paths import Places
from nvllm.core.plan import KV_CACHE_SIZES, UNCACHED
from nvllm.core.progress import Progress
from nvllm.core.refusal import refuse
from nvllm.core.spec import ImageSpec, Profile
from nvllm.host.locks import HeldLocks
from nvllm.serve import planner, staged_cache
from nvllm.serve.examination import Examination
from nvllm.serve.rundir import RunDirectory
from nvllm.serve.startup import EngineStart


def uncached(spec: ImageSpec, profile: Profile) -> str:
    """Return why an engine of PROFILE in SPEC leaves nothing that another one could load; empty if it does."""
    if profile.eager:
        return "it compiles nothing"
    if switched := UNCACHED & {*spec.runtime.environment, *profile.environment}:
        return f"it keeps nothing that it compiles: {min(switched)}"
    if profile.gpu is not None and not KV_CACHE_SIZES & profile.arguments.keys():
        return "its kernels are compiled for a number of blocks that each start measures: no kv-cache-memory-bytes"
    return ""


def check_kept(spec: ImageSpec, name: str) -> None:
    """Raise Refused NV860 if engines of the profile NAME in SPEC leave nothing that another one could load."""
    if reason := uncached(spec, spec.profiles[name]):
        cure = "name a profile that compiles, and keeps what it compiles: --profile P"
        raise refuse("NV860", f"profile {name}", "an engine that compiles, and keeps it", reason, cure)


@dataclass(frozen=True, slots=True)
class Artifact:
    """The TREE in STORE that was compiled for COMPILE_KEY. CURE is what to do if it is no longer as it was."""

    compile_key: str
    tree: Tree
    store: TreeStore
    cure: str


@dataclass(frozen=True, slots=True)
class LoadingStart:
    """The START of an engine, and the staged COPY of the tree that it loads; None if it loads none."""

    start: EngineStart
    copy: Staged | None

    def signs(self, scratch: Sequence[str] | None) -> list[str]:
        """Return the signs that the engine compiled something, or that its tree has changed; none without a tree.

        SCRATCH are the files that it has written, None if it has ended.
        """
        tree = self.start.cache
        if tree is None or self.copy is None:
            return []
        self.start.read_log()
        signs = [sign for _, sign in staged_cache.reuse(self.start.timeline, list(scratch or ()), tree)]
        signs += [f"{refusal.where}: {refusal.found}" for refusal in staging.recheck(self.copy, "")]
        return signs + (["no listing of what it wrote"] if scratch is None else [])


@contextlib.contextmanager
def loading(
    artifact: Artifact,
    examination: Examination,
    places: Places,
    held_locks: HeldLocks,
    progress: Progress,
    run: RunDirectory,
) -> Iterator[LoadingStart]:
    """Stage ARTIFACT for the context, and yield the start of an engine that loads it and nothing else, into RUN.

    The caller holds HELD_LOCKS. Raises Refused NV907 if the tree has changed or has gone.
    """
    profile, plan = examination.profile, examination.plan
    assert examination.engine is not None  # without an engine the examination was refused
    copy = artifact.store.stage(artifact.tree, staged_cache.directory(places, plan.instance), artifact.cure)
    with staging.discarding(copy.path.parent):
        plan = planner.mounting(planner.loading(plan, artifact.tree, profile.kernels.missing), copy.path)
        start = EngineStart(examination.engine, plan, examination.models, run, held_locks, progress, artifact.tree)
        start.memory_floor = profile.campaign.memory_floor
        yield LoadingStart(start, copy)
