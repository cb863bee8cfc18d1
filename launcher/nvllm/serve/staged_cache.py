"""A blessed cache that is about to be served: staged for one start, and what the start must say of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nvllm.cache import staging
from nvllm.cache.manifest import Manifest
from nvllm.cache.staging import Staged
from nvllm.cache.store import TreeStore
from nvllm.cache.tree import Tree
from nvllm.core.paths import Places
from nvllm.core.plan import CACHE, LaunchPlan
from nvllm.core.refusal import Refusal
from nvllm.serve import planner, rundir, slow_start
from nvllm.serve.examine import Examination
from nvllm.serve.timeline import Timeline

_CODE = frozenset({".c", ".cpp", ".cu", ".cubin", ".gch", ".h", ".o", ".ptx", ".py", ".so"})
"""How the names of files end that a compiler reads or writes. The C++ header that Inductor precompiles is none of
it: on the CPU each start in a fresh container makes that anew, to see that its compiler works, and runs no part."""


@dataclass(frozen=True, slots=True)
class MountedCache:
    """The staged copy of the tree of MANIFEST, and PLAN with it mounted."""

    plan: LaunchPlan
    manifest: Manifest
    staged: Staged

    def slow(self, said: Timeline) -> tuple[slow_start.SlowPhase, ...]:
        """Return which phases of the start that SAID this were slow against the trials."""
        return slow_start.slow(
            slow_start.times(said.phases), [slow_start.times(trial.phases) for trial in self.manifest.trials]
        )

    def problems(self, said: Timeline, scratch: list[str], processor: float, log: str) -> list[Refusal]:
        """Return NV705 for every way in which a ready engine is not the start that was blessed.

        SAID is what it said in LOG, SCRATCH the files that it has written, PROCESSOR the seconds that it used.
        """
        found = reuse(said, scratch, self.manifest.tree)
        blessed = self.manifest.kv_tokens
        if blessed is not None and (said.kv_tokens is None or said.kv_tokens < blessed):
            found.append((f"{blessed} KV tokens", str(said.kv_tokens)))
        boots = [trial.processor for trial in self.manifest.trials]
        cold = slow_start.compiled(processor, boots, self.manifest.cold.processor)
        found += [cold] if cold is not None else []
        where = f"container {self.plan.instance}"
        return [
            Refusal("NV705", where, expected, seen, f"read {log}; {self.manifest.cure}") for expected, seen in found
        ]


@contextlib.contextmanager
def staged(examination: Examination, places: Places) -> Iterator[MountedCache | None]:
    """Stage the blessed cache that EXAMINATION found, if its profile is blessed, for the duration of the context.

    Whoever calls holds the locks of the serve. Raises Refused NV907 and NV911 as `staging.stage` does.
    """
    manifest = examination.manifest
    if manifest is None:
        yield None
        return
    plan = examination.plan
    copy = TreeStore(places.trees).stage(manifest.tree, directory(places, plan.instance), manifest.cure)
    try:
        yield MountedCache(planner.mounting(plan, copy.path), manifest, copy)
    finally:
        staging.discard(copy.path.parent)


def directory(places: Places, instance: str) -> Path:
    """Return where copies for INSTANCE lie. Raises Refused NV513 unless only this user can write there."""
    return rundir.private_directory(rundir.private_directory(places.staged) / instance)


def reuse(said: Timeline, scratch: list[str], tree: Tree) -> list[tuple[str, str]]:
    """Return, as expected and found, what speaks against TREE having been loaded, and nothing else.

    SAID is what the log says, SCRATCH the files that the engine has written: a compiler leaves some.
    """
    code = {f"{CACHE}/{file.path}" for file in tree.files}
    found = []
    if not said.loaded:
        found.append(("compiled code that was loaded", "no such line in the log"))
    found += [("compiled code of the blessed cache", path) for path in said.loaded if inside(path) not in code]
    found += [("nothing compiled", text) for text in said.compiled]
    found += [("every kernel in a cache", text) for text in said.missed]
    found += [("nothing compiled into the scratch", path) for path in scratch if _is_code(path)]
    return [*found, *(("nothing saved", text) for text in said.saved)]


def _is_code(path: str) -> bool:
    if path.startswith(f"{CACHE}/") or "/precompiled_headers/" in path:
        return False
    return PurePosixPath(path).suffix in _CODE


def inside(path: str) -> str:
    """Return PATH, as the engine writes it, without what its log puts after it."""
    return str(PurePosixPath(path.rstrip(".,;")))
