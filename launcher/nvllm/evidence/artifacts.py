"""Artifacts of a run: compiled once for each compile key, and loaded by every leg that has the key.

::

    <run>/artifacts/<compile key>/
        artifact.json    what it is; written last
        <tree hash>/     the tree, as a bless stores one
        bootstrap/       the run directory of the engine that compiled it

They lie in the run, not in the tree store: they are evidence, no blessing names them, and `gc` would not know of them.
A profile that is blessed loads its blessing, and so does every other leg with the same key.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from nvllm.bless.blessing import Bless, Keeping
from nvllm.cache import staging
from nvllm.cache.cachetree import Tree
from nvllm.cache.pins import Pins
from nvllm.cache.staging import Staged
from nvllm.cache.store import TreeStore
from nvllm.core import clock
from nvllm.core.paths import Places
from nvllm.core.plan import KV_CACHE_SIZES, UNCACHED
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, refuse_any
from nvllm.core.spec import ImageSpec, Profile
from nvllm.evidence.directory import EvidenceDirectory
from nvllm.evidence.records import ARTIFACT_SCHEMA, ArmState, ArtifactRecord, HarnessCheck, LegVerdict
from nvllm.host.locks import HeldLocks
from nvllm.serve import planner, servehash, staged_cache
from nvllm.serve.examination import Examination
from nvllm.serve.rundir import RunDirectory, private_directory
from nvllm.serve.startup import EngineStart

_LISTED = 5
"""Signs of a compilation that a check lists."""


def uncached(spec: ImageSpec, profile: Profile) -> str:
    """Return why an engine of PROFILE in SPEC leaves nothing that another one could load; empty if it does."""
    if profile.eager:
        return "it compiles nothing"
    if switched := UNCACHED & {*spec.runtime.environment, *profile.environment}:
        return f"it keeps nothing that it compiles: {min(switched)}"
    if profile.gpu is not None and not KV_CACHE_SIZES & profile.arguments.keys():
        return "its kernels are compiled for a number of blocks that each start measures: no kv-cache-memory-bytes"
    return ""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The TREE in STORE that was compiled for COMPILE_KEY. CURE is what to do if it is no longer as it was."""

    compile_key: str
    tree: Tree
    store: TreeStore
    cure: str


@dataclass(frozen=True, slots=True)
class LegStart:
    """The START of a leg's engine, and the staged COPY of the tree that it loads; None if it loads none."""

    start: EngineStart
    copy: Staged | None

    def check(self, scratch: Sequence[str] | None) -> HarnessCheck | None:
        """Return whether the engine loaded its tree and compiled nothing; None if it loads none.

        SCRATCH are the files that it has written, None if it has ended.
        """
        tree = self.start.cache
        if tree is None or self.copy is None:
            return None
        self.start.read_log()
        signs = [sign for _, sign in staged_cache.reuse(self.start.timeline, list(scratch or ()), tree)]
        signs += [f"{one.where}: {one.found}" for one in staging.recheck(self.copy, "")]
        signs += ["no listing of what it wrote"] if scratch is None else []
        more = f"; and {len(signs) - _LISTED} more" if len(signs) > _LISTED else ""
        expected = f"the tree {tree.hash[:12]} loaded and unchanged, and nothing compiled"
        return HarnessCheck("artifact", not signs, expected, "; ".join(signs[:_LISTED]) + more or "so it is")


@dataclass
class Artifacts:
    """The artifacts of the run in DIRECTORY."""

    directory: EvidenceDirectory
    places: Places
    progress: Progress
    _known: dict[tuple[str, int], Artifact] = field(default_factory=dict)
    """By compile key and number of the compile."""

    def of(self, arm: ArmState, examination: Examination, held_locks: HeldLocks) -> Artifact:
        """Return what the legs of ARM load, whose profile is in EXAMINATION; it is compiled if it is not there yet.

        The caller holds HELD_LOCKS. Raises Refused as `Bless.bootstrap` does; NV859 if earlier legs of ARM loaded
        something else; and NV853 for a record that is damaged.
        """
        key, manifest = servehash.compile_key(examination.plan), examination.manifest
        loaded = [one for one in self.directory.verdicts(arm.name) if one.loaded(arm.profile)[1]]
        again = f"{held_locks.command} --force"
        refuse_any(_others(loaded, "compile key", key, lambda verdict: verdict.loaded(arm.profile)[0], again))
        compiled = (key, arm.artifact)
        if compiled not in self._known:
            if manifest is not None:
                store = TreeStore(self.places.trees)
                self._known[compiled] = Artifact(key, manifest.tree, store, manifest.cure)
            else:
                self._known[compiled] = self._own(key, arm.artifact, examination, held_locks)
        tree = self._known[compiled].tree.hash
        refuse_any(_others(loaded, "tree", tree, lambda verdict: verdict.loaded(arm.profile)[1], again))
        return self._known[compiled]

    def _own(self, key: str, number: int, examination: Examination, held_locks: HeldLocks) -> Artifact:
        """Return the compile NUMBER of KEY in the run, which the engine of EXAMINATION makes if it is not there yet."""
        store, again = TreeStore(self.directory.artifact(key, number)), f"{held_locks.command} --force"
        record = self.directory.artifact_record(key, number)
        if record is None:
            which = f", number {number}" if number else ""
            self.progress.note(f"compile: {examination.plan.profile}, compile key {key[:12]}{which}")
            private_directory(store.root.parent)
            private_directory(store.root)
            failed = f"ls {shlex.quote(str(store.root))} && {again}; or with --cold, where each leg compiles for itself"
            with Pins(self.places.pins).pin() as pin:
                keeping = Keeping(store, store.root, failed)
                work = Bless(examination, self.places, held_locks, self.progress, pin, keeping=keeping)
                tree = work.bootstrap(self.progress).tree
            record = ArtifactRecord(ARTIFACT_SCHEMA, key, examination.plan.profile, tree, clock.now())
            self.directory.keep_artifact(record, number)
        self.progress.note(f"artifact: tree {record.tree.hash[:12]}, compiled at {record.created}")
        return Artifact(key, record.tree, store, again)

    @contextlib.contextmanager
    def loading(
        self, artifact: Artifact, examination: Examination, held_locks: HeldLocks, run: RunDirectory
    ) -> Iterator[LegStart]:
        """Stage ARTIFACT for the context, and yield the start of an engine that loads it and nothing else, into RUN.

        The caller holds HELD_LOCKS. Raises Refused NV907 if the tree has changed or has gone.
        """
        profile, plan = examination.profile, examination.plan
        assert examination.engine is not None  # without an engine the examination was refused
        copy = artifact.store.stage(artifact.tree, staged_cache.directory(self.places, plan.instance), artifact.cure)
        with staging.discarding(copy.path.parent):
            plan = planner.mounting(planner.loading(plan, artifact.tree, profile.kernels.missing), copy.path)
            start = EngineStart(
                examination.engine, plan, examination.models, run, held_locks, self.progress, artifact.tree
            )
            start.memory_floor = profile.campaign.memory_floor
            yield LegStart(start, copy)


def _others(
    loaded: Sequence[LegVerdict], name: str, now: str, of: Callable[[LegVerdict], str], cure: str
) -> list[Refusal]:
    """Return NV859 with CURE for each leg that LOADED something whose hash NAME, which OF returns, is not NOW."""
    return [
        Refusal("NV859", f"arm {one.arm}, run {one.run}", f"the {name} {of(one)[:12]} of before", now[:12], cure)
        for one in loaded
        if of(one) != now
    ]
