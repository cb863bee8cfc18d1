"""Runs inside the image, on vLLM's real engine and a real model with a gated delta net: what a one-token prompt gets.

No test is in here. The prompt is asked when every block is fresh, and again after others have used the blocks. Prints
one line of JSON; the log of the engine, which comes before it, is evidence too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, "/opt/nvllm/lib")

import tiny_models
from vllm import LLM, SamplingParams

MODEL = Path("/tmp/gdn-model")
HEAD = 64
"""The CPU kernels of 0.28.0 know head dimensions of 64 and 128."""

SETTINGS = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": HEAD,
    "linear_value_head_dim": HEAD,
    "linear_conv_kernel_dim": 4,
    # vLLM's class takes no model without an expert layer; Qwen3.5, which has none, needs torchvision.
    "mlp_only_layers": [0, 1, 2],
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
ONE_TOKEN = [7]
OTHERS = ([5, 6, 8, 9, 10, 11, 40], [30, 31, 32, 33, 34])


def make_model() -> None:
    """Write a Qwen3-Next of random weights from a fixed seed, as the recipes of the image write theirs."""
    MODEL.mkdir()
    architecture = tiny_models.Architecture("Qwen3Next", SETTINGS)
    tiny_models.write_weights(architecture, MODEL)
    tiny_models.write_tokenizer(MODEL)
    tiny_models.settle(MODEL, architecture.added)


def main() -> None:
    make_model()
    llm = LLM(
        model=str(MODEL),
        max_model_len=128,
        max_num_seqs=2,
        kv_cache_memory_bytes=8 << 20,
        mamba_ssm_cache_dtype="float32",  # the only one that the CPU kernel of a prefill takes
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    parameters = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)

    def answer(prompt: list[int]) -> list[int]:
        (found,) = llm.generate([{"prompt_token_ids": prompt}], parameters, use_tqdm=False)
        return list(found.outputs[0].token_ids)

    fresh, after = answer(ONE_TOKEN), []
    for other in OTHERS:
        answer(other)
        after.append(answer(ONE_TOKEN))
    sys.stdout.write("\n" + json.dumps({"fresh": fresh, "after others": after}) + "\n")


if __name__ == "__main__":
    main()
