"""The runner of evidence: each leg in a fresh container, through the path of `serve`, into one directory.

A leg is one run of one arm; several runs may share an engine, if that is what is looked at. It is examined, locked,
started and hardened as a serve is; the run directory of its instance is its own directory below the evidence. A leg
with a verdict is not run again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from nvllm.core import canonical, clock, parts
from nvllm.core.canonical import Json
from nvllm.core.catalogue import Blame
from nvllm.core.plan import LaunchPlan
from nvllm.core.progress import Progress
from nvllm.core.refusal import Refused, refuse
from nvllm.evidence import analysis, arms, artifacts, conclusion, harness, looks, page, summary, trace
from nvllm.evidence.artifacts import Artifacts
from nvllm.evidence.directory import EVALUATION, EvidenceDirectory
from nvllm.evidence.harness import LegObserved
from nvllm.evidence.load import LoadProbe, LoadThenQuestions
from nvllm.evidence.records import (
    LEG_SCHEMA,
    ArmState,
    Comparison,
    EvaluationEngine,
    HarnessCheck,
    LegPhase,
    LegVerdict,
    Outcome,
    RunManifest,
)
from nvllm.image.identity import Build
from nvllm.serve import fresh, health, memoryseries, planner, servehash, staged_cache
from nvllm.serve.examination import Depth
from nvllm.serve.fresh import FreshInstances
from nvllm.serve.rundir import RunDirectory, private_directory
from nvllm.serve.startup import EngineStart
from nvllm.serve.supervisor import Supervisor
from nvllm.trials import probing
from nvllm.trials.answers import Answered
from nvllm.trials.artifact import Artifact, LoadingStart, loading, uncached
from nvllm.trials.probing import Asked, LegProbe

_OF_THE_START: Collection[Blame | None] = frozenset({"gate", "engine", "cache"})
"""The blame of an engine that does not start. Any other is the host's fault and ends the run, which can go on later."""

ATTEMPTS = 3
"""How often a leg is run whose container another process has ended."""

REST = 30.0
"""Seconds in which an engine without requests must come to rest."""
_LISTINGS = 3
"""How often a directory is listed that is never empty: on a busy host Docker once lost what an exec had written."""
LOOK = 0.5
"""Seconds between two looks at its metrics. The engine's core reports them at its steps alone."""


@dataclass(frozen=True, slots=True)
class LegResult:
    """A leg that was run: what was ASKED, the CHECKS of its harness, and the START of its engine.

    REASON is why that did not start; EVALUATED is the start of a second engine, which was asked the questions.
    """

    asked: Asked
    checks: tuple[HarnessCheck, ...]
    start: EngineStart
    peak_memory: int | None = None
    kv_usage: float | None = None
    reason: str = ""
    evaluated: EngineStart | None = None


@dataclass(frozen=True, slots=True)
class LegPart:
    """What one engine of a leg is: it serves as ARM says and is asked PROBE, in the directory BELOW that of the leg."""

    arm: ArmState
    probe: LegProbe
    below: str = ""


