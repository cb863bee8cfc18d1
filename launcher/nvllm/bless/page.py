"""The report of a blessing for other people: a web page, made from its manifest alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from nvllm.cache.manifest import Manifest, TrialRecord
from nvllm.pages import plots
from nvllm.pages.page import rendered

CHECKS = ("repeats agree", "prompts apart", "loaded", "nothing saved", "tree kept", "nothing compiled")


def html(found: Manifest, state: str) -> str:
    """Return the blessing of the manifest FOUND, which is in STATE, as one HTML page without external resources."""
    boots = [("bootstrap", found.cold.phases), *((f"trial {one.number}", one.phases) for one in found.trials)]
    started = [
        plots.Start(name, tuple((one.name, one.seconds, end) for one, end in zip(phases, ends, strict=True)))
        for name, phases in boots
        for ends in [[*accumulate(one.seconds for one in phases)]]
    ]
    return rendered(
        Path(__file__).with_name("page.html.jinja"),
        title=f"Blessing of {found.image}, {found.profile}",
        conclusion=_conclusion(found),
        facts=[*_facts(found, state)],
        columns=("check", *(str(one.number) for one in found.trials)),
        checks=[
            (name, [checked[place] for checked in map(_checks, found.trials)]) for place, name in enumerate(CHECKS)
        ],
        trials=found.trials,
        started=started,
        phases=plots.phase_names(started),
        timelines=plots.timelines("Phases of every start", started),
        processor=[found.cold.processor, *(one.processor for one in found.trials)],
        coverage=found.coverage,
    )


def _checks(one: TrialRecord) -> tuple[bool, ...]:
    """Return whether ONE holds each of `CHECKS`."""
    return one.coherent, one.independent, one.loaded, not one.saved, one.unchanged, not one.compiles


def _conclusion(found: Manifest) -> str:
    good = len({one.boot for one in found.trials if one.good})
    text = (
        f"{good} of {found.claim.boots} fresh boots were good: at least {int(found.claim.bound * 100)} % of boots are"
    )
    return f"{text}, at 95 % confidence.{' UNSAFE: no production profile serves it.' if found.unsafe else ''}"


def _facts(found: Manifest, state: str) -> Iterator[tuple[str, str]]:
    """Yield what was blessed: names and texts."""
    cold = found.cold
    yield "state", state
    yield "version", f"{found.version}, {found.created}, expires {found.expires or 'never'}"
    yield "serve hash", found.serve_hash
    yield "build hash", found.build_hash
    yield "cache", f"{found.tree_hash}, {len(found.tree.files)} files, {found.tree.size} bytes"
    yield (
        "answers",
        f"{found.claim.replays} to {found.claim.prompts} prompts; repeats in a boot add nothing to the claim",
    )
    yield "bootstrap", f"{cold.saved} saved; {cold.compiles} compiles in its log, {cold.kernels} kernels in no cache"
    yield "KV tokens", str(found.kv_tokens or "unknown")
