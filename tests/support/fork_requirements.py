"""What the fork of image `gb10` installs: names and specifiers, as recorded of its pinned commit, and as its files say.

`RECORDED` is compared with the image's spec wherever the tests run, and with the files where they can be had.
"""

from __future__ import annotations

import os
import re
import shlex
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nvllm.core.spec import ImageSpec

CHECKOUT = "NVLLM_FORK_CHECKOUT"
"""The variable that names a checkout of the pinned commit."""

COMMON, CUDA, DOCKERFILE = "requirements/common.txt", "requirements/cuda.txt", "docker/Dockerfile.gb10"

PROTOBUF = "protobuf!=6.30.*,!=6.31.*,!=6.32.*,!=6.33.0.*,!=6.33.1.*,!=6.33.2.*,!=6.33.3.*,!=6.33.4.*,>=5.29.6"
RECORDED: Mapping[str, str] = {
    COMMON: f"""
aiohttp>=3.13.3 anthropic>=0.71.0 blake3 cachetools cbor2 cloudpickle compressed-tensors==0.14.0.1 depyf==0.20.0
diskcache==5.6.3 einops fastapi[standard]>=0.115.0 filelock>=3.16.1 gguf>=0.17.0 ijson lark==1.2.2
llguidance<1.4.0,>=1.3.0 lm-format-enforcer==0.11.3 mcp mistral-common[image]>=1.10.0
model-hosting-container-standards<1.0.0,>=0.1.13 msgspec ninja numpy openai-harmony>=0.0.3 openai>=2.0.0
opencv-python-headless>=4.13.0 opentelemetry-api>=1.27.0 opentelemetry-exporter-otlp>=1.27.0
opentelemetry-sdk>=1.27.0 opentelemetry-semantic-conventions-ai>=0.4.1 outlines-core==0.2.11 partial-json-parser
pillow prometheus-client>=0.18.0 prometheus-fastapi-instrumentator>=7.0.0 {PROTOBUF} psutil py-cpuinfo pybase64
pydantic>=2.12.0 python-json-logger pyyaml pyzmq>=25.0.0 regex requests>=2.26.0 sentencepiece setproctitle
setuptools<81.0.0,>=77.0.3 six>=1.16.0 tiktoken>=0.6.0 tokenizers>=0.21.1 tqdm transformers<5,>=4.56.0
typing-extensions>=4.10 watchfiles xgrammar<1.0.0,>=0.1.32
""",
    CUDA: """
flashinfer-cubin==0.6.7 flashinfer-python==0.6.7 numba==0.61.2 nvidia-cudnn-frontend<1.19.0,>=1.13.0
nvidia-cutlass-dsl>=4.4.2 quack-kernels>=0.3.3 torch==2.10.0 torchaudio==2.10.0 torchvision==0.25.0
""",
    DOCKERFILE: """
aiohttp anthropic>=0.71.0 blake3 build cachetools cbor2 cloudpickle cmake>=3.26.1 compressed-tensors==0.13.0
depyf==0.20.0 diskcache==5.6.3 fastapi[standard]>=0.115.0 flashinfer-python flashinfer-python==0.6.7 gguf>=0.17.0
grpcio grpcio-reflection grpcio-tools==1.78.0 huggingface-hub ijson jinja2>=3.1.6 jsonschema lark==1.2.2
llguidance<1.4.0,>=1.3.0 llvmlite lm-format-enforcer==0.11.3 loguru mcp mistral-common[image]>=1.9.1
model-hosting-container-standards<1.0.0,>=0.1.13 msgpack msgspec ninja numba==0.61.2 nvidia-cutlass-dsl==4.4.2
nvidia-cutlass-dsl-libs-base==4.4.2 openai-harmony>=0.0.3 openai>=1.99.1 opencv-python-headless>=4.13.0
outlines-core==0.2.11 packaging>=24.2 partial-json-parser pillow prometheus-client>=0.18.0
prometheus-fastapi-instrumentator>=7.0.0 protobuf>=5.29.6 psutil py-cpuinfo pybase64 pydantic python-json-logger
pyzmq>=25.0.0 ray[cgraph]>=2.48.0 regex safetensors scipy sentencepiece setproctitle setuptools-scm>=8
setuptools<81.0.0,>=77.0.3 six>=1.16.0 tiktoken>=0.6.0 tokenizers>=0.21.1 torch==2.13.0.dev20260518+cu132
torchaudio==2.11.0.dev20260519+cu132 torchvision==0.28.0.dev20260519+cu132 transformers==4.57.6 triton triton==3.6.0
watchfiles wheel xgrammar==0.1.29
""",
}
"""By file of the pinned commit, each requirement once, in the order of their texts."""

