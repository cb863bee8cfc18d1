"""Probes of what a batch is to the model: first chunks, padding, and the key of its compiled code."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm import envs
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from world import (
    BLOCK,
    CONFIG,
    CPU,
    mamba_spec,
    probe,
)


def gdn_builder() -> GDNAttentionMetadataBuilder:
    if "gdn_prefill_backend" in inspect.getsource(GDNAttentionMetadataBuilder):
        from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn

        qwen_gdn_linear_attn._resolve_gdn_prefill_backend = lambda _: ("triton", "triton")
    return GDNAttentionMetadataBuilder(mamba_spec(), ["mamba.0"], CONFIG, CPU)


def common_metadata(computed: list[int], scheduled: list[int], **more: Any) -> CommonAttentionMetadata:
    starts = torch.tensor([0, *np.cumsum(scheduled)], dtype=torch.int32)
    lengths = torch.tensor([a + b for a, b in zip(computed, scheduled, strict=True)], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(computed),
        num_actual_tokens=sum(scheduled),
        max_query_len=max(scheduled),
        max_seq_len=int(lengths.max()),
        block_table_tensor=torch.arange(1, len(computed) + 1, dtype=torch.int32).reshape(-1, 1),
        slot_mapping=torch.arange(sum(scheduled)),
        is_prefilling=torch.tensor([each == 0 for each in computed]),
        **more,
    )


@probe
def first_chunks() -> dict[str, Any]:
    """How a batch is split that starts requests with chunks of one token, through the runner's own methods."""
    builder = gdn_builder()
    found = {}
    for name, computed, scheduled in (
        ("decodes", [9, 30], [1, 1]),
        ("one first chunk", [0], [1]),
        ("decode and first chunk", [9, 0], [1, 1]),
        ("decode and long first chunk", [9, 0], [1, 5]),
        ("chunk of one that goes on", [9, 16], [1, 1]),
    ):
        runner = SimpleNamespace(
            kv_cache_config=SimpleNamespace(has_mamba_layers=True),
            uniform_decode_query_len=1,
            input_batch=SimpleNamespace(num_computed_tokens_cpu=np.array(computed), lora_id_to_lora_request={}),
        )
        without_mamba = SimpleNamespace(kv_cache_config=SimpleNamespace(has_mamba_layers=False))
        more = {}
        if "_rows_that_start" in vars(GPUModelRunner):
            rows = GPUModelRunner._rows_that_start(runner, np.array(scheduled))
            more["starts_request"] = None if rows is None else torch.from_numpy(rows)
            assert GPUModelRunner._rows_that_start(without_mamba, np.array(scheduled)) is None
        split = builder.build(0, common_metadata(computed, scheduled, **more))
        initial = split.has_initial_state
        found[name] = {
            "decodes": split.num_decodes,
            "prefills": split.num_prefills,
            "decode tokens": split.num_decode_tokens,
            "prefill tokens": split.num_prefill_tokens,
            "initial": None if initial is None else initial.tolist(),
        }
    return found


@probe
def calls_around_the_batch() -> dict[str, Any]:
    """What `execute_model` and `_dummy_run` say about first chunks to the methods that they call."""
    import ast

    tree = ast.parse(inspect.getsource(sys.modules[GPUModelRunner.__module__]))
    wanted = ("_determine_batch_execution_and_padding", "_build_attention_metadata")
    found: dict[str, Any] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name in ("execute_model", "_dummy_run"):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in wanted:
                    found[f"{function.name}: {call.func.attr}"] = {
                        word.arg: ast.unparse(word.value)
                        for word in call.keywords
                        if word.arg in ("force_uniform_decode", "starts_request")
                    }
    return found


@probe
def padded_rows_that_start() -> Any:
    """The rows that `_build_attention_metadata` marks, of a batch of 2 requests that is padded to 4."""
    if "starts_request" not in inspect.signature(GPUModelRunner._build_attention_metadata).parameters:
        return None
    source = inspect.getsource(GPUModelRunner._build_attention_metadata)
    lines = source[source.index("        rows_that_start: ") : source.index("        cm_base = ")]
    scope = {"torch": torch, "num_reqs_padded": 4, "num_reqs": 2, "starts_request": np.array([False, True])}
    exec(textwrap.dedent(lines), scope)
    return scope["rows_that_start"].tolist()


@probe
def padding_id() -> dict[str, Any]:
    """Which state rows a convolution step writes when it is given row 0, -1 or 2 of a tensor inside a larger one."""
    from vllm.model_executor.layers.mamba.ops import causal_conv1d
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import NULL_BLOCK_ID

    # The GPU's kernel is wanted, interpreted; on the CPU platform the module gives C++ code in its place.
    spec = importlib.util.spec_from_file_location("conv_of_the_gpu", causal_conv1d.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    current_platform.is_cpu = lambda: False
    try:
        spec.loader.exec_module(module)
    finally:
        del current_platform.is_cpu
    found: dict[str, Any] = {"NULL_BLOCK_ID": NULL_BLOCK_ID}
    for index in (0, -1, 2):
        memory = torch.zeros(6, 8, 3)
        rows = memory[2:]  # two rows lie before it
        module.causal_conv1d_update(
            torch.ones(1, 8),
            rows,
            torch.ones(8, 4),
            conv_state_indices=torch.tensor([index], dtype=torch.int32),
        )
        found[str(index)] = [row - 2 for row in range(6) if bool((memory[row] != 0).any())]
    return found


@probe
def compile_factors() -> dict[str, Any]:
    os.environ["VLLM_API_KEY"] = "sk-a-secret"
    try:
        with_key = envs.compile_factors()
    finally:
        del os.environ["VLLM_API_KEY"]
    without = envs.compile_factors()
    return {"in the clear": "sk-a-secret" in json.dumps(with_key, default=str), "same key": with_key == without}


@probe
def rows_of_allowed_tokens() -> dict[str, Any]:
    """Which of 4 tokens each request of a batch may get: one is told two of them, the others may get any."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    def batch() -> InputBatch:
        sizes: dict[str, Any] = {"block_sizes": [BLOCK], "kernel_block_sizes": [BLOCK]}
        return InputBatch(4, 64, 64, CPU, pin_memory=False, vocab_size=4, **sizes)

    def add(to: InputBatch, name: str, allowed: list[int] | None = None) -> None:
        settings = SamplingParams(temperature=0.0, allowed_token_ids=allowed)
        to.add_request(CachedRequestState(name, [1], [], settings, None, ([1],), 0, []))

    def masked(of: InputBatch) -> dict[str, list[int]]:
        rows = {name: of.allowed_token_ids_mask_cpu_tensor[at] for name, at in of.req_id_to_index.items()}
        return {name: row.nonzero().flatten().tolist() for name, row in sorted(rows.items())}

    swapped = batch()
    add(swapped, "any")
    add(swapped, "two", [1, 2])
    swapped.swap_states(0, 1)  # as `reorder_batch` does where a prompt stands before what generates

    condensed = batch()
    add(condensed, "ends")
    add(condensed, "two", [1, 2])
    condensed.remove_request("ends")
    condensed.condense()  # "two" moves to the first row
    add(condensed, "next")
    return {"swapped": masked(swapped), "condensed": masked(condensed)}
