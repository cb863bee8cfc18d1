"""Runs vLLM's real engine on a real model with a gated delta net, on the CPU in the image or on a GPU: what a one-token
prompt gets.

No test is in here. The prompt is asked when every block is fresh, and again after others have used the blocks; alone,
and while another request decodes. Prints one line of JSON; the log of the engine, which comes before it, is evidence
too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import device
import small_models
import tiny_models
from vllm import LLM, SamplingParams

ONE_TOKEN = [7]
OTHERS = ([5, 6, 8, 9, 10, 11, 40], [30, 31, 32, 33, 34])


def main() -> None:
    model = Path(tempfile.mkdtemp())
    tiny_models.write(small_models.qwen3_next(), model)
    llm = LLM(
        model=str(model),
        max_model_len=128,
        max_num_seqs=2,
        mamba_ssm_cache_dtype="float32",  # the only one that the CPU kernel of a prefill takes
        enable_prefix_caching=False,
        **device.arguments(blocks=9, compiled=True),
    )

    def parameters(tokens: int = 8) -> SamplingParams:
        return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)

    def answer(prompt: list[int]) -> list[int]:
        (found,) = llm.generate([{"prompt_token_ids": prompt}], parameters(), use_tqdm=False)
        return list(found.outputs[0].token_ids)

    def joining(other: list[int]) -> list[int]:
        """Ask while OTHER decodes."""
        engine, found = llm.llm_engine, []
        engine.add_request(f"{other}", {"prompt_token_ids": other}, parameters(24))
        for _ in range(3):
            engine.step()
        engine.add_request("one token", {"prompt_token_ids": ONE_TOKEN}, parameters())
        while engine.has_unfinished_requests():
            found += [one for one in engine.step() if one.finished and one.request_id.startswith("one token")]
        return list(found[0].outputs[0].token_ids)

    result: dict[str, Any] = {"device": device.name(), "fresh": answer(ONE_TOKEN), "after others": [], "joining": []}
    for other in OTHERS:
        answer(other)
        result["after others"].append(answer(ONE_TOKEN))
    for other in OTHERS:
        result["joining"].append(joining(other))
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
