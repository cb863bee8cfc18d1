"""The documents of an evidence directory: what was to be run, each leg, each answer, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from nvllm.core.fields import Count, Form, Positive, Rule, Seconds, Sha256, Word
from nvllm.trials.answers import ProbeState

RUN_SCHEMA = "nvllm.evidence-run/1"
LEG_SCHEMA = "nvllm.evidence-leg/1"
COMPARISON_SCHEMA = "nvllm.evidence-comparison/1"
KERNELS_SCHEMA = "nvllm.evidence-kernels/1"

Kind: TypeAlias = Literal["ablate", "bench", "eval", "sweep"]
Outcome: TypeAlias = Literal["passed", "failed", "invalid"]
Finding: TypeAlias = Literal[
    "win",
    "loss",
    "mixed",
    "shorter generations",
    "longer generations",
    "neutral",
    "above the floor",
    "below the floor",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class HostState:
    """The host of a run. COMMIT is that of the project's repository, empty without one; DIRTY says it had changes."""

    machine: Word
    kernel: Word
    processor: str
    memory: Count
    gpus: tuple[str, ...]
    """Name and driver of each GPU."""
    engine: str
    commit: str
    dirty: bool


_Part: TypeAlias = Annotated[float, Rule(minimum=0)]


@dataclass(frozen=True, slots=True)
class Margins:
    """How much a figure may differ and still count as the same, each as a part of 1. They are chosen before a run."""

    speed: _Part = 0.03
    """Of every speed and latency."""
    questions: _Part = 0.05
    """Of the questions."""
    length: _Part = 0.1
    """Of the length of an answer."""


MARGINS = Margins()
"""Those of a run that names none, and of every run before there were any."""


@dataclass(frozen=True, slots=True)
class TraceRules:
    """How traces are taken: so many RUNS of each arm, each in a fresh container, of at most STEPS of the engine."""

    runs: Positive = 1
    steps: Positive = 32


TRACE_RULES = TraceRules()
"""Those of a run that names none, and of every run before there were any."""


@dataclass(frozen=True, slots=True)
class ArmState:
    """An arm: its NAME, its PROFILE, the sentinels that are PRESENT, and those of them that the arms differ in, ON."""

    name: Word
    profile: Word
    present: tuple[str, ...]
    on: tuple[str, ...]
    artifact: Count = 0
    """Which of several compiles of one key its legs load; 0 if there is only one."""
    evaluated: str = ""
    """The profile whose engine is asked the questions of a sweep; empty if that of PROFILE is asked them too."""

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profiles that its engines serve."""
        return (self.profile, self.evaluated) if self.evaluated else (self.profile,)


@dataclass(frozen=True, slots=True)
class RunManifest:
    """runner_manifest.json: what is run, on what, and with which questions. Written before the first leg."""

    schema: Annotated[str, Rule(choices=(RUN_SCHEMA,))]
    kind: Kind
    image: Word
    image_id: Word
    build_hash: Sha256
    patches: tuple[str, ...]
    ablated: tuple[str, ...]
    arms: tuple[ArmState, ...]
    runs: Positive
    probe: ProbeState
    host: HostState
    created: Word
    """UTC."""
    traced: bool = False
    """Whether each arm has further legs, under PyTorch's profiler, that no other figure comes from."""
    trace: TraceRules = TRACE_RULES
    margins: Margins = MARGINS
    until_decided: bool = False
    """Whether the run ends before RUNS if all is found."""
    cold: bool = True
    """Whether each leg of a profile without a blessing compiles for itself, as all did in runs that do not say."""
    per_engine: Positive = 1
    """How many of the RUNS of an arm one engine is asked, one after the other."""
    other_hosts: tuple[HostState, ...] = ()
    """The hosts, or the host at other commits, on which the run went on by ``--anyway``: its legs are mixed."""

    @property
    def engines(self) -> int:
        """The engines of each arm, each in a fresh container."""
        return self.runs // self.per_engine


@dataclass(frozen=True, slots=True)
class HarnessCheck:
    """One check of a leg's harness: whether it HOLDS, what was EXPECTED and what was FOUND."""

    name: Word
    holds: bool
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class LegPhase:
    """A phase of a leg's start: how many SECONDS it took, and how many seconds after the start it ENDED."""

    name: Word
    seconds: Seconds
    ended: Seconds


@dataclass(frozen=True, slots=True)
class EvaluationEngine:
    """The second engine of a leg, of another PROFILE, which was asked the questions. TREE and COMPILE_KEY as there."""

    profile: Word
    container: str
    serve_hash: str
    tree: str = ""
    compile_key: str = ""


