"""What travels to a worker and back: one line of JSON for a task, and one line for its answer.

The bytes of the probe travel with the task, and those of the evidence with the answer; both are held against their
hashes where they arrive.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, TypeAlias, cast

from nvllm.bless.blessing import Compiled
from nvllm.cache import cachetree
from nvllm.cache.manifest import TrialRecord
from nvllm.core import canonical, catalogue, documents
from nvllm.core.canonical import Json
from nvllm.core.fields import Form, Positive, Rule, Seconds, Sha256, T, Tagged, Word
from nvllm.core.refusal import Refusal, Refused, refuse, refuse_any
from nvllm.fleet.raylet import MemoryMonitor
from nvllm.patches.proved import ProofRecord
from nvllm.trials.trial import BisectProbe, Trial, TrialOutcome, TrialStage

SCHEMA = "nvllm.task/1"
ANSWER_SCHEMA = "nvllm.answer/1"

MOST_EVIDENCE = 1 << 20
"""Bytes of evidence, or of a probe, that travel."""

MOST_LINE = 4 << 20
"""Bytes of a line."""

_CURE = "send a line by docs/schemas/task.schema.json"
SAME_VERSION = "install the same version of nvllm on every machine"
"""The cure for an answer of a machine that is none to the task that it was sent."""

Base64 = Annotated[str, Rule(r"^[A-Za-z0-9+/]*={0,2}$", "base64", most=2 * MOST_EVIDENCE)]
TaskName = Annotated[str, Rule("^[0-9a-f]{32}$", "32 hex digits")]
Digest = Annotated[str, Rule("^sha256:[0-9a-f]{64}$", "sha256: and 64 hex digits")]


@dataclass(frozen=True, slots=True)
class TrialTask:
    """Try the image of CHOSEN of IMAGE once, with the probe TEST on PROFILE, as TASK.

    It is in REPOSITORY under MANIFEST, and has BUILD_HASH. The worker has to be of the class HOST. PROGRAM has the
    bytes of the probe's file, in base64; it is empty for a built-in test without one.
    """

    task: TaskName
    attempt: Positive
    image: Word
    profile: str
    chosen: tuple[Word, ...]
    build_hash: Sha256
    repository: Word
    manifest: Digest
    host: Word
    test: BisectProbe
    program: Base64


@dataclass(frozen=True, slots=True)
class ServedProfile:
    """PROFILE of IMAGE, which is in REPOSITORY under MANIFEST and has BUILD_HASH, as hosts of the class HOST serve it.

    Each of them has to come to SERVE_HASH itself.
    """

    image: Word
    profile: Word
    build_hash: Sha256
    repository: Word
    manifest: Digest
    host: Word
    serve_hash: Sha256


@dataclass(frozen=True, slots=True)
class ReadyTask:
    """Pull the image of SERVED, and examine what a boot of it needs: models, locks, memory. Start nothing."""

    task: TaskName
    served: ServedProfile


@dataclass(frozen=True, slots=True)
class BootTask:
    """Boot SERVED once, as the trial NUMBER of a bless, on the cache that was COMPILED; its image is CANDIDATE."""

    task: TaskName
    attempt: Positive
    number: Positive
    served: ServedProfile
    candidate: Digest
    compiled: Compiled


@dataclass(frozen=True, slots=True)
class SetImage:
    """The image of the set CHOSEN of patches: it has BUILD_HASH, and its task's repository has it under MANIFEST."""

    chosen: tuple[Word, ...]
    build_hash: Sha256
    manifest: Digest


@dataclass(frozen=True, slots=True)
class ProofTask:
    """Run NODES, tests that PATCH of IMAGE names, in the image WITHOUT it, and in that of the WHOLE set.

    Both images are in REPOSITORY, and so is the archive TESTS of SIZE bytes, with the files of the tests. The worker
    has to be of the class HOST; PROFILE is what it serves.
    """

    task: TaskName
    attempt: Positive
    image: Word
    profile: Word
    patch: Word
    nodes: tuple[Word, ...]
    without: SetImage
    whole: SetImage
    repository: Word
    tests: Digest
    size: Positive
    host: Word


