"""Tiny random models, byte for byte the same wherever they are made.

A real engine needs a real model, and the smallest one that is of any use should be neither downloaded nor
committed: it is made here, from a fixed seed, and pinned by the hash of its tree. The bytes depend on this file
alone. Weights are integers of a hash, rounded to bfloat16 by integer arithmetic: no processor, no torch and no
libm has a say in them. All files are written here too, in one form, so no version of a library shows in them.

    python tiny_models.py NAME DIRECTORY

DIRECTORY must be there and empty. The exit status is 0, or 2 with one line on stderr when the arguments are wrong.
The script needs the standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

SEED = 0
END = "<|endoftext|>"
TURN = ("<|im_start|>", "<|im_end|>")
WORDS = ("hello", " world", " the", " quick", " brown", " fox")
"""What the tokenizer has a token of its own for; all else it spells by bytes."""

CHAT_TEMPLATE = (
    "{% for message in messages %}" + TURN[0] + "{{ message['role'] }}\n{{ message['content'] }}" + TURN[1] + "\n"
    "{% endfor %}{% if add_generation_prompt %}" + TURN[0] + "assistant\n{% endif %}"
)

VOCABULARY = 320  # more than the tokenizer has, so that none of its ids is out of range
HIDDEN = 64
INNER = 128
HEAD = 32

COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "bos_token_id": 0,
        "dtype": "bfloat16",
        "eos_token_id": 0,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "max_position_embeddings": 512,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "vocab_size": VOCABULARY,
    }
)

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Architecture:
    """One kind of model: what its configuration says beyond COMMON, and the shape of each of its tensors."""

    settings: Mapping[str, Any]
    shapes: Shapes


def _attention(at: str, out: str = "o_proj") -> Shapes:
    return {f"{at}.{name}.weight": (HIDDEN, HIDDEN) for name in ("q_proj", "k_proj", "v_proj", out)}


def _feed_forward(at: str, gate: str, up: str, down: str) -> Shapes:
    return {
        f"{at}.{gate}.weight": (INNER, HIDDEN),
        f"{at}.{up}.weight": (INNER, HIDDEN),
        f"{at}.{down}.weight": (HIDDEN, INNER),
    }


def _norms(*names: str, size: int = HIDDEN) -> Shapes:
    return {f"{name}.weight": (size,) for name in names}


_EMBEDDING: Shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
_HEAD: Shapes = {"lm_head.weight": (VOCABULARY, HIDDEN)}


def _llama(layers: int = 2) -> Architecture:
    shapes = {**_EMBEDDING, **_HEAD, **_norms("model.norm")}
    for at in (f"model.layers.{number}" for number in range(layers)):
        shapes |= _norms(f"{at}.input_layernorm", f"{at}.post_attention_layernorm")
        shapes |= _attention(f"{at}.self_attn")
        shapes |= _feed_forward(f"{at}.mlp", "gate_proj", "up_proj", "down_proj")
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    return Architecture(settings, shapes)


def lfm2(width: int = 3) -> Architecture:
    """Return an LFM2 whose short convolutions reach WIDTH tokens back."""
    kinds = ["conv", "full_attention", "conv"]
    shapes = {**_EMBEDDING, **_norms("model.embedding_norm")}
    for number, kind in enumerate(kinds):
        at = f"model.layers.{number}"
        shapes |= _norms(f"{at}.operator_norm", f"{at}.ffn_norm")
        shapes |= _feed_forward(f"{at}.feed_forward", "w1", "w3", "w2")
        if kind == "conv":
            shapes |= {
                f"{at}.conv.conv.weight": (HIDDEN, 1, width),
                f"{at}.conv.in_proj.weight": (3 * HIDDEN, HIDDEN),
                f"{at}.conv.out_proj.weight": (HIDDEN, HIDDEN),
            }
        else:
            shapes |= _attention(f"{at}.self_attn", "out_proj")
            shapes |= _norms(f"{at}.self_attn.q_layernorm", f"{at}.self_attn.k_layernorm", size=HEAD)
    settings = {
        "architectures": ["Lfm2ForCausalLM"],
        "block_auto_adjust_ff_dim": False,
        "block_dim": HIDDEN,  # this, conv_dim and conv_dim_out are fields that vLLM alone reads
        "block_ff_dim": INNER,
        "conv_L_cache": width,
        "conv_bias": False,
        "conv_dim": HIDDEN,
        "conv_dim_out": HIDDEN,
        "layer_types": kinds,
        "model_type": "lfm2",
        "norm_eps": 1e-05,
        "num_hidden_layers": len(kinds),
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    }
    return Architecture(settings, shapes)


def _falconh1(layers: int = 2) -> Architecture:
    heads, inner, state, width = 4, 128, 16, 4
    mixed = inner + 2 * state  # what the convolution runs over: the input, B and C
    shapes = {**_EMBEDDING, **_HEAD, **_norms("model.final_layernorm")}
    for at in (f"model.layers.{number}" for number in range(layers)):
        shapes |= _norms(f"{at}.input_layernorm", f"{at}.pre_ff_layernorm")
        shapes |= _attention(f"{at}.self_attn")
        shapes |= _feed_forward(f"{at}.feed_forward", "gate_proj", "up_proj", "down_proj")
        shapes |= {f"{at}.mamba.{name}": (heads,) for name in ("A_log", "D", "dt_bias")}
        shapes |= {
            f"{at}.mamba.conv1d.bias": (mixed,),
            f"{at}.mamba.conv1d.weight": (mixed, 1, width),
            f"{at}.mamba.in_proj.weight": (inner + mixed + heads, HIDDEN),
            f"{at}.mamba.out_proj.weight": (HIDDEN, inner),
        }
    settings = {
        "architectures": ["FalconH1ForCausalLM"],
        "mamba_chunk_size": 16,
        "mamba_d_conv": width,
        "mamba_d_head": inner // heads,
        "mamba_d_ssm": inner,
        "mamba_d_state": state,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "mamba_n_heads": heads,
        "model_type": "falcon_h1",
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    return Architecture(settings, shapes)


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {"tiny-llama": _llama(), "tiny-lfm2": lfm2(), "tiny-falconh1": _falconh1()}
)


def bfloat16(numerator: int, places: int) -> int:
    """Return the 16 bits of NUMERATOR / 2**PLACES as a bfloat16, rounded to the nearest, a tie to the even one."""
    if numerator == 0:
        return 0
    size = abs(numerator)
    over = size.bit_length() - 8  # a bfloat16 has 8 bits, of which the first is not stored
    if over > 0:
        kept, rest, half = size >> over, size & ((1 << over) - 1), 1 << (over - 1)
        if rest > half or (rest == half and kept % 2 == 1):
            kept += 1
    else:
        kept = size << -over
    if kept == 256:
        kept, over = 128, over + 1
    return (0x8000 if numerator < 0 else 0) | (127 + 7 + over - places) << 7 | kept & 127


_DRAWN = tuple(bfloat16((total - 510) * 11, 13).to_bytes(2, "little") for total in range(4 * 255 + 1))
"""The weight for each sum of four bytes.

