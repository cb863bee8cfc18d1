"""The whole images sm120 and sm120-v033, in an engine without a GPU: everything up to the driver that is missing here.

Nine gigabytes of layers, made twice. An image is removed again, unless it was there before.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from nvllm.core.lock import Lock
from nvllm.core.paths import Project, places
from nvllm.core.progress import Silent
from nvllm.image import buildrecord, identity
from nvllm.image.builder import ImageBuilder
from nvllm.kernels import devicecode, kernellayer, releases, toolchain
from nvllm.lock import lockdoc
from nvllm.runtime import tiny_models
from nvllm.serve import planner
from support import readme
from support.engine_world import ROOT, own_nvllm
from support.serve_arguments import check, commands, inverses, locked, positive, spec

pytestmark = [pytest.mark.engine, pytest.mark.long]

IMAGES = ("sm120", "sm120-v033")
"""Of the first the README has the commands. The other has the same profiles."""

SITE = "/opt/venv/lib/python3.11/site-packages"
PROBES = ROOT / "tests/series/probes"
NO_DEVICE = "RuntimeError: Failed to infer device type"

IMPORTS = """
import json, torch, triton, transformers, vllm
import vllm.model_executor.models.lfm2, vllm.v1.worker.gpu_model_runner, vllm.v1.core.sched.scheduler
versions = {each.__name__: each.__version__ for each in (torch, triton, transformers, vllm)}
flashinfer = vllm.envs.VLLM_USE_FLASHINFER_SAMPLER
print(json.dumps({**versions, "cuda": torch.version.cuda, "gpus": torch.cuda.device_count(), "flashinfer": flashinfer}))
"""
LEFT_OUT = """
import ctypes, importlib.util, json, os, pathlib, subprocess, sys
driver = ["gcc", "-shared", "-x", "c", "/dev/null", "-Wl,-soname,libcuda.so.1", "-o", "/tmp/libcuda.so.1"]
subprocess.run(driver, check=True)  # vLLM's libraries are linked with the driver's, of which nothing is called here
sys.setdlopenflags(os.RTLD_LAZY)
ctypes.CDLL("/tmp/libcuda.so.1", ctypes.RTLD_GLOBAL)
site, names, modules = pathlib.Path(sys.argv[1]), *map(json.loads, sys.argv[2:])
import torch, xgrammar, triton.profiler, flashinfer, cuda.bindings.nvrtc
from vllm.utils.flashinfer import has_flashinfer
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.ops import flashmla
from vllm.vllm_flash_attn import flash_attn_interface as attention
files = [path for path in site.parents[2].rglob("*") if path.is_file() and not path.is_symlink()]
named = {name: [] for name in names}
for path in files:
    data = path.read_bytes()
    for name in names:
        if name.encode() in data:
            named[name].append(str(path.relative_to(site) if path.is_relative_to(site) else path))