EXTRAS = {
    "fastapi": {"email-validator", "httptools", "uvicorn", "uvloop", "websockets"},
    "mistral-common": {"opencv-python-headless"},
    "ray": set[str](),
}
"""What the extras of these requirements bring that the fork, or uvicorn for it, imports."""

_BUILD = "compiles the wheel, and nothing in the image does"
_ELSEWHERE = "no module of vLLM imports it, or only a connector or executor that no profile names"
_BROUGHT = "what is in the image requires it"
DEPARTURES: Mapping[str, Mapping[str, str]] = {
    COMMON: {"six": "no module of vLLM imports it; what needs it requires it"},
    CUDA: {
        "torch": "its Dockerfile installs a nightly of 2.13.0",
        "torchaudio": "only models of audio import it, and no release is for torch 2.13.0",
        "torchvision": "goes with torch",
    },
    DOCKERFILE: {
        **dict.fromkeys(("build", "cmake", "grpcio-tools", "setuptools-scm", "wheel"), _BUILD),
        **dict.fromkeys(("grpcio", "grpcio-reflection", "msgpack", "ray", "scipy"), _ELSEWHERE),
        **dict.fromkeys(("huggingface-hub", "jinja2", "jsonschema", "llvmlite", "loguru"), _BROUGHT),
        **dict.fromkeys(("packaging", "safetensors", "six"), _BROUGHT),
        "compressed-tensors": "its requirement file asks for 0.14.0.1, which the Dockerfile replaces",
        "torch": "that nightly is no longer there; 2.13.0 is what became of it",
        "torchaudio": "only models of audio import it, and no release is for torch 2.13.0",
        "torchvision": "goes with torch",
        "triton": "the index of nightlies said which; torch 2.13.0 asks for 3.7.1",
        "xgrammar": "its requirement file asks for 0.1.32 or later, which the Dockerfile replaces",
    },
}
"""What the image does not take as a file of the fork says it, and why."""


def recorded(path: str) -> list[Requirement]:
    """Return what is recorded of the file PATH."""
    return [Requirement(one) for one in RECORDED[path].split()]


def of_file(path: str, text: str) -> list[Requirement]:
    """Return what the file PATH with TEXT asks for: a file of requirements, or a Dockerfile that calls pip."""
    lines = _installed(text) if path == DOCKERFILE else re.sub(r"(^| )#.*", "", text, flags=re.MULTILINE).splitlines()
    return [Requirement(one) for one in lines if one.strip() and not one.startswith("-")]


def _installed(dockerfile: str) -> Iterator[str]:
    """Yield each requirement that a `pip install` of DOCKERFILE names."""
    text = re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    for called in re.findall(r"\bpip install ([^\n|&]*)", text):
        words = iter(shlex.split(called.partition("'")[0].partition(" 2>")[0]))
        for word in words:
            if word in {"-r", "-e", "--index-url", "--extra-index-url"}:
                next(words)
            elif not word.startswith("-"):
                yield word


def shown(requirements: list[Requirement]) -> set[str]:
    """Return REQUIREMENTS as they are compared: without markers, with names as an index has them."""
    found = set()
    for one in requirements:
        extras = f"[{','.join(sorted(one.extras))}]" if one.extras else ""
        found.add(f"{canonicalize_name(one.name)}{extras}{one.specifier}")
    return found


def lacking(spec: ImageSpec, path: str) -> list[str]:
    """Return what SPEC does not install of what is recorded of PATH, but for DEPARTURES; no departure is idle."""
    ours = {canonicalize_name(one.name): one for one in map(Requirement, spec.python.requirements)}
    wrong, idle = [], set(DEPARTURES[path])
    for asked in recorded(path):
        name = canonicalize_name(asked.name)
        versions = [pin.version for pin in ours[name].specifier] if name in ours else []
        extras = EXTRAS[name] - ours.keys() if asked.extras else set()
        if [asked.specifier.contains(version) for version in versions] == [True] and not extras:
            continue
        idle.discard(name)
        if name not in DEPARTURES[path]:
            wrong.append(f"{asked}: {ours.get(name)}")
    return wrong + [f"{name}: is as the fork has it" for name in sorted(idle)]


def texts(spec: ImageSpec) -> dict[str, str] | None:
    """Return the fork's files of the commit of SPEC, from a checkout or from GitHub, or None where neither is."""
    checkout = os.environ.get(CHECKOUT)
    if checkout:
        return {path: (Path(checkout) / path).read_text(encoding="utf-8") for path in RECORDED}
    assert spec.vllm.source is not None
    base = f"https://raw.githubusercontent.com/{spec.vllm.source.repository}/{spec.vllm.commit}"
    found = {}
    for path in RECORDED:
        try:
            with urllib.request.urlopen(f"{base}/{path}", timeout=10) as answer:
                found[path] = answer.read().decode()
        except OSError:
            return None
    return found
