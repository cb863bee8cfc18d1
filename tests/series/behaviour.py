"""Runs inside a container, on one source tree of vLLM: what vLLM's own classes do there, as one line of JSON.

No test is in here. The tests beside this file run it on the stock tree and on the patched one and judge what
it printed. Each probe goes through classes of the tree; what stands in is named where it does: an attention
backend, layers without weights, and Triton's interpreter in place of a GPU.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import logging
import os
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import vllm
from vllm import envs
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.block_table import BlockTable
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

CPU = torch.device("cpu")
BLOCK = 16
PAGE = 4096
HEADS, HEAD_SIZE = 2, 32
STATES = ((3, 200), (2, 12, 16))  # a conv and an ssm state of float32: 3936 of the 4096 bytes of a page
PROBES: dict[str, Callable[[], Any]] = {}


def probe(function: Callable[[], Any]) -> Callable[[], Any]:
    PROBES[function.__name__] = function
    return function


def accepted(function: Callable[..., Any], **values: Any) -> dict[str, Any]:
    """Return those of VALUES that FUNCTION takes: the two versions differ in their arguments."""
    if dataclasses.is_dataclass(function):
        known = {field.name for field in dataclasses.fields(function)} | {"max_model_len", "is_encoder_decoder"}
    else:
        known = set(inspect.signature(function).parameters)
    return {name: value for name, value in values.items() if name in known}


def configuration() -> VllmConfig:
    directory = Path(tempfile.mkdtemp())
    (directory / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 64,
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "max_position_embeddings": 8192,
                "vocab_size": 128,
            }
        )
    )
    model = ModelConfig(model=str(directory), skip_tokenizer_init=True, dtype="float32")
    scheduler = SchedulerConfig(
        **accepted(
            SchedulerConfig,
            max_num_seqs=32,
            max_num_batched_tokens=8192,
            max_model_len=8192,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            watermark=0.0,
        )
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=False)
    return VllmConfig(
        model_config=model, scheduler_config=scheduler, cache_config=cache, device_config=DeviceConfig(device="cpu")
    )


CONFIG = configuration()
# The CPU platform of the older version turns the hybrid cache off; a GPU does not.
CONFIG.scheduler_config.disable_hybrid_kv_cache_manager = False


def attention_spec() -> FullAttentionSpec:
    return FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=HEAD_SIZE // 2, dtype=torch.float32)


def mamba_spec(mode: str = "none") -> MambaSpec:
    return MambaSpec(
        block_size=BLOCK if mode != "none" else 8192,
        shapes=STATES,
        dtypes=(torch.float32, torch.float32),
        page_size_padded=PAGE,
        mamba_cache_mode=mode,
    )


def cache_config(groups: list[KVCacheGroupSpec], blocks: int = 200) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def hybrid(mode: str = "none") -> KVCacheConfig:
    return cache_config(
        [KVCacheGroupSpec(["mamba.0"], mamba_spec(mode)), KVCacheGroupSpec(["attn.0"], attention_spec())]
    )


def manager(config: KVCacheConfig) -> KVCacheManager:
    largest = max(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
    return KVCacheManager(
        config,
        max_model_len=8192,
        enable_caching=False,
        **accepted(KVCacheManager.__init__, hash_block_size=BLOCK, scheduler_block_size=largest),
    )


def request(name: str, tokens: int) -> Request:
    kv_cache_utils.init_none_hash(sha256)
    return Request(
        **accepted(
            Request.__init__,
            request_id=name,
            prompt_token_ids=list(range(1, tokens + 1)),
            sampling_params=SamplingParams(max_tokens=4),
            pooling_params=None,
            eos_token_id=2,
            block_hasher=kv_cache_utils.get_request_block_hasher(BLOCK, sha256),
        )
    )


def owned(kv: KVCacheManager, name: str) -> dict[str, list[int]]:
    mamba, attention = (
        [block.block_id for block in one.req_to_blocks[name]] for one in kv.coordinator.single_type_managers
    )
    return {"mamba": mamba, "attention": attention}


# mamba-block-ids


@probe
def recorded_ids() -> dict[str, Any]:
    """What the cache manager hands to the worker for one request of 40 tokens, by cache mode."""
    found = {}
    for mode in ("none", "align"):
        kv = manager(hybrid(mode))
        assert kv.allocate_slots(request("a", 40), 40) is not None
        found[mode] = {**owned(kv, "a"), "recorded": sorted(kv.take_new_block_ids())}
    return found


@probe
def recorded_ids_of_a_connector() -> dict[str, Any]:
    """The same where a KV connector computed 32 of the 40 tokens: the transfer fills the state's block."""
    found = {}
    for mode in ("none", "align"):
        kv = manager(hybrid(mode))
        values = {"num_external_computed_tokens": 32, "delay_cache_blocks": True}
        assert kv.allocate_slots(request("a", 40), 0, **values) is not None
        found[mode] = {**owned(kv, "a"), "recorded": sorted(kv.take_new_block_ids())}
    return found


