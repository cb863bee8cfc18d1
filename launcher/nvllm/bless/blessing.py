"""Blessing: a cold compile, trials in fresh containers on the read-only result, and one rename if all are good.

The logs of all starts are kept as evidence (`evidence.py`), also those of a rejected bless. The bootstrap compiles into
a directory of its own, the workbench, which is copied into the tree store and removed. The trials load that tree, and
`serve` loads it afterwards. Only `promotion` brings a manifest into force, and only after the last trial.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nvllm.bless import coverage, evidence, rejected, replay
from nvllm.bless.coverage import Covered, Rounds
from nvllm.bless.evaluation import ANSWERS, Asker
from nvllm.bless.preflight import BlessRequest
from nvllm.bless.replay import Tokens
from nvllm.cache import manifest, promotion, signature, staging
from nvllm.cache.blessings import Blessing, Blessings
from nvllm.cache.cachetree import Tree
from nvllm.cache.evaluation import EvaluationRecord
from nvllm.cache.manifest import ColdStart, Coverage, Manifest, PhaseTime, StartCost, TrialRecord
from nvllm.cache.pins import Pin
from nvllm.cache.staging import Staged
from nvllm.cache.store import TreeStore
from nvllm.core import canonical, clock, durable
from nvllm.core.paths import Places
from nvllm.core.plan import LaunchPlan, Workbench
from nvllm.core.progress import Progress, Silent, Table
from nvllm.core.refusal import Refusal, Refused, collected, refuse, refuse_any
from nvllm.host.locks import HeldLocks
from nvllm.runtime import seed
from nvllm.serve import planner, servehash, slow_start, staged_cache
from nvllm.serve.examination import Examination
from nvllm.serve.health import NotReady
from nvllm.serve.rundir import RunDirectory, private_directory
from nvllm.serve.startup import EngineStart, labels
from nvllm.serve.timeline import Timeline

_ANSWER = 120.0
"""Seconds that a ready engine may take for one answer."""

EVALUATED = 1
"""The trial that is asked the evaluation: it runs on the host that compiled, and an early end costs least."""

_COLUMNS = ("boot", "state", "start", "answers", "KV tokens", "peak memory", "compiled")


@dataclass(frozen=True, slots=True)
class BlessResult:
    """The result of a bless that passed: the TREE, which is in the store, its good TRIALS, and the COLD start.

    COVERAGE is what was asked so that all is compiled; None if an earlier version compiled it.
    """

    tree: Tree
    trials: tuple[TrialRecord, ...]
    cold: ColdStart
    coverage: Coverage | None


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a bootstrap made: the TREE, in the store, its ANSWER to the probe, the COLD start and the COVERAGE.

    Of a bootstrap on another host, whose tree is a candidate, there is no answer.
    """

    tree: Tree
    answer: Tokens
    cold: ColdStart
    coverage: Coverage | None


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where a bless keeps what it makes: trees in STORE, the logs of its starts in EVIDENCE.

    CURE is what to do about a start that is rejected, and about a tree that is not fit to be loaded.
    """

    store: TreeStore
    evidence: Path
    cure: str


class _TableRow(Silent):
    """The progress of one start, shown in the row NAME of TABLE."""

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self._name = name

    def note(self, text: str) -> None:
        self._table.row(self._name, " ".join(text.split()))

    def good(self, trial: TrialRecord) -> None:
        """Show the figures of TRIAL, which is good."""
        memory = f"{trial.peak_memory / 2**20:.0f} MiB" if trial.peak_memory is not None else "unknown"
        took, tokens = f"{_took(trial):.1f} s", str(trial.kv_tokens or "none")
        self._table.row(self._name, "good", took, str(trial.replays), tokens, memory, str(trial.compiles))


@contextlib.contextmanager
def _table_row(table: Table, name: str) -> Iterator[_TableRow]:
    """Show what happens in the context, also its failure, in the row NAME of TABLE."""
    row = _TableRow(table, name)
    row.note("starting")
    try:
        yield row
    except Refused as refused:
        row.note(f"rejected: {', '.join(sorted({refusal.code for refusal in refused.refusals}))}")
        raise
    except KeyboardInterrupt:
        row.note("interrupted")
        raise


class _Bootstrap(EngineStart):
    """The start that compiles, on a writable WORKBENCH."""

    workbench: Path

    def _create(self) -> str:
        return self.engine.start_workbench(Workbench(self.plan, str(self.workbench)), labels(self.plan, self.run.path))


class Bless:
    """One bless of the profile of EXAMINATION, which refused nothing. The caller holds HELD_LOCKS.

    It holds PIN too, until the manifest is in force: until then nothing else keeps tree and evidence from `gc`.
    ASKER asks the evaluation that the profile demands. KEEPING is where tree and logs go, if that is not the tree store
    and the state, as for a run of evidence. A tree that a trial rejects stays for KEEP_DAYS.
    """

    def __init__(
        self,
        examination: Examination,
        places: Places,
        held_locks: HeldLocks,
        progress: Progress,
        pin: Pin,
        asker: Asker | None = None,
        keeping: Keeping | None = None,
        keep_days: int = 0,
    ) -> None:
        assert examination.engine is not None  # without an engine the examination was refused
        self.engine = examination.engine
        self.examination = examination
        self.plan = examination.plan
        self.profile = examination.profile
        self.held_locks = held_locks
        self.progress = progress
        self.places = places
        self.pin = pin
        self.asker = asker
        self.keep_days = keep_days
        if keeping is None:
            keeping = _of_state(self.plan, places)
            pin.keep(f"{keeping.evidence.parent.name}/{keeping.evidence.name}")
        self.store, self.evidence, self.cure = keeping.store, keeping.evidence, keeping.cure

    def run(self, request: BlessRequest, base: Manifest | None = None) -> BlessResult:
        """Compile a cache, run as many trials on it as REQUEST asks for, and return the result; see `begin`."""
        return self.result(*self.begin(request.boots, request.boots, base))

    def begin(self, here: int, boots: int, base: Manifest | None = None) -> tuple[Compiled, tuple[TrialRecord, ...]]:
        """Compile a cache, and run the first HERE of BOOTS trials on it. Return both.

        With BASE, a blessing, add kernels to its cache instead. Raises Refused: what a start raises, NV907 if the cache
        is not fit to be loaded, and NV912 for a bootstrap that compiles nothing new and the first trial that fails.
        """
        with self.progress.table(_COLUMNS) as table:
            with _table_row(table, "bootstrap") as row:
                made = self.bootstrap(row, base)
                tree = made.tree
                row.note(f"compiled: {len(tree.files)} files, {tree.size / 2**20:.0f} MiB, tree {tree.hash[:12]}")
            return made, self._trials(made, here, boots, table)

    def prove(self, boots: int, candidate: Manifest) -> BlessResult:
        """Run BOOTS trials on the cache of CANDIDATE, which another host compiled, and return the result.

        Nothing is compiled. What trial 1 answers, every trial must answer. Raises as `begin` does.
        """
        self.pin.keep(candidate.tree_hash)
        made = Compiled(candidate.tree, (), candidate.cold, coverage.of_tree(candidate.coverage, candidate.tree))
        with self.progress.table(_COLUMNS) as table:
            return self.result(made, self._trials(made, boots, boots, table))

    def _trials(self, made: Compiled, here: int, boots: int, table: Table) -> tuple[TrialRecord, ...]:
        """Run the first HERE of BOOTS trials on the tree that a bootstrap MADE, and show them in TABLE."""
        # One copy for all trials: a trial that changes a byte of it is rejected, so the next one loads the same.
        copy = self.store.stage(made.tree, staged_cache.directory(self.places, self.plan.instance), self.cure)
        first = "the bootstrap" if made.answer else "trial 1"
        trials: list[TrialRecord] = []
        with staging.discarding(copy.path.parent):
            for number in range(1, here + 1):
                with _table_row(table, f"trial {number} of {boots}") as row, self._keeping(made.tree):
                    trial, answer = self._tried(number, made, copy, row, first)
                    made = replace(made, answer=answer)
                    trials.append(trial)
                    row.good(trial)
        return tuple(trials)

    @contextlib.contextmanager
    def _keeping(self, tree: Tree) -> Iterator[None]:
        """Record that TREE stays for study, if that is asked for and a trial in the context rejects it."""
        try:
            yield
        except Refused as refused:
            if self.keep_days:
                record = rejected.keep(self.evidence, tree.hash, self.keep_days, refused, time.time())
                if record is not None:
                    self.progress.note(f"kept until {record.until}: {self.store.path(tree.hash)}")
            raise

    def result(self, made: Compiled, trials: tuple[TrialRecord, ...]) -> BlessResult:
        """Return the result of a bless that MADE a tree and whose TRIALS passed. Raises NV907 if the tree changed."""
        self.store.verify(made.tree, self.cure)  # the manifest must name the tree that was tested
        return BlessResult(made.tree, trials, made.cold, made.coverage)

    # The cold compile

    def bootstrap(self, progress: Progress, base: Manifest | None = None) -> Compiled:
        """Compile on a workbench: all, or what the cache of BASE lacks. Raises Refused NV912 if nothing is compiled."""
        with self._workbench(base) as bench:
            run = RunDirectory(self.evidence / "bootstrap")
            plan = planner.running_in(self.plan, run.mounted)
            start = _Bootstrap(self.engine, plan, self.examination.models, run, self.held_locks, progress)
            start.workbench, start.memory_floor = bench, self.profile.campaign.memory_floor
            with start.running("the trial is over"):
                took = self._cost(start)
                answer = self._ask(start, self.plan.probe.prompt)
                covered = self._cover(start, base, progress)
            timeline = start.timeline
            if base is None and not timeline.saved:
                expected = "an engine that saves what it compiled"
                raise Refused([self._rejected("bootstrap", expected, "no such line in its log")])
            if base is not None:
                refuse_any(self._rejected("bootstrap", *problem) for problem in _not_extended(timeline, covered))
            tree = self.store.adopt(bench, self.cure, owner=_uid(self.plan), keep=self.pin.keep)
        if base is not None:  # its graphs were compiled by the bootstrap of BASE, at that cost
            cold = replace(base.cold, kernels=base.cold.kernels + len(timeline.missed))
        else:
            counts = len(timeline.compiled), len(timeline.saved), len(timeline.missed)
            cold = ColdStart(took.phases, took.processor, *counts)
        before = base.coverage if base is not None else None
        return Compiled(tree, answer, cold, coverage.evidence(covered, before, tree))

    def _cover(self, start: EngineStart, base: Manifest | None, progress: Progress) -> Covered:
        """Ask START rounds of requests until they need nothing new.

        A blessing that was made with rounds is extended by the same, for each trial asks them, and further ones.
        """
        first = len(base.coverage.new) if base is not None and base.coverage is not None else 0
        try:
            return coverage.until_quiet(start, self._rounds(start), first, progress)
        except NotReady as error:
            raise Refused(
                [self._rejected("bootstrap", "rounds of requests that are answered", error.problem)]
            ) from error

    def _rounds(self, start: EngineStart) -> Rounds:
        return coverage.rounds(start, self.profile.arguments, self.profile.kernels.quiet_rounds)

    @contextlib.contextmanager
    def _workbench(self, base: Manifest | None) -> Iterator[Path]:
        """Yield a directory of the container's user, with the cache of BASE if any, and remove it afterwards."""
        parent = staged_cache.directory(self.places, self.plan.instance)
        bench = Path(tempfile.mkdtemp(dir=parent, prefix="workbench-"))
        with staging.discarding(bench):
            if base is not None:
                self._unpack(base.tree, bench)
            if os.geteuid() == 0:  # the engine of a root operator runs as another user
                for path in (bench, *bench.rglob("*")):
                    os.chown(path, _uid(self.plan), -1)
            yield bench

    def _unpack(self, tree: Tree, bench: Path) -> None:
        """Copy the stored TREE to BENCH, where the engine may change it. Raises Refused NV907 if it was changed."""
        copy = self.store.stage(tree, bench.parent, self.cure)
        with staging.discarding(copy.path.parent), durable.writing(bench):
            seed.fill(str(copy.path), str(bench))
            for file in tree.files:
                (bench / file.path).chmod(int(file.mode, 8) | stat.S_IWUSR)

    # Trials

    def _tried(
        self, number: int, made: Compiled, copy: Staged, progress: Progress, first: str
    ) -> tuple[TrialRecord, Tokens]:
        """Load COPY of the tree that the bootstrap MADE in a fresh container; return the trial, and its answer.

        The answer to the probe has to be that of MADE, which FIRST gave; if there is none yet, any is right. Raises
        Refused NV912 with every reason why the trial failed, and NV907 if the cache was changed.
        """
        tree = made.tree
        run = self._trial_run(number)
        plan = planner.mounting(planner.loading(self.plan, tree, self.profile.kernels.missing), copy.path)
        plan = planner.running_in(plan, run.mounted)
        start = EngineStart(self.engine, plan, self.examination.models, run, self.held_locks, progress, tree)
        start.memory_floor = self.profile.campaign.memory_floor
        with start.running("the trial is over"):
            warm = self._cost(start)
            answers = replay.replays(lambda prompt: self._ask(start, prompt), plan.probe.prompt)
            self._cover_again(start, made.coverage)
            evaluated = None
            if self.asker is not None and number == EVALUATED:
                progress.note(f"asking {self.asker.demand.file}")
                evaluated = self.asker.ask(start, number)
            # Before the context ends: its container is removed then, and so are its cgroup and its scratch.
            memory, scratch = self.engine.usage(start.container).peak_memory, start.scratch()
        timeline, problems = start.timeline, staged_cache.reuse(start.timeline, scratch, tree)
        if made.answer and answers.alone[0] != made.answer:
            problems.append((f"the answer of {first}, {_text(made.answer)}", _text(answers.alone[0])))
        if not answers.coherent:
            problems.append(("one answer to one prompt", _distinct(answers.alone)))
        if not answers.independent:
            problems.append(("the same answers after another prompt", _distinct(answers.after + answers.between)))
        again = slow_start.compiled_again(warm, made.cold)
        problems += [again] if again is not None else []
        touched = self._touched(tree, copy)
        failures = [self._rejected(f"trial {number}", *problem) for problem in problems]
        if evaluated is not None and not evaluated.passed:
            failures.append(self._wrong_answers(evaluated, run))
        refuse_any([*failures, *touched])
        trial = TrialRecord(
            number=number,
            boot=start.container,
            coherent=answers.coherent,
            independent=answers.independent,
            loaded=bool(timeline.loaded),
            saved=bool(timeline.saved),
            unchanged=not touched,
            prompts=2,  # the plan's, and the other one of `replay.replays`
            replays=answers.count,
            compiles=len(timeline.compiled),
            kv_tokens=timeline.kv_tokens,
            peak_memory=memory,
            processor=warm.processor,
            phases=warm.phases,
            log=canonical.sha256_file(run.log),
            evaluation=evaluated,
        )
        return trial, answers.alone[0]

    def _trial_run(self, number: int) -> RunDirectory:
        return RunDirectory(self.evidence / f"trial-{number}")

    def log(self, number: int) -> Path:
        """Return the place of the log of the trial NUMBER."""
        return self._trial_run(number).log

    def trial_alone(self, number: int, made: Compiled) -> TrialRecord:
        """Run the trial NUMBER on a copy of its own of the stored tree that another bootstrap MADE.

        Raises Refused NV912 with every reason why the trial failed, and NV907 if the cache was changed.
        """
        copy = self.store.stage(made.tree, staged_cache.directory(self.places, self.plan.instance), self.cure)
        with staging.discarding(copy.path.parent):
            return self._tried(number, made, copy, self.progress, "the bootstrap")[0]

    def _cover_again(self, start: EngineStart, asked: Coverage | None) -> None:
        """Ask START the rounds of the bootstrap, which ASKED them; what is missing then is in its log."""
        if asked is None:
            return
        try:
            coverage.again(start, self._rounds(start), len(asked.new))
        except NotReady as error:
            what = start.run.path.name
            raise Refused([self._rejected(what, "rounds of requests that are answered", error.problem)]) from error

    def _touched(self, tree: Tree, copy: Staged) -> list[Refusal]:
        """Return what a trial changed in COPY: by the status of its files, and by every byte of them."""
        changes = staging.recheck(copy, self.cure)
        with collected(changes):
            staging.verify(copy.path, tree, self.cure)
        return changes

    # Bootstrap and trials

    def _cost(self, start: EngineStart) -> StartCost:
        """Return what START took until it was ready."""
        phases = tuple(PhaseTime(phase.name, phase.seconds) for phase in start.timeline.phases)
        return StartCost(phases, round(self.engine.usage(start.container).processor, 3))

    def _ask(self, start: EngineStart, prompt: str) -> Tokens:
        try:
            return replay.greedy(start.plan, prompt, _ANSWER)
        except NotReady as error:
            raise Refused([self._rejected(start.run.path.name, "an answer", error.problem)]) from error

    def _wrong_answers(self, record: EvaluationRecord, run: RunDirectory) -> Refusal:
        """Return that too few of the answers of the evaluation of RECORD, in RUN, are correct."""
        where, expected = f"{self.plan.instance}: {run.path.name}", f"at least {record.floor} correct of {record.file}"
        cure = shlex.join(["less", str(run.path / ANSWERS)])
        return Refusal("NV918", where, expected, record.text, cure)

    def _rejected(self, what: str, expected: str, observed: str) -> Refusal:
        return Refusal("NV912", f"{self.plan.instance}: {what}", expected, observed, self.cure)


