"""summary.md: what was run and the numbers it gave, for people. What follows from them is in ANALYSIS.md."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from nvllm.core.refusal import Refusal
from nvllm.evidence import arms, trace
from nvllm.evidence.comparison import invalid_text
from nvllm.evidence.deciding import effect_text, interval_text, margin_text
from nvllm.evidence.directory import EvidenceDirectory
from nvllm.evidence.load import PRIMARY
from nvllm.evidence.records import Comparison, KernelTable, RunManifest
from nvllm.pages.page import printable
from nvllm.serve.memoryseries import AVAILABLE, FIGURES


def markdown(manifest: RunManifest, comparison: Comparison) -> str:
    """Return COMPARISON, of the run of MANIFEST, as Markdown."""
    return "\n\n".join(_parts(manifest, comparison)) + "\n"


def _parts(manifest: RunManifest, comparison: Comparison) -> Iterator[str]:
    yield f"# {title(manifest)}"
    yield "\n".join(f"- {name}: {text}" for name, text in facts(manifest))
    yield _table(arm_columns(manifest), arm_rows(manifest, comparison))
    if any(arm.figures for arm in comparison.arms):
        yield _table(figure_columns(comparison), figure_rows(comparison))
    if comparison.effects:
        yield _table(EFFECT_COLUMNS, effect_rows(comparison))
    if rows := memory_rows(comparison):
        yield _table(MEMORY_COLUMNS, rows)
    if comparison.traced:
        yield _table(TRACED_COLUMNS, traced_rows(comparison))
    for table in comparison.kernels:
        yield f"{kernels_title(table)}\n\n{_table(KERNEL_COLUMNS, kernel_rows(table))}"
    if comparison.common:
        yield _table(COMMON_COLUMNS, common_rows(comparison))


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
    profiles = ", ".join(dict.fromkeys(one.profile for one in manifest.arms))
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
    count = max((one.artifact for one in manifest.arms), default=0)
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


def arm_columns(manifest: RunManifest) -> tuple[str, ...]:
    """Return the columns of `arm_rows`: answers and tokens, unless a load was measured, which has figures for them."""
    if manifest.kind == "bench":
        return _ALWAYS
    return (*_ALWAYS, *_ANSWERED, *(PRIMARY if manifest.kind == "sweep" else _TOKENS))


def arm_rows(manifest: RunManifest, comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each arm of the run of MANIFEST, for `arm_columns`."""
    rows = [
        {
            "arm": one.name,
            "outcome": one.outcome,
            "valid runs": f"{one.valid} of {one.runs}",
            "samples": str(one.samples),
            "correct, %": f"{100 * one.correct:.1f}",
            "interval, %": f"{100 * one.low:.1f} to {100 * one.high:.1f}",
            "timeouts": f"{one.timeouts} of {one.asked}",
            "tokens/s": f"{one.tokens_per_second:.2f}",
            "tokens an answer": f"{one.tokens_per_answer:.1f}",
            **{name: f"{value:.2f}" for name, value in one.figures.items()},
        }
        for one in comparison.arms
    ]
    return [tuple(row.get(name, "") for name in arm_columns(manifest)) for row in rows]


EFFECT_COLUMNS = ("factor", "measure", "effect", "interval", "p", "p corrected", "observations", "margin", "would take")


def effect_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each effect, for `EFFECT_COLUMNS`."""
    return [
        (
            one.factor,
            one.measure,
            effect_text(one, one.estimate),
            interval_text(one),
            _p(one.p),
            _p(one.adjusted),
            f"{one.observations} {one.unit}{'' if one.observations == 1 else 's'}",
            margin_text(one),
            "" if one.needed is None else f"{one.needed} {one.needed_unit}s",
        )
        for one in comparison.effects
    ]


def figure_columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the columns of `figure_rows`."""
    return ("figure", *(one.name for one in comparison.arms))


