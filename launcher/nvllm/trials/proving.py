"""Runs proofs: the tests that a patch names, in the image without the patch and in the image with the set.

A test runs in a container of the image, without network, by the image's own Python; pytest comes from the Python that
runs nvllm. A test that is marked for it runs here instead: ``nvllm_engine`` beside a served engine, whose address it
finds in NVLLM_ADDRESS, and ``nvllm_host`` with the image in NVLLM_IMAGE and its patches in NVLLM_PATCHES, as the probe
of a bisect does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

from packaging.requirements import Requirement

from nvllm.core import clock, proc
from nvllm.core.paths import Project
from nvllm.core.plan import ENGINE_ENVIRONMENT, HOME, RUN_DIRECTORY, Mount, Scratch
from nvllm.core.refusal import Refused, refuse
from nvllm.core.spec import ImageSpec
from nvllm.engine.container import Container
from nvllm.engine.engine import Engine
from nvllm.host.facts import INSTANCE_LABEL, HostFacts
from nvllm.image import identity
from nvllm.image.identity import Build
from nvllm.patches import patchcheck, patchset, proofs, proved
from nvllm.patches.proved import Arm, ProofRecord
from nvllm.patches.series import Patch, Series
from nvllm.patches.unified import Diff
from nvllm.runtime import proving
from nvllm.serve import hostclass, planner
from nvllm.trials import verdict
from nvllm.trials.bench import ENGINE_VARIABLES, EngineBench, blamed
from nvllm.trials.trial import Built
from nvllm.trials.verdict import Ran, TestResult

Where: TypeAlias = Literal["image", "engine", "host"]
"""Where a proof runs: in a container of the image; here, beside a served engine; here, with the image's name."""

