"""Runs proofs: the tests that a patch names, in the image without the patch and in the image with the set.

A test runs in a container of the image. One that is marked for it runs here instead: ``nvllm_engine`` beside a served
engine, whose address it finds in NVLLM_ADDRESS, and ``nvllm_host`` with the image in NVLLM_IMAGE and its patches in
NVLLM_PATCHES, as the probe of a bisect does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from nvllm.core import clock, proc
from nvllm.core.paths import Project
from nvllm.core.refusal import Refused, refuse
from nvllm.core.spec import ImageSpec
from nvllm.host.facts import HostFacts
from nvllm.image import identity
from nvllm.patches import patchcheck, patchset, proofs, proved
from nvllm.patches.proved import Arm, ProofRecord
from nvllm.patches.series import Patch, Series
from nvllm.patches.unified import Diff
from nvllm.runtime import proving
from nvllm.serve import hostclass
from nvllm.trials import imagetests, verdict
from nvllm.trials.bench import ENGINE_VARIABLES, EngineBench, blamed
from nvllm.trials.imagetests import OPTIONS, PLUGIN, TIMEOUT, ImageTests
from nvllm.trials.trial import Built
from nvllm.trials.verdict import Ran, TestResult

Where: TypeAlias = Literal["image", "engine", "host"]
"""Where a proof runs: in a container of the image; here, beside a served engine; here, with the image's name."""


@dataclass(frozen=True, slots=True)
class Sets:
    """The two sets of patches between which PATCH is proved, as ids in the order of the series."""

    patch: Patch
    without: tuple[str, ...]
    whole: tuple[str, ...]


def sets(series: Series, enabled: Sequence[str], patch: Patch) -> Sets:
    """Return the sets for PATCH: ENABLED with it and what it requires, and that without it and what requires it.

    Raises Refused as `patchset.choose` does: NV106 for a patch that conflicts with ENABLED ones.
    """
    required = [other.id for other in patchcheck.requirements(series, patch)]
    whole = patchset.choose(series, [*enabled, *required, patch.id], where=f"the set to prove {patch.id} in")
    gone = {patch.id}
    for other in series.patches:  # what a patch requires stands before it
        if gone & {*other.requires}:
            gone.add(other.id)
    ids = tuple(one.id for one in whole)
    return Sets(patch, tuple(name for name in ids if name not in gone), ids)


def where(needs: frozenset[str]) -> Where:
    """Return where a test with the markers NEEDS runs."""
    if proofs.ENGINE in needs:
        return "engine"
    return "host" if proofs.HOST in needs else "image"


