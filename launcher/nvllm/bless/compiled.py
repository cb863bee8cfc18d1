"""What was compiled once and is kept outside the tree store, as evidence: each compile in a directory of its own.

::

    <directory>/
        artifact.json    what it is; written last
        <tree hash>/     the tree, as a bless stores one
        bootstrap/       the run directory of the engine that compiled it
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nvllm.bless.blessing import Bless, Keeping
from nvllm.cache.cachetree import Tree
from nvllm.cache.manifest import wrong_tree
from nvllm.cache.pins import Pins
from nvllm.cache.store import TreeStore
from nvllm.core import clock, documents, durable, reading
from nvllm.core.fields import Form, Rule, Sha256, Word
from nvllm.core.paths import Places
from nvllm.core.progress import Progress
from nvllm.core.refusal import refuse
from nvllm.host.locks import HeldLocks
from nvllm.serve import servehash
from nvllm.serve.examination import Examination
from nvllm.serve.rundir import private_directory
from nvllm.trials.artifact import Artifact

SCHEMA = "nvllm.evidence-artifact/1"

_RECORD = "artifact.json"


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """artifact.json: what engines with COMPILE_KEY load, the TREE beside it, and the PROFILE that compiled it."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    compile_key: Sha256
    profile: Word
    tree: Tree
    created: Word
    """UTC."""


FORM = Form("evidence-artifact", SCHEMA, "What was compiled once: artifact.json", ArtifactRecord)


def directory_of(compile_key: str, number: int) -> str:
    """Return the name of the directory of the compile NUMBER of COMPILE_KEY; NUMBER is 0 if there is only one."""
    return f"{compile_key}-{number}" if number else compile_key


def record(directory: Path, cure: str) -> ArtifactRecord | None:
    """Return the record in DIRECTORY, None if there is none. Raises Refused NV853 with CURE if it is damaged."""
    path = directory / _RECORD
    if not path.exists():
        return None
    data = content(path, cure)
    return documents.parse(FORM, data, lambda kept: wrong_tree(kept.tree), code="NV853", label=str(path), cure=cure)


def content(path: Path, cure: str) -> bytes:
    """Return the content of PATH, a file of evidence. Raises Refused NV853 with CURE if it cannot be read."""
    try:
        return reading.content(path, reading.LOG)
    except OSError as error:
        raise refuse("NV853", str(path), "a file of an evidence run", error.strerror or str(error), cure) from error


@dataclass(frozen=True, slots=True)
class Compiling:
    """How an artifact is compiled if it is not there yet.

    The caller holds HELD_LOCKS, those of the engine of EXAMINATION. AGAIN is the command that compiles anew, OTHERWISE
    how to do without, and DAMAGED the cure of a record that is damaged.
    """

    examination: Examination
    places: Places
    held_locks: HeldLocks
    progress: Progress
    again: str
    otherwise: str
    damaged: str

    def artifact(self, directory: Path, number: int) -> Artifact:
        """Return the compile NUMBER in DIRECTORY, which is made if it is not there yet.

        Raises Refused as `Bless.bootstrap` does, NV853 for a damaged record, and NV920 if it cannot be written.
        """
        plan, kept = self.examination.plan, record(directory, self.damaged)
        key, store = servehash.compile_key(plan), TreeStore(directory)
        if kept is None:
            which = f", number {number}" if number else ""
            self.progress.note(f"compile: {plan.profile}, compile key {key[:12]}{which}")
            private_directory(directory.parent)  # what lies here is loaded as code
            private_directory(directory)
            failed = f"ls {shlex.quote(str(directory))} && {self.again}; {self.otherwise}"
            with Pins(self.places.pins).pin() as pin:
                keeping = Keeping(store, directory, failed)
                work = Bless(self.examination, self.places, self.held_locks, self.progress, pin, keeping=keeping)
                tree = work.bootstrap(self.progress).tree
            kept = ArtifactRecord(SCHEMA, key, plan.profile, tree, clock.now())
            durable.replace(directory / _RECORD, documents.encode(FORM, kept), 0o600, code="NV920")
        self.progress.note(f"artifact: tree {kept.tree.hash[:12]}, compiled at {kept.created}")
        return Artifact(key, kept.tree, store, self.again)
