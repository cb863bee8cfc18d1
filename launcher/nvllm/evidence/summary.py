"""summary.md: what was run and the numbers it gave, for people. What follows from them is in ANALYSIS.md."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import NamedTuple

from nvllm.core.refusal import Refusal
from nvllm.evidence import arms, trace
from nvllm.evidence.comparison import invalid_text
from nvllm.evidence.deciding import effect_text, interval_text, margin_text
from nvllm.evidence.directory import EvidenceDirectory
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import Comparison, KernelTable, RunManifest
from nvllm.pages.page import printable
from nvllm.serve.memoryseries import AVAILABLE, FIGURES


class ReportTable(NamedTuple):
    """A table of texts, with what each report shows: its COLUMNS, and its ROWS in order."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def first(self, most: int) -> ReportTable:
        """Return the table with its first rows, at most MOST."""
        return ReportTable(self.columns, self.rows[:most])

    @property
    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        # A | in a text would end its cell.
        return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in lines)


def markdown(manifest: RunManifest, comparison: Comparison) -> str:
    """Return COMPARISON, of the run of MANIFEST, as Markdown."""
    return "\n\n".join(_parts(manifest, comparison)) + "\n"


def _parts(manifest: RunManifest, comparison: Comparison) -> Iterator[str]:
    yield f"# {title(manifest)}"
    yield "\n".join(f"- {name}: {text}" for name, text in facts(manifest))
    yield arm_table(manifest, comparison).markdown
    of_arms = (figure_table, effect_table, memory_table, traced_table)
    yield from (table.markdown for table in (of(comparison) for of in of_arms) if table.rows)
    for kernels in comparison.kernels:
        yield f"{kernels_title(kernels)}\n\n{kernel_table(kernels).markdown}"
    if comparison.common:
        yield common_table(comparison).markdown


def refusals(comparison: Comparison, directory: EvidenceDirectory) -> list[Refusal]:
    """Return why the run in DIRECTORY with this COMPARISON is no success: NV854 for invalid arms, NV855 for failed."""
    cure = f"less {shlex.quote(str(directory.path / 'ANALYSIS.md'))}"
    failures = []
    for arm, totals in zip(directory.arms(), comparison.arms, strict=True):
        name = f"arm {arm.name}"
        if arm.outcome == "invalid":
            failures.append(Refusal("NV854", name, "a harness that holds in every run", invalid_text(arm), cure))
        elif arm.outcome == "failed":
            expected, share = "the floor, or a probe that passes", f"{100 * totals.correct:.1f} % correct"
            if totals.timeouts:
                share += f"; {totals.timeouts} of {totals.asked} answers ran into the timeout, and count as wrong"
            failures.append(Refusal("NV855", name, expected, share, cure))
    return failures


def title(manifest: RunManifest) -> str:
    """Return the title of the run of MANIFEST."""
    names = {"ablate": "Ablation", "bench": "Bench", "eval": "Evaluation", "sweep": "Sweep"}
    profiles = ", ".join(dict.fromkeys(arm.profile for arm in manifest.arms))
    return f"{names[manifest.kind]} of {manifest.image}, {profiles}"


def facts(manifest: RunManifest) -> list[tuple[str, str]]:
    """Return what was run, and on what: names and texts."""
    host, probe = manifest.host, manifest.probe
    asked = f"{probe.name}, sha256 {probe.sha256[:12]}"
    if probe.questions:
        limit = f"{probe.timeout:g} s each" if probe.timeout else "a timeout by the rate of the first answers"
        asked += f", {probe.questions} questions, seed {probe.seed}, at most {probe.length} tokens, {limit}"
    if probe.prompt:
        stops = ", ".join(map(repr, probe.stop))
        asked += f", prompt {probe.prompt!r}, stop {stops}, {probe.extraction} extraction"
    if probe.floor is not None:
        asked += f", floor {probe.floor:g} %"
    commit = f"{host.commit[:12]}{' with changes' if host.dirty else ''}" if host.commit else "no repository"
    return [
        ("image", f"{manifest.image}, build hash {manifest.build_hash[:12]}, {len(manifest.patches)} patches"),
        *([("sentinels compared", ", ".join(manifest.ablated))] if manifest.ablated else []),
        ("probe", asked),
        ("runs", _runs(manifest)),
        *([("margins", _margins(manifest))] if len(manifest.arms) > 1 else []),
        *([("order", _order(manifest))] if len(manifest.arms) > 1 else []),
        *([("compiled code", _compiled(manifest))] if manifest.kind != "eval" else []),
        *([("trace", _traced(manifest))] if manifest.traced else []),
        ("host", ", ".join([host.machine, host.processor, *host.gpus, f"kernel {host.kernel}", host.engine])),
        ("project", commit),
        *([("mixed", mixed_text(manifest))] if manifest.other_hosts else []),
        ("begun", manifest.created),
    ]


def mixed_text(manifest: RunManifest) -> str:
    """Return on what the run of MANIFEST was begun, and on what it went on by ``--anyway``."""
    first, *others = (
        ", ".join([host.machine, host.processor, *host.gpus, host.engine, f"commit {host.commit[:12] or 'none'}"])
        for host in (manifest.host, *manifest.other_hosts)
    )
    return f"Begun on {first}; went on, by --anyway, on {'; and on '.join(others)}"


