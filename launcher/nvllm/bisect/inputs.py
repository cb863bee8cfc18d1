"""The inputs of a bisect besides its patch set: lock, series, probe and host. It continues only on the same ones."""

from __future__ import annotations

from nvllm.bisect.records import BisectStart
from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.paths import Project
from nvllm.core.refusal import Refusal, refuse_any
from nvllm.core.spec import Profile
from nvllm.image import identity
from nvllm.patches import seriesfile


def inputs_now(project: Project, image: str) -> str:
    """Return the hash of everything that decides the images of a bisect of IMAGE, except the patch set."""
    build, stale = identity.load_build(project, image, [])
    refuse_any(stale)
    series = seriesfile.load(project.series(build.spec.patches.series), build.spec.patches.series)
    patches: Json = [[patch.id, patch.sha256] for patch in series.patches]
    factors = {name: value for name, value in build.factors.items() if name != "patches"}
    return canonical.digest("nvllm.bisect/1", {"factors": factors, "patches": patches})


def same_bytes(profile: Profile) -> bool:
    """Return whether all boots of one image with PROFILE run the same bytes: nothing is compiled at boot."""
    return profile.eager and profile.gpu is None


def _at_boot(start: BisectStart) -> str:
    return "compiles nothing at boot" if start.same_bytes else "may compile at boot"


def check_unchanged(start: BisectStart, now: BisectStart, where: str) -> None:
    """Raise Refused NV803 for each input that differs between START, as the journal has it, and NOW."""
    wrong = [
        (name, before, after)
        for name, before, after in (
            ("lock and series", start.inputs, now.inputs),
            ("probe", start.probe.sha256, now.probe.sha256),
            ("host", start.host, now.host),
            ("profile", _at_boot(start), _at_boot(now)),
        )
        if before != after
    ]
    general = "start again with `nvllm bisect start --discard`: trials that still apply are taken from the cache"
    # Only the user knows which verdicts of another probe still hold.
    cures = {"probe": f"nvllm bisect probe --image {start.image} --keep none"}
    refuse_any(
        Refusal("NV803", f"{where}: {name}", before[:24], after[:24], cures.get(name, general))
        for name, before, after in wrong
    )
