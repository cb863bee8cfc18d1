"""Neither a sentinel nor the profiler decides what is compiled, in any series: such legs load one artifact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

from nvllm.core.paths import Project
from nvllm.core.plan import LaunchPlan
from nvllm.core.spec import ImageSpec, Profile
from nvllm.evidence import trace
from nvllm.image import identity
from nvllm.patches import patchset, seriesfile
from nvllm.serve import planner, servehash
from nvllm.serve.planner import PlannedImage, PlanRequest
from nvllm.spec import specfile
from support.host_samples import CPU
from support.plansamples import GPUS, LOCAL
from support.specs import OLDER_CPU

ROOT = Path(__file__).parents[3]

TRACED = ("vllm/model_executor", "vllm/compilation")
"""The code of models and layers, which torch.compile traces and vLLM hashes into its key, and what compiles it."""


def plan(spec: ImageSpec, profile: str, changed: Profile) -> LaunchPlan:
    changed = replace(changed, chat_template=None)
    spec = replace(spec, profiles={profile: changed})
    environment = identity.environment(spec, None)
    image = PlannedImage(spec, "b" * 64, identity.scheme(spec.base.python), environment, ("sha256:" + "1" * 64,))
    draft = LOCAL if changed.draft is not None else None
    adapters = [LOCAL for _ in changed.adapters]
    request = PlanRequest(image, profile, LOCAL, draft, (1234, 1235), GPUS, CPU, Path("/run"), adapters)
    return planner.plan(request)


def test_a_sentinel_does_not_change_the_compile_key_of_any_series() -> None:
    project, seen, wrong = Project(ROOT), set(), []
    specs = [specfile.of(project, path.stem) for path in sorted((ROOT / "images").glob("*.yaml"))]
    older = specfile.parse(OLDER_CPU.read_text(), "images/cpu.yaml")  # of a series that no image enables any more
    (cpu,) = (spec for spec in specs if spec.name == "cpu")
    newer = replace(cpu, patches=replace(cpu.patches, series="v0.33.0"))  # of one that no image enables yet
    for spec in (*specs, older, newer):
        series = seriesfile.of(project, spec.patches.series)
        seen.add(spec.patches.series)
        names = {one.sentinel.name for one in series.patches if one.sentinel is not None}
        assert names >= patchset.sentinels(series.patches)
        for profile in spec.profiles:
            arms = [(), *((name,) for name in sorted(names)), tuple(sorted(names))]
            plans = [plan(spec, profile, replace(spec.profiles[profile], sentinels=arm)) for arm in arms]
            assert len({one.serve_hash for one in plans}) == len(arms)
            if len({servehash.compile_key(one) for one in plans}) != 1:
                wrong.append(f"{spec.patches.series} {spec.name} {profile}")
    assert wrong == []
    assert seen == {one.parent.name for one in (ROOT / "patches").glob("*/series.yaml")}


def test_the_profiler_does_not_change_the_compile_key_of_any_profile() -> None:
    for path in sorted((ROOT / "images").glob("*.yaml")):
        spec = specfile.of(Project(ROOT), path.stem)
        for name, profile in spec.profiles.items():
            traced = trace.profiled(profile, 32)
            longer = replace(traced, arguments={**traced.arguments, "max-model-len": 7})
            plain, under, other = (plan(spec, name, one) for one in (profile, traced, longer))
            assert plain.serve_hash != under.serve_hash
            assert servehash.compile_key(plain) == servehash.compile_key(under) != servehash.compile_key(other)


def test_no_patch_with_a_sentinel_touches_code_that_is_traced() -> None:
    """There a switch would be compiled in as it stood, and the arm without the sentinel would load it all the same."""
    project, touched = Project(ROOT), []
    for path in sorted((ROOT / "patches").glob("*/series.yaml")):
        for patch in seriesfile.of(project, path.parent.name).patches:
            if patch.sentinel is not None:
                touched += [
                    f"{path.parent.name}: {patch.id}: {file}"
                    for file in patch.touches
                    if any(PurePosixPath(file).is_relative_to(one) for one in TRACED)
                ]
    assert touched == []