Four random bytes sum up to 510, give or take 147.8, nearly as a normal distribution does; 11 / 2**13 makes a spread of
0.2 of it. That is wide enough for the next token of a random model to depend on the prompt: with the usual 0.02 all
logits are nearly equal, and every answer is the same.
"""

_LOGARITHMS = (0, 177, 281, 355)
"""Of 1, 2, 3 and 4, in 256ths: what Mamba's heads forget by."""


def tensor(name: str, shape: tuple[int, ...]) -> bytes:
    """Return the bytes of the tensor NAME.

    What has one dimension are norms, biases and Mamba's constants: those have their usual values. All else is drawn
    by its name, so a model keeps the weights that it has when it gets more.
    """
    if len(shape) == 1:
        return b"".join(bfloat16(value, 8).to_bytes(2, "little") for value in _constants(name, *shape))
    count = 1
    for size in shape:
        count *= size
    drawn = hashlib.shake_128(f"nvllm tiny model {SEED} {name}".encode()).digest(4 * count)
    return b"".join(_DRAWN[sum(drawn[at : at + 4])] for at in range(0, 4 * count, 4))


def _constants(name: str, length: int) -> Iterable[int]:
    """Return the LENGTH values of NAME in 256ths."""
    if name.endswith(".A_log"):
        return _LOGARITHMS[:length]
    return (0 if name.endswith(".bias") else 256,) * length