@dataclass(frozen=True, slots=True)
class LegVerdict:
    """verdict.json of a leg, one run of one arm: its OUTCOME, the CHECKS of its harness, and its figures."""

    schema: Annotated[str, Rule(choices=(LEG_SCHEMA,))]
    arm: Word
    run: Positive
    outcome: Outcome
    reason: str
    checks: tuple[HarnessCheck, ...]
    correct: Count
    asked: Count
    tokens: Count
    seconds: Seconds
    """The sum over all answers."""
    output: str
    """The sha256 of all answers; runs with the same one are replicas."""
    container: str
    serve_hash: str
    dev: bool
    started: Word
    phases: tuple[LegPhase, ...]
    kv_tokens: int | None
    peak_memory: int | None
    """Bytes."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What vLLM's own load generator measured, in a bench or a sweep: names and milliseconds, or tokens per second."""
    timeouts: Count = 0
    """Answers that ran into their timeout. They count as wrong."""
    tree: str = ""
    """The hash of the compiled tree that it loaded; empty if it loaded none."""
    compile_key: str = ""
    """What the tree was compiled for, see `serve/servehash.py`; empty without one."""
    engine: Count = 0
    """The number of the engine in its arm, if an engine is asked several runs; 0 if each run has one of its own."""
    turn: Positive = 1
    """Which run of its engine it is."""
    kv_usage: float | None = None
    """The share of the KV cache in use once the run was over and the engine at rest; None if nobody knows."""
    memory: Mapping[str, Count] = field(default_factory=dict)
    """Bytes while its engine ran, by figure of `serve/memoryseries.py`: the least available, the most of others."""
    evaluation: EvaluationEngine | None = None
    """The engine that was asked the questions, if that is not the one that was measured under load."""

    def loaded(self, profile: str) -> tuple[str, str]:
        """Return the compile key and the tree that its engine of PROFILE loaded; empty texts if it loaded none."""
        if self.evaluation is not None and self.evaluation.profile == profile:
            return self.evaluation.compile_key, self.evaluation.tree
        return self.compile_key, self.tree

    @property
    def in_engine(self) -> int:
        """The number of its engine in the arm."""
        return self.engine or self.run

    @property
    def rate(self) -> float:
        """Tokens per second; 0 if no answer took any time."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float | None:
        """The share of right answers; None if nothing was asked."""
        return self.correct / self.asked if self.asked else None


@dataclass(frozen=True, slots=True)
class ArmArtifact:
    """What the legs of ARM loaded: the COMPILE_KEY, and the hashes of the TREES; both empty if they loaded nothing."""

    arm: Word
    compile_key: str
    trees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """What the valid legs of an arm show. SAMPLES are different outputs among its RUNS; replicas count as one."""

    name: Word
    outcome: Outcome
    runs: Count
    valid: Count
    samples: Count
    correct: float
    """The mean share of correct answers over the samples."""
    low: float
    high: float
    """The interval of that share at 95 %, over questions."""
    tokens_per_second: float
    tokens_per_answer: float
    seconds: float
    figures: Mapping[str, float] = field(default_factory=dict)
    """The means of the figures of its legs, in a bench or a sweep."""
    asked: Count = 0
    """The questions of all valid runs together."""
    timeouts: Count = 0
    """How many of them ran into their timeout. They count as wrong."""
    memory: Mapping[str, Count] = field(default_factory=dict)
    """Bytes, as in a leg, over all of them."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a sentinel changes, or two of them together beyond the sum (``a x b``), or a profile against another one.

    For ``correct`` and ``tokens per answer`` it is a difference, for any other measure a ratio. LOW and HIGH are
    the interval, corrected for all effects of the comparison; None if there are too few samples for one. ADJUSTED is
    the p-value, corrected in the same way.
    """

    factor: Word
    measure: Word
    estimate: float
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None
    unit: Word
    """What one observation is: a question, or a run."""
    observations: Count
    margin: float = 0.0
    """How much MEASURE may differ and still count as the same: a difference, or a ratio less 1."""
    needed: Count | None = None
    """About how many observations like these would decide; None if these do, or nobody can tell."""
    needed_unit: str = ""
    """What NEEDED counts: questions, or runs."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The CALLS of a kernel in a trace, or of an operator without those that it calls, and their MICROSECONDS."""

    name: Word
    calls: Count
    microseconds: float


@dataclass(frozen=True, slots=True)
class KernelTable:
    """kernels.json of an arm: what its trace adds up to, or all its traces. ON is where the time was spent.

    TRACE is the file beside it that PyTorch's profiler wrote, empty if it was too large to keep.
    """

    schema: Annotated[str, Rule(choices=(KERNELS_SCHEMA,))]
    arm: Word
    on: Literal["gpu", "cpu"]
    requests: Positive
    steps: Positive
    """The most steps of the engine that were recorded."""
    microseconds: float
    kernels: tuple[KernelTime, ...]
    """The longest ones."""
    others: Count
    """How many more there are, whose time is in MICROSECONDS alone."""
    trace: str
    run: Positive = 1
    """Which trace of the arm it is; of all together, how many they are."""
    tokens: Count = 0
    """The tokens that were generated meanwhile; 0 if the load did not end within the steps, or nobody counted."""
    tree: str = ""
    """The hash of the compiled tree that its engine loaded; empty if it loaded none."""


