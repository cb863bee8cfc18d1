"""Image `gb10`: its spec, and each profile's command and environment against what the fork's scripts give.

``serve-qwen35-full.sh`` (lower8, and phaseE-off and all-beta by its variables) and ``serve-qwen35.sh`` (piecewise) of
the pinned commit, read there; docs/gb10.md names every line in which a profile departs from them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.paths import Project
from nvllm.core.plan import BLESSED_ENVIRONMENT, CACHE, ENGINE_ENVIRONMENT
from nvllm.core.progress import Silent
from nvllm.core.spec import RegistryBase
from nvllm.host import gates
from nvllm.image import identity
from nvllm.kernels import kernellayer
from nvllm.patches import patchset, seriesfile
from nvllm.serve.examination import Depth, Examination, examine
from nvllm.spec import specfile
from support import fork_requirements
from support.plansamples import places

ROOT = Path(__file__).parents[3]
SPEC = specfile.load(ROOT / "images/gb10.yaml", "images/gb10.yaml")
SERIES = seriesfile.load(ROOT / "patches" / SPEC.patches.series, f"patches/{SPEC.patches.series}")
PROFILES = ("lower8", "phaseE-off", "all-beta", "piecewise")

FULL = {
    "--attention-backend": "CUTE_PAGED",
    "--compilation-config.cudagraph_capture_sizes": "[1]",
    "--compilation-config.cudagraph_mode": "FULL_AND_PIECEWISE",
    "--gpu-memory-utilization": "0.65",
    "--kernel-config.enable_flashinfer_autotune": "false",
    "--kv-cache-dtype": "fp8_e4m3",
    "--kv-cache-memory-bytes": str(36 * 2**30),
    "--language-model-only": None,
    "--limit-mm-per-prompt": '{"image": 0, "video": 0}',
    "--mamba-cache-mode": "align",
    "--max-model-len": "16384",
    "--max-num-batched-tokens": "65536",
    "--max-num-seqs": "1",
}
ARGUMENTS = {
    "lower8": FULL,
    "phaseE-off": FULL,
    "all-beta": FULL,
    "piecewise": {
        **{name: value for name, value in FULL.items() if name != "--compilation-config.cudagraph_capture_sizes"},
        "--compilation-config.cudagraph_mode": "PIECEWISE",
        "--gpu-memory-utilization": "0.7",
        "--kv-cache-memory-bytes": str(41 * 2**30),
        "--max-model-len": "65536",
        "--max-num-seqs": "4",
    },
}

COMMON = {
    "CUTE_ATTN_FUSION": "1",
    "CUTE_BETA_MIN_FREE_GB": "8",
    "CUTE_MLP_FUSION": "1",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "PATH": "/opt/venv/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_NVFP4_GEMM_BACKEND": "cutlass",
}
CUTE = {
    **COMMON,
    "B12X_CUTE_COMPILE_CACHE_DIR": f"{CACHE}/cute_kernel_cache",
    "B12X_CUTE_COMPILE_DISK_CACHE": "1",
    "CUTE_DISPATCH_AUDIT": "0",
    "CUTE_FULL_GRAPH_PROBE": "0",
    "CUTE_PHASE_E_FALLBACK_RAISE": "1",
    "CUTE_PHASE_E_FUSION": "1",
    "CUTE_PHASE_E_LAYERS": "0,1,2,3,4,5,6,7",
    "CUTE_WO_RESET_LOG": "0",
}
ENVIRONMENT = {
    "lower8": {**CUTE, "VLLM_USE_AOT_COMPILE": BLESSED_ENVIRONMENT["VLLM_USE_AOT_COMPILE"]},
    "phaseE-off": {**CUTE, "CUTE_PHASE_E_FUSION": "0"},
    "all-beta": {**CUTE, "CUTE_PHASE_E_LAYERS": ",".join(str(layer) for layer in range(16))},
    "piecewise": {
        **COMMON,
        "CUTE_PHASE_E_FALLBACK_RAISE": "0",
        "CUTE_PHASE_E_FUSION": "0",
        "CUTE_PHASE_E_PATH": "auto",
        "CUTE_WO_SPLIT": "1",
    },
}


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with nothing on it: no engine, no model, no program of NVIDIA's."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def seen(bare: Path, profile: str) -> Examination:
    project = Project(bare / "project")
    (project.root / "manifests").mkdir(parents=True)
    (project.root / "images").symlink_to(ROOT / "images")
    (project.root / "patches").symlink_to(ROOT / "patches")
    return examine(project, places(bare), "gb10", profile, Depth.SHOW, paranoid=False, progress=Silent())


def test_the_image_is_the_series_commit_compiled() -> None:
    assert tuple(SPEC.profiles) == PROFILES
    assert (SPEC.vllm.version, SPEC.vllm.commit) == (SERIES.version, SERIES.commit)
    assert SPEC.vllm.source is not None
    assert SPEC.vllm.source.tree == "4200e05072a612986b7d9bc212dd87d84d401098"
    chosen = patchset.choose(SERIES, SPEC.patches.enable)
    assert [patch.id for patch in chosen] == [patch.id for patch in SERIES.patches if patch.status == "carried"]
    read = {patch.sentinel.name for patch in chosen if patch.sentinel is not None}
    assert all(set(profile.sentinels) == read for profile in SPEC.profiles.values())


def test_it_is_compiled_on_its_own_base_by_a_toolkit_of_a_digest() -> None:
    text = (ROOT / "images/gb10-compile.Dockerfile").read_text()
    toolkit, base = (line.split()[1] for line in text.splitlines() if line.startswith("FROM "))
    assert isinstance(SPEC.base, RegistryBase)
    assert base == SPEC.base.image
    assert re.fullmatch(r"nvidia/cuda:[0-9.]+-devel-ubuntu[0-9.]+@sha256:[0-9a-f]{64}", toolkit)
    assert SPEC.base.interpreter in text  # the Dockerfile of a context looks for it in /usr/bin


@pytest.mark.parametrize("path", fork_requirements.RECORDED)
def test_the_requirements_are_what_the_fork_asks_for(path: str) -> None:
    assert fork_requirements.lacking(SPEC, path) == []


@pytest.mark.parametrize("name", ["uvloop", "nvidia-cudnn-frontend"])
def test_a_requirement_that_is_forgotten_or_not_capped_is_found(name: str) -> None:
    """The two with which the image would have died: one was not there, the other in the newest release."""
    changed = [one for one in SPEC.python.requirements if not one.startswith(f"{name}=")]
    if name == "nvidia-cudnn-frontend":
        changed.append(f"{name}==1.28.0")
    spec = replace(SPEC, python=replace(SPEC.python, requirements=tuple(changed)))
    assert any(fork_requirements.lacking(spec, path) for path in fork_requirements.RECORDED)


def test_the_wheel_may_bring_what_the_forks_build_fetches() -> None:
    # Each of these CMake files ends in an install of Python files into the wheel.
    fetched = {"flashmla": "third_party/flashmla", "triton_kernels": "third_party/triton_kernels"}
    assert set(SPEC.vllm.brings) == {f"vllm/{place}" for place in (*fetched.values(), "vllm_flash_attn")}


def test_the_driver_is_one_that_dgx_os_has() -> None:
    assert {profile.gpu.driver for profile in SPEC.profiles.values() if profile.gpu is not None} == {"580.65.06"}


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_what_the_forks_script_serves(bare: Path, name: str) -> None:
    plan = seen(bare, name).plan
    command = list(plan.command.engine)
    if SPEC.profiles[name].blessed:  # on a GPU, what fills the tmpfs over Inductor's directory comes first
        assert command[:3] == ["/opt/venv/bin/python3.12", "-I", f"/{identity.SEED_PATH}"]
        command = command[3:]
    assert command[:9] == [
        "vllm", "serve", "/models/qwen35-27b-nvfp4", "--served-model-name", "default",
        "--host", "0.0.0.0", "--port", "8000",
    ]  # fmt: skip
    expected = [part for option, value in ARGUMENTS[name].items() for part in (option, value) if part is not None]
    assert command[9:] == expected
    assert plan.environment == dict(
        sorted({**ENVIRONMENT[name], **kernellayer.ENVIRONMENT, **ENGINE_ENVIRONMENT}.items())
    )


def test_every_profile_requires_the_memory_gate_and_has_a_floor_that_fits_the_card() -> None:
    """The limit leaves 19 GiB of 119, and the floor lies below that: else a container at its limit is ended."""
    for profile in SPEC.profiles.values():
        (need,) = gates.needs(profile.gates)
        assert (need.gate, need.days, need.cure) == ("memory", 30, "nvllm gate memory --bands 64G")
        assert profile.campaign.memory_floor == 8 * 2**30 < 119 * 2**30 - profile.limits.memory


def test_triton_has_our_cache_manager_and_the_blessing_a_gpus_layout() -> None:
    """As on image sm120: without targets a blessed cache would have the CPU's layout, below which Inductor writes."""
    assert SPEC.targets == ("sm_121a",)
    assert SPEC.device_code is not None
    assert SPEC.device_code.wheels == ("torch", "vllm")
    assert {profile.kernels.missing for profile in SPEC.profiles.values()} == {"report"}


