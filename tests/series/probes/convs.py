"""Runs inside the image, on vLLM's real engine: what convolutions get where a processor has AMX, and what they answer.

No test is in here. vLLM's dispatch is told that the processor has AMX and avx512_bf16, or that it has neither, and is
told so for convolutions alone: all else asks the processor itself. So where both are, what is told is the only
difference between two answers, and where they are not, the dispatch does what it would do where they are. The kernel
that reads a packed weight takes a processor with avx512_bf16, not AMX; it runs wherever that is.

The argument is JSON, a list of cases of a model and of what is told. Prints one line of JSON: the class of the
processor; for each case, in a process of its own, the answers and the layout of each convolution's weight; and how far
that kernel is from the torch path.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import small_models
import tiny_models
import torch
import vllm._custom_ops as ops
from safetensors.torch import load_file
from vllm import LLM, SamplingParams
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.mamba.ops.cpu import causal_conv1d as cpu_conv
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.model_executor.models import registry

MODELS: Mapping[str, tiny_models.Architecture] = {
    "lfm2": tiny_models.ARCHITECTURES["tiny-lfm2"],
    "lfm2, width 4": tiny_models.lfm2(width=4),
    "falcon-h1": tiny_models.ARCHITECTURES["tiny-falconh1"],
    "qwen3-next": small_models.qwen3_next(),
}
PROMPTS = ["hello world the quick", "the", "brown fox jumps over the lazy dog and then"]


def processor() -> str:
    """The class of this processor, by the questions that vLLM asks."""
    for name, asked in (("amx", "amx_tile"), ("avx512_bf16",) * 2, ("avx512",) * 2, ("avx2",) * 2):
        if getattr(torch.cpu, f"_is_{asked}_supported")():
            return name
    return os.uname().machine


def tell(*, amx: bool) -> None:
    """Tell the dispatch of convolutions, and the one layer that asks again when it runs, whether there is AMX.

    Whether there is avx512_bf16 too, which is asked from 0.32.0 on.
    """
    answers: dict[str, Any] = dict.fromkeys(("_is_amx_tile_supported", "_is_avx512_bf16_supported"), lambda: amx)
    dispatch = utils.dispatch_cpu_unquantized_gemm

    def told(layer: torch.nn.Module, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            dispatch(layer, remove_weight)
            return
        with mock.patch.multiple(torch.cpu, spec=None, **answers):
            dispatch(layer, remove_weight)

    utils.dispatch_cpu_unquantized_gemm = told
    cpu, whole = ModuleType("torch.cpu"), ModuleType("torch")
    vars(cpu).update(vars(torch.cpu), **answers)
    vars(whole).update(vars(torch), cpu=cpu)
    gdn_attention.torch = whole


def layouts(model: torch.nn.Module, stored: set[str]) -> list[str]:
    """How the weight of each convolution of MODEL lies: as it was STORED, or packed, with a plain copy beside it."""
    found = []
    for name, layer in model.named_modules():
        if isinstance(layer, LinearBase) and "conv" in name.rpartition(".")[2]:
            plain = getattr(layer, "_cpu_unpacked_conv_weight", None)
            has = layer.weight.ndim == 3 and digest(layer.weight) in stored
            packed = layer.weight.ndim == 2 and plain is not None and digest(plain) in stored
            found.append("as stored" if has else "packed" if packed else f"{tuple(layer.weight.shape)}")
    return sorted(found)


def digest(weight: torch.Tensor) -> str:
    return hashlib.sha256(weight.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def case(name: str, *, amx: bool) -> dict[str, Any]:
    """Answer the prompts with the model NAME. To be called once in a process."""
    tell(amx=amx)
    place = Path("/tmp", name.replace(", ", "-").replace(" ", "-"))
    if not place.exists():
        place.mkdir()
        tiny_models.write(MODELS[name], place)
    llm = LLM(
        model=str(place),
        max_model_len=128,
        max_num_seqs=2,
        kv_cache_memory_bytes=8 << 20,
        mamba_ssm_cache_dtype="float32" if name == "qwen3-next" else "auto",  # its kernels on a CPU take no other
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    stored = {digest(weight) for key, weight in load_file(place / "model.safetensors").items() if "conv" in key}
    parameters = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    answers = [list(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, parameters, use_tqdm=False)]
    (found,) = llm.apply_model(lambda model: layouts(model, stored))
    return {"answers": answers, "layouts": found}


def kernel() -> dict[str, Any] | None:
    """How far the kernel that reads packed weights is from the torch path; None where it is not built.

    Both go through a prompt and one more token, of a request that begins and of one that goes on from a state.
    """
    if not hasattr(torch.ops._C, "causal_conv1d_weight_pack"):
        return None
    torch.manual_seed(0)
    dimension, width, apart, states = 96, 4, 0.0, True
    weight = (0.2 * torch.randn(dimension, width)).bfloat16()
    packed, slot = ops.causal_conv1d_weight_pack(weight.clone()), torch.tensor([2], dtype=torch.int32)
    for tokens, goes_on in itertools.product((1, 2, 3, 4, 5, 33, 40), (False, True)):
        x, next_x = torch.randn(tokens, dimension).bfloat16(), torch.randn(1, dimension).bfloat16()
        ours = torch.randn(4, width - 1, dimension).bfloat16()
        theirs = ours.clone()
        where = (torch.tensor([0, tokens], dtype=torch.int32), slot, torch.tensor([goes_on]))
        pairs = [
            (
                ops.causal_conv1d_fwd_cpu(x.T, packed, None, ours.transpose(1, 2), *where, True, True),
                cpu_conv.causal_conv1d_fn_cpu(x.T, weight, None, theirs.transpose(1, 2), *where),
            ),
            (
                ops.causal_conv1d_update_cpu(next_x, ours.transpose(1, 2), packed, None, True, slot, True),
                cpu_conv.causal_conv1d_update_cpu(
                    next_x, theirs.transpose(1, 2), weight, None, "silu", conv_state_indices=slot
                ),
            ),
        ]
        for one, other in pairs:
            size = other.float().abs().clamp(min=1)
            apart = max(apart, float(((one.float() - other.float()).abs() / size).max()))
        states = states and torch.equal(ours, theirs)
    return {"apart": apart, "same states": states}


def forked(name: str, *, amx: bool) -> dict[str, Any]:
    """Return what a child process finds; its own words go to stderr."""
    place = Path("/tmp", "found.json")
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        try:
            found = case(name, amx=amx)
        except Exception:  # noqa: BLE001 - a case that fails is a result; the test that needs it judges it
            found = {"failed": traceback.format_exc()}
        place.write_text(json.dumps(found))
        sys.stderr.flush()
        os._exit(0)
    os.waitpid(child, 0)
    result: dict[str, Any] = json.loads(place.read_text())
    place.unlink()
    return result


def main() -> None:
    # vLLM inspects the class of a model in a process of its own; here that would cost more than all else.
    registry._run_in_subprocess = lambda function: function()
    cases = [
        {"model": one["model"], "amx": one["amx"], **forked(one["model"], amx=one["amx"])}
        for one in json.loads(sys.argv[1])
    ]
    sys.stdout.write("\n" + json.dumps({"processor": processor(), "cases": cases, "kernel": kernel()}) + "\n")


if __name__ == "__main__":
    main()
