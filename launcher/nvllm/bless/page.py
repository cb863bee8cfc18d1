"""The report of a blessing for other people: a web page, made from its manifest alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from nvllm.cache.manifest import Manifest, TrialRecord
from nvllm.pages import plots
from nvllm.pages.page import rendered

CHECKS = ("repeats agree", "prompts apart", "loaded", "nothing saved", "tree kept", "nothing compiled")


def html(manifest: Manifest, state: str) -> str:
    """Return the blessing of MANIFEST, which is in STATE, as one HTML page without external resources."""
    boots = [
        ("bootstrap", manifest.cold.phases),
        *((f"trial {trial.number}", trial.phases) for trial in manifest.trials),
    ]
    started = [
        plots.Start(name, tuple((phase.name, phase.seconds, end) for phase, end in zip(phases, ends, strict=True)))
        for name, phases in boots
        for ends in [[*accumulate(phase.seconds for phase in phases)]]
    ]
    return rendered(
        Path(__file__).with_name("page.html.jinja"),
        title=f"Blessing of {manifest.image}, {manifest.profile}",
        conclusion=_conclusion(manifest),
        facts=[*_facts(manifest, state)],
        columns=("check", *(str(trial.number) for trial in manifest.trials)),
        checks=[
            (name, [checked[index] for checked in map(_checks, manifest.trials)]) for index, name in enumerate(CHECKS)
        ],
        trials=manifest.trials,
        started=started,
        phases=plots.phase_names(started),
        timelines=plots.timelines("Phases of every start", started),
        processor=[manifest.cold.processor, *(trial.processor for trial in manifest.trials)],
        coverage=manifest.coverage,
    )


def _checks(trial: TrialRecord) -> tuple[bool, ...]:
    """Return whether TRIAL holds each of `CHECKS`."""
    return trial.coherent, trial.independent, trial.loaded, not trial.saved, trial.unchanged, not trial.compiles


def _conclusion(manifest: Manifest) -> str:
    good = len({trial.boot for trial in manifest.trials if trial.good})
    claim = manifest.claim
    text = f"{good} of {claim.boots} fresh boots were good: at least {int(claim.bound * 100)} % of boots are"
    return f"{text}, at 95 % confidence.{' UNSAFE: no production profile serves it.' if manifest.unsafe else ''}"


def _facts(manifest: Manifest, state: str) -> Iterator[tuple[str, str]]:
    """Yield what was blessed: names and texts."""
    cold = manifest.cold
    yield "state", state
    yield "version", f"{manifest.version}, {manifest.created}, expires {manifest.expires or 'never'}"
    yield "serve hash", manifest.serve_hash
    yield "build hash", manifest.build_hash
    yield "cache", f"{manifest.tree_hash}, {len(manifest.tree.files)} files, {manifest.tree.size} bytes"
    yield (
        "answers",
        f"{manifest.claim.replays} to {manifest.claim.prompts} prompts; repeats in a boot add nothing to the claim",
    )
    yield from (("evaluation", evaluation.summary) for evaluation in manifest.evaluations)
    yield "bootstrap", f"{cold.saved} saved; {cold.compiles} compiles in its log, {cold.kernels} kernels in no cache"
    yield "KV tokens", str(manifest.kv_tokens or "unknown")