print(json.dumps({
    "files": [str(path.relative_to(site)) for path in files if path.is_relative_to(site)],
    "named": named,
    "modules": [name for name in modules if importlib.util.find_spec(name) is not None],
    "flashinfer": has_flashinfer(),
    "flashmla": flashmla._flashmla_C_AVAILABLE or flashmla._flashmla_extension_C_AVAILABLE,
    "attention": [attention.FA2_AVAILABLE, attention.FA3_AVAILABLE],
    "back end": AttentionBackendEnum.FLASH_ATTN.get_class().get_name(),
    "solved": torch.linalg.solve(torch.eye(2), torch.ones(2)).tolist(),
}))
"""
"""What the image lacks: its files, who names the libraries that were left out, and what is imported without them."""

SEVENS = frozenset({"nvidia/cu13/lib/libcufft.so.12", "nvidia/cu13/lib/libcufftw.so.12"})
"""Their fat binaries have nothing for a target. torch is linked with the first. Each has one module, for 7.5, and keeps
the rest of its code in another form."""

WITHOUT = {
    "sm120": SEVENS,
    # For 8.0, 9.0 and 10.0. FlashInfer asks for the wheel, nccl-extensions; neither it nor vLLM imports nccl.m2n.
    "sm120-v033": SEVENS | {f"nccl/m2n/lib/{cuda}/libnccl_m2n.so" for cuda in ("cu12", "cu13")},
}
"""The only libraries of each image without code for a target."""

TOKENIZER = {"sm120": "PreTrainedTokenizerFast", "sm120-v033": "TokenizersBackend"}
"""What transformers 4 and 5 call the class of one tokenizer."""

MODEL = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
words = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
prompt = words("hello world the quick", return_tensors="pt")["input_ids"]
said = model.generate(prompt, max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(prompt))
print(json.dumps({"class": type(model).__name__, "tokenizer": type(words).__name__, "tokens": said[0].tolist()}))
"""
LAUNCHES = """
import hashlib, json, os, pathlib, subprocess, sys
site, root, program, *modules = sys.argv[1:]
alone = pathlib.Path("/tmp/alone")  # what stands in for vLLM and torch is loaded where they are not there
alone.mkdir()
for path in pathlib.Path(site).glob("triton*"):
    (alone / path.name).symlink_to(path)
known = json.load(open(f"{root}/triton.json"))
library = hashlib.sha256(open(f"{site}/triton/_C/libtriton.so", "rb").read()).hexdigest()
job = {
    "action": "check", "tree": "/tree", "paths": modules, "targets": ["sm_120a", "sm_121a"],
    "libraries": [library, library], "ptxas": {"own": known["ptxas"], "image": known["ptxas"]},
    "base": root, "manager": f"{site}/nvllm_triton_cache.py",
}
command, own = [sys.executable, "-S", "-P", program], {**os.environ, "PYTHONPATH": str(alone)}
done = subprocess.run(command, input=json.dumps(job), env=own, text=True, capture_output=True, check=True)
print(json.dumps({**json.loads(done.stdout.splitlines()[-1]), "known": known["key"]}))
"""
"""Launches of the patches' kernels through the image's own Triton, from the image's own cache, with no compiling."""


DRIVER = """
set -e
library=/usr/lib/$(gcc -print-multiarch)/libcuda.so.1
gcc -shared -x c /dev/null -Wl,-soname,libcuda.so.1 -o $library
/sbin/ldconfig
exec /opt/venv/bin/python -c "
import json
from triton.backends.nvidia import driver
print(json.dumps([driver.libcuda_dirs(), '$library']))"
"""
"""A library where NVIDIA's container toolkit puts the driver's, ldconfig as its hook runs it, and what Triton finds."""


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    lines: tuple[str, ...]

    @property
    def result(self) -> Any:
        assert self.code == 0, self.lines[-20:]
        return json.loads(self.lines[-1])