def _traced(manifest: RunManifest) -> str:
    rules = manifest.trace
    legs = "a leg of each arm" if rules.runs == 1 else f"{rules.runs} legs of each arm"
    return f"{legs}, {rules.steps} steps at most; no other figure comes from it"


def _runs(manifest: RunManifest) -> str:
    if manifest.per_engine == 1:
        return f"{manifest.runs} of each arm, each in a fresh container"
    return f"{manifest.runs} of each arm: {manifest.per_engine} in each of {manifest.engines} fresh containers"


def _compiled(manifest: RunManifest) -> str:
    if manifest.cold:
        return "each leg compiles for itself, unless its profile is blessed"
    count = max((arm.artifact for arm in manifest.arms), default=0)
    if count:
        return f"compiled {count} times under one key; each arm loads another one"
    return "compiled once for each compile key, and loaded by every leg that has it"


def _margins(manifest: RunManifest) -> str:
    """Return how much figures of the run of MANIFEST may differ and still count as the same."""
    margins = manifest.margins
    answered = f", questions {100 * margins.questions:g} %" if manifest.kind != "bench" else ""
    lengths = f", length of an answer {100 * margins.length:g} %" if manifest.kind == "ablate" else ""
    return f"speed {100 * margins.speed:g} %{answered}{lengths}"


_ORDERED = 20
"""Runs whose ends are named."""


def _order(manifest: RunManifest) -> str:
    """Return which leg of each run of MANIFEST came first, and which last."""
    runs: dict[int, list[str]] = {}
    for arm, run in arms.schedule(len(manifest.arms), min(manifest.engines, _ORDERED)):
        runs.setdefault(run, []).append(manifest.arms[arm].name)
    ends = "; ".join(f"{run}: {names[0]}, {names[-1]}" for run, names in runs.items())
    ends += f"; and so on for {manifest.engines - _ORDERED} more" if manifest.engines > _ORDERED else ""
    return f"turned from run to run; the first and the last leg of run {ends}"


_ALWAYS = ("arm", "outcome", "valid runs")
_ANSWERED = ("samples", "correct, %", "interval, %", "timeouts")
_TOKENS = ("tokens/s", "tokens an answer")


def arm_table(manifest: RunManifest, comparison: Comparison) -> ReportTable:
    """Return each arm of the run of MANIFEST: answers and tokens, unless a load was measured, with figures for them."""
    answered = (*_ANSWERED, *(PRIMARY if manifest.kind == "sweep" else _TOKENS))
    columns = _ALWAYS if manifest.kind == "bench" else (*_ALWAYS, *answered)
    rows = [
        {
            "arm": arm.name,
            "outcome": arm.outcome,
            "valid runs": f"{arm.valid} of {arm.runs}",
            "samples": str(arm.samples),
            "correct, %": f"{100 * arm.correct:.1f}",
            "interval, %": f"{100 * arm.low:.1f} to {100 * arm.high:.1f}",
            "timeouts": f"{arm.timeouts} of {arm.asked}",
            "tokens/s": f"{arm.tokens_per_second:.2f}",
            "tokens an answer": f"{arm.tokens_per_answer:.1f}",
            **{name: f"{value:.2f}" for name, value in arm.figures.items()},
        }
        for arm in comparison.arms
    ]
    return ReportTable(columns, [tuple(row.get(name, "") for name in columns) for row in rows])


def effect_table(comparison: Comparison) -> ReportTable:
    """Return each effect."""
    columns = ("factor", "measure", "effect", "interval", "p", "p corrected", "observations", "margin", "would take")
    rows = [
        (
            effect.factor,
            effect.measure,
            effect_text(effect, effect.estimate),
            interval_text(effect),
            _p(effect.p),
            _p(effect.adjusted),
            f"{effect.observations} {effect.unit}{'' if effect.observations == 1 else 's'}",
            margin_text(effect),
            "" if effect.needed is None else f"{effect.needed} {effect.needed_unit}s",
        )
        for effect in comparison.effects
    ]
    return ReportTable(columns, rows)


def figure_table(comparison: Comparison) -> ReportTable:
    """Return each figure of a load: its name, and its mean for each arm."""
    names = dict.fromkeys(name for arm in comparison.arms for name in arm.figures)
    rows = [
        (name, *(f"{arm.figures[name]:.2f}" if name in arm.figures else "" for arm in comparison.arms))
        for name in names
    ]
    return ReportTable(("figure", *(arm.name for arm in comparison.arms)), rows)


_TEXT = 120
"""Characters of the end of a text in a table."""


def flipped_table(comparison: Comparison) -> ReportTable:
    """Return two rows for each flipped question, one for each arm."""
    columns = ("factor", "question", "expected", "arm", "right", "answer", "end of the text")
    rows = [
        (
            *((flip.factor, str(flip.id), flip.expected) if name == flip.first else ("", "", "")),
            name,
            f"{right} of {runs}",
            reply or "none",
            " ".join(printable(text).split())[-_TEXT:],
        )
        for flip in comparison.flipped
        for name, right, runs, reply, text in zip(
            (flip.first, flip.other), flip.right, flip.runs, flip.replies, flip.texts, strict=True
        )
    ]
    return ReportTable(columns, rows)


