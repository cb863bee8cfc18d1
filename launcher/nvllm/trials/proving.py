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
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from nvllm.patches.proved import Arm, BrokenProof, CoveredProof, LeftOut, ProofRecord
from nvllm.patches.series import Patch, Series
from nvllm.patches.unified import Diff
from nvllm.runtime import proving
from nvllm.serve import hostclass
from nvllm.trials import imagetests, verdict
from nvllm.trials.bench import ENGINE_VARIABLES, TASK_VARIABLE, EngineBench, blamed
from nvllm.trials.imagetests import OPTIONS, PLUGIN, TIMEOUT, ImageTests
from nvllm.trials.trial import Built
from nvllm.trials.verdict import Ran, TestResult

Where: TypeAlias = Literal["image", "engine", "host"]
"""Where a proof runs: in a container of the image; here, beside a served engine; here, with the image's name."""

Test: TypeAlias = tuple[str, str]
"""A proof: the id of a patch, and the node of a test that it names."""


@dataclass(frozen=True, slots=True)
class Sets:
    """The two sets of patches between which PATCH is proved, as ids in the order of the series."""

    patch: Patch
    without: tuple[str, ...]
    whole: tuple[str, ...]

    @property
    def gone(self) -> tuple[str, ...]:
        """The patch, and what requires it."""
        return tuple(name for name in self.whole if name not in self.without)


@dataclass(frozen=True, slots=True)
class Job:
    """The proofs of one patch that are to run: NODES, between its SETS."""

    sets: Sets
    nodes: tuple[str, ...]

    @property
    def tests(self) -> tuple[Test, ...]:
        return tuple((self.sets.patch.id, node) for node in self.nodes)


def sets(series: Series, enabled: Sequence[str], patch: Patch) -> Sets:
    """Return the sets for PATCH: ENABLED with it and what it requires, and that without it and what requires it.

    Raises Refused as `patchset.choose` does: NV106 for a patch that conflicts with ENABLED ones.
    """
    required = [other.id for other in patchcheck.requirements(series, patch)]
    whole = patchset.choose(series, [*enabled, *required, patch.id], where=f"the set to prove {patch.id} in")
    ids = tuple(member.id for member in whole)
    return Sets(patch, without(series, ids, [patch.id]), ids)