@dataclass
class Runner:
    """Runs what MANIFEST says into DIRECTORY: the legs of its arms, on BUILD, each asked by PROBE."""

    directory: EvidenceDirectory
    manifest: RunManifest
    build: Build
    probe: LegProbe
    instances: FreshInstances
    progress: Progress
    traced: LoadProbe | None = None
    """What each arm is asked once more under a profiler; None without a trace."""

    def __post_init__(self) -> None:
        self._artifacts = Artifacts(self.directory, self.instances.places, self.progress)
        self._loaded: dict[ArmState, Artifact] = {}
        """What the engines of an arm load."""

    def run(self) -> Comparison:
        """Run every leg that has no verdict, compare the arms, and write what was found.

        Raises Refused for what is no leg's fault, such as a lock that is held; the run goes on when it is called again.
        """
        self._compile()
        per_engine = self.manifest.per_engine
        order = arms.schedule(len(self.manifest.arms), self.manifest.engines)
        ends = {engine * len(self.manifest.arms) for engine in looks.after(self.manifest.engines)}
        for number, (index, engine) in enumerate(order, 1):
            arm, runs = self.manifest.arms[index], arms.runs_of(engine, per_engine)
            verdicts = self._complete(arm, engine)
            if not verdicts:
                several = f"runs {runs[0]} to {runs[-1]} in one engine" if per_engine > 1 else f"run {runs[0]}"
                self.progress.note(f"leg {number} of {len(order)}: {arm.name}, {several}")
                verdicts = self._undisturbed(arm, runs)
            for verdict in verdicts:
                self.progress.note(f"leg {number} of {len(order)}: {leg_text(verdict)}")
            if self.manifest.until_decided and number in ends and self._settled():
                break
        if self.traced is not None:
            taken = {(table.arm, table.run) for table in self.directory.kernels()}
            for index, run in arms.schedule(len(self.manifest.arms), self.manifest.trace.runs):
                arm = self.manifest.arms[index]
                if (arm.name, run) not in taken:
                    self.progress.note(f"trace {run} of {self.manifest.trace.runs}: {arm.name}")
                    self.trace(arm, self.traced, run)
        legs = self.directory.arms()
        comparison = conclusion.of(self.manifest, legs, self.directory.kernels())
        drawn = page.html(self.manifest, legs, comparison, self.directory.series())
        text = analysis.markdown(self.manifest, comparison)
        self.directory.compared(comparison, text, summary.markdown(self.manifest, comparison), drawn)
        return comparison

    def _compile(self) -> None:
        """See to it that what the legs without a verdict load is there. Blessed profiles come first: theirs is."""
        engines = range(1, self.manifest.engines + 1)
        waiting = [arm for arm in self.manifest.arms if not all(self._complete(arm, engine) for engine in engines)]
        serving = [] if self.manifest.cold else [part.arm for arm in waiting for part in self._parts(arm)]
        for arm in sorted(serving, key=lambda arm: not self._is_blessed(arm)):
            self._load(arm)

    def _parts(self, arm: ArmState) -> list[LegPart]:
        """Return the engines of a leg of ARM: one, or one for the load and another for the questions."""
        if arm.evaluated and isinstance(self.probe, LoadThenQuestions):
            answering = replace(arm, profile=arm.evaluated, evaluated="")
            return [LegPart(arm, self.probe.load), LegPart(answering, self.probe.questions, EVALUATION)]
        return [LegPart(arm, self.probe)]

    def _load(self, arm: ArmState) -> None:
        """See to it that what the legs of ARM load is there, if they load anything."""
        build = self._armed(arm)
        if build.spec.profiles[arm.profile].blessed and arm not in self._loaded:
            with self.instances.examined(build, arm.profile, self._depth(arm)) as (examination, taken):
                self._loaded[arm] = self._artifacts.of(arm, examination, taken)

    def _complete(self, arm: ArmState, engine: int) -> list[LegVerdict]:
        """Return the verdicts of ENGINE of ARM; none if one is missing: another engine is not asked the rest."""
        runs = arms.runs_of(engine, self.manifest.per_engine)
        verdicts = [
            verdict for verdict in (self.directory.verdict(arm.name, run) for run in runs) if verdict is not None
        ]
        whole = len(verdicts) == len(runs) and len({verdict.container for verdict in verdicts}) == 1
        return verdicts if whole else []

    def _is_blessed(self, arm: ArmState) -> bool:
        """Return whether ARM loads the blessing of its profile: it is the profile as it is."""
        return self.manifest.kind != "ablate" and self.build.spec.profiles[arm.profile].blessed

    def _depth(self, arm: ArmState) -> Depth:
        return Depth.BLESSED if self._is_blessed(arm) else Depth.UNBLESSED

    def _undisturbed(self, arm: ArmState, runs: range) -> list[LegVerdict]:
        """Run the legs of one engine, and again if another process ended it. Raises Refused NV915 for the last time."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self.legs(arm, runs)
            except Refused as refused:
                if {refusal.blame for refusal in refused.refusals} != {"outside"}:
                    raise
                self.progress.note(f"{arm.name}, run {runs[0]}, is run again: {refused.refusals[0].found}")
        return self.legs(arm, runs)

    def _settled(self) -> bool:
        """Return whether more runs would find nothing else."""
        return looks.settled(conclusion.of(self.manifest, self.directory.arms()))

    def legs(self, arm: ArmState, runs: range) -> list[LegVerdict]:
        """Ask one engine in each of RUNS, and write them down once it has ended: they are complete together.

        An engine that does not start makes them invalid. Its run directory is that of the first one. Another engine is
        asked the questions if ARM says so, unless the first one has made the leg invalid.
        """
        started = clock.now()
        first, *others = self._parts(arm)
        results = self._results(first, runs)
        for part in others:
            if not any(harness.broken(result.checks) for result in results):
                results = [_joined(*pair) for pair in zip(results, self._results(part, runs), strict=True)]
        return [
            self._finish(self._verdict(arm, run, started, result), result.asked.answers)
            for run, result in zip(runs, results, strict=True)
        ]

    def _results(self, part: LegPart, runs: range) -> list[LegResult]:
        """Start the engine of PART, and return what it was asked in each of RUNS."""
        leg = self.directory.leg(part.arm.name, runs[0]) / part.below
        with self._start(self._armed(part.arm), part.arm, leg, self._depth(part.arm)) as of_leg:
            try:
                return self._asked(of_leg, part, runs)
            except Refused as refused:
                if any(refusal.blame not in _OF_THE_START for refusal in refused.refusals):
                    raise
                return [_unstarted(of_leg.start, refused) for _ in runs]

    def trace(self, arm: ArmState, load: LoadProbe, run: int) -> None:
        """Take trace RUN of ARM under a part of LOAD, and keep what it adds up to.

        Raises Refused NV858 if there is none; NV854 if the engine compiled, where it should have loaded what ARM loads;
        and as a serve does if the engine does not start.
        """
        self._load(arm)
        build, steps = self._armed(arm), self.manifest.trace.steps
        build = fresh.with_profile(build, arm.profile, trace.profiled(build.spec.profiles[arm.profile], steps))
        directory = self.directory.trace(arm.name, run)
        # Under the profiler it has a serve hash of its own, which nothing was blessed for: it loads what ARM loads.
        with self._start(build, arm, directory, Depth.UNBLESSED) as leg, leg.start.running("the trace is taken"):
            traced = trace.take(leg.start, load, arm.name, run, steps)
            loaded = artifacts.check(leg, self._container_state(leg.start)[1])
        if loaded is not None and not loaded.holds:
            cure = leg.start.run.log_cure
            raise refuse("NV854", f"trace {run} of arm {arm.name}", loaded.expected, loaded.found, cure)
        self.directory.keep_trace(traced.table, traced.trace)

    @contextlib.contextmanager
    def _start(self, build: Build, arm: ArmState, leg: Path, depth: Depth) -> Iterator[LoadingStart]:
        """Examine the profile of ARM in BUILD to DEPTH, hold its locks, and yield the start of its engine, into LEG."""
        blessed = build.spec.profiles[arm.profile].blessed
        places, directory = self.instances.places, RunDirectory(leg)
        with contextlib.ExitStack() as stack:
            examination, taken = stack.enter_context(self.instances.examined(build, arm.profile, depth))
            examination = replace(examination, plan=planner.running_in(examination.plan, directory.mounted))
            if blessed and examination.manifest is None:
                loaded = self._loaded[arm]
                yield stack.enter_context(loading(loaded, examination, places, taken, self.progress, directory))
                return
            cache = stack.enter_context(staged_cache.staged(examination, places))
            start = Supervisor(examination, places, taken, self.progress, cache, directory)
            yield LoadingStart(start, None if cache is None else cache.staged)

    def _armed(self, arm: ArmState) -> Build:
        """Return the build with the sentinels of ARM, whose profile is blessed if its legs load something.

        All arms of an ablation are for development only, also the one that is the profile as it is: if it alone loaded
        a blessed cache, arms would differ in more than sentinels.
        """
        profile = self.build.spec.profiles[arm.profile]
        if self.manifest.kind == "ablate":
            profile = replace(profile, sentinels=arm.present, dev=True, blessed=False)
        if not self.manifest.cold and not uncached(self.build.spec, profile):
            profile = replace(profile, blessed=True)
        return fresh.with_profile(self.build, arm.profile, profile)

    def _asked(self, of_leg: LoadingStart, part: LegPart, runs: range) -> list[LegResult]:
        """Start the engine, and ask the probe in each of RUNS. The log of the checks is that of all of them."""
        start, seen = of_leg.start, list[tuple[Asked, LegObserved, int | None]]()
        with start.running("the leg is over"):
            for run in runs:
                # What was in use before the first run: what a run leaves behind must not count as normal for the next.
                before = seen[0][1].baseline if seen else None
                leg = self.directory.leg(part.arm.name, run) / part.below
                seen.append(self._asked_once(of_leg, part.probe, leg, run, before))
        log, ablated = self.directory.log(start.run.path), self.manifest.ablated
        return [
            LegResult(
                asked,
                harness.checks(part.arm.present, ablated, replace(observed, log=log), asked.answers),
                start,
                memory,
                observed.rest,
            )
            for asked, observed, memory in seen
        ]

    def _asked_once(
        self, of_leg: LoadingStart, probe: LegProbe, leg: Path, run: int, baseline: float | None
    ) -> tuple[Asked, LegObserved, int | None]:
        """Ask PROBE in RUN, and look at what has to hold then. Return the answers, that, and the peak memory.

        BASELINE is the share of the KV cache in use before the first run of the engine; None in that run.
        """
        start, plan = of_leg.start, of_leg.start.plan
        private_directory(leg)
        share = self._snapshot(plan, leg, "before")
        before = share if baseline is None else baseline
        asked = probe.ask(start, run, lambda: self._halfway(plan, leg))
        rest = _at_rest(plan.port, before)
        self._snapshot(plan, leg, "after")
        listing, scratch, memory = self._container_state(start)
        artifact = None if self.manifest.cold else artifacts.check(of_leg, scratch)
        names = None if listing is None else [PurePosixPath(path).name for path in listing]
        return asked, LegObserved("", names, before, rest, artifact), memory

    def _container_state(self, start: EngineStart) -> tuple[list[str] | None, list[str] | None, int | None]:
        """Return the files in the run directory of the container, those that its engine wrote, and its peak memory.

        It is nothing if it has ended.
        """
        state = start.engine.state(start.container)
        if state is None or state.exit_code is not None:
            return None, None, None
        interpreter = start.plan.command.interpreter
        for _ in range(_LISTINGS):
            listing = start.engine.run_files(start.container, interpreter)
            if listing:
                break
        scratch = start.engine.scratch_files(start.container, interpreter) if start.cache is not None else None
        return listing, scratch, start.engine.usage(start.container).peak_memory

    def _halfway(self, plan: LaunchPlan, leg: Path) -> None:
        self._snapshot(plan, leg, "between")

    def _snapshot(self, plan: LaunchPlan, leg: Path, when: str) -> float | None:
        """Keep the engine's metrics as of WHEN, and return the share of its KV cache in use, None if it says none."""
        metrics = health.metrics_page(plan.port)
        self.directory.keep(leg, f"metrics-{when}.txt", metrics)
        return kv_usage(metrics)

    def _verdict(self, arm: ArmState, run: int, started: str, result: LegResult) -> LegVerdict:
        start, answers = result.start, result.asked.answers
        correct = sum(answer.correct for answer in answers)
        outcome, reason = _outcome(result.checks, correct, len(answers), self.probe.state.floor)
        engine, earlier = divmod(run - 1, self.manifest.per_engine)
        return LegVerdict(
            schema=LEG_SCHEMA,
            arm=arm.name,
            run=run,
            outcome=outcome,
            reason=result.reason or reason,
            checks=result.checks,
            correct=correct,
            asked=len(answers),
            tokens=sum(answer.tokens for answer in answers),
            seconds=round(sum(answer.seconds for answer in answers), 4),
            output=probing.output_hash(answers),
            container=start.container,
            serve_hash=start.plan.serve_hash,
            dev=start.plan.dev,
            started=started,
            phases=tuple(
                LegPhase(phase.name, phase.seconds, phase.ended) for phase in start.timeline.phases if not earlier
            ),
            kv_tokens=start.timeline.kv_tokens,
            peak_memory=result.peak_memory,
            figures=dict(result.asked.figures),
            timeouts=sum(answer.timed_out for answer in answers),
            compile_key=_loaded(start.plan)[0],
            tree=_loaded(start.plan)[1],
            engine=engine + 1 if self.manifest.per_engine > 1 else 0,
            turn=earlier + 1,
            kv_usage=result.kv_usage,
            memory=memoryseries.extremes(
                sample.bytes
                for engine_start in (start, result.evaluated)
                if engine_start is not None
                for sample in self.directory.memory(engine_start.run.path)
            ),
            evaluation=None if result.evaluated is None else _evaluation(result.evaluated),
        )

    def _finish(self, verdict: LegVerdict, answers: Sequence[Answered]) -> LegVerdict:
        leg = self.directory.leg(verdict.arm, verdict.run)
        private_directory(leg)
        phases: list[Json] = [asdict(phase) for phase in verdict.phases]
        self.directory.keep(leg, "timeline.json", canonical.pretty(phases))
        self.directory.finish(verdict, answers)
        return verdict


