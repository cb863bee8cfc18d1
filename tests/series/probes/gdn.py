"""Runs inside the image, on vLLM's real engine and a real model with a gated delta net: what a one-token prompt gets.

No test is in here. The prompt is asked when every block is fresh, and again after others have used the blocks. Prints
one line of JSON; the log of the engine, which comes before it, is evidence too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import small_models
import tiny_models
from vllm import LLM, SamplingParams

MODEL = Path("/tmp/gdn-model")
ONE_TOKEN = [7]
OTHERS = ([5, 6, 8, 9, 10, 11, 40], [30, 31, 32, 33, 34])


def main() -> None:
    MODEL.mkdir()
    tiny_models.write(small_models.qwen3_next(), MODEL)
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
