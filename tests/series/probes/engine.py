"""Runs vLLM's real engine on a real hybrid model, on the CPU in the image or on a GPU: what recycled Mamba states hold.

No test is in here. Its argument is the model. Prints one line of JSON; the log of the engine, which comes before it, is
evidence too.
"""

from __future__ import annotations

import json
import sys
from itertools import zip_longest
from typing import Any

import device
import torch
from vllm import LLM, SamplingParams
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

PROMPTS = ["hello world the quick", "the", "brown fox jumps over the lazy dog and then", "hello world the quick"]
seen: list[dict[str, Any]] = []


def states(runner: GPUModelRunner, block_ids: tuple[list[int], ...]) -> list[torch.Tensor]:
    """The state of every Mamba layer in the blocks of one request."""
    layers = runner.compilation_config.static_forward_context
    return [
        state[block]
        for group, blocks in zip(runner.kv_cache_config.kv_cache_groups, block_ids, strict=True)
        if isinstance(group.kv_cache_spec, MambaSpec)
        for name in group.layer_names
        for state in layers[name].kv_cache
        for block in blocks
        if block
    ]


def what(found: list[torch.Tensor]) -> str:
    if all(bool((state == 0).all()) for state in found):
        return "zero"
    return "nan" if any(bool(state.isnan().any()) for state in found) else "stale"


def watch() -> None:
    """Look at the states of each new request: before the runner takes it up, before it clears blocks, and after."""
    original, clear = GPUModelRunner._update_states, GPUModelRunner._zero_block_ids
    owned: list[tuple[list[int], ...]] = []
    cleared: list[str] = []

    def update_states(self: GPUModelRunner, scheduler_output: Any) -> Any:
        new = scheduler_output.scheduled_new_reqs
        before = [what(states(self, each.block_ids)) for each in new]
        owned[:] = [each.block_ids for each in new]
        result = original(self, scheduler_output)
        seen.extend(
            {"before": was, "cleared": held, "after": what(states(self, each.block_ids)), "blocks": each.block_ids}
            for was, held, each in zip_longest(before, cleared, new)
        )
        owned.clear()
        cleared.clear()
        return result

    def zero_block_ids(self: GPUModelRunner, block_ids: list[int]) -> None:
        cleared[:] = [what(states(self, each)) for each in owned]
        clear(self, block_ids)

    GPUModelRunner._update_states = update_states
    GPUModelRunner._zero_block_ids = zero_block_ids


def answers(llm: LLM) -> list[list[int]]:
    """Answer the prompts one after the other, so that each finds the blocks of the one before it."""
    parameters = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    asked = (llm.generate([prompt], parameters, use_tqdm=False) for prompt in PROMPTS * device.rounds())
    return [list(found[0].outputs[0].token_ids) for found in asked]


def main() -> None:
    watch()
    llm = LLM(
        model=sys.argv[1],
        max_model_len=128,
        max_num_seqs=2,
        enable_prefix_caching=False,
        **device.arguments(blocks=24),
    )
    result: dict[str, Any] = {"device": device.name(), "answers": answers(llm), "seen": list(seen)}
    managers = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.coordinator.single_type_managers
    recording = [each for each in managers if isinstance(each, MambaManager) and hasattr(each, "_records_state_blocks")]
    if recording:
        seen.clear()
        for each in recording:
            each._records_state_blocks = False
        result["without ids"] = {"answers": answers(llm), "seen": list(seen)}
    sys.stdout.write("\n" + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