def unlisted_text(comparison: Comparison) -> str:
    """Return that there are flipped questions beyond those that COMPARISON lists; empty if there are none."""
    return f"{comparison.unlisted} more are not listed" if comparison.unlisted else ""


def compile_table(comparison: Comparison) -> ReportTable:
    """Return each artifact of one key, and what its starts show."""
    rows = [
        (
            result.arm,
            f"{', '.join(map(str, result.right))} of {result.asked}",
            str(result.outputs),
            "bad" if result.bad else "",
            result.tree,
        )
        for result in comparison.compiles
    ]
    return ReportTable(("artifact", "right, start after start", "different outputs", "", "tree"), rows)


def engine_table(comparison: Comparison) -> ReportTable:
    """Return each run of the engines that were asked several."""
    columns = ("arm", "engine", "run", "outcome", "correct", "tokens/s", "KV in use after, %", "peak memory, MiB")
    rows = [
        (
            engine.arm,
            str(engine.engine),
            str(run.turn),
            run.outcome,
            f"{run.correct} of {run.asked}",
            f"{run.tokens_per_second:.2f}",
            "" if run.kv_usage is None else f"{100 * run.kv_usage:.2f}",
            "" if run.peak_memory is None else f"{run.peak_memory / 2**20:.0f}",
        )
        for engine in comparison.engines
        for run in engine.runs
    ]
    return ReportTable(columns, rows)


def question_table(comparison: Comparison) -> ReportTable:
    """Return each question, with a mark for each of its runs, see `MARKS`.

    A column is an engine that was asked several runs, else an arm.
    """
    arms_named = len({engine.arm for engine in comparison.engines}) > 1
    names = [f"{f'{engine.arm}, ' if arms_named else ''}engine {engine.engine}" for engine in comparison.engines]
    columns = ("question", "expected", *(names or (arm.name for arm in comparison.arms)))
    return ReportTable(
        columns, [(str(question.id), question.expected, *question.marks) for question in comparison.questions]
    )


MARKS = "A mark for each run, in order: + right, x wrong, - ran into its timeout, . no answer."


_MEMORY = MappingProxyType(
    {AVAILABLE: "least available, GiB", **{name: f"most, {name}, GiB" for name in FIGURES if name != AVAILABLE}}
)


def memory_table(comparison: Comparison) -> ReportTable:
    """Return each arm whose memory was looked at."""
    rows = [
        (arm.name, *(f"{arm.memory[name] / 2**30:.2f}" if name in arm.memory else "" for name in _MEMORY))
        for arm in comparison.arms
        if arm.memory
    ]
    return ReportTable(("arm", *_MEMORY.values()), rows)


def traced_table(comparison: Comparison) -> ReportTable:
    """Return each arm with traces whose tokens were counted."""
    rows = [
        (
            arm.arm,
            str(len(arm.runs)),
            f"{arm.mean:.3f}",
            "" if arm.low is None or arm.high is None else f"{arm.low:.3f} to {arm.high:.3f}",
        )
        for arm in comparison.traced
    ]
    return ReportTable(("arm", "traces", "kernels, ms a token", "interval, ms"), rows)


def kernels_title(table: KernelTable) -> str:
    """Return the title of TABLE, which says what its rows are."""
    what = "kernels of the GPU" if table.on == "gpu" else "operators of the processor, without those that each calls"
    more = f"; {table.others} shorter ones are in the sum alone" if table.others else ""
    of = table.arm if table.run == 1 else f"{table.arm}, {table.run} together"
    tree = f", tree {table.tree[:12]}" if table.tree else ""
    return f"Trace of {of}{tree}: {what}, {table.microseconds / 1000:.3f} ms in all{more}"


def kernel_table(table: KernelTable) -> ReportTable:
    """Return each kernel of TABLE."""
    rows = [
        (
            kernel.name,
            str(kernel.calls),
            f"{trace.mean(kernel):.2f}",
            f"{kernel.microseconds / 1000:.3f}",
            f"{100 * trace.share(kernel, table):.1f}",
        )
        for kernel in table.kernels
    ]
    return ReportTable(("kernel", "calls", "mean, us", "ms", "share, %"), rows)


def common_table(comparison: Comparison) -> ReportTable:
    """Return each kernel that two arms have."""
    rows = [
        (
            kernel.name,
            f"{kernel.first}, {kernel.other}",
            ", ".join(map(str, kernel.calls)),
            ", ".join(f"{value / 1000:.3f}" for value in kernel.microseconds),
            ", ".join(f"{100 * value:.1f}" for value in kernel.shares),
            f"x{kernel.ratio:.3f}" if kernel.ratio is not None else "",
        )
        for kernel in comparison.common
    ]
    return ReportTable(("kernel", "arms", "calls", "ms", "share, %", "time"), rows)


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