def figure_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each figure of a load: its name, and its mean for each arm."""
    names = dict.fromkeys(name for one in comparison.arms for name in one.figures)
    return [
        (name, *(f"{one.figures[name]:.2f}" if name in one.figures else "" for one in comparison.arms))
        for name in names
    ]


FLIPPED_COLUMNS = ("factor", "question", "expected", "arm", "right", "answer", "end of the text")
_TEXT = 120
"""Characters of the end of a text in a table."""


def flipped_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return two rows of texts for each flipped question, one for each arm, for `FLIPPED_COLUMNS`."""
    return [
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


def unlisted_text(comparison: Comparison) -> str:
    """Return that there are flipped questions beyond those that COMPARISON lists; empty if there are none."""
    return f"{comparison.unlisted} more are not listed" if comparison.unlisted else ""


def flipped_table(comparison: Comparison) -> str:
    """Return the flipped questions of COMPARISON as Markdown."""
    return "\n\n".join(filter(None, (_table(FLIPPED_COLUMNS, flipped_rows(comparison)), unlisted_text(comparison))))


COMPILE_COLUMNS = ("artifact", "right, start after start", "different outputs", "", "tree")


def compile_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each artifact of one key, for `COMPILE_COLUMNS`."""
    return [
        (
            one.arm,
            f"{', '.join(map(str, one.right))} of {one.asked}",
            str(one.outputs),
            "bad" if one.bad else "",
            one.tree,
        )
        for one in comparison.compiles
    ]


def compiles_table(comparison: Comparison) -> str:
    """Return the artifacts of COMPARISON and what their starts show, as Markdown."""
    return _table(COMPILE_COLUMNS, compile_rows(comparison))


ENGINE_COLUMNS = ("arm", "engine", "run", "outcome", "correct", "tokens/s", "KV in use after, %", "peak memory, MiB")


def engine_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each run of the engines that were asked several, for `ENGINE_COLUMNS`."""
    return [
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


def question_columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the columns of `question_rows`: one for each engine that was asked several runs, else for each arm."""
    if not comparison.engines:
        return ("question", "expected", *(one.name for one in comparison.arms))
    arms_named = len({one.arm for one in comparison.engines}) > 1
    names = (f"{f'{one.arm}, ' if arms_named else ''}engine {one.engine}" for one in comparison.engines)
    return ("question", "expected", *names)


def question_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each question: for each engine, or arm, a mark for each of its runs, see `MARKS`."""
    return [(str(one.id), one.expected, *one.marks) for one in comparison.questions]


MARKS = "A mark for each run, in order: + right, x wrong, - ran into its timeout, . no answer."


def questions_table(comparison: Comparison) -> str:
    """Return every question in every run of the engines of COMPARISON, and what those runs show, as Markdown."""
    grid = _table(question_columns(comparison), question_rows(comparison))
    return f"{_table(ENGINE_COLUMNS, engine_rows(comparison))}\n\n{MARKS}\n\n{grid}"


_MEMORY = MappingProxyType(
    {AVAILABLE: "least available, GiB", **{name: f"most, {name}, GiB" for name in FIGURES if name != AVAILABLE}}
)
MEMORY_COLUMNS = ("arm", *_MEMORY.values())


def memory_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each arm whose memory was looked at, for `MEMORY_COLUMNS`."""
    return [
        (one.name, *(f"{one.memory[name] / 2**30:.2f}" if name in one.memory else "" for name in _MEMORY))
        for one in comparison.arms
        if one.memory
    ]


TRACED_COLUMNS = ("arm", "traces", "kernels, ms a token", "interval, ms")


def traced_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each arm with traces whose tokens were counted, for `TRACED_COLUMNS`."""
    return [
        (
            one.arm,
            str(len(one.runs)),
            f"{one.mean:.3f}",
            "" if one.low is None or one.high is None else f"{one.low:.3f} to {one.high:.3f}",
        )
        for one in comparison.traced
    ]


KERNEL_COLUMNS = ("kernel", "calls", "mean, us", "ms", "share, %")


def kernels_title(table: KernelTable) -> str:
    """Return the title of TABLE, which says what its rows are."""
    what = "kernels of the GPU" if table.on == "gpu" else "operators of the processor, without those that each calls"
    more = f"; {table.others} shorter ones are in the sum alone" if table.others else ""
    of = table.arm if table.run == 1 else f"{table.arm}, {table.run} together"
    tree = f", tree {table.tree[:12]}" if table.tree else ""
    return f"Trace of {of}{tree}: {what}, {table.microseconds / 1000:.3f} ms in all{more}"


def kernel_rows(table: KernelTable) -> list[tuple[str, ...]]:
    """Return a row of texts for each kernel of TABLE, for `KERNEL_COLUMNS`."""
    return [
        (
            one.name,
            str(one.calls),
            f"{trace.mean(one):.2f}",
            f"{one.microseconds / 1000:.3f}",
            f"{100 * trace.share(one, table):.1f}",
        )
        for one in table.kernels
    ]


COMMON_COLUMNS = ("kernel", "arms", "calls", "ms", "share, %", "time")


def common_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each kernel that two arms have, for `COMMON_COLUMNS`."""
    return [
        (
            one.name,
            f"{one.first}, {one.other}",
            ", ".join(map(str, one.calls)),
            ", ".join(f"{value / 1000:.3f}" for value in one.microseconds),
            ", ".join(f"{100 * value:.1f}" for value in one.shares),
            f"x{one.ratio:.3f}" if one.ratio is not None else "",
        )
        for one in comparison.common
    ]


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(one.replace('|', '/') for one in row)} |" for row in lines)