def _unstarted(start: EngineStart, refused: Refused) -> LegResult:
    """Return the result of a leg whose engine did not start, as REFUSED says."""
    reason = "; ".join(f"{refusal.code} {refusal.title}: {refusal.found}" for refusal in refused.refusals)
    failed = HarnessCheck("start", False, "an engine that answers", reason[:2000])  # noqa: FBT003 - a field
    return LegResult(Asked(()), (failed,), start, reason=reason.partition("\n")[0])


def _joined(load: LegResult, questions: LegResult) -> LegResult:
    """Return the leg whose figures are those of LOAD, and whose answers are those of QUESTIONS, on another engine."""
    peaks = [peak for peak in (load.peak_memory, questions.peak_memory) if peak is not None]
    checks = (replace(check, name=f"{EVALUATION}: {check.name}") for check in questions.checks)
    return replace(
        load,
        asked=replace(questions.asked, figures=load.asked.figures),
        checks=(*load.checks, *checks),
        peak_memory=max(peaks, default=None),
        kv_usage=questions.kv_usage,
        reason=questions.reason,
        evaluated=questions.start,
    )


def _loaded(plan: LaunchPlan) -> tuple[str, str]:
    """Return the compile key and the tree that an engine of PLAN loads; empty texts if it loads none."""
    return ("", "") if plan.cache is None else (servehash.compile_key(plan), plan.cache.tree)