def without(series: Series, ids: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Return those of the patches IDS of SERIES that are left without the patches NAMES and what requires them."""
    gone = {*names}
    for other in series.patches:  # what a patch requires stands before it
        if gone & {*other.requires}:
            gone.add(other.id)
    return tuple(name for name in ids if name not in gone)


def where(needs: frozenset[str]) -> Where:
    """Return where a test with the markers NEEDS runs."""
    if proofs.ENGINE in needs:
        return "engine"
    return "host" if proofs.HOST in needs else "image"


@dataclass
class ProofBench:
    """Runs the proofs of patches of SPEC's image, whose changes are DIFFS; BENCH builds the images and serves.

    The tests lie below ROOT: the project, or what a driver sent of its own.
    """

    project: Project
    spec: ImageSpec
    series: Series
    diffs: Mapping[str, Diff]
    bench: EngineBench
    facts: HostFacts
    root: Path
    _built: dict[tuple[str, ...], Built] = field(default_factory=dict)

    def prove(self, jobs: Sequence[Job]) -> Iterator[tuple[ProofRecord, ...]]:
        """Run the tests of JOBS without and with their patches, and yield the records of each job, in their order.

        All tests of one whole set run at once in its image. Raises Refused if an image cannot be built or served, NV608
        if pytest is not here or does not run there.
        """
        # As they are before they run.
        digests = {node: proved.file_sha256(self.root, node) for job in jobs for node in job.nodes}
        whole: dict[tuple[str, ...], Mapping[Test, Ran]] = {}
        for job in jobs:
            chosen, patch = job.sets, job.sets.patch
            if chosen.whole not in whole:
                same = [test for other in jobs if other.sets.whole == chosen.whole for test in other.tests]
                whole[chosen.whole] = self._answers(chosen.whole, same)
            left, kept = self._answers(chosen.without, job.tests), whole[chosen.whole]
            images = self._image(chosen.without).image, self._image(chosen.whole).image
            machine, made = hostclass.host_class(self.facts), clock.now()
            yield tuple(
                ProofRecord(
                    *test,
                    verdict.verdict(left[test], kept[test]),
                    Arm(images[0], left[test].outcome, left[test].text),
                    Arm(images[1], kept[test].outcome, kept[test].text),
                    patch.sha256 or "",
                    digests[test[1]],
                    machine,
                    made,
                )
                for test in job.tests
            )

    def leave_out(self, chosen: Sets, tests: Sequence[Test], inputs: str) -> LeftOut:
        """Run TESTS, proofs of patches of the whole set of CHOSEN, without its patch, and return what came of it.

        INPUTS is what `proved.inputs` says of them. Raises Refused as `prove` does.
        """
        answers = self._answers(chosen.without, tests)
        must_fail = {node for patch, node in tests if patch in chosen.gone}
        covered = [
            CoveredProof(*test, self._covering(chosen, test))
            for test, answer in answers.items()
            if test[0] in chosen.gone and answer.outcome == "passed"
        ]
        broken = [
            BrokenProof(*test, answer.text)
            for test, answer in answers.items()
            if test[1] not in must_fail and answer.outcome in ("failed", "error")
        ]
        image, machine = self._image(chosen.without).image, hostclass.host_class(self.facts)
        return LeftOut(
            chosen.patch.id, image, len(answers), inputs, machine, clock.now(), tuple(covered), tuple(broken)
        )

    def _covering(self, chosen: Sets, test: Test) -> tuple[str, ...]:
        """Return the patches that let TEST pass without the patch of CHOSEN, as `covering` does."""

        def fails(names: Sequence[str]) -> bool:
            left = without(self.series, chosen.without, names)
            return self._answers(left, [test])[test].outcome != "passed"

        return covering(chosen.without, fails)

    def _image(self, patches: tuple[str, ...]) -> Built:
        if patches not in self._built:
            self._built[patches] = self.bench.built(patches)
        return self._built[patches]

    def _answers(self, patches: tuple[str, ...], tests: Sequence[Test]) -> dict[Test, Ran]:
        """Return what each of TESTS does in the image of PATCHES."""
        groups: dict[tuple[Where, frozenset[str]], list[Test]] = {}
        for test in tests:
            scene = where(proofs.needs(self.root, test[1]))
            switched = self._sentinels(test[0]) if scene == "image" else frozenset[str]()
            groups.setdefault((scene, switched), []).append(test)
        answers: dict[Test, Ran] = {}
        for (scene, switched), same in groups.items():
            try:
                nodes = self._run(scene, patches, [*dict.fromkeys(node for _, node in same)], switched)
            except Refused as refused:
                if scene != "engine":
                    raise
                trial = blamed(refused, 0.0).trial  # raises it again if the patches did not cause it
                answers |= dict.fromkeys(same, Ran("error", f"no engine to ask: {trial.kind}: {trial.said}"))
            else:
                answers |= {test: verdict.ran(nodes[test[1]], self.diffs[test[0]]) for test in same}
        return answers

    def _run(
        self, scene: Where, patches: tuple[str, ...], nodes: Sequence[str], switched: frozenset[str]
    ) -> Mapping[str, Sequence[TestResult]]:
        built = self._image(patches)
        if scene == "image":
            return self._in_image(built, nodes, switched)
        about = {"NVLLM_IMAGE": built.image, "NVLLM_PATCHES": ",".join(patches)}
        about |= {TASK_VARIABLE: self.bench.task} if self.bench.task else {}
        if scene == "host":
            return self._here(nodes, about)
        with self.bench.serving(built) as running:
            return self._here(nodes, {**about, "NVLLM_ADDRESS": f"http://127.0.0.1:{running.plan.port}"})

    def _here(self, nodes: Sequence[str], about: Mapping[str, str]) -> Mapping[str, Sequence[TestResult]]:
        """Run NODES here with the variables ABOUT, and return the results by node."""
        with tempfile.TemporaryDirectory(prefix="nvllm-proof-", ignore_cleanup_errors=True) as name:
            shutil.copyfile(proving.__file__, Path(name, f"{PLUGIN}.py"))
            own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": name, proving.NODES: json.dumps(nodes)}
            env = proc.environment({**about, **own}, ENGINE_VARIABLES)
            root = str(self.root)
            # --basetemp: what the tests write goes with this directory.
            options = [*OPTIONS, "-p", PLUGIN, "--rootdir", root, "--basetemp", f"{name}/tests"]
            argv = [sys.executable, "-m", "pytest", *options, *imagetests.files(nodes)]
            try:
                done = self.bench.programs.run(argv, env=env, cwd=self.root, timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                return dict.fromkeys(nodes, ())
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        # A record is read elsewhere: it does not say where the project and its scratch files lie here.
        output = output.replace(name, "TMP").replace(f"{root}/", "")
        return by_node({node: node for node in nodes}, output, "python -m pytest")

    def _in_image(
        self, built: Built, nodes: Sequence[str], switched: frozenset[str]
    ) -> Mapping[str, Sequence[TestResult]]:
        """Run NODES in a container of BUILT with the sentinels SWITCHED, and return the results by node."""
        build = identity.load_build(self.project, self.spec.name, built.chosen)[0]
        profile = self.spec.profiles[self.bench.profile]
        gpus = tuple(gpu.uuid for gpu in self.facts.gpus[: 1 if profile.gpu is not None else 0])
        placed = dict.fromkeys(nodes, self.root)
        output = ImageTests(self.bench, build, gpus).run(built, placed, switched)
        return by_node(imagetests.names(placed), output, f"the image {built.image}")

    def _sentinels(self, patch_id: str) -> frozenset[str]:
        """Return the sentinels that are on for a patch: those of the profile, of the patch and of what it requires."""
        (patch,) = [patch for patch in self.series.patches if patch.id == patch_id]
        needed = (patch, *patchcheck.requirements(self.series, patch))
        own = {patch.sentinel.name for patch in needed if patch.sentinel is not None}
        return frozenset(own | {*self.spec.profiles[self.bench.profile].sentinels})


def covering(others: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Return those of OTHERS without which a test FAILS that passes with all of them; none if it passes without any.

    One at a time is found by halving, until those that were found are enough.
    """
    names: list[str] = []
    if not fails(others):
        return ()
    for _ in others:
        rest = [name for name in others if name not in names]
        sizes = range(1, len(rest))  # without all of them it fails
        names.append(rest[bisect_left(sizes, 1, key=lambda size: fails([*names, *rest[:size]]))])
        if fails(names):
            break
    return tuple(names)


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
