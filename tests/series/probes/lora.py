"""Runs vLLM's real engine with a LoRA adapter on the CPU in the image: the log-probabilities of prompts.

No test is in here. Each prompt is asked by itself, and then all at once, with the adapter and without; those without
are asked before the adapter is loaded, too. Prints one line of JSON; the log of the engine comes before it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import device
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

PROMPTS = ([5, 6, 8, 9, 10, 11, 40], [30, 31, 32, 33, 34], [7, 8, 9], [50, 51, 52, 53, 54, 55])
ADAPTED = (True, False, True, False)


def main(model: str, adapter: str) -> None:
    llm = LLM(
        model=model,
        max_model_len=128,
        max_num_seqs=len(PROMPTS),
        enable_lora=True,
        enable_prefix_caching=False,
        **device.arguments(blocks=9),
    )
    parameters = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True, prompt_logprobs=0)
    requests: list[Any] = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
    named = [LoRARequest("adapter", 1, adapter) if adapted else None for adapted in ADAPTED]

    def scores(output: Any) -> list[float]:
        """Return the log-probability of each token of the prompt but the first."""
        rows = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        return [row[token].logprob for token, row in rows]

    def alone(request: Any, adapter: LoRARequest | None) -> list[float]:
        (output,) = llm.generate([request], parameters, use_tqdm=False, lora_request=[adapter])
        return scores(output)

    asked = [*zip(requests, named, strict=True)]
    result: dict[str, Any] = {
        "device": device.name(),
        "before": [alone(request, None) for request, adapter in asked if adapter is None],
        "alone": [alone(request, adapter) for request, adapter in asked],
    }
    try:
        together = llm.generate(requests, parameters, use_tqdm=False, lora_request=named)
    except Exception as error:  # noqa: BLE001 - whatever ends the engine is what this looks for
        result["ended"] = f"{type(error).__name__}: {error}"
    else:
        result["together"] = [scores(output) for output in together]
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
