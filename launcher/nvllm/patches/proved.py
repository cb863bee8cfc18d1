"""The record of what proofs did: ``patches/<base>/proofs.json``, beside the series. `nvllm patch prove` writes it.

A proof is a test that a patch names in ``proved-by``. It proves the patch if it fails without the patch and passes with
the set. A record holds as long as the patch's file and the file of the test have the bytes that they had.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from nvllm.core import canonical, documents, durable, reading
from nvllm.core.fields import Form, Rule, Sha256, Word
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal
from nvllm.core.spec import ImageSpec
from nvllm.patches.series import Patch

SCHEMA = "nvllm.proofs/1"
NAME = "proofs.json"

Answer: TypeAlias = Literal["passed", "failed", "error", "none"]
"""What a test did: it passed; it failed by an assertion, or by an error that counts; it ended by another error; it did
not run."""

Verdict: TypeAlias = Literal["proved", "passes-without", "fails-with", "other-error", "not-run"]
"""What both runs amount to: the test proves the patch; it passes without it; it does not pass with it; without it, it
fails for another reason; it did not run."""

State: TypeAlias = Literal["proved", "unproved", "stale"]
"""``stale``: it was proved, and the patch or a test of it has changed since."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A run of one test in the image with this id, and its outcome. TEXT is what the first failure raised."""

    image: Word
    outcome: Annotated[Answer, Rule(choices=get_args(Answer))]
    text: str = ""


@dataclass(frozen=True, slots=True)
class ProofRecord:
    """What the test NODE did without PATCH (and what requires it), and with the set. MACHINE is the class of the host.

    The sha256s are those of the patch's file and of the test's file.
    """

    patch: Word
    node: Word
    verdict: Annotated[Verdict, Rule(choices=get_args(Verdict))]
    without: Arm
    whole: Arm
    patch_sha256: Sha256
    test_sha256: Sha256
    machine: Word
    made: Word


@dataclass(frozen=True, slots=True)
class CoveredProof:
    """The test NODE of PATCH passes without it. It fails once the patches BY are left out too; none: it never fails."""

    patch: Word
    node: Word
    by: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokenProof:
    """The test NODE of PATCH fails though PATCH is there. TEXT is what the first failure raised."""

    patch: Word
    node: Word
    text: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What TESTS proofs, of all patches of a set, did in the IMAGE without PATCH and what requires it.

    Those of patches that are not there must fail: COVERED are the others. Those of patches that are there must pass:
    BROKEN are the others. INPUTS is `inputs` of what ran.
    """

    patch: Word
    image: Word
    tests: int
    inputs: Sha256
    machine: Word
    made: Word
    covered: tuple[CoveredProof, ...] = ()
    broken: tuple[BrokenProof, ...] = ()


@dataclass(frozen=True, slots=True)
class Proofs:
    """patches/<base>/proofs.json: the newest record of each test of each patch, and of each patch left out."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]
    proofs: tuple[ProofRecord, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


FORM = Form("proofs", SCHEMA, "Records of proofs", Proofs)


def read(project: Project, base: str) -> Proofs:
    """Return the records of the series BASE; none if there is no file. Raises Refused NV109 or NV104.

    None in the project that nvllm came with either: it has no tests, so each record would be stale.
    """
    if not project.own:
        return Proofs(SCHEMA)
    path = project.series(base) / NAME
    label = project.show(path)
    cure = f"remove it, and prove the patches again: {shlex.join(['rm', label])}"
    try:
        data = reading.content(path, reading.SERIES)
    except FileNotFoundError:
        return Proofs(SCHEMA)
    except OSError as error:
        raise reading.refused(label, error) from error
    return documents.decode(FORM, data, lambda _: (), code="NV104", label=label, cure=cure)


def write(project: Project, base: str, proofs: Sequence[ProofRecord], left_out: Sequence[LeftOut] = ()) -> None:
    """Put PROOFS in the place of the records of the same tests of the same patches, and LEFT_OUT likewise.

    Raises Refused NV920.
    """
    before = read(project, base)
    kept = {(proof.patch, proof.node): proof for proof in (*before.proofs, *proofs)}
    without = {record.patch: record for record in (*before.left_out, *left_out)}
    whole = Proofs(SCHEMA, tuple(kept[key] for key in sorted(kept)), tuple(without[name] for name in sorted(without)))
    durable.replace(project.series(base) / NAME, documents.encode(FORM, whole), 0o644, code="NV920")


def inputs(root: Path, patches: Sequence[Patch], tests: Sequence[tuple[str, str]]) -> str:
    """Return the hash of what decides how TESTS, nodes with the patch that names them, do in subsets of PATCHES."""
    return canonical.digest(
        "nvllm.left-out/1",
        {
            "patches": {patch.id: [patch.sha256, *patch.requires] for patch in patches},
            "tests": [[patch, node, file_sha256(root, node)] for patch, node in sorted(tests)],
        },
    )


def file_sha256(root: Path, node: str) -> str:
    """Return the sha256 of the file of the test NODE below ROOT, empty if it cannot be read."""
    try:
        return hashlib.sha256(reading.content(root / node.partition("::")[0], reading.SOURCE)).hexdigest()
    except OSError:
        return ""


def state(root: Path, patch: Patch, proofs: Sequence[ProofRecord]) -> State:
    """Return whether PATCH, whose tests lie below ROOT, is proved by PROOFS: by every one of its tests."""
    records = {proof.node: proof for proof in proofs if proof.patch == patch.id and proof.verdict == "proved"}
    if not patch.proved_by or not records.keys() >= {*patch.proved_by}:
        return "unproved"
    same = all(holds(root, patch, records[node]) for node in patch.proved_by)
    return "proved" if same else "stale"


def holds(root: Path, patch: Patch, proof: ProofRecord) -> bool:
    """Return whether PROOF is of PATCH and of the test below ROOT as they are now."""
    return proof.patch_sha256 == patch.sha256 and proof.test_sha256 == file_sha256(root, proof.node)


def tally(project: Project, base: str, patches: Sequence[Patch]) -> dict[str, int]:
    """Return how many of PATCHES, of the series BASE, are in each state; nothing if no test of the series ever ran.

    Raises Refused as `read` does.
    """
    proofs = read(project, base).proofs
    counted = Counter(state(project.root, patch, proofs) for patch in patches) if proofs else {}
    return {name: counted[name] for name in sorted(counted)}


def words(tally: Mapping[str, int]) -> str:
    """Return what `tally` returned as a person reads it."""
    return ", ".join(f"{count} {state}" for state, count in tally.items())


def demanded(project: Project, spec: ImageSpec, patches: Sequence[Patch]) -> Iterator[Refusal]:
    """Yield NV607 for each of PATCHES that is not proved, if SPEC says ``patches.proved: required``."""
    if spec.patches.proved is None:
        return
    proofs = read(project, spec.patches.series).proofs
    for patch in patches:
        answer = state(project.root, patch, proofs)
        if answer != "proved":
            where = f"{project.show(project.spec(spec.name))}: .patches.proved"
            cure = f"nvllm patch prove {spec.name} {patch.id}"
            yield Refusal("NV607", where, f"{patch.id} proved by its tests", answer, cure)
