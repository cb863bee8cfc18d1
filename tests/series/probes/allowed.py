"""Runs vLLM's real engine, on the CPU in the image or on a GPU: what a request gets beside one that may get two tokens.

No test is in here. Its argument is the model. The request is asked alone; then where a batch swaps its row with that of
the other one, and where it gets the row that the other one left. Prints one line of JSON after the engine's log.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import device
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

ALLOWED = [10, 11]
PROMPT, OTHER, ENDS = [40, 41, 42], [50, 51], [60, 61]
LETTERS = {"structured_outputs": StructuredOutputsParams(regex="[a-z]{8}")}


def main() -> None:
    llm = LLM(
        model=sys.argv[1],
        max_model_len=128,
        max_num_seqs=4,
        enable_prefix_caching=False,
        **device.arguments(blocks=48),
    )
    engine = llm.llm_engine

    def parameters(tokens: int, **more: Any) -> SamplingParams:
        return SamplingParams(max_tokens=tokens, temperature=0.0, **{"ignore_eos": True, **more})

    def until(name: str) -> Any:
        while True:
            for one in engine.step():
                if one.finished and one.request_id.startswith(name):
                    return one.outputs[0]

    def asked(*, steps: int | None, **settings: Any) -> dict[str, Any]:
        """Ask so many STEPS after the first of two requests ended; alone, if STEPS is None."""
        if steps is not None:
            engine.add_request("ends", {"prompt_token_ids": ENDS}, parameters(2))
            engine.add_request("two", {"prompt_token_ids": OTHER}, parameters(100, allowed_token_ids=ALLOWED))
            until("ends")
            for _ in range(steps):
                engine.step()
        engine.add_request("next", {"prompt_token_ids": PROMPT}, parameters(8, **settings))
        answer = until("next")
        result = {"tokens": list(answer.token_ids), "ended": answer.finish_reason}
        if steps is not None:
            result["two"] = sorted(set(until("two").token_ids))
        return result

    rows = {"alone": None, "swapped": 0, "condensed": 3}
    result: dict[str, Any] = {"device": device.name(), "plain": {}, "grammar": {}}
    for name, steps in rows.items():
        result["plain"][name] = asked(steps=steps)
    for name, steps in rows.items():
        result["grammar"][name] = asked(steps=steps, ignore_eos=False, **LETTERS)
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
