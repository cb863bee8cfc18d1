"""Write a hybrid of 1.7 billion random weights into an empty directory: `python -m gpu.large_model DIRECTORY [tiny]`.

It is shaped as Qwen3.5 is: three layers of four are gated delta nets, the fourth has attention with a gate. The class
is that of Qwen3-Next, which vLLM 0.21.0 has for text alone; it takes no model without an expert layer, so the last
layer is one. Qwen's own code, in transformers, draws the weights from a fixed seed. `tiny` is for a look without a GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiny_models

from gpu.project import CONTEXT

VOCABULARY = 32768
LAYERS = 24
GENERAL: Mapping[str, Any] = {
    "bos_token_id": 0,
    "decoder_sparse_step": 1,
    "eos_token_id": 0,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (LAYERS // 4),
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": CONTEXT,
    "mlp_only_layers": [*range(LAYERS - 1)],
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "num_hidden_layers": LAYERS,
    "pad_token_id": 0,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": False,
    "vocab_size": VOCABULARY,
}
SIZE: Mapping[str, Any] = {
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "moe_intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}
TINY: Mapping[str, Any] = {
    **SIZE,
    "head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 64,
    "num_attention_heads": 2,
    "shared_expert_intermediate_size": 64,
}


def tokenizer() -> Mapping[str, Any]:
    """Return the tokenizer of the tiny models with a word for each further token of the vocabulary."""
    whole = json.loads(json.dumps(tiny_models.tokenizer()))
    words = whole["model"]["vocab"]
    words |= {f"\u0120t{number}": number for number in range(len(words), VOCABULARY)}
    return dict(whole)


def write(directory: Path, size: Mapping[str, Any]) -> None:
    """Write the model with the dimensions of SIZE into DIRECTORY, with files that every user may read."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3NextConfig

    config = Qwen3NextConfig(**GENERAL, **size)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory, max_shard_size="20GB")
    small = tiny_models.files(tiny_models.ARCHITECTURES["tiny-llama"])
    settings = json.loads(small["tokenizer_config.json"]) | {"model_max_length": CONTEXT}
    texts = {"tokenizer.json": tokenizer(), "tokenizer_config.json": settings}
    for name, value in texts.items():
        (directory / name).write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (directory / "generation_config.json").write_bytes(small["generation_config.json"])
    for path in directory.iterdir():
        path.chmod(0o644)
    print(json.dumps({"parameters": sum(each.numel() for each in model.parameters())}))


if __name__ == "__main__":
    write(Path(sys.argv[1]), TINY if sys.argv[2:] == ["tiny"] else SIZE)
