"""The memory that a model takes on a GPU, against what engines have logged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nvllm.models import memory, recipes
from nvllm.spec import specfile

ROOT = Path(__file__).parents[3]
GIB = 2**30

# The fields of config.json that count, of Qwen3.5 27B. They are the only round ones that give the block size, the
# padding (2.17 %), the blocks and the concurrency of the logs below.
QWEN: Mapping[str, Any] = {
    "text_config": {
        "dtype": "bfloat16",
        "hidden_size": 5120,
        "head_dim": 256,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
    }
}
WEIGHTS = int(25.07 * GIB)  # what the same logs say that loading took


def profile(image: str, name: str, **others: Any) -> dict[str, Any]:
    spec = specfile.load(ROOT / f"images/{image}.yaml", f"images/{image}.yaml")
    return {**spec.profiles[name].arguments, **others}


@pytest.mark.parametrize(("cache", "tokens"), [(36.09, 294_400), (36.72, 300_800), (36.75, 300_800)])
def test_the_fork_logged_the_same_on_a_gb10(cache: float, tokens: int) -> None:
    """Eight starts of the fork; its version divides the blocks among the groups before it counts tokens."""
    found = memory.needed(QWEN, profile("gb10", "lower8", **{"kv-cache-memory-bytes": int(cache * GIB)}), WEIGHTS)
    assert found is not None
    assert found.block_tokens == 1600
    assert found.blocks // 4 * found.block_tokens == tokens


def test_the_fork_logged_the_same_concurrency() -> None:
    found = memory.needed(QWEN, profile("gb10", "lower8", **{"kv-cache-memory-bytes": int(36.72 * GIB)}), WEIGHTS)
    assert found is not None
    assert f"{found.requests:.2f}" == "53.71"
    assert found.block / (found.states / 3) == pytest.approx(1.0217, abs=1e-4)  # mamba's pages, padded by 2.17 %


def test_the_profile_of_sm120_holds_its_sequences() -> None:
    arguments = profile("sm120", "qwen35-27b")
    found = memory.needed(QWEN, arguments, WEIGHTS)
    assert found is not None
    assert (found.token, found.block_tokens, found.blocks, found.request_blocks) == (65_536, 784, 752, 87)
    assert found.requests >= arguments["max-num-seqs"]
    text = (ROOT / "docs/sm120.md").read_text()
    for said in (f"{found.blocks} blocks", f"{found.block_tokens} tokens", f"{found.requests:.1f} requests"):
        assert said in text
    for card in (95.6, 119.0):
        assert f"{card - (found.weights + found.cache) / GIB:.1f} GiB" in text
    assert profile("sm120", "qwen35-27b-eager") == {**arguments, "enforce-eager": True}


def test_the_profiles_for_other_cards_hold_their_sequences() -> None:
    small = profile("sm120", "qwen35-27b-32gb")
    found = memory.needed(QWEN, small, WEIGHTS)
    assert found is not None
    assert (found.blocks, found.request_blocks) == (62, 24)
    assert found.requests >= small["max-num-seqs"]
    assert (found.weights + found.cache) / GIB < 31.8 * small["gpu-memory-utilization"] - 1  # for activations
    unified = profile("sm120", "qwen35-27b-gb10")
    assert unified == {**profile("sm120", "qwen35-27b"), "gpu-memory-utilization": 0.6}
    spec = specfile.load(ROOT / "images/sm120.yaml", "images/sm120.yaml")
    needed = memory.needed(QWEN, unified, WEIGHTS)
    assert needed is not None
    assert spec.profiles["qwen35-27b-gb10"].host.memory_available > needed.weights + needed.cache


def test_prefix_caching_keeps_a_second_state() -> None:
    plain = memory.needed(QWEN, profile("sm120", "qwen35-27b"), 0)
    cached = memory.needed(QWEN, profile("sm120", "qwen35-27b", **{"enable-prefix-caching": True}), 0)
    assert plain is not None
    assert cached is not None
    assert cached.request_blocks - plain.request_blocks == 3


def test_a_tiny_hybrid_and_a_tiny_model_of_attention_alone(tmp_path: Path) -> None:
    arguments = profile("sm120", "tiny-eager")
    found = {}
    for name in ("tiny-lfm2", "tiny-llama", "tiny-falconh1"):
        for path, data in recipes.contents(name).items():
            (tmp_path / path).write_bytes(data)
        files = [(path.name, path) for path in sorted(tmp_path.iterdir())]
        found[name] = memory.of_files(files, arguments)
    hybrid, plain = found["tiny-lfm2"], found["tiny-llama"]
    assert hybrid is not None
    assert plain is not None
    assert hybrid.weights == len(recipes.contents("tiny-lfm2")["model.safetensors"])
    assert (hybrid.token, hybrid.states, hybrid.block, hybrid.block_tokens) == (256, 512, 4096, 16)
    assert (hybrid.blocks, hybrid.request_blocks) == (16384, 8 + 2)
    assert (plain.token, plain.states, plain.block, plain.request_blocks) == (512, 0, 8192, 8)
    assert plain.tokens == plain.blocks * plain.block_tokens
    assert found["tiny-falconh1"] is None  # each layer has both kinds


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"]}, {}),
        ({"layer_types": ["conv"]}, {}),
        ({"layer_types": ["conv", "linear_attention", "full_attention"]}, {}),
        ({"dtype": "int4"}, {}),
        ({}, {"kv-cache-memory-bytes": None}),
        ({}, {"max-model-len": "auto"}),
        ({}, {"kv-cache-dtype": "nvfp4"}),
    ],
)
def test_what_is_not_known_is_not_guessed(config: dict[str, Any], arguments: dict[str, Any]) -> None:
    text = {**QWEN["text_config"], **config}
    assert memory.needed(text, profile("sm120", "qwen35-27b", **arguments), 0) is None


def test_files_without_a_configuration_say_nothing(tmp_path: Path) -> None:
    config = tmp_path / "x.json"
    assert memory.of_files([("x.json", config)], {}) is None
    sizeless = b'{"dtype": "bfloat16", "layer_types": ["full_attention"]}'
    for data in (b"", b"[]", b"{", sizeless, b'{"text_config": []}'):
        config.write_bytes(data)
        assert memory.of_files([("config.json", config)], {}) is None
    assert memory.of_files([("config.json", tmp_path / "none")], {}) is None