def safetensors(shapes: Shapes) -> bytes:
    """Return the file of the tensors with SHAPES, by name: the length of a header, the header, the tensors' bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, shape in sorted(shapes.items()):
        more = tensor(name, shape)
        header[name] = {"data_offsets": [len(data), len(data) + len(more)], "dtype": "BF16", "shape": list(shape)}
        data += more
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _alphabet() -> list[str]:
    """Return the letter that a byte-level tokenizer writes for each byte, as GPT-2's does."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)]


def _merged(parts: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """Return PARTS with each PAIR that stands in it put together, from the left."""
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def tokenizer() -> Mapping[str, Any]:
    """Return tokenizer.json: byte-level BPE that knows every byte, and WORDS."""
    letters = _alphabet()
    tokens = [END, *TURN, *sorted(letters)]
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        parts = [letters[byte] for byte in word.encode()]
        for pair in merges:  # those of earlier words come first, in this word too
            parts = _merged(parts, pair)
        while len(parts) > 1:
            merges.append((parts[0], parts[1]))
            tokens.append(parts[0] + parts[1])
            parts = _merged(parts, merges[-1])
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "type": "ByteLevel", "use_regex": True}
    return {
        "added_tokens": [{"content": token, "id": tokens.index(token), **special} for token in (END, *TURN)],
        "decoder": byte_level,
        "model": {
            "byte_fallback": False,
            "continuing_subword_prefix": None,
            "dropout": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "ignore_merges": False,
            "merges": [" ".join(pair) for pair in merges],
            "type": "BPE",
            "unk_token": None,
            "vocab": {token: number for number, token in enumerate(tokens)},
        },
        "normalizer": None,
        "padding": None,
        "post_processor": None,
        "pre_tokenizer": byte_level,
        "truncation": None,
        "version": "1.0",
    }


def files(architecture: Architecture) -> Mapping[str, bytes]:
    """Return what a directory with a model of ARCHITECTURE holds, by file name."""
    documents: Mapping[str, Any] = {
        "config.json": {**COMMON, **architecture.settings},
        "generation_config.json": {key: COMMON[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "bos_token": END,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "model_max_length": 512,
            "pad_token": END,
            "tokenizer_class": "PreTrainedTokenizerFast",  # transformers 4.57 and 5 both know it
        },
    }
    texts = {name: json.dumps(value, indent=2, sort_keys=True) + "\n" for name, value in documents.items()}
    return {"model.safetensors": safetensors(architecture.shapes)} | {n: text.encode() for n, text in texts.items()}


def write(architecture: Architecture, directory: Path) -> None:
    """Write a model of ARCHITECTURE into DIRECTORY, with files that every user may read."""
    for name, content in files(architecture).items():
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o644)


def wrong(arguments: Sequence[str]) -> str | None:
    """Return what is wrong with ARGUMENTS (a name and a directory), or None."""
    if len(arguments) != 2:
        return "usage: tiny_models.py NAME DIRECTORY"
    name, directory = arguments
    if name not in ARCHITECTURES:
        return f"{name}: no such model; there are {', '.join(sorted(ARCHITECTURES))}"
    if not Path(directory).is_dir():
        return f"{directory}: not a directory"
    if any(Path(directory).iterdir()):
        return f"{directory}: not empty"
    return None


def main(arguments: Sequence[str]) -> int:
    """Write the model that ARGUMENTS name, and return the exit status."""
    complaint = wrong(arguments)
    if complaint is not None:
        print(complaint, file=sys.stderr)
        return 2
    name, directory = arguments
    write(ARCHITECTURES[name], Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
