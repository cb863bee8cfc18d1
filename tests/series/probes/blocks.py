"""Probes of blocks, from the cache manager and the scheduler to the worker's memory."""

from __future__ import annotations

import inspect
from typing import Any

from memory import SHAPES, Worker
from vllm.v1.kv_cache_interface import (
    KVCacheGroupSpec,
)
from vllm.v1.worker.block_table import BlockTable
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from world import (
    BLOCK,
    CPU,
    accepted,
    attention_spec,
    cache_config,
    hybrid,
    manager,
    owned,
    probe,
    request,
    scheduler,
)


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
