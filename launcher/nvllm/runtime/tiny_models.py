"""Write a tiny random model, byte for byte the same each time. Runs inside the image's container.

A real engine needs a real model, and the smallest one that is of any use should be neither downloaded nor
committed: it is made here, from a fixed seed, and pinned by the hash of its tree. The script runs with the
image's own Python, torch and transformers, because what they write is what the image's engine reads; for
the same reason it imports nothing of nvllm.

    python tiny_models.py NAME DIRECTORY

DIRECTORY must be there and empty. The exit status is 0, or 2 with one line on stderr when the arguments are
wrong, or 1 when this processor would draw other weights.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

SEED = 0
END = "<|endoftext|>"
TURN = ("<|im_start|>", "<|im_end|>")
TOKENS = 300
CORPUS = ("hello world the quick brown fox",) * 10
CHAT_TEMPLATE = (
    "{% for message in messages %}" + TURN[0] + "{{ message['role'] }}\n{{ message['content'] }}" + TURN[1] + "\n"
    "{% endfor %}{% if add_generation_prompt %}" + TURN[0] + "assistant\n{% endif %}"
)

# Wide enough that the next token of a random model depends on the prompt; with the usual 0.02 all logits
# are nearly equal and every answer is the same.
SPREAD = 0.2

COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 320,  # more than TOKENS, so that no id of the tokenizer is out of range
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
)


@dataclass(frozen=True)
class Architecture:
    """One kind of model: the transformers classes' common prefix, and what its configuration says.

    ADDED goes into config.json only: fields that vLLM reads and transformers does not write.
    """

    prefix: str
    settings: Mapping[str, Any]
    added: Mapping[str, Any] = field(default_factory=dict)


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "tiny-llama": Architecture("Llama", {"num_hidden_layers": 2, "head_dim": 32}),
        "tiny-lfm2": Architecture(
            "Lfm2",
            {
                "num_hidden_layers": 3,
                "layer_types": ["conv", "full_attention", "conv"],
                "block_ff_dim": 128,
                "block_auto_adjust_ff_dim": False,
                "conv_L_cache": 3,
            },
            {"conv_dim": 64, "conv_dim_out": 64, "block_dim": 64},
        ),
        "tiny-falconh1": Architecture(
            "FalconH1",
            {
                "num_hidden_layers": 2,
                "head_dim": 32,
                "mamba_n_heads": 4,
                "mamba_d_head": 32,
                "mamba_d_ssm": 128,
                "mamba_n_groups": 1,
                "mamba_d_state": 16,
                "mamba_d_conv": 4,
                "mamba_expand": 2,
                "mamba_chunk_size": 16,
            },
        ),
    }
)


class UnsupportedProcessorError(Exception):
    """This processor has not the vector instructions that the pinned weights were drawn with."""


def write_weights(architecture: Architecture, directory: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors below DIRECTORY.

    Raises UnsupportedProcessorError, before anything is written, where the bytes would be others.
    """
    import torch  # only the image has it
    import transformers  # type: ignore[import-not-found]

    # Without AVX2, torch draws normal numbers by other code, and about one weight in ten thousand is rounded
    # to its other neighbour. To stop is better than to write a tree that can equal no pinned hash.
    if torch.backends.cpu.get_cpu_capability() not in {"AVX2", "AVX512"}:
        raise UnsupportedProcessorError
    config_class = getattr(transformers, f"{architecture.prefix}Config")
    model_class = getattr(transformers, f"{architecture.prefix}ForCausalLM")
    torch.manual_seed(SEED)
    model = model_class(config_class(**COMMON, **architecture.settings)).to(torch.bfloat16)
    with torch.no_grad():
        for weight in model.parameters():
            # One-dimensional parameters are norms, biases and the Mamba constants: their usual values stay.
            if weight.dim() > 1:
                weight.normal_(std=SPREAD)
    model.save_pretrained(directory)


def write_tokenizer(directory: Path) -> None:
    """Write a byte-level BPE tokenizer below DIRECTORY that knows every byte and a chat template."""
    import tokenizers  # type: ignore[import-not-found]
    from tokenizers import decoders, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS, special_tokens=[END, *TURN], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END)
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(directory)


def settle(directory: Path, added: Mapping[str, Any]) -> None:
    """Add ADDED to config.json, sort the keys of the configurations, and make every file 0644.

    The order of keys is the only thing in these files that no library promises, and transformers writes
    the weights 0600, which the container's user could not read if it is not the one who made them.
    """
    for path in sorted(directory.glob("*config.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        if path.name == "config.json":
            values.update(added)
        path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for path in directory.iterdir():
        path.chmod(0o644)


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
    # Set before the libraries are imported: nothing here asks a hub, draws bars, or is trained in threads.
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")
    name, directory = arguments
    try:
        write_weights(ARCHITECTURES[name], Path(directory))
    except UnsupportedProcessorError:
        print("this processor has no AVX2: the weights would not be those that are pinned", file=sys.stderr)
        return 1
    write_tokenizer(Path(directory))
    settle(Path(directory), ARCHITECTURES[name].added)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