@dataclass(frozen=True, slots=True)
class StatusTask:
    """Say what this host is, holds and runs."""


Task: TypeAlias = TrialTask | ReadyTask | BootTask | ProofTask | StatusTask


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """TASK was tried on a host of the class HOST. CONTENT is the evidence in base64, and EVIDENCE its sha256."""

    task: str
    host: Word
    outcome: TrialOutcome
    kind: str
    stage: TrialStage | None
    evidence: Annotated[str, Rule("^([0-9a-f]{64})?$", "a sha256 or nothing")]
    seconds: Seconds
    said: str
    content: Base64

    @property
    def trial(self) -> Trial:
        return Trial(self.outcome, self.kind, self.stage, self.evidence, self.seconds, self.said)

    @property
    def bytes(self) -> bytes:
        return base64.b64decode(self.content)


@dataclass(frozen=True, slots=True)
class AnsweredRefusal:
    """A refusal, as the worker found it."""

    code: Annotated[str, Rule(choices=tuple(catalogue.CODES))]
    where: Word
    expected: Word
    found: Word
    cure: Word


@dataclass(frozen=True, slots=True)
class RefusedAnswer:
    """TASK, empty if the line named none, was not carried out on the host of class HOST."""

    task: str
    host: str
    refusals: tuple[AnsweredRefusal, ...]


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """A host of the class HOST. IMAGES are the tags of nvllm's that its engine has, LOCKS what is held.

    ORPHANS are containers of tasks whose worker is gone. UNIFIED: the GPU uses the memory of the host. MONITOR: the Ray
    that started the worker watches memory; `unknown` if no Ray did.
    """

    host: Word
    images: tuple[str, ...]
    locks: tuple[str, ...]
    orphans: tuple[str, ...]
    unified: bool = False
    monitor: Annotated[MemoryMonitor, Rule(choices=("on", "off", "unknown"))] = "unknown"


@dataclass(frozen=True, slots=True)
class ReadyAnswer:
    """A host of the class HOST has all that TASK needs, and would serve it under SERVE_HASH."""

    task: TaskName
    host: Word
    serve_hash: Sha256


@dataclass(frozen=True, slots=True)
class BootAnswer:
    """The boot of TASK was good, on a host of the class HOST, under SERVE_HASH. RECORD has its figures.

    CONTENT is the log of its engine, in base64; the record has its sha256.
    """

    task: TaskName
    host: Word
    serve_hash: Sha256
    record: TrialRecord
    content: Base64

    @property
    def bytes(self) -> bytes:
        return base64.b64decode(self.content)


@dataclass(frozen=True, slots=True)
class ProofAnswer:
    """The tests of TASK ran on a host of the class HOST, and did what RECORDS say, in the order of its nodes."""

    task: TaskName
    host: Word
    records: tuple[ProofRecord, ...]


@dataclass(frozen=True, slots=True)
class HelloAnswer:
    """The first line of `nvllm worker --pipe`, before any task: the VERSION of nvllm, on a host of the class HOST."""

    version: Word
    host: Word


Answer: TypeAlias = TrialAnswer | ReadyAnswer | BootAnswer | ProofAnswer | RefusedAnswer | StatusAnswer | HelloAnswer


@dataclass(frozen=True, slots=True)
class TaskLine:
    """What every task has besides."""

    schema: Annotated[str, Rule(choices=(SCHEMA,))]


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """What every answer has besides."""

    schema: Annotated[str, Rule(choices=(ANSWER_SCHEMA,))]


_TASKS: Mapping[str, type[Task]] = {
    "trial": TrialTask,
    "ready": ReadyTask,
    "boot": BootTask,
    "proof": ProofTask,
    "status": StatusTask,
}
_ANSWERS: Mapping[str, type[Answer]] = {
    "trial": TrialAnswer,
    "ready": ReadyAnswer,
    "boot": BootAnswer,
    "proof": ProofAnswer,
    "refused": RefusedAnswer,
    "status": StatusAnswer,
    "hello": HelloAnswer,
}