def _evaluation(start: EngineStart) -> EvaluationEngine:
    key, tree = _loaded(start.plan)
    return EvaluationEngine(start.plan.profile, start.container, start.plan.serve_hash, tree, key)


def kv_usage(metrics: str) -> float | None:
    """Return the share of the KV cache in use by METRICS, over all engines; None if they do not say it."""
    engines = health.parse_metrics(metrics).values()
    return sum(engine.kv_usage for engine in engines) if engines else None


def _at_rest(port: int, baseline: float | None) -> float | None:
    """Return the share of the KV cache in use once it is that of BASELINE, or at the end of the engine's patience."""
    until = time.monotonic() + REST
    while True:
        share = kv_usage(health.metrics_page(port))
        if share is None or baseline is None or share <= baseline + harness.DRAINED or time.monotonic() > until:
            return share
        time.sleep(LOOK)


def _outcome(checks: Sequence[HarnessCheck], correct: int, asked: int, floor: float | None) -> tuple[Outcome, str]:
    """Return the outcome of a leg with CORRECT answers of those ASKED, and the reason where it is not passed."""
    if broken := harness.broken(checks):
        return "invalid", f"the harness failed: {broken}"
    if floor is not None and not parts.reached(correct, asked, floor / 100):
        return "failed", f"{correct} of {asked} correct, and the floor is {floor:g} %"
    return "passed", ""


def leg_text(verdict: LegVerdict) -> str:
    """Return VERDICT in one line."""
    result = f"{verdict.arm}, run {verdict.run}: {verdict.outcome}, {verdict.correct} of {verdict.asked} correct"
    result += f", {verdict.timeouts} ran into the timeout" if verdict.timeouts else ""
    return f"{result}, {verdict.rate:.1f} tokens/s" + (f"; {verdict.reason}" if verdict.reason else "")