@dataclass(frozen=True, slots=True)
class TracedArm:
    """The milliseconds of all kernels for a generated token in ARM: those of each trace, in RUNS, and their MEAN.

    LOW and HIGH are Student's interval at 95 %; None if there are too few traces.
    """

    arm: Word
    runs: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class KernelCompared:
    """A kernel that two arms have: its calls, its time and its share of all time in each, and its time in RATIO."""

    name: Word
    first: Word
    other: Word
    calls: tuple[Count, ...]
    microseconds: tuple[float, ...]
    shares: tuple[float, ...]
    ratio: float | None


@dataclass(frozen=True, slots=True)
class FactorFinding:
    """The FINDING about one factor, and what it rests on in words.

    TAKES says what would decide the figures that are open, as far as they show it; empty if none is. ARTIFACTS says
    whether the arms that it compares loaded the same compiled code. BRIEF says in a few words what was found.
    """

    factor: Word
    finding: Finding
    text: Word
    takes: str = ""
    artifacts: str = ""
    brief: str = ""


@dataclass(frozen=True, slots=True)
class Flipped:
    """A question that two arms do not answer equally well: the FIRST of them, and the OTHER one.

    RIGHT and RUNS have for each how many of its different outputs are right, and of how many. REPLIES and TEXTS are
    the number and the end of the text that each answers with, in its first such output.
    """

    factor: Word
    first: Word
    other: Word
    id: Count
    expected: str
    right: tuple[Count, ...]
    runs: tuple[Count, ...]
    replies: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What one run of an engine shows: TURN says which of its runs it is. KV_USAGE and PEAK_MEMORY are as in a leg."""

    turn: Positive
    outcome: Outcome
    correct: Count
    asked: Count
    tokens_per_second: float
    kv_usage: float | None
    peak_memory: int | None
    """Bytes, the highest since the engine started."""


@dataclass(frozen=True, slots=True)
class EngineRuns:
    """The RUNS of the engine with the number ENGINE in ARM, in their order."""

    arm: Word
    engine: Positive
    runs: tuple[RunFigures, ...]


@dataclass(frozen=True, slots=True)
class QuestionRuns:
    """How the question ID was answered: for each engine of the comparison, or each arm, a mark for each run."""

    id: Count
    expected: str
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArtifactResult:
    """What the starts of ARM, which loaded the compiled TREE, show: how many answers each had RIGHT, of those ASKED.

    KEPT is where the tree lies in the directory of the run. OUTPUTS are the different outputs of the starts.
    """

    arm: Word
    tree: str
    kept: str
    right: tuple[Count, ...]
    asked: Count
    outputs: Count
    bad: bool


@dataclass(frozen=True, slots=True)
class ArtifactSpread:
    """Standard deviations of the share of right answers: BETWEEN artifacts, and WITHIN one, from start to start."""

    between: float
    within: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """comparison.json: the arms, the effects with their intervals, and what follows. NOTES say what to be wary of."""

    schema: Annotated[str, Rule(choices=(COMPARISON_SCHEMA,))]
    level: float
    """The level of the intervals before the correction."""
    arms: tuple[ArmSummary, ...]
    effects: tuple[Effect, ...]
    findings: tuple[FactorFinding, ...]
    notes: tuple[str, ...]
    kernels: tuple[KernelTable, ...] = ()
    """What the traces of each arm add up to, in a bench or a sweep with traces."""
    common: tuple[KernelCompared, ...] = ()
    """The kernels that the first arm and another one have."""
    traced: tuple[TracedArm, ...] = ()
    """The time of the kernels for a token, of the arms whose tokens were counted."""
    flipped: tuple[Flipped, ...] = ()
    """The questions that two arms do not answer equally well."""
    unlisted: Count = 0
    """How many more there are of them."""
    question: str = ""
    """What is asked of two runs; empty for one, whose manifest says it."""
    artifacts: tuple[ArmArtifact, ...] = ()
    """What the legs of each arm loaded."""
    engines: tuple[EngineRuns, ...] = ()
    """The engines that were asked several runs, with what each run shows."""
    questions: tuple[QuestionRuns, ...] = ()
    """Every question in every run of these engines, or of the arms if there are none, if there are not too many."""
    compiles: tuple[ArtifactResult, ...] = ()
    """The artifacts of one key, where they are what is compared."""
    spread: ArtifactSpread | None = None


FORM_RUN = Form("evidence-run", RUN_SCHEMA, "What an evidence run is: runner_manifest.json", RunManifest)
FORM_LEG = Form("evidence-leg", LEG_SCHEMA, "The verdict of one leg: verdict.json", LegVerdict)
FORM_COMPARISON = Form("evidence-comparison", COMPARISON_SCHEMA, "The comparison of arms: comparison.json", Comparison)
FORM_KERNELS = Form("evidence-kernels", KERNELS_SCHEMA, "The kernels of a trace: kernels.json", KernelTable)
