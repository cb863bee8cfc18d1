"""Probes of what a request may ask for: vLLM's checks of it, and what its engine does with what they let through."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.logits_processor.interface import BatchUpdate
from vllm.v1.serial_utils import MsgpackEncoder
from world import CPU, probe

VOCABULARY = 320


class Tokenizer:
    """A tokenizer that has more ids than the model, as those of some multimodal models have."""

    max_token_id = 399

    def __len__(self) -> int:
        return self.max_token_id + 1


# What stands in for the model's configuration is all that the checks ask of it.
MODEL = SimpleNamespace(
    get_vocab_size=lambda: VOCABULARY,
    max_logprobs=20,
    max_model_len=128,
    logits_processors=None,
    is_diffusion=False,
    runner_type="generate",
)


@probe
def token_ids_of_a_request() -> dict[str, str]:
    """Whether a request with such ids is refused, accepted, or accepted and then an error in the engine's step."""
    outside = {"first": VOCABULARY, "far": 999, "minus": -1, "far minus": -999, "huge": 2**40, "beyond": 2**70}
    answers = {
        f"{parameter} {name}": _answer(**{parameter: [0, token_id]})
        for parameter in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")
        for name, token_id in {**outside, "placeholder": Tokenizer.max_token_id, "last": VOCABULARY - 1}.items()
    }
    answers |= {f"logit_bias {name}": _answer(logit_bias={token_id: 1.0}) for name, token_id in outside.items()}
    answers |= {f"prompt {name}": _prompt([0, token_id]) for name, token_id in outside.items() if name != "first"}
    return answers


# A hundred thousand is beyond the patch's limit, and small enough for the stock tree to compile it here.
_FAR = 100_000
_ITEMS = {"type": "array", "items": {"type": "integer"}}
_BEYOND: dict[str, dict[str, Any]] = {
    **{key: {"json": {"type": "array", key: _FAR}} for key in ("minItems", "maxItems")},
    **{key: {"json": {"type": "string", key: _FAR}} for key in ("minLength", "maxLength")},
    **{key: {"json": {"type": "object", key: _FAR}} for key in ("minProperties", "maxProperties")},
    "nested": {"json": {"type": "object", "properties": {"a": {"anyOf": [{**_ITEMS, "minItems": _FAR}]}}}},
    "text": {"json": '{"type": "array", "minItems": 1e5}'},
    "pattern": {"json": {"type": "string", "pattern": "^a{100000}$"}},
    "regex": {"regex": "a{100000}"},
    "regex from": {"regex": "a{2,100000}"},
    "grammar": {"grammar": 'root ::= "a"{100000}'},
    "tag": {"structural_tag": '{"type": "structural_tag", "format": {"type": "regex", "pattern": "a{100000}"}}'},
    "in all": {"json": {"anyOf": [{**_ITEMS, "maxItems": 60_000 + i} for i in range(18)]}},
}
_WITHIN: dict[str, dict[str, Any]] = {
    "schema": {"json": {**_ITEMS, "minItems": 2, "maxItems": 65_536}},
    "a property of that name": {"json": {"type": "object", "properties": {"minItems": {"type": "integer"}}}},
    "regex": {"regex": "a{2,65536}"},
    "choice": {"choice": ["yes", "no"]},
    "braces": {"regex": r"\{100000\}"},
}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@probe
def bounds_of_a_request() -> dict[str, dict[str, str]]:
    """Whether a request with such repetitions and integers is refused, accepted, or accepted and then cannot be sent.

    The answer to one that is refused is the text of the refusal.
    """
    integers = {"top_k": 10**30, "seed": 2**64, "extra_args": {"a": [10**30]}}
    return {
        "beyond": {name: _sent(structured_outputs=StructuredOutputsParams(**each)) for name, each in _BEYOND.items()},
        "within": {name: _sent(structured_outputs=StructuredOutputsParams(**each)) for name, each in _WITHIN.items()},
        "integers": {name: _sent(**{name: value}) for name, value in integers.items()},
        "in a schema": {
            "minimum": _sent(structured_outputs=StructuredOutputsParams(json={"type": "integer", "minimum": 10**30}))
        },
        "deep": {
            name: _sent(structured_outputs=StructuredOutputsParams(json=_nested(depth)))
            for name, depth in (("within", 60), ("beyond", 300))
        },
        "the largest": {"seed": _sent(seed=2**63 - 1), "top_k": _sent(top_k=2**31)},
    }


def _sent(**values: Any) -> str:
    params = SamplingParams(max_tokens=8, **values)
    try:
        params.verify(MODEL, None, SimpleNamespace(backend="auto"), Tokenizer())
    except (VLLMValidationError, ValueError) as refusal:  # what the server answers with 400
        return str(refusal).partition(" (parameter=")[0]
    try:
        MsgpackEncoder().encode(params)
    except OverflowError:
        return "OverflowError"
    return "accepted"


def _answer(**values: Any) -> str:
    params = SamplingParams(min_tokens=1, max_tokens=8, **values)
    try:
        params.verify(MODEL, None, None, Tokenizer())
    except (VLLMValidationError, ValueError):  # what the server answers with 400
        return "refused"
    try:
        processor = MinTokensLogitsProcessor(
            SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=1)), CPU, is_pin_memory=False
        )
        processor.update_state(BatchUpdate(batch_size=1, removed=[], added=[(0, params, [0], [])], moved=[]))
        processor.apply(torch.zeros(1, VOCABULARY))
        mask = torch.ones(VOCABULARY, dtype=torch.bool)  # as InputBatch.add_request has one for each request
        mask[params.allowed_token_ids or []] = False
    except (IndexError, RuntimeError, ValueError) as error:
        return type(error).__name__
    return "accepted"


def _prompt(token_ids: list[int]) -> str:
    asked = SimpleNamespace(
        model_config=MODEL, tokenizer=Tokenizer(), supports_mm_inputs=False, _validate_prompt_len=lambda *_: None
    )
    try:
        InputProcessor._validate_model_input(asked, {"type": "token", "prompt_token_ids": token_ids}, "decoder")
    except (VLLMValidationError, ValueError):
        return "refused"
    return "accepted"