@pytest.fixture(scope="module", params=IMAGES)
def image(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def lock_of(image: str) -> Lock:
    return lockdoc.read(Project(ROOT).lock(image), f"{image}.lock.json")


@pytest.fixture(scope="module")
def built(image: str, docker_client: DockerClient) -> Iterator[str]:
    """The id of the image, from the user's own layers."""
    before = {tag for held in docker_client.images.list("nvllm") for tag in held.tags}
    done = own_nvllm("build", image, "--json").result
    yield done["image_id"]
    if done["tag"] not in before:
        docker_client.images.remove(done["image_id"], force=True)


Inside = Callable[..., Said]


@pytest.fixture(scope="module")
def inside(built: str, docker_client: DockerClient) -> Inside:
    """Runs a command in a container of the image, as nobody, without a network, with nothing writable but /tmp."""

    def run(*command: str, mounts: Mapping[Path, str] | None = None, **others: Any) -> Said:
        hardened = {"read_only": True, "tmpfs": {"/tmp": "exec"}, "network_mode": "none"}
        container = docker_client.containers.run(
            built,
            list(command[1:]),
            entrypoint=[command[0]],
            environment={"HOME": "/tmp", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"},
            volumes=[f"{source}:{target}:ro" for source, target in (mounts or {}).items()],
            detach=True,
            **{**hardened, **others},
        )
        try:
            code = container.wait(timeout=600)["StatusCode"]
            return Said(code, tuple(container.logs().decode().strip().splitlines()))
        finally:
            container.remove(force=True)

    return run


def test_it_imports_what_an_engine_imports(image: str, inside: Inside) -> None:
    found = inside("/opt/venv/bin/python", "-c", IMPORTS).result
    wheels = {wheel.name: wheel.version for wheel in lock_of(image).wheels}
    assert found.pop("torch").partition("+")[0] == wheels["torch"]
    assert found == {
        **{name: wheels[name] for name in ("triton", "transformers", "vllm")},
        "cuda": "13.0", "gpus": 0, "flashinfer": False,
    }  # fmt: skip


def test_what_the_spec_leaves_out_is_missed_by_nothing(image: str, inside: Inside) -> None:
    lock = lock_of(image)
    left_out = [path for wheel in lock.wheels for path in wheel.omitted]
    libraries = [Path(path).name for path in left_out if not path.endswith(".py")]
    modules = [wheel.name.replace("-", "_") for wheel in lock.excluded]
    assert set(libraries) > {"libcusolverMg.so.12", "_vllm_fa3_C.abi3.so"}
    assert set(modules) >= {"tokenspeed_mla", "tokenspeed_triton"}
    command = ["/opt/venv/bin/python", "-c", LEFT_OUT, SITE, json.dumps(libraries), json.dumps(modules)]
    found = inside(*command).result
    assert not set(left_out) & set(found["files"])
    # A wheel's list of files, and cuda-pathfinder's list of every library that CUDA has.
    harmless = ("/RECORD", "cuda/pathfinder/_dynamic_libs/descriptor_catalog.py")
    others = {name: [path for path in paths if not path.endswith(harmless)] for name, paths in found["named"].items()}
    assert {name: [path for path in paths if not path.endswith(".pyc")] for name, paths in others.items()} == {
        name: [] for name in libraries
    }
    assert found["modules"] == []
    assert (found["flashinfer"], found["flashmla"], found["attention"]) == (False, False, [True, False])
    assert (found["back end"], found["solved"]) == ("FLASH_ATTN", [1.0, 1.0])


def test_every_library_with_device_code_has_some_for_both_targets(image: str) -> None:
    """Each wheel's libraries are read, but for those left out; what was read before is in the user's cache."""
    lock = lock_of(image)
    own, targets = places(dict(os.environ)), spec(image).targets
    without, checked = set(), set()
    for wheel in lock.wheels:
        path = own.store / "sha256" / wheel.file.sha256[:2] / wheel.file.sha256
        libraries = devicecode.cached_libraries(path, wheel.file.filename, wheel.file.sha256, own.code)
        for library in libraries:
            if not wheel.omits(library.path):
                code = devicecode.locked(wheel.name, library, targets).targets
                checked.add(library.path)
                without |= {library.path for one in code.values() if not one.cubin + one.ptx}
    assert without == WITHOUT[image]
    assert {"torch/lib/libtorch_cuda.so", "nvidia/cu13/lib/libcublasLt.so.13"} < checked


def test_its_parser_takes_the_arguments_of_every_profile(image: str, inside: Inside) -> None:
    probe = "/probes/arguments.py"
    found = inside("/opt/venv/bin/python", probe, json.dumps(commands(image)), mounts={PROBES: "/probes"}).result
    assert found["file"] == f"{SITE}/vllm/__init__.py"
    check(image, found)
    assert positive(found["names"]) == locked(image) | inverses(image, found["names"])


def test_its_transformers_load_the_tiny_model_and_answer(image: str, inside: Inside, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    tiny_models.write(tiny_models.ARCHITECTURES["tiny-lfm2"], tmp_path)
    found = inside("/opt/venv/bin/python", "-c", MODEL, "/model", mounts={tmp_path: "/model"}).result
    assert (found["class"], found["tokenizer"]) == ("Lfm2ForCausalLM", TOKENIZER[image])
    assert len(found["tokens"]) == 12


def test_its_triton_takes_every_kernel_of_the_patches_from_the_image(
    image: str, inside: Inside, tmp_path: Path
) -> None:
    build, _ = identity.load_build(Project(ROOT), image, None)
    builder = ImageBuilder(Project(ROOT), places(dict(os.environ)), Silent(), offline=True)
    sources = builder.kernels(build).kernel_sources()
    assert sources is not None
    for path, data in sources.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    tmp_path.chmod(0o755)
    programs = releases.of(toolchain.triton_version(lock_of(image))).programs
    words = (SITE, f"/{kernellayer.ROOT}", f"/programs/{programs[0].name}", *kernellayer.declared(sources.files))
    mounts = {tmp_path: "/tree", **{path: f"/programs/{path.name}" for path in programs}}
    found = inside("/opt/venv/bin/python", "-c", LAUNCHES, *words, mounts=mounts).result
    assert found["problems"] == []
    assert found["key"] == found["known"]
    assert {(one["target"], one["hit"]) for one in found["kernels"]} == {("sm_120a", True), ("sm_121a", True)}
    assert found["launches"] >= 400


def test_its_triton_finds_the_driver_that_the_toolkit_brings(inside: Inside) -> None:
    directories, library = inside("/bin/sh", "-c", DRIVER, user="0", read_only=False).result
    assert [Path(one).resolve() for one in directories] == [Path(library).parent]


@pytest.mark.parametrize("profile", spec(IMAGES[0]).profiles)
def test_vllm_serve_ends_at_the_missing_driver_and_at_nothing_else(image: str, inside: Inside, profile: str) -> None:
    given = planner.engine_arguments(spec(image).profiles[profile])
    said = inside("/opt/venv/bin/vllm", "serve", "/models/any", *given)
    assert said.code == 1
    assert said.lines[-1].startswith(NO_DEVICE)
    assert sum(line.startswith("Traceback") for line in said.lines) == 1


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="with a card it would be served")
@pytest.mark.usefixtures("built")
def test_the_readmes_commands_end_at_the_card_and_at_the_hub(image: str, tmp_path: Path) -> None:
    """Of a copy of the project, whose lock a host that reaches the hub would write."""
    project, found = readme.project(tmp_path / "project"), {}
    for typed in readme.commands(IMAGES[0]):
        words = [word.replace(IMAGES[0], image) for word in typed]
        offline = ["--offline"] if words[0] in {"build", "lock", "model"} else []
        done = own_nvllm("--project", str(project), *offline, *words, "--json")
        found[" ".join(words)] = {one["code"] for one in json.loads(done.out).get("refusals", [])} - readme.OF_THE_HOST
    hub = {"NV202"}  # the lock has no files of the hub's model
    assert [*found.values()] == [
        set(), set(), readme.CARD, {"NV107"}, {"NV209"}, hub, hub, {"NV401", "NV901"} | readme.CARD | hub,
    ]  # fmt: skip


def test_a_second_build_from_nothing_has_the_same_manifest(image: str, built: str, elsewhere: Path) -> None:
    """Every layer is made again: another home without a layer cache, another umask, time zone and locale."""
    lock = lock_of(image)
    home, own = elsewhere / "another home", places(dict(os.environ))
    for sha in {file.sha256 for file in (*lock.files, *(tool.file for tool in lock.tools))}:
        place = home / "cache/nvllm/store/sha256" / sha[:2] / sha
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(own.store / "sha256" / sha[:2] / sha)
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "launcher"),
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home / "state"),
        "TMPDIR": str(home),
        "TZ": "Pacific/Chatham",
        "LANG": "de_DE.UTF-8",
        "PYTHONHASHSEED": "4711",
    }
    layout = home / "layout"
    command = [sys.executable, "-m", "nvllm", "--project", str(ROOT), "--offline", "build", image]
    done = subprocess.run(
        [*command, "--layout", str(layout), "--json"],
        env=env,
        umask=0o077,
        capture_output=True,
        timeout=3600,
        check=True,
    )
    assert json.loads(done.stdout)["result"]["image_id"] == built
    (entry,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    record = buildrecord.read(own.builds, json.loads(done.stdout)["result"]["build_hash"])
    assert record is not None
    assert entry["digest"] == record.manifest_id
