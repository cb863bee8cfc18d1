"""IMAGE left out: which image each command takes, what it says of that, and what it refuses with which line to paste.

The project has the images of nvllm itself, so that names are those that a user types. Most commands end in a refusal
behind the choice (no network, no engine): what is looked at is which image they were about.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvllm.cli.main import main
from nvllm.core.canonical import Json

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a line ended: its exit STATUS, the JSON DOCUMENT, and stderr."""

    status: int
    document: Mapping[str, Json]
    said: str

    @property
    def cures(self) -> list[str]:
        refusals = self.document.get("refusals")
        return [str(one["cure"]) for one in refusals if isinstance(one, dict)] if isinstance(refusals, list) else []

    @property
    def codes(self) -> list[str]:
        refusals = self.document.get("refusals")
        return [str(one["code"]) for one in refusals if isinstance(one, dict)] if isinstance(refusals, list) else []


Run = Callable[[str], Ended]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a project with the images of nvllm's own and its default, without network and engine."""
    root = tmp_path / "project"
    (root / "manifests").mkdir(parents=True)
    shutil.copytree(ROOT / "images", root / "images")
    shutil.copy(ROOT / "nvllm.yaml", root)
    (root / "patches").symlink_to(ROOT / "patches")
    for lock in (ROOT / "manifests").glob("*.json"):
        shutil.copy(lock, root / "manifests")
    monkeypatch.chdir(root)
    monkeypatch.setenv("NVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    return root


@pytest.fixture
def run(project: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def ended(line: str) -> Ended:
        capsys.readouterr()
        status = main(["--json", "--offline", "--platform", "linux/amd64", *line.split()])
        out, err = capsys.readouterr()
        return Ended(status, json.loads(out), err)

    return ended


TAKEN = {
    "build --dry-run": ("cpu", "the default in nvllm.yaml"),
    "build --dry-run --patches none": ("cpu", "the default in nvllm.yaml"),
    "lock --check": ("cpu", "the default in nvllm.yaml"),
    "fetch --dry-run": ("cpu", "the default in nvllm.yaml"),
    "sbom --format spdx": ("cpu", "the default in nvllm.yaml"),
    "serve --profile lower8 --dry-run": ("gb10", "the only image that has the profile lower8"),
    "serve --profile tiny-ablation --dry-run": ("cpu", "the only image that has the profile tiny-ablation"),
    "doctor --profile piecewise": ("gb10", "the only image that has the profile piecewise"),
    "bless --profile lower8": ("gb10", "the only image that has the profile lower8"),
    "export systemd --profile lower8": ("gb10", "the only image that has the profile lower8"),
    "ablate --profile tiny-ablation --sentinels page-zeroer --probe gsm8k": (
        "cpu",
        "the only image that has the profile tiny-ablation",
    ),
    "bench --profile lower8 --vs phaseE-off": ("gb10", "the only image that has the profiles lower8, phaseE-off"),
    "eval gsm8k --profile lower8 --data d": ("gb10", "the only image that has the profile lower8"),
    "sweep --profiles lower8,all-beta --probe gsm8k": ("gb10", "the only image that has the profiles lower8, all-beta"),
    "bisect start --profile lower8 --test ./p": ("gb10", "the only image that has the profile lower8"),
    "bisect start -- ./p word": ("cpu", "the default in nvllm.yaml"),
    "model make tiny-lfm2": ("cpu", "it has the model tiny-lfm2"),
    "model check tiny-lfm2": ("cpu", "it has the model tiny-lfm2"),
    "model fetch qwen35-27b-nvfp4": ("sm120", "it has the model qwen35-27b-nvfp4"),
    "patch check": ("cpu", "the default in nvllm.yaml"),
    "patch apply out": ("cpu", "the default in nvllm.yaml"),
    "patch add fix.patch": ("cpu", "the default in nvllm.yaml"),
    "store export out.tar": ("cpu", "the default in nvllm.yaml"),
    "provenance": ("cpu", "the default in nvllm.yaml"),
    "dockerfile --context out": ("cpu", "the default in nvllm.yaml"),
    "push host.example/r --blessing lower8": ("gb10", "the only image that has the profile lower8"),
    "pull host.example/r": ("cpu", "the default in nvllm.yaml"),
    "kernels list": ("cpu", "the default in nvllm.yaml"),
}


def test_each_command_takes_the_image_that_is_decided_and_says_why(run: Run) -> None:
    ends = {line: run(line) for line in TAKEN}
    first = {line: ended.said.splitlines()[0] if ended.said else "" for line, ended in ends.items()}
    assert first == {line: f"image {image}: {why}" for line, (image, why) in TAKEN.items()}


def test_the_document_names_the_image(run: Run) -> None:
    """Of what ends well here. Other results are looked at where they are made."""
    named = {line: ended.document for line in TAKEN if (ended := run(line)).status == 0}
    lacking = [line for line, document in named.items() if f'"{TAKEN[line][0]}"' not in json.dumps(document["result"])]
    assert lacking == []
    assert {"build --dry-run", "lock --check", "model make tiny-lfm2", "sbom --format spdx"} <= {*named}


TINY = ("cpu", "sm120", "sm120-v033")
"""The images with the tiny profiles and their model."""

REFUSED = {
    "serve lower8": ("NV107", "nvllm serve --profile lower8"),
    "serve lower8 --detach": ("NV107", "nvllm serve --profile lower8 --detach"),
    "doctor lower8": ("NV107", "nvllm doctor --profile lower8"),
    "bless lower8 --trials 3": ("NV107", "nvllm bless --profile lower8 --trials 3"),
    "build lower8 --dry-run": ("NV107", "nvllm build gb10 --dry-run"),
    "serve tiny-eager": (
        "NV107",
        "\n".join(["one of these lines:", *(f"nvllm serve {image} --profile tiny-eager" for image in TINY)]),
    ),
    "serve cpu --profile lower8": ("NV107", "nvllm serve gb10 --profile lower8"),
    "serve --profile NOPE": ("NV107", "name a profile of this list"),
    "serve --profile lowr8": ("NV107", "nvllm serve gb10 --profile lower8"),
    "serve cpu --profile tiny-egaer": ("NV107", "nvllm serve cpu --profile tiny-eager"),
    "bench --profile lower8 --vs tiny-eager": ("NV107", "name profiles of one image"),
    "model make tiny-lmf2 --quiet": (
        "NV107",
        "\n".join(["one of these lines:", *(f"nvllm model make {image} tiny-lfm2" for image in TINY)]),
    ),
    "model make cpu": ("NV108", "nvllm model make --help"),
    "store export cpu": ("NV108", "nvllm store export --help"),
    "serve": ("NV108", "nvllm serve cpu --profile tiny-eager"),
    "serve cpu": ("NV108", "nvllm serve cpu --profile tiny-eager"),
    "bless gb10": ("NV108", "nvllm bless gb10 --profile lower8"),
    "bless": ("NV108", "nvllm bless cpu --profile tiny-blessed"),
    "bisect start pytest --test-builtin boots": ("NV107", "name another image, such as cpu"),
    "build gpu": ("NV107", "name another image, such as cpu"),
}


def test_what_is_not_decided_is_refused_with_the_line_that_decides_it(run: Run) -> None:
    ends = {line: run(line) for line in REFUSED}
    found = {
        line: (ended.codes[0], ended.cures[0].replace(" --platform linux/amd64", "")) for line, ended in ends.items()
    }
    assert found == REFUSED


def test_an_unknown_profile_lists_those_of_each_image(run: Run) -> None:
    refusals = run("serve --profile NOPE").document["refusals"]
    assert isinstance(refusals, list)
    (refusal,) = refusals
    assert isinstance(refusal, dict)
    expected = str(refusal["expected"])
    assert "gb10 has lower8, phaseE-off, all-beta, piecewise" in expected
    assert expected.count(" has ") == 4


def test_a_model_that_two_images_pin_alike_is_of_either(run: Run, project: Path) -> None:
    """gb10 and sm120-v033 pin it as well; the first has no lock to read."""
    assert run("model fetch qwen35-27b-nvfp4").said.startswith("image sm120: ")
    spec = project / "images/sm120.yaml"
    text = spec.read_text()
    revision = text.partition("    revision: ")[2][:40]
    spec.write_text(text.replace(revision, "0" * 40))
    ended = run("model fetch qwen35-27b-nvfp4")
    assert ended.codes == ["NV111"]
    assert "nvllm model fetch sm120 qwen35-27b-nvfp4" in ended.cures[0].splitlines()[2]


def test_a_profile_decides_and_the_default_does_not(run: Run, project: Path) -> None:
    """Three images have `tiny-eager`, and one of them is the default: serving another by mistake helps nobody."""
    ended = run("serve --profile tiny-eager")
    assert ended.codes == ["NV111"]
    for other in ("sm120", "sm120-v033"):
        (project / f"images/{other}.yaml").unlink()
    assert run("serve --profile tiny-eager").said.startswith("image cpu: the only image that has the profile")


def test_a_project_without_a_default_takes_its_only_image(run: Run, project: Path) -> None:
    (project / "nvllm.yaml").unlink()
    ended = run("build --dry-run")
    assert (ended.status, ended.codes) == (2, ["NV111"])
    assert run("dockerfile").cures == ["nvllm dockerfile --help"]  # with an IMAGE it would lack its options still
    images = ("cpu", "gb10", "sm120", "sm120-v033")
    lines = [f"nvllm build {image} --dry-run --platform linux/amd64" for image in images]
    assert ended.cures == ["\n".join(["one of these lines:", *lines])]
    for other in images[1:]:
        (project / f"images/{other}.yaml").unlink()
    ended = run("build --dry-run")
    assert (ended.status, ended.said) == (0, "image cpu: the only image of the project\n")


def test_a_spec_that_is_not_yaml_stops_only_who_means_it(run: Run, project: Path) -> None:
    (project / "images/sm120-v033.yaml").unlink()  # which has the profiles of sm120 too
    (project / "images/sm120.yaml").write_text("a: [")
    assert run("serve --profile lower8 --dry-run").said.startswith("image gb10: ")
    assert run("serve --profile qwen35-27b").codes == ["NV103"]


def test_the_line_keeps_the_project_that_was_named(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.parent)
    cures = run(f"serve lower8 --project {project}").cures
    assert cures == [f"nvllm serve --profile lower8 --project {project} --platform linux/amd64"]


def test_no_image_at_all(run: Run, project: Path) -> None:
    for spec in (project / "images").glob("*.yaml"):
        spec.unlink()
    for line in ("build", "serve --profile lower8", "serve"):
        ended = run(line)
        assert (ended.codes, ended.cures) == (["NV107"], ["nvllm init mine && cd mine"])


def test_patch_check_looks_at_every_image_with_all(run: Run) -> None:
    assert "image cpu" in run("patch check").said
    assert "image cpu" not in run("patch check --all").said
