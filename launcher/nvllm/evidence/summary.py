"""summary.md: what a run found, for people. Every number in it is in comparison.json."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from nvllm.core.refusal import Refusal
from nvllm.evidence.comparison import CORRECT, LENGTH
from nvllm.evidence.records import Comparison, Effect, RunManifest


def markdown(manifest: RunManifest, found: Comparison) -> str:
    """Return what the run of MANIFEST FOUND, as Markdown."""
    return "\n\n".join(_parts(manifest, found)) + "\n"


def _parts(manifest: RunManifest, found: Comparison) -> Iterator[str]:
    yield f"# {title(manifest)}"
    yield "\n".join(f"- {name}: {text}" for name, text in facts(manifest))
    if found.findings:
        yield "\n".join(f"- **{one.factor}**: {one.finding} ({one.text})" for one in found.findings)
    yield _table(arm_columns(found), arm_rows(found))
    if any(one.figures for one in found.arms):
        yield _table(("figure", *(one.name for one in found.arms)), figure_rows(found))
    if found.effects:
        yield _table(EFFECT_COLUMNS, effect_rows(found))
    if found.notes:
        yield "\n".join(f"- {one}" for one in found.notes)


def refusals(found: Comparison, where: Path) -> list[Refusal]:
    """Return why the run at WHERE, which FOUND this, is no success: NV854 for invalid arms, NV855 for failed ones."""
    cure = f"less {shlex.quote(str(where / 'summary.md'))}"
    said = []
    for one in found.arms:
        place = f"arm {one.name}"
        if one.outcome == "invalid":
            broken = [note for note in found.notes if note.startswith(f"{one.name} is invalid")]
            said.append(Refusal("NV854", place, "a harness that holds in every run", "".join(broken), cure))
        elif one.outcome == "failed":
            expected, share = "the floor, or a probe that passes", f"{100 * one.correct:.1f} % correct"
            said.append(Refusal("NV855", place, expected, share, cure))
    return said


def title(manifest: RunManifest) -> str:
    """Return the title of the run of MANIFEST."""
    names = {"ablate": "Ablation", "bench": "Bench", "eval": "Evaluation"}
    profiles = ", ".join(dict.fromkeys(one.profile for one in manifest.arms))
    return f"{names[manifest.kind]} of {manifest.image}, {profiles}"


def facts(manifest: RunManifest) -> list[tuple[str, str]]:
    """Return what was run, and on what: names and texts."""
    host, probe = manifest.host, manifest.probe
    asked = f"{probe.name}, sha256 {probe.sha256[:12]}"
    if probe.questions:
        asked += (
            f", {probe.questions} questions, seed {probe.seed}, at most {probe.length} tokens, {probe.timeout:g} s each"
        )
    if probe.floor is not None:
        asked += f", floor {probe.floor:g} %"
    commit = f"{host.commit[:12]}{' with changes' if host.dirty else ''}" if host.commit else "no repository"
    return [
        ("image", f"{manifest.image}, build hash {manifest.build_hash[:12]}, {len(manifest.patches)} patches"),
        *([("sentinels compared", ", ".join(manifest.ablated))] if manifest.ablated else []),
        ("probe", asked),
        ("runs", f"{manifest.runs} of each arm, each in a fresh container"),
        ("host", ", ".join([host.machine, host.processor, *host.gpus, f"kernel {host.kernel}", host.engine])),
        ("project", commit),
        ("begun", manifest.created),
    ]


def arm_columns(found: Comparison) -> tuple[str, ...]:
    """Return the columns of `arm_rows`; a bench has its figures in a table of their own."""
    if figure_rows(found):
        return ("arm", "outcome", "valid runs")
    answers = ("samples", "correct, %", "interval, %", "tokens/s", "tokens an answer")
    return ("arm", "outcome", "valid runs", *answers)


def arm_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each arm, for `arm_columns`."""
    rows = [
        (
            one.name,
            one.outcome,
            f"{one.valid} of {one.runs}",
            str(one.samples),
            f"{100 * one.correct:.1f}",
            f"{100 * one.low:.1f} to {100 * one.high:.1f}",
            f"{one.tokens_per_second:.2f}",
            f"{one.tokens_per_answer:.1f}",
        )
        for one in found.arms
    ]
    return [row[: len(arm_columns(found))] for row in rows]


EFFECT_COLUMNS = ("factor", "measure", "effect", "interval", "p", "p corrected", "observations")


def effect_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each effect, for `EFFECT_COLUMNS`."""
    return [
        (
            one.factor,
            one.measure,
            effect_text(one, one.estimate),
            interval_text(one),
            _p(one.p),
            _p(one.adjusted),
            f"{one.observations} {one.unit}s",
        )
        for one in found.effects
    ]


def figure_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each figure of a bench: its name, and its mean for each arm."""
    names = dict.fromkeys(name for one in found.arms for name in one.figures)
    return [
        (name, *(f"{one.figures[name]:.2f}" if name in one.figures else "" for one in found.arms)) for name in names
    ]


def effect_text(effect: Effect, value: float) -> str:
    """Return VALUE, of EFFECT's estimate or interval, in its unit."""
    if effect.measure not in (CORRECT, LENGTH):
        return f"x{value:.3f}"
    scale, unit = (100, "points") if effect.measure == CORRECT else (1, "tokens")
    return f"{round(scale * value, 1) + 0.0:+.1f} {unit}"  # 0.0 makes +0.0 of -0.0


def interval_text(effect: Effect) -> str:
    """Return the interval of EFFECT."""
    if effect.low is None or effect.high is None:
        return "too few runs"
    return f"{effect_text(effect, effect.low)} to {effect_text(effect, effect.high)}"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(one.replace('|', '/') for one in row)} |" for row in lines)