# the worker's memory


class Backend:
    """Stands in for an attention backend: K and V outermost, as vLLM re-strides it for hybrids."""

    @staticmethod
    def get_kv_cache_shape(blocks: int, block: int, heads: int, size: int, cache_dtype_str: str = "auto") -> tuple:
        return (2, blocks, block, heads, size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return (0, 1, 2, 3, 4)

    @classmethod
    def get_kv_cache_block_dim(cls, block: int, heads: int, size: int, cache_dtype_str: str = "auto") -> int:
        return 1


class MambaLayer:
    """Stands in for a Mamba layer: its cache, bound as the version does it, and no weights."""

    def __init__(self) -> None:
        self.kv_cache: Any = None

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return STATES

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (torch.float32, torch.float32)

    def bind(self, cache: Any) -> None:
        if isinstance(cache, torch.Tensor):
            from vllm.model_executor.layers.mamba.abstract import MambaBase

            MambaBase.bind_kv_cache(self, cache)
        else:
            self.kv_cache = cache


class Worker:
    """The part of a model runner that owns the cache: buffers, views, and the runner's own methods on them."""

    def __init__(self, attention: int, mamba: int, blocks: int = 12) -> None:
        specs: dict[str, Any] = {f"attn.{index}": attention_spec() for index in range(attention)}
        specs |= {f"mamba.{index}": mamba_spec() for index in range(mamba)}
        groups = kv_cache_utils.get_kv_cache_groups(CONFIG, specs)
        pages = max(len(group.layer_names) for group in groups)
        self.config = kv_cache_utils.get_kv_cache_config_from_groups(CONFIG, groups, pages * PAGE * blocks)
        assert self.config.num_blocks == blocks
        self.buffers = [torch.full((tensor.size,), 0x5A, dtype=torch.int8) for tensor in self.config.kv_cache_tensors]
        raw = {
            name: buffer
            for tensor, buffer in zip(self.config.kv_cache_tensors, self.buffers, strict=True)
            for name in tensor.shared_by
        }
        self.groups = [
            SimpleNamespace(
                kv_cache_spec=group.kv_cache_spec,
                layer_names=group.layer_names,
                kv_cache_group_id=index,
                backend=Backend,
            )
            for index, group in enumerate(self.config.kv_cache_groups)
        ]
        self.layers: dict[str, Any] = {}
        self.runner = runner = SimpleNamespace(
            device=CPU,
            pin_memory=False,
            kv_cache_config=self.config,
            cache_config=SimpleNamespace(cache_dtype="auto"),
            runner_only_attn_layers=set(),
            _kernel_block_sizes=[BLOCK] * len(groups),
            _kv_cache_spec_attn_group_iterator=lambda: iter(self.groups),
            compilation_config=SimpleNamespace(static_forward_context=self.layers),
            _has_mixed_attention_kv_layout=lambda *_: False,
        )
        for name in ("_update_hybrid_attention_mamba_layout", "_update_hybrid_attention_layout"):
            if name in vars(GPUModelRunner):
                setattr(runner, name, getattr(GPUModelRunner, name).__get__(runner))
        caches = GPUModelRunner._reshape_kv_cache_tensors(runner, raw, [BLOCK] * len(groups))
        for name, cache in caches.items():
            if name.startswith("mamba"):
                layer = MambaLayer()
                layer.bind(cache)
            else:
                layer = SimpleNamespace(kv_cache=cache)
            self.layers[name] = layer
        GPUModelRunner._init_kv_zero_meta(runner)

    def zero(self, ids: list[int]) -> None:
        GPUModelRunner._zero_block_ids(self.runner, ids)

    def zero_states_like_the_fork(self, ids: list[int]) -> None:
        for name, layer in self.layers.items():
            if name.startswith("mamba"):
                for state in layer.kv_cache:
                    state.index_fill_(0, torch.tensor(ids), 0)

    def alone(self) -> int:
        """How many buffers have no attention layer."""
        tensors = self.config.kv_cache_tensors
        return sum(not any(name.startswith("attn") for name in tensor.shared_by) for tensor in tensors)

    def states(self, block: int) -> list[torch.Tensor]:
        found = (layer for name, layer in self.layers.items() if name.startswith("mamba"))
        return [state[block] for layer in found for state in layer.kv_cache]

    def zeros(self, block: int) -> dict[str, Any]:
        """What is zero in the pages of BLOCK, in all buffers."""
        pages = [buffer.view(-1, PAGE)[block] for buffer in self.buffers]
        return {
            "states": all(bool((state == 0).all()) for state in self.states(block)),
            "bytes": [int((page == 0).sum()) for page in pages],
        }

    def untouched(self, blocks: list[int]) -> bool:
        """Whether every page of every other block holds what it held at first."""
        others = [block for block in range(self.config.num_blocks) if block not in blocks]
        return all(bool((buffer.view(-1, PAGE)[others] == 0x5A).all()) for buffer in self.buffers)


SHAPES = {"5+15": (5, 15), "10+12": (10, 12), "4+9": (4, 9)}


@probe
def cleared_pages() -> dict[str, Any]:
    """What the worker clears when it is given block 5 (attention's) and block 9 (Mamba's)."""
    found = {}
    for name, (attention, mamba) in SHAPES.items():
        worker = Worker(attention, mamba)
        worker.zero([5, 9])
        found[name] = {
            "buffers": len(worker.buffers),
            "alone": worker.alone(),
            "zeros": [worker.zeros(5), worker.zeros(9)],
            "untouched": worker.untouched([5, 9]),
        }
    return found


@probe
def recycled_state() -> dict[str, Any]:
    """Whether a request finds the state of the last owner of its blocks, from the cache manager to memory."""
    found = {}
    for shape, mode in ((SHAPES["5+15"], "none"), (SHAPES["10+12"], "none"), (SHAPES["5+15"], "align")):
        arms = {}
        for arm in ("worker", "fork"):
            worker = Worker(*shape, blocks=65)
            kv = manager(cache_config(hybrid(mode).kv_cache_groups, 65))
            first = request("a", 40)
            assert kv.allocate_slots(first, 40) is not None
            worker.zero(kv.take_new_block_ids())
            used = {block for blocks in owned(kv, "a").values() for block in blocks if block}
            for block in used:
                for state in worker.states(block):
                    state.fill_(7.0)
            kv.free(first)
            names = iter(range(64))
            while True:  # the two versions hand freed blocks out again in another order
                name = f"b{next(names)}"
                assert kv.allocate_slots(request(name, 40), 40) is not None
                ids = kv.take_new_block_ids()
                theirs = [block for block in owned(kv, name)["mamba"] if block]
                if set(theirs) <= used:
                    break
                worker.zero(ids)
            worker.zero(ids)
            if arm == "fork":
                worker.zero_states_like_the_fork(ids)
            arms[arm] = all(bool((state == 0).all()) for block in theirs for state in worker.states(block))
        found[f"{shape[0]}+{shape[1]} {mode}"] = arms
    return found


# scheduler-drain


def scheduler(config: KVCacheConfig) -> Scheduler:
    CONFIG.cache_config.num_gpu_blocks = config.num_blocks
    largest = max(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
    return Scheduler(
        vllm_config=CONFIG,
        kv_cache_config=config,
        log_stats=False,
        structured_output_manager=StructuredOutputManager(CONFIG),
        **accepted(Scheduler.__init__, block_size=largest, hash_block_size=BLOCK),
    )


@probe
def ids_held_by_the_scheduler() -> dict[str, Any]:
    """How many ids the managers hold after a step of 20 requests of 64 tokens, and how many the step carries."""
    found = {}
    for name, config in (
        ("attention", cache_config([KVCacheGroupSpec(["attn.0"], attention_spec())])),
        ("hybrid", hybrid()),
    ):
        one = scheduler(config)
        for index in range(20):
            one.add_request(request(str(index), 64))
        output = one.schedule()
        assert len(output.scheduled_new_reqs) == 20
        managers = one.kv_cache_manager.coordinator.single_type_managers
        found[name] = {
            "held": sum(len(each.new_block_ids) for each in managers),
            "carried": len(output.new_block_ids_to_zero or ()),
        }
    return found


# gdn-first-chunk


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
            input_batch=SimpleNamespace(
                num_computed_tokens_cpu=np.array(computed), lora_id_to_lora_request={}
            ),
        )
        more = {}
        if "_rows_that_start" in vars(GPUModelRunner):
            rows = GPUModelRunner._rows_that_start(runner, len(computed))
            more["starts_request"] = None if rows is None else torch.from_numpy(rows)
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


# stale-block-table and null-block-padding


@probe
def cleared_row() -> dict[str, Any]:
    """The block table's row of a request that is gone."""
    table = BlockTable(
        **accepted(
            BlockTable.__init__,
            block_size=BLOCK,
            max_num_reqs=4,
            max_num_blocks_per_req=8,
            max_num_batched_tokens=64,
            pin_memory=False,
            device=CPU,
            kernel_block_size=BLOCK,
            cp_kv_cache_interleave_size=1,
        )
    )
    table.add_row([5, 6, 7], 1)
    before = table.block_table.np[1, :4].tolist()
    table.clear_row(1)
    from vllm.v1.worker.gpu_input_batch import InputBatch

    return {
        "before": before,
        "after": table.block_table.np[1, :4].tolist(),
        "removing clears": "self.block_table.clear_row(" in inspect.getsource(InputBatch.remove_request),
        "dummy run commits": "commit_block_table(" in inspect.getsource(GPUModelRunner._dummy_run),
    }


@probe
def padding_id() -> dict[str, Any]:
    """Which state rows a convolution step writes when it is given row 0, -1 or 2 of a tensor inside a larger one."""
    from vllm.model_executor.layers.mamba.ops import causal_conv1d
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import NULL_BLOCK_ID

    # The GPU's kernel is wanted, interpreted; on the CPU platform the module gives C++ code in its place.
    spec = importlib.util.spec_from_file_location("conv_of_the_gpu", causal_conv1d.__file__)
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


# api-key-out-of-compile-key


@probe
def compile_factors() -> dict[str, Any]:
    os.environ["VLLM_API_KEY"] = "sk-a-secret"
    try:
        with_key = envs.compile_factors()
    finally:
        del os.environ["VLLM_API_KEY"]
    without = envs.compile_factors()
    return {"in the clear": "sk-a-secret" in json.dumps(with_key, default=str), "same key": with_key == without}


# the code that the series brings; absent in a stock tree


def switches() -> Any:
    try:
        from vllm.nvllm import switches as module
    except ModuleNotFoundError:
        return None
    return module


@probe
def sentinels() -> Any:
    """What the log says of two patches, one with its sentinel file, that fire 201 times."""
    module = switches()
    if module is None or not hasattr(module, "DIRECTORY"):
        return None
    lines: list[str] = []
    module.logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    module.logger.addHandler(handler)
    directory = Path(tempfile.mkdtemp())
    (directory / "there").touch()
    before, module.DIRECTORY = module.DIRECTORY, str(directory)
    try:
        there, absent = module.switch("there"), module.switch("absent")
        (directory / "there").unlink()
        (directory / "absent").touch()
        again = module.switch("there"), module.switch("absent")
        for _ in range(201):
            there.fired()
    finally:
        module.DIRECTORY = before
        module.logger.removeHandler(handler)
    return {
        "directory": before,
        "on": [there.on, absent.on],
        "read again": [each.on for each in again] != [True, False],
        "log": lines,
    }


@probe
def kernel() -> Any:
    """The arguments of the kernel that clears pages, and the launches of three models."""
    try:
        from vllm.nvllm import page_zeroer as module
    except ImportError:
        return None
    function = module.zero_pages_kernel
    launches = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*values: torch.Tensor, **constants: int) -> None:
                launches.append(
                    {"grid": grid, "types": [str(value.dtype) for value in values], "constants": constants}
                )
                function[grid](*values, **constants)

            return launch

    module.zero_pages_kernel = Recorder()
    try:
        places = []
        for shape, ids in (("5+15", [5]), ("10+12", [5, 9]), ("4+9", [1, 2, 3])):
            worker = Worker(*SHAPES[shape])
            zeroer = worker.runner._kv_block_zeroer
            for _ in range(3):
                worker.zero(ids)
                places.append((id(zeroer), zeroer._host.data_ptr(), zeroer._ids.data_ptr()))
    finally:
        module.zero_pages_kernel = function
    worker = Worker(*SHAPES["4+9"])
    small = len(worker.runner._kv_block_zeroer._host)
    worker.zero([3] * (small + 1))
    return {
        "arguments": list(inspect.signature(function.fn).parameters),
        "launches": launches,
        "buffers": len(set(places)),
        "zeroers": 3,
        "grown": len(worker.runner._kv_block_zeroer._host) > small,
        "cleared after growth": worker.zeros(3)["states"],
    }