FORM_TASK: Form[Task] = Form("task", SCHEMA, "One task on a worker's stdin", Tagged("ask", _TASKS, TaskLine))
FORM_ANSWER: Form[Answer] = Form(
    "answer", ANSWER_SCHEMA, "One answer on a worker's stdout", Tagged("answer", _ANSWERS, AnswerLine)
)


def task_line(task: Task) -> bytes:
    """Return TASK as one line."""
    return _line(FORM_TASK, task)


def answer_line(answer: Answer) -> bytes:
    """Return ANSWER as one line."""
    return _line(FORM_ANSWER, answer)


def _line(form: Form[T], value: T) -> bytes:
    assert isinstance(form.of, Tagged)
    name = next(name for name, cls in form.of.kinds.items() if isinstance(value, cls))
    own = cast("dict[str, Json]", documents.unstructure(form, value))
    return canonical.encode({"schema": form.schema, form.of.tag: name, **own}) + b"\n"


def task(line: bytes) -> Task:
    """Return the task in LINE. Raises Refused NV341 with everything that is wrong with it."""
    carried = _parsed(FORM_TASK, line, "NV341", "stdin", _CURE)
    if isinstance(carried, TrialTask):
        _decoded(carried.program, "NV341", "stdin: .program", _CURE)
    if isinstance(carried, BootTask):
        fit = "a path below the top, once, in a directory of the tree"
        compiled = carried.compiled.tree
        wrong = [Refusal("NV341", f"stdin: {path!r}", fit, why, _CURE) for path, why in cachetree.problems(compiled)]
        if not compiled.is_sealed:
            wrong.append(Refusal("NV341", "stdin: .compiled.tree", "modes of a sealed tree", "another mode", _CURE))
        refuse_any(wrong)
    return carried


def answer(line: bytes, where: str) -> Answer:
    """Return the answer in LINE, which came from the machine WHERE. Raises Refused NV345 if it is none.

    The evidence of a trial has been held against its hash.
    """
    cure = SAME_VERSION
    reply = _parsed(FORM_ANSWER, line, "NV345", where, cure)
    if isinstance(reply, TrialAnswer):
        content = _decoded(reply.content, "NV345", f"{where}: .content", cure)
        digest = hashlib.sha256(content).hexdigest()
        if reply.evidence != digest and (content or reply.evidence):
            raise refuse("NV345", f"{where}: .content", f"evidence of sha256 {reply.evidence or 'none'}", digest, cure)
        if (reply.stage is None) == (reply.outcome == "untestable"):
            raise refuse("NV345", f"{where}: .stage", "a stage if it is untestable, else none", str(reply.stage), cure)
    if isinstance(reply, BootAnswer):
        digest = hashlib.sha256(_decoded(reply.content, "NV345", f"{where}: .content", cure)).hexdigest()
        if reply.record.log != digest:
            raise refuse("NV345", f"{where}: .content", f"a log of sha256 {reply.record.log}", digest, cure)
    return reply


def _parsed(form: Form[T], line: bytes, code: str, where: str, cure: str) -> T:
    if len(line) > MOST_LINE:
        raise refuse(code, where, f"a line of at most {MOST_LINE} bytes", "a longer one", cure)
    return documents.parse(form, line, lambda _: (), code=code, label=where, cure=cure)


def _decoded(text: str, code: str, where: str, cure: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise refuse(code, where, "base64", str(error), cure) from error
    if len(data) > MOST_EVIDENCE:
        raise refuse(code, where, f"at most {MOST_EVIDENCE} bytes", f"{len(data)} bytes", cure)
    return data


def refused_answer(task: str, host: str, refused: Refused) -> RefusedAnswer:
    """Return the answer that TASK was REFUSED on a host of the class HOST."""
    return RefusedAnswer(task, host, tuple(AnsweredRefusal(**asdict(refusal)) for refusal in refused.refusals))


def refusals(answer: RefusedAnswer, where: str) -> Refused:
    """Return the refusals of ANSWER, which came from the machine WHERE."""
    return Refused(
        Refusal(refusal.code, f"{where}: {refusal.where}", refusal.expected, refusal.found, refusal.cure)
        for refusal in answer.refusals
    )
