"""Probes of what a request may ask for: vLLM's checks of it, and what its engine does with what they let through."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from grammars import TOKENIZER
from pydantic import BaseModel
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
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

    @staticmethod
    def encode(text: str, *, add_special_tokens: bool) -> list[int]:
        """Return a token for each letter; special ones are never added here."""
        return [ord(letter) for letter in text]


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
_NUL: dict[str, dict[str, Any]] = {
    "regex": {"regex": "\0"},
    "pattern": {"json": {"type": "array", "items": {"type": "string", "pattern": "\0"}}},
    "text": {"json": '{"type": "string", "pattern": "\\u0000"}'},
    "properties": {"json": {"type": "object", "patternProperties": {"\0": {}}}},
    "tag": {"structural_tag": '{"type": "structural_tag", "format": {"type": "regex", "pattern": "\\u0000"}}'},
    "grammar": {"grammar": 'root ::= "\0"'},
}
_WITHIN: dict[str, dict[str, Any]] = {
    "schema": {"json": {**_ITEMS, "minItems": 2, "maxItems": 65_536}},
    "a property of that name": {"json": {"type": "object", "properties": {"minItems": {"type": "integer"}}}},
    "regex": {"regex": "a{2,65536}"},
    "choice": {"choice": ["yes", "no"]},
    "braces": {"regex": r"\{100000\}"},
    "a text with NUL": {"json": {"const": "\0"}},
}


def _apart(outputs: StructuredOutputsParams) -> str:
    """Return what `_sent` says of OUTPUTS in a process of its own: xgrammar of 0.21.0 ends it at a regex with NUL."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, _sent(structured_outputs=outputs).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as stream:
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    return answer or f"ended by signal {os.WTERMSIG(status)}"


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
        "nul": {name: _apart(StructuredOutputsParams(**each)) for name, each in _NUL.items()},
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


@probe
def values_of_plain_requests_looked_into() -> list[list[str]]:
    """For each request that asks for nothing special: the types of its values that the check of bounds looks into."""
    try:
        bounds = importlib.import_module("vllm.nvllm.bounds")
    except ModuleNotFoundError:
        return []
    settings: list[dict[str, Any]] = [
        {},
        {"temperature": 0.5, "max_tokens": 2, "seed": 3},
        {"top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1, "ignore_eos": True},
        {"n": 2, "logprobs": 1, "stop": [], "stop_token_ids": [], "detokenize": False},
    ]
    answers = []
    for each in settings:
        with mock.patch.object(bounds, "_parts", side_effect=vars(bounds)["_parts"]) as parts:
            bounds.check(SamplingParams(**each))
        answers.append([type(call.args[0]).__name__ for call in parts.call_args_list])
    return answers


@probe
def blank_bad_words() -> dict[str, str]:
    """Whether such words are refused, accepted, or end the check with an error of another kind."""
    answers = {}
    for name, words in {"blank": [" "], "one of two": ["a", "  "], "sound": ["a", " b"]}.items():
        try:
            SamplingParams(bad_words=words).update_from_tokenizer(Tokenizer())
            answers[name] = "accepted"
        except (VLLMValidationError, ValueError):
            answers[name] = "refused"
        except IndexError as error:
            answers[name] = type(error).__name__
    return answers


_TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
_CALLED = {"type": "function", "function": {"name": "f"}}
_VALUES: tuple[Any, ...] = ([], "x", -1, 1e300, False, True)
_TOOLS: tuple[Any, ...] = ({}, {"function": None}, {"function": {}}, {"function": []}, {"function": {"name": None}})
_BODIES: tuple[Any, ...] = ([], "x", 7)
_SHAPES: dict[str, tuple[type[BaseModel], Any]] = {
    **{
        f"structured_outputs {value!r} of a {model.__name__}": (model, {"structured_outputs": value})
        for model in (CompletionRequest, ChatCompletionRequest)
        for value in _VALUES
    },
    **{f"tool {tool!r}": (ChatCompletionRequest, {"tools": [tool], "tool_choice": _CALLED}) for tool in _TOOLS},
    **{
        f"tag {tag}": (CompletionRequest, {"structured_outputs": {"structural_tag": tag}})
        for tag in ("{}", '{"triggers": ["a"], "structures": [{"begin": 7}]}')
    },
    **{f"body {body!r}": (CompletionRequest, body) for body in _BODIES},
    **{f"chat {body!r}": (ChatCompletionRequest, body) for body in _BODIES},
}
_SOUND: dict[str, tuple[type[BaseModel], Any]] = {
    "an object": (CompletionRequest, {"structured_outputs": {"regex": "a"}}),
    "an object for a chat": (ChatCompletionRequest, {"structured_outputs": {"regex": "a"}}),
    "parameters": (CompletionRequest, {"structured_outputs": StructuredOutputsParams(regex="a")}),
    "a tool": (ChatCompletionRequest, {"tools": [_TOOL], "tool_choice": _CALLED}),
}


@probe
def shapes_of_a_request() -> dict[str, Any]:
    """Whether the server's models and checks accept or refuse such a request, or end with an error: HTTP 500."""
    return {
        "unsound": {name: _read(*each) for name, each in _SHAPES.items()},
        "sound": {name: _read(*each) for name, each in _SOUND.items()},
        "max_tokens": CompletionRequest(prompt="a", max_tokens=None).max_tokens,
    }


@probe
def messages_at_fault() -> dict[str, Any]:
    """The status of vLLM 0.21.0's answer to a message whose parameters its engine refuses, and whether it needs one.

    The handler that refuses stands in for the one that has an engine; it describes an error by the same function.
    """
    messages = importlib.import_module("vllm.entrypoints.anthropic.api_router")
    describe = importlib.import_module("vllm.entrypoints.utils").create_error_response

    async def refuse(*_: object) -> None:
        raise VLLMValidationError("top_p must be in (0, 1], got 0.0.", parameter="top_p", value=0.0)

    handler = SimpleNamespace(create_messages=refuse, count_tokens=refuse, create_error_response=describe)
    state = SimpleNamespace(anthropic_serving_messages=handler)
    asked = SimpleNamespace(app=SimpleNamespace(state=state))
    seen: dict[str, Any] = {
        name: asyncio.run(inspect.unwrap(vars(messages)[name])(None, asked)).status_code
        for name in ("create_messages", "count_tokens")
    }
    try:
        messages.AnthropicCountTokensRequest(model="m", messages=[])
        seen["no message"] = "accepted"
    except ValueError:
        seen["no message"] = "refused"
    return seen


def _read(model: type[BaseModel], body: Any) -> str:
    needed = {"prompt": "a"} if model is CompletionRequest else {"messages": [{"role": "user", "content": "a"}]}
    try:
        read = model.model_validate({**needed, **body} if isinstance(body, dict) else body)
        read.to_sampling_params(4, {}).verify(MODEL, None, SimpleNamespace(backend="auto"), Tokenizer())
    except (VLLMValidationError, ValueError, TypeError):  # what the server answers with 400
        return "refused"
    except (AttributeError, LookupError) as error:
        return type(error).__name__
    return "accepted"


def _sent(**values: Any) -> str:
    try:
        params = SamplingParams(max_tokens=8, **values)
        params.verify(MODEL, None, SimpleNamespace(backend="auto"), TOKENIZER)
    except (VLLMValidationError, ValueError) as refusal:  # what the server answers with 400
        return str(refusal).partition(" (parameter=")[0]
    except KeyError as error:  # with 500
        return type(error).__name__
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