@pytest.mark.parametrize("name", PROFILES)
def test_what_a_profile_holds_and_needs(bare: Path, name: str) -> None:
    plan = seen(bare, name).plan
    assert plan.waivers == ()  # its own network and IPC, and no code of the model's
    assert (plan.limits.memory, plan.limits.shared_memory, plan.host.memory_available) == (
        107_374_182_400, 1_073_741_824, 96_636_764_160,
    )  # fmt: skip
    assert plan.gpu is not None
    assert (plan.gpu.capabilities, plan.gpu.driver, plan.gpu.count) == (("12.1",), "580.65.06", 1)
    assert plan.model.revision == "4c546624f1fa8b77f5b7cfb3b6c96bf46d25c3a9"


def test_only_lower8_is_for_production_and_only_when_it_is_blessed() -> None:
    assert {name: (profile.blessed, profile.dev) for name, profile in SPEC.profiles.items()} == {
        "lower8": (True, False),
        "phaseE-off": (False, True),
        "all-beta": (False, True),
        "piecewise": (False, True),
    }


def test_on_a_host_with_nothing_everything_is_refused_at_once(bare: Path) -> None:
    found = seen(bare, "lower8")
    assert (found.plan.build_hash, found.plan.serve_hash, found.plan.image_id) == ("", "", "")
    codes = {refusal.code for refusal in found.refusals}
    assert {"NV108", "NV201", "NV401", "NV501", "NV504", "NV510", "NV901"} <= codes