def _of_state(plan: LaunchPlan, places: Places) -> Keeping:
    """Return where a bless of PLAN keeps what it makes."""
    private_directory(places.blessing)
    kept = evidence.begin(places.blessing / plan.instance)
    cure = f"ls {shlex.quote(str(kept))} && nvllm bless {plan.image} --profile {plan.profile}"
    return Keeping(TreeStore(places.trees), kept, cure)


def new_manifest(
    examination: Examination, blessings: Blessings, result: BlessResult, request: BlessRequest, now: float
) -> Manifest:
    """Return the manifest that blesses the tree of RESULT for the plan of EXAMINATION, at NOW (seconds).

    Raises Refused NV905 if the expiry that was asked for is over before the trials are.
    """
    plan, trials = examination.plan, result.trials
    ends = manifest.expiry(now, request.expires, examination.profile.bless.valid_days)
    if ends is not None and ends <= now:
        cure = f"nvllm bless {plan.image} --profile {plan.profile} --expires 30d"
        expected = f"an end after {clock.stamp(now)}, when the trials were over"
        raise refuse("NV905", "--expires", expected, clock.stamp(ends), cure)
    typical = sorted(trials, key=_took)[len(trials) // 2]
    least = [trial.kv_tokens for trial in trials if trial.kv_tokens is not None]
    return Manifest(
        schema=manifest.SCHEMA,
        label=f"{plan.image}-{plan.profile}",
        image=plan.image,
        profile=plan.profile,
        version=promotion.next_version(blessings, plan.serve_hash),
        created=clock.stamp(now),
        expires=clock.stamp(ends) if ends is not None else None,
        unsafe=request.unsafe,
        domain=servehash.DOMAIN,
        serve_hash=plan.serve_hash,
        factors=servehash.factors(plan),
        build_hash=plan.build_hash,
        tree_hash=result.tree.hash,
        tree=result.tree,
        claim=manifest.claimed(trials, request.asked),
        trials=trials,
        kv_tokens=min(least, default=None),
        phases=typical.phases,
        cold=result.cold,
        coverage=result.coverage,
        image_id=plan.image_id or None,
    )


def promote(blessings: Blessings, new: Manifest, old: Blessing | None, key: Path | None) -> Path:
    """Bring NEW into force, replacing OLD if there is one, signed by KEY if there is one; return its path."""
    signed = signature.sign(manifest.encode(new), key, new.filename) if key is not None else None
    return promotion.promote(blessings, new, old, signed)


def _not_extended(timeline: Timeline, covered: Covered) -> list[tuple[str, str]]:
    """Return, as expected and found, why the bootstrap with TIMELINE does not extend a blessing.

    COVERED is the result of its rounds.
    """
    reasons = [("an engine that loads the stored cache and compiles no graph", text) for text in timeline.compiled]
    if not timeline.loaded:
        reasons.append(("an engine that loads the stored cache", "no such line in its log"))
    if not timeline.missed and not any(covered.new):
        reasons.append(("a kernel that the blessed cache lacks", "none"))
    return reasons


def _uid(plan: LaunchPlan) -> int:
    return int(plan.user.partition(":")[0])


def _took(trial: TrialRecord) -> float:
    return sum(phase.seconds for phase in trial.phases)


def _text(tokens: Tokens) -> str:
    return " ".join(map(str, tokens))


def _distinct(answers: tuple[Tokens, ...]) -> str:
    return f"{len(set(answers))} different answers: " + "; ".join(sorted(_text(answer) for answer in set(answers)))
