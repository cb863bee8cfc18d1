"""The blessed cache of one serve: its staged copy, and the proof that the engine loaded it and nothing else."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nvllm.cache import staging
from nvllm.cache.cachetree import INDUCTOR, Tree
from nvllm.cache.manifest import Manifest
from nvllm.cache.staging import Staged
from nvllm.cache.store import TreeStore
from nvllm.core.paths import Places
from nvllm.core.plan import CACHE, LaunchPlan
from nvllm.core.refusal import Refusal
from nvllm.serve import planner, rundir, slow_start
from nvllm.serve.examination import Examination
from nvllm.serve.timeline import Timeline

_CODE = frozenset({".c", ".cpp", ".cu", ".cubin", ".gch", ".h", ".o", ".ptx", ".py", ".so"})
"""Suffixes of files that a compiler reads or writes. The C++ header that Inductor precompiles does not count: on the
CPU every start in a fresh container makes it again, to test its compiler, and runs no part of it."""


@dataclass(frozen=True, slots=True)
class MountedCache:
    """The STAGED copy of the tree of MANIFEST, and PLAN, which mounts it."""

    plan: LaunchPlan
    manifest: Manifest
    staged: Staged

    def slow(self, timeline: Timeline) -> tuple[slow_start.SlowPhase, ...]:
        """Return the phases of a start with the timeline TIMELINE that were slow compared with the trials."""
        return slow_start.slow(
            slow_start.times(timeline.phases), [slow_start.times(trial.phases) for trial in self.manifest.trials]
        )

    def new_graphs(self, scratch: Sequence[str]) -> list[str]:
        """Return the graphs in SCRATCH, the files that the engine wrote, that were compiled since it started."""
        blessed = {f"{CACHE}/{file.path}" for file in self.manifest.tree.files}
        return [path for path in graphs(scratch) if path not in blessed]

    def problems(self, timeline: Timeline, scratch: list[str], processor: float, log: str) -> list[Refusal]:
        """Return NV705 for every way in which the start of a ready engine differs from the blessed ones.

        TIMELINE is the timeline from LOG, SCRATCH the files that the engine wrote, PROCESSOR the seconds that it used.
        """
        differences = reuse(timeline, scratch, self.manifest.tree)
        blessed = self.manifest.kv_tokens
        if blessed is not None and (timeline.kv_tokens is None or timeline.kv_tokens < blessed):
            differences.append((f"{blessed} KV tokens", str(timeline.kv_tokens)))
        boots = [trial.processor for trial in self.manifest.trials]
        cold = slow_start.compiled(processor, boots, self.manifest.cold.processor)
        differences += [cold] if cold is not None else []
        where = f"container {self.plan.instance}"
        return [
            Refusal("NV705", where, expected, seen, f"less {shlex.quote(str(log))}; {self.manifest.cure}")
            for expected, seen in differences
        ]


@contextlib.contextmanager
def staged(examination: Examination, places: Places) -> Iterator[MountedCache | None]:
    """Stage the cache of EXAMINATION for the duration of the context; yield None if its profile is not a blessed one.

    The caller holds the locks of the serve. Raises Refused NV907 and NV911 as `staging.stage` does.
    """
    manifest = examination.manifest
    if manifest is None:
        yield None
        return
    plan = examination.plan
    copy = TreeStore(places.trees).stage(manifest.tree, directory(places, plan.instance), manifest.cure)
    with staging.discarding(copy.path.parent):
        yield MountedCache(planner.mounting(plan, copy.path), manifest, copy)


def directory(places: Places, instance: str) -> Path:
    """Return the directory of copies for INSTANCE. Raises Refused NV513 unless only this user can write to it."""
    return rundir.private_directory(rundir.private_directory(places.staged) / instance)


def reuse(timeline: Timeline, scratch: list[str], tree: Tree) -> list[tuple[str, str]]:
    """Return, as expected and found, every sign that the engine loaded something else than TREE, or compiled.

    TIMELINE is the timeline of its log, SCRATCH the files that the engine has written: a compiler leaves some.
    """
    code = {f"{CACHE}/{file.path}" for file in tree.files}
    signs = []
    if not timeline.loaded:
        signs.append(("a line in the log that compiled code was loaded", "none"))
    signs += [("only compiled code of the blessed cache", path) for path in timeline.loaded if inside(path) not in code]
    signs += [("nothing compiled", text) for text in timeline.compiled]
    signs += [("every kernel in a cache", text) for text in timeline.missed]
    new = (path for path in scratch if path not in code and _is_code(path))
    signs += [("no output of a compiler in the scratch", path) for path in new]
    return [*signs, *(("nothing saved", text) for text in timeline.saved)]


def graphs(scratch: Sequence[str]) -> tuple[str, ...]:
    """Return the paths in SCRATCH of the graphs that Inductor compiled: it writes one module of Python for each."""
    return tuple(path for path in scratch if f"/{INDUCTOR}/" in path and path.endswith(".py"))


def _is_code(path: str) -> bool:
    return "/precompiled_headers/" not in path and PurePosixPath(path).suffix in _CODE


def inside(path: str) -> str:
    """Return PATH, as it stands in the log, without the punctuation after it."""
    return str(PurePosixPath(path.rstrip(".,;")))
