"""Artifacts of a run: compiled once for each compile key, below `<run>/artifacts`, and loaded by every leg that has it.

They lie in the run, not in the tree store (`bless/compiled.py`). A profile that is blessed loads its blessing, and so
does every other leg with the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nvllm.bless.compiled import Compiling
from nvllm.cache.store import TreeStore
from nvllm.core.paths import Places
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refusal, refuse_any
from nvllm.evidence.directory import CURE, EvidenceDirectory
from nvllm.evidence.records import ArmState, HarnessCheck, LegVerdict
from nvllm.host.locks import HeldLocks
from nvllm.serve import servehash
from nvllm.serve.examination import Examination
from nvllm.trials.artifact import Artifact, LoadingStart

_LISTED = 5
"""Signs of a compilation that a check lists."""


def check(loaded: LoadingStart, scratch: Sequence[str] | None) -> HarnessCheck | None:
    """Return whether the engine of LOADED has its tree and compiled nothing; None if it loads none.

    SCRATCH are the files that it has written, None if it has ended.
    """
    tree = loaded.start.cache
    if tree is None or loaded.copy is None:
        return None
    signs = loaded.signs(scratch)
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
        loaded = [verdict for verdict in self.directory.verdicts(arm.name) if verdict.loaded(arm.profile)[1]]
        again = f"{held_locks.command} --force"
        refuse_any(_otherwise_loaded(loaded, "compile key", key, lambda verdict: verdict.loaded(arm.profile)[0], again))
        compiled = (key, arm.artifact)
        if compiled not in self._known:
            if manifest is not None:
                store = TreeStore(self.places.trees)
                self._known[compiled] = Artifact(key, manifest.tree, store, manifest.cure)
            else:
                self._known[compiled] = self._own(key, arm.artifact, examination, held_locks)
        tree = self._known[compiled].tree.hash
        refuse_any(_otherwise_loaded(loaded, "tree", tree, lambda verdict: verdict.loaded(arm.profile)[1], again))
        return self._known[compiled]

    def _own(self, key: str, number: int, examination: Examination, held_locks: HeldLocks) -> Artifact:
        """Return the compile NUMBER of KEY in the run, which the engine of EXAMINATION makes if it is not there yet."""
        again = f"{held_locks.command} --force"
        otherwise = "or with --cold, where each leg compiles for itself"
        work = Compiling(examination, self.places, held_locks, self.progress, again, otherwise, CURE)
        return work.artifact(self.directory.artifact(key, number), number)


def _otherwise_loaded(
    loaded: Sequence[LegVerdict], name: str, now: str, of: Callable[[LegVerdict], str], cure: str
) -> list[Refusal]:
    """Return NV859 with CURE for each leg that LOADED something whose hash NAME, which OF returns, is not NOW."""
    return [
        Refusal("NV859", f"arm {leg.arm}, run {leg.run}", f"the {name} {of(leg)[:12]} of before", now[:12], cure)
        for leg in loaded
        if of(leg) != now
    ]