@dataclass
class ProofBench:
    """Runs the proofs of patches of SPEC's image; BENCH builds the images and serves the profile."""

    project: Project
    spec: ImageSpec
    series: Series
    bench: EngineBench
    facts: HostFacts
    _built: dict[tuple[str, ...], Built] = field(default_factory=dict)

    def prove(self, chosen: Sets, nodes: Sequence[str], diff: Diff) -> tuple[ProofRecord, ...]:
        """Run the tests NODES of the patch of CHOSEN, whose change is DIFF, in both images, and return the records.

        Raises Refused if an image cannot be built or served, NV608 if pytest is not here or does not run there.
        """
        digests = {node: proved.file_sha256(self.project.root, node) for node in nodes}  # as they are before they run
        arms = {patches: self._arm(chosen, patches, nodes, diff) for patches in (chosen.without, chosen.whole)}
        machine, made, patch = hostclass.host_class(self.facts), clock.now(), chosen.patch
        records: list[ProofRecord] = []
        for node in nodes:
            without, whole = arms[chosen.without][node], arms[chosen.whole][node]
            records.append(
                ProofRecord(
                    patch.id,
                    node,
                    verdict.verdict(without, whole),
                    Arm(self._image(chosen.without).image, without.outcome, without.text),
                    Arm(self._image(chosen.whole).image, whole.outcome, whole.text),
                    patch.sha256 or "",
                    digests[node],
                    machine,
                    made,
                )
            )
        return tuple(records)

    def _image(self, patches: tuple[str, ...]) -> Built:
        if patches not in self._built:
            self._built[patches] = self.bench.built(patches)
        return self._built[patches]

    def _arm(self, chosen: Sets, patches: tuple[str, ...], nodes: Sequence[str], diff: Diff) -> dict[str, Ran]:
        """Return what each of NODES does in the image of PATCHES."""
        answers: dict[str, Ran] = {}
        for scene in dict.fromkeys(where(proofs.needs(self.project.root, node)) for node in nodes):
            here = [node for node in nodes if where(proofs.needs(self.project.root, node)) == scene]
            try:
                by_node = self._run(scene, chosen, patches, here)
            except Refused as refused:
                if scene != "engine":
                    raise
                trial = blamed(refused, 0.0).trial  # raises it again if the patches did not cause it
                answers |= dict.fromkeys(here, Ran("error", f"no engine to ask: {trial.kind}: {trial.said}"))
            else:
                answers |= {node: verdict.ran(by_node[node], diff) for node in here}
        return answers

    def _run(
        self, scene: Where, chosen: Sets, patches: tuple[str, ...], nodes: Sequence[str]
    ) -> Mapping[str, Sequence[TestResult]]:
        built = self._image(patches)
        if scene == "image":
            return self._in_image(chosen, built, nodes)
        about = {"NVLLM_IMAGE": built.image, "NVLLM_PATCHES": ",".join(patches)}
        if scene == "host":
            return self._here(nodes, about)
        with self.bench.serving(built) as running:
            return self._here(nodes, {**about, "NVLLM_ADDRESS": f"http://127.0.0.1:{running.plan.port}"})

    def _here(self, nodes: Sequence[str], about: Mapping[str, str]) -> Mapping[str, Sequence[TestResult]]:
        """Run NODES in the project with the variables ABOUT, and return the results by node."""
        with tempfile.TemporaryDirectory(prefix="nvllm-proof-") as name:
            shutil.copyfile(proving.__file__, Path(name, f"{PLUGIN}.py"))
            own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": name, proving.NODES: json.dumps(nodes)}
            env = proc.environment({**about, **own}, ENGINE_VARIABLES)
            root = str(self.project.root)
            argv = [sys.executable, "-m", "pytest", *OPTIONS, "-p", PLUGIN, "--rootdir", root, *imagetests.files(nodes)]
            try:
                done = proc.run(argv, env=env, cwd=self.project.root, timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                return dict.fromkeys(nodes, ())
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        return by_node({node: node for node in nodes}, output, "python -m pytest")

    def _in_image(self, chosen: Sets, built: Built, nodes: Sequence[str]) -> Mapping[str, Sequence[TestResult]]:
        """Run NODES in a container of BUILT, and return the results by node."""
        build, below = identity.load_build(self.project, self.spec.name, built.chosen)[0], self.project.root
        profile = self.spec.profiles[self.bench.profile]
        gpus = tuple(gpu.uuid for gpu in self.facts.gpus[: 1 if profile.gpu is not None else 0])
        placed = dict.fromkeys(nodes, below)
        output = ImageTests(self.bench, build, gpus).run(built, placed, self._sentinels(chosen))
        return by_node(imagetests.names(placed), output, f"the image {built.image}")

    def _sentinels(self, chosen: Sets) -> set[str]:
        """Return the sentinels that are on: those of the profile, and of the patch and what it requires."""
        needed = (chosen.patch, *patchcheck.requirements(self.series, chosen.patch))
        own = {patch.sentinel.name for patch in needed if patch.sentinel is not None}
        whole = [patch for patch in self.series.patches if patch.id in chosen.whole]
        return (own | {*self.spec.profiles[self.bench.profile].sentinels}) & patchset.sentinels(whole)


def by_node(names: Mapping[str, str], output: str, runner: str) -> Mapping[str, Sequence[TestResult]]:
    """Return the results in OUTPUT by node; NAMES is from the node to its name in that run of RUNNER.

    Raises Refused NV608 if pytest did not run to its end.
    """
    listed = list(verdict.results(output))
    if not any(result.when == "session" for result in listed):
        lines = output.strip().splitlines()
        cure = "see that pytest runs there: every line that it wrote is above"
        raise refuse("NV608", runner, "a run of the tests", "\n".join(lines[-8:]) or "no output", cure)
    return {node: verdict.of_node(listed, name) for node, name in names.items()}
