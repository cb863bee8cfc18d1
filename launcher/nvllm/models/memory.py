"""The memory of a GPU that a model takes, by its config.json and a profile's arguments, as vLLM 0.21.0 counts it.

Layers of attention keep bytes for each token, other layers one state for each sequence. vLLM puts both into one pool of
blocks: a block has as many tokens as make a layer's page at least as large as a state
(`Platform._align_hybrid_block_size`), and covers one group of layers of one kind (`v1/core/kv_cache_utils.py`).
What activations and CUDA graphs take is measured by an engine at its start, and not foretold here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvllm.core import canonical, reading

_LONGEST = 2**20
"""Bytes of a config.json; one of a large model has a few thousand."""

_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
_ATTENTION = "full_attention"

_OTHER_KINDS = ("attn_layer", "hybrid", "kv_lora_rank", "mamba_d_", "mamba_n_", "sliding_window", "ssm_")
"""Names of fields, or their beginnings, of a model whose layers `layer_types` does not tell apart."""

_ALIGNMENT = 16
"""Tokens of the smallest block of the attention kernels; a block has a multiple of it."""
_ALIGNMENTS = {"CUTE_PAGED": 64}
"""Where a back end prefers another one."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, but for BLOCK_TOKENS, BLOCKS, REQUEST_BLOCKS and LENGTH, which are counts."""

    weights: int
    cache: int
    """The whole pool, as the profile says."""
    token: int
    """Of one token, in all layers of attention."""
    states: int
    """Of one sequence, in all other layers."""
    block: int
    block_tokens: int
    request_blocks: int
    """Blocks of a request of LENGTH tokens, the longest."""
    length: int

    @property
    def blocks(self) -> int:
        return self.cache // self.block

    @property
    def requests(self) -> float:
        """How many of the longest requests fit at once."""
        return self.blocks / self.request_blocks

    @property
    def tokens(self) -> int:
        """What vLLM logs as the size of the cache."""
        return int(self.requests * self.length)


@dataclass(frozen=True, slots=True)
class _Layers:
    """How many layers there are of each kind, and the bytes of one layer: of a token, and of a state."""

    attention: int
    others: int
    token: int
    state: int


def of_files(files: Sequence[tuple[str, Path]], arguments: Mapping[str, Any]) -> Memory | None:
    """Return the memory of the model with FILES, path in the model and path on this host; None if it is not known."""
    by_name = dict(files)
    if "config.json" not in by_name:
        return None
    try:
        config = canonical.decode(reading.content(by_name["config.json"], _LONGEST))
        weights = sum(path.stat().st_size for name, path in files if name.endswith(".safetensors"))
    except (OSError, ValueError):  # `tree.verify` says what is wrong with the files
        return None
    try:
        return needed(config, arguments, weights) if isinstance(config, dict) else None
    except (ArithmeticError, AttributeError, KeyError, TypeError):  # a configuration that says its sizes otherwise
        return None


def needed(config: Mapping[str, Any], arguments: Mapping[str, Any], weights: int) -> Memory | None:
    """Return the memory of a model with CONFIG and bytes of WEIGHTS under the ARGUMENTS of a profile.

    None if the arguments leave the size of the pool or of a request to vLLM, or CONFIG has layers of another kind.
    """
    cache, length = arguments.get("kv-cache-memory-bytes"), arguments.get("max-model-len")
    layers = _layers(config.get("text_config", config), arguments)
    if layers is None or not isinstance(cache, int) or not isinstance(length, int):
        return None
    alignment = _ALIGNMENTS.get(arguments.get("attention-backend", ""), _ALIGNMENT)
    block_tokens = alignment * max(1, _up(layers.state, alignment * layers.token))
    group = _group(layers)
    states = 2 if arguments.get("enable-prefix-caching") is True else 1
    return Memory(
        weights=weights,
        cache=cache,
        token=layers.attention * layers.token,
        states=layers.others * layers.state,
        block=group * block_tokens * layers.token,
        block_tokens=block_tokens,
        request_blocks=_up(layers.attention, group) * _up(length, block_tokens) + states * _up(layers.others, group),
        length=length,
    )


def _group(layers: _Layers) -> int:
    """Return how many layers a block covers."""
    least, most = sorted((layers.attention, layers.others or layers.attention))
    # vLLM's heuristic: below 1.5 times as many, groups of the larger number have less padding.
    return most if most < least * 1.5 else least


def _up(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _layers(config: Mapping[str, Any], arguments: Mapping[str, Any]) -> _Layers | None:
    size = _SIZES.get(config.get("dtype", config.get("torch_dtype")))
    token = _cached(arguments.get("kv-cache-dtype", "auto"), size)
    kinds = _kinds(config)
    others = set(kinds) - {_ATTENTION}
    if size is None or token is None or _ATTENTION not in kinds or len(others) > 1:
        return None
    heads = config.get("num_key_value_heads", config["num_attention_heads"])
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    state = _state(others.pop(), config, arguments, size) if others else 0
    if state is None:
        return None
    attention = kinds.count(_ATTENTION)
    return _Layers(attention, len(kinds) - attention, 2 * heads * width * token, state)


def _kinds(config: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer; none if CONFIG does not say it in a way that is known here."""
    listed = config.get("layer_types")
    if listed is not None:
        return list(listed)
    if any(name.startswith(_OTHER_KINDS) and value is not None for name, value in config.items()):
        return []
    every = config.get("full_attention_interval", 4 if "linear_num_value_heads" in config else 1)
    return [
        _ATTENTION if number % every == 0 else "linear_attention"
        for number in range(1, config["num_hidden_layers"] + 1)
    ]


def _cached(kind: str, size: int | None) -> int | None:
    """Return the bytes of a number in the cache with the dtype KIND, for a model with numbers of SIZE bytes."""
    if kind == "auto":
        return size
    return 1 if kind.startswith("fp8") else _SIZES.get(kind)


def _state(kind: str, config: Mapping[str, Any], arguments: Mapping[str, Any], size: int) -> int | None:
    """Return the bytes of the state that a layer of KIND keeps for a sequence; None for another kind."""
    if kind == "conv":
        return int((config["conv_L_cache"] - 1) * config.get("conv_dim", config["hidden_size"]) * size)
    if kind != "linear_attention":
        return None
    asked = arguments.get("mamba-ssm-cache-dtype", "auto")
    matrix = _SIZES.get(config.get("mamba_ssm_dtype", "")) or size if asked == "auto" else _SIZES[asked]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    rows = (config["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
    return int(rows * size + values * config["linear_key_head_dim"] * matrix)
