"""Tokens per second of one vLLM tree, a round for each line of input: `python -m gpu.throughput [LOAD]`.

It runs in the engine's own process, on a GPU. The model is an LFM2 with weights that nobody trained; that of the first
load is so large that the GPU, not the host, decides how long a step takes. Prints a line of JSON when it is ready, and
one for each round: seconds, tokens, of each call that clears blocks how many they were and what it took the host, and
the host's seconds in each of `PHASES`.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import device
import tiny_models
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

AT_ONCE = 64

LAYERS = ["conv", "conv", "full_attention"] * 12 + ["conv"]
LARGE: Mapping[str, Any] = {
    "block_dim": 4096,
    "block_ff_dim": 14336,
    "conv_dim": 4096,
    "conv_dim_out": 4096,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_types": LAYERS,
    "num_attention_heads": 32,
    "num_hidden_layers": len(LAYERS),
    "num_key_value_heads": 8,
    "vocab_size": 65536,
}
BILLION: Mapping[str, Any] = {
    **LARGE,
    "block_dim": 2048,
    "block_ff_dim": 7168,
    "conv_dim": 2048,
    "conv_dim_out": 2048,
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "layer_types": [*LAYERS[:15], "conv"],
    "num_hidden_layers": 16,
}
"""The dimensions of LFM2 with 1.2 billion parameters."""
TINY: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Load:
    """What is asked in a round: REQUESTS of PROMPT tokens for ANSWER tokens, of a model that differs by SETTINGS."""

    settings: Mapping[str, Any]
    requests: int
    prompt: int
    answer: int
    eager: bool = False


LOADS: Mapping[str, Load] = {
    "9B": Load(LARGE, 64, 64, 32),
    "tiny, decode, eager": Load(TINY, 64, 16, 64, eager=True),
    "tiny, decode, graphs": Load(TINY, 64, 16, 64),
    "tiny, prefill, graphs": Load(TINY, 256, 192, 2),
    "1B, decode, eager": Load(BILLION, 64, 64, 64, eager=True),
    "1B, decode, graphs": Load(BILLION, 64, 64, 64),
    "1B, prefill, graphs": Load(BILLION, 256, 192, 2),
}


def timed() -> list[tuple[int, int]]:
    """Return a list to which each call that clears blocks adds how many they were, and its nanoseconds of the host."""
    calls: list[tuple[int, int]] = []
    clear = GPUModelRunner._zero_block_ids

    def zero_block_ids(self: GPUModelRunner, block_ids: list[int]) -> None:
        began = time.perf_counter_ns()
        clear(self, block_ids)
        calls.append((len(block_ids), time.perf_counter_ns() - began))

    GPUModelRunner._zero_block_ids = zero_block_ids
    return calls


PHASES: Mapping[str, tuple[type, str]] = {
    "take a request": (LLMEngine, "add_request"),
    "of it: check and convert": (InputProcessor, "process_inputs"),
    "of it: check its settings": (SamplingParams, "verify"),
    "schedule a step": (Scheduler, "schedule"),
    "launch a step": (GPUModelRunner, "execute_model"),
    "of it: its inputs": (GPUModelRunner, "_update_states"),
    "sample": (GPUModelRunner, "sample_tokens"),
    "keep its tokens": (Scheduler, "update_from_output"),
    "answer": (OutputProcessor, "process_outputs"),
}
"""What the host does for a request or a step, and the method that does it."""


def spent() -> dict[str, float]:
    """Return the seconds in each of `PHASES`, which grow from now on."""
    seconds = dict.fromkeys(PHASES, 0.0)

    def timing(name: str, method: Any) -> Any:
        @functools.wraps(method)
        def call(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **more)
            finally:
                seconds[name] += time.perf_counter() - began

        return call

    for name, (owner, method) in PHASES.items():
        setattr(owner, method, timing(name, getattr(owner, method)))
    return seconds


def main(argv: Sequence[str]) -> None:
    load = LOADS[argv[0] if argv else "9B"]
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints, the lines for the starter are ours alone
    model = Path(tempfile.mkdtemp())
    config = {**tiny_models.COMMON, **tiny_models.lfm2().settings, **load.settings}
    (model / "config.json").write_text(json.dumps(config))
    calls, seconds_of = timed(), spent()
    llm = LLM(
        model=str(model),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=256,
        max_num_seqs=AT_ONCE,
        max_num_batched_tokens=4096,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.4,
        kv_cache_memory_bytes=2 << 30,
        enforce_eager=load.eager,
    )
    parameters = SamplingParams(max_tokens=load.answer, temperature=0.0, ignore_eos=True, detokenize=False)
    rng = random.Random(5)
    prompts: Any = [{"prompt_token_ids": rng.choices(range(1, 300), k=load.prompt)} for _ in range(load.requests)]
    print(json.dumps({"ready": True, "device": device.name()}), file=stream, flush=True)
    for _ in sys.stdin:
        calls.clear()
        seconds_of.update(dict.fromkeys(PHASES, 0.0))
        began = time.perf_counter()
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        seconds = time.perf_counter() - began
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        of_round = {"seconds": seconds, "tokens": tokens, "requests": load.requests, "phases": seconds_of}
        print(json.dumps({**of_round, "clearing": calls}), file=stream, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
