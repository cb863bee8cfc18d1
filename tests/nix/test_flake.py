"""The flake, evaluated, built, built again and run by a real Nix, with a stub for nixpkgs: ``make test-nix``.

What nixpkgs itself has under a name is not shown here; docs/nix.md says so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from docker import DockerClient

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.image import digests
from nvllm.kernels import toolchain
from support import nix_world
from support.nix_world import ROOT, NixWorld

pytestmark = pytest.mark.nix

MANY = 10**6
"""More bytes than a document of an image has."""

SYSTEMS = {"x86_64-linux": ["cpu", "sm120", "sm120-v033"], "aarch64-linux": ["sm120", "sm120-v033"]}
"""The images with a lock for each system."""

CHECKS = ("nvllm", "series-cpu", "lock-fresh-cpu")
BUILT = (
    "vllm-src-cpu",
    "vllm-src-patched-cpu",
    "layer-base-cpu",
    "layer-patches-cpu",
    *(f"checks.x86_64-linux.{name}" for name in CHECKS),
)


@pytest.fixture(scope="session")
def nix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NixWorld]:
    lacking = nix_world.missing()
    assert not lacking, f"these tests need {', '.join(lacking)}: make test-nix, as root"
    with nix_world.world(tmp_path_factory.mktemp("nix")) as made:
        yield made


@pytest.fixture(scope="session")
def flake(nix: NixWorld) -> str:
    return f"path:{nix.project('project')}"


@pytest.fixture(scope="session")
def filled(nix: NixWorld) -> NixWorld:
    """The world after it was given the files of the base and the patches of `cpu`."""
    nix_world.nvllm("build", "cpu", "--only", "patches")  # fetches what is not in the user's store
    nix.add(nix_world.layer_files(nix_world.lock()))
    return nix


@pytest.fixture
def changed(filled: NixWorld, request: pytest.FixtureRequest) -> Path:
    """A copy of the project for one test to change."""
    return filled.project(re.sub(r"\W", "-", request.node.name))


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _tree(root: Path) -> dict[str, tuple[bool, bytes]]:
    """Return for each file below ROOT whether it may be executed, the one mode that Nix keeps, and its content."""
    return {
        str(path.relative_to(root)): (bool(path.stat().st_mode & 0o100), path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }


def test_both_systems_have_what_the_page_says(nix: NixWorld, flake: str) -> None:
    done = nix.flake("flake show", "--json", flake)
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    for system, images in SYSTEMS.items():
        expected = {"default", "nvllm"}
        for image in images:
            layers = ["base", "wheels", "patches", *(["kernels"] if image != "cpu" else [])]
            expected |= {f"vllm-src-{image}", f"vllm-src-patched-{image}", f"oci-{image}"}
            expected |= {f"layer-{layer}-{image}" for layer in layers}
        assert set(shown["packages"][system]) == expected
        assert set(shown["apps"][system]) == {"default", "nvllm"}
        assert {f"series-{image}" for image in images} < set(shown["checks"][system])
        assert {"default"} == set(shown["devShells"][system])
    assert shown["formatter"].keys() == SYSTEMS.keys()
    assert shown["overlays"].keys() == {"default"}


def test_everything_evaluates(nix: NixWorld, flake: str) -> None:
    done = nix.flake("flake check", "--no-build", flake)
    assert done.code == 0, done.err


def test_a_file_that_nix_does_not_have_is_told_of(nix: NixWorld, flake: str) -> None:
    done = nix.flake("build", "--no-link", "-L", f"{flake}#vllm-src-sm120")
    sha256 = nix_world.lock("sm120").vllm.source.sha256
    assert done.code != 0
    assert f"nix-store --add-fixed sha256 ~/.cache/nvllm/store/sha256/{sha256[:2]}/{sha256}" in done.err


@pytest.fixture(scope="session")
def built(filled: NixWorld, flake: str) -> Mapping[str, Path]:
    """What Nix built, by name."""
    return filled.build([f"{flake}#{name}" for name in BUILT])


def test_the_patched_source_is_what_git_makes_of_it(built: Mapping[str, Path], tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(built["vllm-src-cpu"], tree)
    enabled = nix_world.nvllm("build", "cpu", "--dry-run")["patches"]
    for patch in sorted((ROOT / "patches/v0.32.0").glob("*.patch")):
        if patch.stem.partition("-")[2] in enabled:
            env = {**os.environ, "GIT_DIR": "/nonexistent"}  # below another repository it would do nothing
            subprocess.run(["git", "apply", "--whitespace=nowarn", patch], cwd=tree, env=env, check=True)
    assert _tree(tree) == _tree(built["vllm-src-patched-cpu"]) != _tree(built["vllm-src-cpu"])


def test_layers_are_those_of_a_build_without_nix(built: Mapping[str, Path]) -> None:
    for part in ("base", "patches"):
        made = built[f"layer-{part}-cpu"]
        notes = [json.loads(path.read_bytes()) for path in made.glob("*.json")]
        here = nix_world.nvllm("build", "cpu", "--only", part)["layers"]
        assert {one["kind"]: one["diff_id"] for one in notes} == {one["kind"]: one["diff_id"] for one in here}
        assert {path.stem for path in made.glob("*.tar")} == {path.stem for path in made.glob("*.json")}


def test_without_a_network_it_is_built_again_bit_for_bit(
    filled: NixWorld, flake: str, built: Mapping[str, Path]
) -> None:
    again = [f"{flake}#{name}" for name in built if name.startswith(("vllm-src-patched", "layer-patches"))]
    assert len(again) == 2
    filled.build(again, "--rebuild", network=False)


def test_run_format_and_develop(nix: NixWorld, flake: str) -> None:
    ran = nix.flake("run", flake, "--", "--version")
    assert (ran.code, ran.out.split()[0]) == (0, "nvllm"), ran.err
    formatted = nix.flake("fmt", cwd=Path(flake.removeprefix("path:")))
    assert (formatted.code, formatted.out) == (0, "formatted\n"), formatted.err
    shell = nix.flake("develop", flake, "-c", "python3", "-c", "import yaml, sys; print(sys.prefix)")
    assert shell.code == 0, shell.err


def _derivation(nix: NixWorld, project: Path) -> str:
    done = nix.flake("eval", "--raw", f"path:{project}#layer-patches-cpu.drvPath")
    assert done.code == 0, done.err
    return done.out


def test_only_the_launcher_the_spec_the_lock_and_the_series_are_inputs(filled: NixWorld, changed: Path) -> None:
    before = _derivation(filled, changed)
    for name in ("README.md", "docs/design.md", "images/sm120.yaml", "manifests/sm120.lock.json", "nix/default.nix"):
        with (changed / name).open("a") as stream:
            stream.write("\n")
    (changed / "patches/another").mkdir()
    (changed / "patches/another/series.yaml").touch()
    assert _derivation(filled, changed) == before
    with (changed / "launcher/nvllm/layers/tarlayer.py").open("a") as stream:
        stream.write("\n")
    assert _derivation(filled, changed) != before


def test_what_is_as_recorded_passes(filled: NixWorld, changed: Path) -> None:
    _record(changed)
    made = filled.build([f"path:{changed}#checks.x86_64-linux.digests-cpu"])
    count = _recorded(changed / "manifests/cpu.digests.json")
    assert made["digests-cpu"].read_text() == f"as recorded: {count} digests of cpu for linux/amd64\n"


def test_kernels_are_compiled_with_nothing_of_the_host(filled: NixWorld, flake: str) -> None:
    """By the Python, the libraries and the tools that the lock of sm120 names; the sandbox has no others."""
    _add_kernels(filled)
    made = filled.build([f"{flake}#layer-kernels-sm120"], network=False)["layer-kernels-sm120"]
    (note,) = [json.loads(path.read_bytes()) for path in made.glob("*.json")]
    recorded = digests.read(ROOT / "manifests/sm120.digests.json", "sm120.digests.json")
    assert recorded is not None
    assert [one.diff_id for one in recorded.platforms["linux/amd64"].layers if one.name == "kernels"] == [
        note["diff_id"]
    ]


@pytest.mark.long
def test_the_layers_of_the_patch_set_of_sm120_are_as_recorded(filled: NixWorld, flake: str) -> None:
    _add_kernels(filled)
    made = filled.build([f"{flake}#checks.x86_64-linux.digests-sm120"], network=False)
    count = _recorded(ROOT / "manifests/sm120.digests.json")
    assert made["digests-sm120"].read_text() == f"as recorded: {count} digests of sm120 for linux/amd64\n"


def _add_kernels(nix: NixWorld) -> None:
    """Give Nix the files that the layers of the patch set of sm120 are made from."""
    lock = nix_world.lock("sm120")
    nix.add(nix_world.fetched(lock, [lock.vllm.source, lock.vllm_wheel.file, *toolchain.inputs(lock)]))


def test_a_project_of_its_own_has_the_same_outputs(filled: NixWorld, flake: str, tmp_path: Path) -> None:
    ours = Path(flake.removeprefix("path:"))
    for name in ("images", "manifests", "patches"):
        shutil.copytree(ours / name, tmp_path / "own" / name)
    (tmp_path / "own/flake.nix").write_text(
        f'{{ inputs.nvllm.url = "{flake}"; outputs = {{ self, nvllm }}: nvllm.lib.project ./.; }}\n'
    )
    given = ["--offline", "--no-write-lock-file", "--override-input", "nvllm/nixpkgs", f"path:{filled.stub}"]
    done = filled.run("nix", "eval", "--raw", *given, f"path:{tmp_path}/own#layer-patches-cpu.drvPath")
    assert done.code == 0, done.err
    assert done.out == _derivation(filled, ours)


def test_nvllm_and_nix_build_one_image(filled: NixWorld, changed: Path, tmp_path: Path) -> None:
    """The whole image `cpu`, and `--builder nix`: three minutes on two cores, most of them bytecode."""
    nix_world.nvllm("build", "cpu", "--layout", tmp_path / "here")
    _edit(changed / "flake.nix", "github:NixOS/nixpkgs/nixos-unstable", f"path:{filled.stub}")
    python: list[str | Path] = [sys.executable, "-m", "nvllm", "--project", changed]
    done = filled.run(*python, "build", "cpu", "--builder", "nix", "--layout", "/nix/layout", network=False)
    assert done.code == 0, done.err
    layout = filled.place("/nix/layout")
    documents = [path for path in (tmp_path / "here").rglob("*") if path.is_file() and path.stat().st_size < MANY]
    assert len(documents) >= len(("index.json", "oci-layout", "manifest", "config"))
    for path in documents:
        assert (layout / path.relative_to(tmp_path / "here")).read_bytes() == path.read_bytes()
    blobs = sorted(path.name for path in (layout / "blobs/sha256").iterdir())
    assert blobs == sorted(path.name for path in (tmp_path / "here/blobs/sha256").iterdir())
    assert [name for name in blobs if canonical.sha256_file(layout / "blobs/sha256" / name) != name] == []


@pytest.fixture
def engine(docker_client: DockerClient) -> Iterator[DockerClient]:
    """The engine; what a test loaded into it goes again."""
    before = {tag for image in docker_client.images.list("nvllm") for tag in image.tags}
    yield docker_client
    for tag in {tag for image in docker_client.images.list("nvllm") for tag in image.tags} - before:
        if tag.startswith("nvllm:demo"):
            docker_client.api.remove_image(tag)


@pytest.mark.engine
@pytest.mark.long
def test_what_nix_builds_is_loaded_and_runs(filled: NixWorld, flake: str, engine: DockerClient, tmp_path: Path) -> None:
    """A small image, which no engine has: its base is of real packages, its vLLM has a few lines and a patch."""
    small = nix_world.small(tmp_path, flake, filled.stub)
    arguments = small.arguments("build", "demo", "--builder", "nix")
    command = ["env", f"NVLLM_HOME={small.home}", sys.executable, "-m", "nvllm", *arguments]
    done = filled.run(*command, network=False)
    assert done.code == 0, done.out + done.err
    built = json.loads(done.out)["result"]
    assert (built["outcome"], built["record"]) == ("built", "not recorded")
    assert engine.images.get(built["tag"]).id == built["image_id"] == engine.images.get("nvllm:demo").id
    said = engine.containers.run(
        built["tag"],
        ["-c", "import vllm; print(vllm.VALUE)"],
        entrypoint=["/opt/venv/bin/python"],
        remove=True,
        network_mode="none",
    )
    assert said == b"guarded\n"
    again = filled.run(*command, network=False)
    assert json.loads(again.out)["result"]["outcome"] == "already there"


# What must fail, and say why


def _conflict(project: Path) -> None:
    """Let a patch expect a line that is not there, with every hash as it must be."""
    patch = project / "patches/v0.32.0/0001-aot-load-guard.patch"
    before = _sha256(patch)
    lines = patch.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith(" ") and line.strip())
    lines[at] = " not in the source\n"
    patch.write_text("".join(lines))
    for name in ("patches/v0.32.0/series.yaml", "manifests/cpu.lock.json"):
        _edit(project / name, before, _sha256(patch))


def _sha256(path: Path) -> str:
    return subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True).stdout.split()[0]


def _wrong_hash(project: Path) -> None:
    source = nix_world.lock().vllm.source.sha256
    _edit(project / "manifests/cpu.lock.json", source, "0" * 64)


def _stray(project: Path) -> None:
    (project / "patches/v0.32.0/9999-stray.patch").write_text("stray\n")


def _epoch(project: Path) -> None:
    _edit(project / "images/cpu.yaml", "epoch: 1760000000", "epoch: 1760000001")


def _recorded(file: Path) -> int:
    """Return how many layers FILE, recorded digests of layers alone, has for x86-64."""
    return len(json.loads(file.read_text(encoding="utf-8"))["platforms"]["linux/amd64"]["layers"])


def _record(project: Path) -> None:
    """Record the layers of the patch set of `cpu` as `nvllm build cpu --layers-only --record` does."""
    built = nix_world.nvllm("build", "cpu", "--layers-only")
    layers: list[Json] = [
        {"name": one["kind"], "diff_id": one["diff_id"], "size": one["size"]} for one in built["layers"]
    ]
    platform: Json = {"build_hash": built["build_hash"], "layers": layers}
    document: Json = {"schema": "nvllm.digests/1", "image": "cpu", "platforms": {built["platform"]: platform}}
    (project / "manifests/cpu.digests.json").write_text(canonical.pretty(document))


def _other_bytes(project: Path) -> None:
    """Let the lock have another epoch than when it was recorded."""
    _record(project)
    _edit(project / "manifests/cpu.lock.json", '"epoch": 1760000000', '"epoch": 1760000001')


def _stale(project: Path) -> None:
    _edit(project / "images/cpu.yaml", "torch==2.13.0+cpu", "torch==2.13.1+cpu")


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        (_wrong_hash, "vllm-src-cpu", ["vllm-0.32.0.tar.gz of image cpu is not in the Nix store", "0" * 64]),
        (_conflict, "vllm-src-patched-cpu", ["NV301 patch does not apply", "aot-load-guard", "not in the source"]),
        (_stray, "checks.x86_64-linux.series-cpu", ["9999-stray.patch"]),
        (_epoch, "layer-base-cpu", ["NV202 lock stale", "nvllm lock cpu"]),
        (_other_bytes, "checks.x86_64-linux.digests-cpu", ["cpu.digests.json: layer record: recorded sha256:"]),
        (_stale, "checks.x86_64-linux.lock-fresh-cpu", ["NV202 lock stale", "nvllm lock cpu"]),
    ],
)
def test_what_is_wrong_fails_and_says_why(
    filled: NixWorld, changed: Path, change: Callable[[Path], None], name: str, said: list[str]
) -> None:
    change(changed)
    done = filled.flake("build", "--no-link", "-L", f"path:{changed}#{name}")
    assert done.code != 0
    assert [text for text in said if text not in done.err] == [], done.err