_INSIDE = "/nvllm"
_TIMEOUT = 3600.0
"""Seconds of one run of pytest."""
_PLUGIN = "nvllm_proving"
_PYTEST = ("-q", "-s", "-p", "no:cacheprovider", "--import-mode=importlib", "--continue-on-collection-errors")
_WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}


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
    engine: Engine
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
        for place in dict.fromkeys(where(proofs.needs(self.project.root, node)) for node in nodes):
            here = [node for node in nodes if where(proofs.needs(self.project.root, node)) == place]
            try:
                by_node = self._run(place, chosen, patches, here)
            except Refused as refused:
                if place != "engine":
                    raise
                trial = blamed(refused, 0.0).trial  # raises it again if the patches did not cause it
                answers |= dict.fromkeys(here, Ran("error", f"no engine to ask: {trial.kind}: {trial.said}"))
            else:
                answers |= {node: verdict.ran(by_node[node], diff) for node in here}
        return answers

    def _run(
        self, place: Where, chosen: Sets, patches: tuple[str, ...], nodes: Sequence[str]
    ) -> Mapping[str, Sequence[TestResult]]:
        built = self._image(patches)
        if place == "image":
            return self._in_image(chosen, built, nodes)
        about = {"NVLLM_IMAGE": built.image, "NVLLM_PATCHES": ",".join(patches)}
        if place == "host":
            return self._here(nodes, about)
        with self.bench.serving(built) as running:
            return self._here(nodes, {**about, "NVLLM_ADDRESS": f"http://127.0.0.1:{running.plan.port}"})

    def _here(self, nodes: Sequence[str], about: Mapping[str, str]) -> Mapping[str, Sequence[TestResult]]:
        """Run NODES in the project with the variables ABOUT, and return the results by node."""
        with tempfile.TemporaryDirectory(prefix="nvllm-proof-") as name:
            shutil.copyfile(proving.__file__, Path(name, f"{_PLUGIN}.py"))
            own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": name, proving.NODES: json.dumps(nodes)}
            env = proc.environment({**about, **own}, ENGINE_VARIABLES)
            root = str(self.project.root)
            argv = [sys.executable, "-m", "pytest", *_PYTEST, "-p", _PLUGIN, "--rootdir", root, *_files(nodes)]
            try:
                done = proc.run(argv, env=env, cwd=self.project.root, timeout=_TIMEOUT)
            except subprocess.TimeoutExpired:
                return dict.fromkeys(nodes, ())
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        return by_node({node: node for node in nodes}, output, "python -m pytest")

    def _in_image(self, chosen: Sets, built: Built, nodes: Sequence[str]) -> Mapping[str, Sequence[TestResult]]:
        """Run NODES in a container of BUILT, which sees the directory that each lies in, and return the results."""
        directories = dict.fromkeys((self.project.root / node.partition("::")[0]).parent for node in nodes)
        inside = {path: f"{_INSIDE}/proofs/{number}" for number, path in enumerate(directories)}
        names: dict[str, str] = {}
        for node in nodes:
            file, _, test = node.partition("::")
            path = self.project.root / file
            names[node] = f"{inside[path.parent].rpartition('/')[2]}/{path.name}::{test}"
        with tempfile.TemporaryDirectory(prefix="nvllm-proof-") as name:
            scratch = Path(name)
            scratch.chmod(0o755)  # where nvllm runs as root, the tests run as another user
            (scratch / "python").mkdir()
            (scratch / "sentinels").mkdir()
            shutil.copyfile(proving.__file__, scratch / "python" / f"{_PLUGIN}.py")
            mounts = [Mount(str(path), target) for path, target in inside.items()]
            mounts += [Mount(str(scratch / "python"), f"{_INSIDE}/python")]
            mounts += [Mount(str(path), f"{_INSIDE}/pytest/{path.name}") for path in pytest_files()]
            for sentinel in self._sentinels(chosen):
                (scratch / "sentinels" / sentinel).touch()
            mounts += [Mount(str(scratch / "sentinels"), RUN_DIRECTORY)]
            container = self._container(built, mounts, [*names.values()])
            output = self.engine.run_to_end(built.image, container, _TIMEOUT)
        return by_node(names, output, f"container {container.name}")

    def _sentinels(self, chosen: Sets) -> set[str]:
        """Return the sentinels that are on: those of the profile, and of the patch and what it requires."""
        needed = (chosen.patch, *patchcheck.requirements(self.series, chosen.patch))
        own = {patch.sentinel.name for patch in needed if patch.sentinel is not None}
        whole = [patch for patch in self.series.patches if patch.id in chosen.whole]
        return (own | {*self.spec.profiles[self.bench.profile].sentinels}) & patchset.sentinels(whole)

    def _container(self, built: Built, mounts: Sequence[Mount], names: Sequence[str]) -> Container:
        """Return the container of BUILT that runs the tests NAMES, below the directory of the proofs in MOUNTS."""
        profile, build = self.spec.profiles[self.bench.profile], self._build(built)
        gpus = tuple(gpu.uuid for gpu in self.facts.gpus[: 1 if profile.gpu is not None else 0])
        python = f"{_INSIDE}/python:{_INSIDE}/pytest"
        own = {"PYTHONPATH": python, "PYTHONDONTWRITEBYTECODE": "1", proving.NODES: json.dumps(names)}
        tests = [f"{_INSIDE}/proofs/{file}" for file in _files(names)]
        options = ["-c", os.devnull, "--rootdir", f"{_INSIDE}/proofs", "-p", _PLUGIN]
        name = self.bench.container_name()
        return Container(
            name=name,
            command=(build.scheme.interpreter, "-m", "pytest", *_PYTEST, *options, *tests),
            environment={**build.environment, **ENGINE_ENVIRONMENT, **own, **({} if gpus else _WITHOUT_GPU)},
            labels={INSTANCE_LABEL: name},
            user=planner.container_user(os.getuid(), os.getgid()),
            memory=profile.limits.memory,
            shared_memory=profile.limits.shared_memory,
            pids=profile.limits.pids,
            ulimits={"core": 0, "nofile": profile.limits.open_files},
            addresses=(),
            port=0,
            mounts=tuple(mounts),
            scratch=(Scratch("/tmp", profile.limits.temporary), Scratch(HOME, profile.limits.temporary)),  # noqa: S108
            gpus=gpus,
        )

    def _build(self, built: Built) -> Build:
        return identity.load_build(self.project, self.spec.name, built.chosen)[0]


def _files(nodes: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(node.partition("::")[0] for node in nodes)]


def by_node(names: Mapping[str, str], output: str, place: str) -> Mapping[str, Sequence[TestResult]]:
    """Return the results in OUTPUT by node; NAMES is from the node to its name in that run.

    Raises Refused NV608 if pytest says nothing at all.
    """
    listed = list(verdict.results(output))
    if not listed:
        lines = output.strip().splitlines()
        cure = "see that pytest runs there: every line that it wrote is above"
        raise refuse("NV608", place, "a run of the tests", "\n".join(lines[-8:]) or "no output", cure)
    return {node: verdict.of_node(listed, name) for node, name in names.items()}


def pytest_files() -> tuple[Path, ...]:
    """Return what pytest and its requirements have in the directory of their packages, all of it Python.

    Raises Refused NV608 if the Python that runs nvllm has no pytest.
    """
    waiting, paths, seen = ["pytest"], dict[Path, None](), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            cure = f"{sys.executable} -m pip install pytest"
            raise refuse("NV608", "pytest", f"the distribution {name}", "not installed", cure) from None
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__"):
                paths[Path(str(distribution.locate_file(top)))] = None
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return tuple(paths)