@probe
def odd_segments() -> Any:
    """What the segment table refuses, and how it merges."""
    try:
        from vllm.nvllm import pages
    except ModuleNotFoundError:
        return None
    found: dict[str, Any] = {}
    for name, segments in (
        ("unequal strides", [(64, 4096, 4096), (64, 8192, 4096)]),
        ("odd address", [(62, 4096, 4096)]),
    ):
        try:
            pages.merged(pages.Segment(*each) for each in segments)
        except ValueError as error:
            found[name] = str(error)
    rows = pages.merged([pages.Segment(64, 4096, 100), pages.Segment(64, 4096, 4000), pages.Segment(8, 4096, 4)])
    found["merged"] = [(each.address, each.stride, each.page) for each in rows]
    return found


@probe
def poisoned() -> Any:
    """Which blocks become poison when, with and without a hash; and what a poisoned state holds."""
    try:
        from vllm.nvllm import poison as module
    except ModuleNotFoundError:
        return None
    switch = switches().switch("poison")
    found: dict[str, Any] = {"off": manager(hybrid()).block_pool.stale_blocks is None}
    switch.on = True
    try:
        kv = manager(hybrid())
        stale = kv.block_pool.stale_blocks
        one = request("a", 40)
        assert kv.allocate_slots(one, 40) is not None
        mine = owned(kv, "a")
        found["allocated"] = sorted(stale.take()) == sorted(mine["mamba"] + mine["attention"])
        kv.free(one)
        found["freed"] = sorted(stale.take()) == sorted(mine["mamba"] + mine["attention"])
        kept, gone = kv.block_pool.get_new_blocks(2)
        stale.take()
        kept._block_hash = b"a hash"
        kv.block_pool.enable_caching = True
        kv.block_pool.free_blocks([kept, gone])
        found["hit later is kept"] = stale.take() == [gone.block_id]

        one = scheduler(hybrid())
        one.add_request(request("a", 40))
        output = one.schedule()
        found["step carries"] = sorted(output.stale_block_ids) == sorted(output.new_block_ids_to_zero)
        worker = Worker(*SHAPES["10+12"])
        runner = worker.runner
        segments = runner._kv_pages if hasattr(runner, "_kv_pages") else runner._kv_block_zeroer.segments
        module.poison(segments, [5, 9], CPU)
        found["nan"] = all(bool(state.isnan().all()) for block in (5, 9) for state in worker.states(block))
        found["untouched"] = worker.untouched([5, 9])
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
            value = worker.buffers[0].view(-1, PAGE)[5, :64].view(dtype).float()
            found[str(dtype)] = bool(value.isnan().all())
        for grid_device in ("meta",):  # the kernel itself, interpreted: the launch of a GPU
            worker = Worker(*SHAPES["10+12"])
            device = SimpleNamespace(type=grid_device)
            real = torch.tensor
            module.torch = SimpleNamespace(
                tensor=lambda *values, device=None, **more: real(*values, **more),
                uint64=torch.uint64,
                int64=torch.int64,
            )
            try:
                runner = worker.runner
                segments = runner._kv_pages if hasattr(runner, "_kv_pages") else runner._kv_block_zeroer.segments
                module.poison(segments, [5], device)
            finally:
                module.torch = torch
            found["kernel"] = all(bool(state.isnan().all()) for state in worker.states(5)) and worker.untouched([5])
    finally:
        switch.on = False
    return found


def main() -> None:
    logging.getLogger("vllm").setLevel(logging.WARNING)
    results: dict[str, Any] = {"version": vllm.__version__, "file": vllm.__file__}
    for name, function in PROBES.items():
        try:
            results[name] = function()
        except Exception:  # noqa: BLE001 - a probe that fails is a result; the test that needs it shows it
            results[name] = {"failed": traceback.format_exc()}
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
