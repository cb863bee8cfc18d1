"""Probes of grammars: which back end compiles one, and how a request ends whose grammar fails, ends or refuses."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import small_models  # noqa: F401 - where tiny_models lies
import tiny_models
from transformers import PreTrainedTokenizerFast
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder
from vllm.v1.structured_output import StructuredOutputManager, backend_outlines
from world import CONFIG, accepted, hybrid, probe, request, scheduler

VOCABULARY, NARROW = 320, 256
END, OTHER = 0, 300
"""The tiny model's end token, and one that no grammar here allows."""

XGRAMMAR = {"regex": "(yes|no)"}
GUIDANCE = {"regex": "(?i:yes)|no"}  # xgrammar knows no flags
OUTLINES = {"$defs": {"a": {"type": "object", "patternProperties": {"a": {}}}}}  # the others know no patternProperties
NO = {"json": {"enum": ["no"], **OUTLINES}}
NUMBER = {"json": {"type": "integer", **OUTLINES}}
BROKEN = {"regex": "((((("}


# It pins its masks for a GPU, which is not here: the name of 0.28.0, and that of 0.21.0.
vars(backend_outlines).update(PIN_MEMORY=False, is_pin_memory_available=lambda: False)


def tokenizer() -> PreTrainedTokenizerFast:
    directory = Path(tempfile.mkdtemp())
    tiny_models.write(tiny_models.lfm2(), directory)
    return PreTrainedTokenizerFast.from_pretrained(directory)


TOKENIZER = tokenizer()
MODEL = SimpleNamespace(
    get_vocab_size=lambda: VOCABULARY, max_logprobs=20, max_model_len=128, logits_processors=None, is_diffusion=False
)


def manager(vocabulary: int = VOCABULARY) -> StructuredOutputManager:
    """vLLM's manager, with the tiny model's tokenizer, for a model of that VOCABULARY."""
    made = StructuredOutputManager(CONFIG)
    made.tokenizer = TOKENIZER
    made.executor = ThreadPoolExecutor(1)
    made.vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(
            get_vocab_size=lambda: vocabulary,
            hf_config=SimpleNamespace(model_type="lfm2"),
            is_diffusion=False,
            skip_tokenizer_init=False,
        ),
        scheduler_config=CONFIG.scheduler_config,
        structured_outputs_config=CONFIG.structured_outputs_config,
        speculative_config=None,
        num_speculative_tokens=0,
    )
    return made


def constrained(name: str, outputs: dict[str, Any], backend: str | None = None, **values: Any) -> Request:
    """A request with such structured outputs, for the BACKEND, or for that which vLLM's checks choose."""
    params = SamplingParams(max_tokens=8, structured_outputs=StructuredOutputsParams(**outputs), **values)
    params.update_from_generation_config({}, END)
    if backend is None:
        params.verify(MODEL, None, SimpleNamespace(backend="auto"), TOKENIZER)
    else:
        params.structured_outputs._backend = backend
    return Request(
        **accepted(
            Request.__init__,
            request_id=name,
            prompt_token_ids=[80, 81],
            sampling_params=params,
            pooling_params=None,
            eos_token_id=END,
            block_hasher=request("none", 1)._block_hasher,
        )
    )


def compiled(requests: StructuredOutputManager, constrained_request: Request) -> str:
    """Return the class of the request's grammar, or of the error that its compilation ended with."""
    try:
        requests.grammar_init(constrained_request)
    except VLLMValidationError as error:  # of 0.33.0, for another back end than the engine's first
        return type(error).__name__
    grammar = constrained_request.structured_output_request._grammar
    if isinstance(grammar, Future):
        wait([grammar])
        grammar = grammar.exception() or grammar.result()
    return type(grammar).__name__


@probe
def backends_of_grammars() -> dict[str, Any]:
    """What compiles the grammars of requests that vLLM's checks give to different back ends, in one engine."""
    orders = {"xgrammar first": (XGRAMMAR, GUIDANCE), "guidance first": (GUIDANCE, XGRAMMAR)}
    seen: dict[str, Any] = {}
    for name, order in orders.items():
        requests = manager()
        seen[name] = [compiled(requests, constrained(str(number), each)) for number, each in enumerate(order)]
        requests.clear_backend()
    requests = manager(NARROW)  # a tokenizer of more tokens than the model has
    outputs = (GUIDANCE, {"regex": "no"})
    seen["of another width"] = [
        compiled(requests, constrained(str(number), each)) for number, each in enumerate(outputs)
    ]
    requests.clear_backend()
    return seen


@probe
def masks_of_two_backends() -> dict[str, list[str]]:
    """The first tokens that each of two grammars allows, masked in one batch."""
    requests = manager()
    both = {name: constrained(name, each) for name, each in (("xgrammar", XGRAMMAR), ("guidance", GUIDANCE))}
    for each in both.values():
        compiled(requests, each)
    mask = requests.grammar_bitmask(both, list(both), {})
    return {name: [TOKENIZER.decode([token]) for token in allowed(row)] for name, row in zip(both, mask, strict=True)}


def allowed(row: Any) -> list[int]:
    bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")
    return [int(token) for token in bits.nonzero()[0] if token < VOCABULARY]


class Engine:
    """vLLM's scheduler and manager; what samples stands in: the first token that is left, or OTHER if none is."""

    def __init__(self) -> None:
        self.scheduler: Scheduler = scheduler(hybrid())
        self.manager = self.scheduler.structured_output_manager = manager()

    def add(self, constrained_request: Request) -> str:
        name = compiled(self.manager, constrained_request)
        self.scheduler.add_request(constrained_request)
        return name

    def step(self, sample: Callable[[Request, list[int]], int]) -> list[Any]:
        """Return the outputs of one step."""
        planned = self.scheduler.schedule()
        ids = list(planned.num_scheduled_tokens)
        output = self.scheduler.get_grammar_bitmask(planned)
        rows = (
            {}
            if output is None
            else dict(zip(output.structured_output_request_ids, output.grammar_bitmask, strict=True))
        )
        tokens = [
            [sample(self.scheduler.requests[name], allowed(rows[name]) if name in rows else list(range(VOCABULARY)))]
            for name in ids
        ]
        result = ModelRunnerOutput(
            **accepted(
                ModelRunnerOutput,
                req_ids=ids,
                req_id_to_index={name: index for index, name in enumerate(ids)},
                sampled_token_ids=tokens,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            )
        )
        outputs = self.scheduler.update_from_output(planned, result)
        return [each for of_client in outputs.values() for each in of_client.outputs]

    def idle(self) -> bool:
        """Whether the scheduler holds no request any more."""
        waiting = [*self.scheduler.waiting, *self.scheduler.skipped_waiting]
        return not (waiting or self.scheduler.running or self.scheduler.requests)


def first(asked: Request, left: list[int]) -> int:
    """The first token that the grammar and the sampling parameters leave, as vLLM's logits processors do."""
    params = asked.sampling_params
    excluded = {END} if asked.num_output_tokens < params.min_tokens else set()
    if params.allowed_token_ids:
        excluded |= set(range(VOCABULARY)) - set(params.allowed_token_ids)
    return next((token for token in left if token not in excluded), OTHER)


def last(asked: Request, left: list[int]) -> int:
    """The last token that the grammar leaves."""
    return left[-1]


@probe
def ends_of_grammars() -> dict[str, list[Any]]:
    """The text and the finish reason of requests whose grammar comes to an end, or lets no token through."""
    cases: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Request, list[int]], int]]] = {
        "plain": (XGRAMMAR, {}, first),
        "ignore_eos": (XGRAMMAR, {"ignore_eos": True}, first),
        "ignore_eos, guidance": (GUIDANCE, {"ignore_eos": True}, first),
        "min_tokens": (XGRAMMAR, {"min_tokens": 6}, first),
        "allowed_token_ids": (XGRAMMAR, {"allowed_token_ids": [10]}, first),
        "a sampler that errs": (XGRAMMAR, {}, lambda *_: OTHER),
        "outlines": (NO, {}, first),
        "outlines, ignore_eos": (NO, {"ignore_eos": True}, first),
        "outlines, min_tokens": (NO, {"min_tokens": 7}, first),
        "outlines, beyond its first end": (NUMBER, {}, last),
    }
    return {name: _end(*case) for name, case in cases.items()}


def _end(outputs: dict[str, Any], values: dict[str, Any], sample: Callable[[Request, list[int]], int]) -> list[Any]:
    engine, tokens = Engine(), []
    engine.add(constrained("a", outputs, **values))
    for _ in range(10):
        for output in engine.step(sample):
            tokens += output.new_token_ids
            if output.finish_reason is not None:
                return [TOKENIZER.decode([token for token in tokens if token != END]), str(output.finish_reason)]
    return [TOKENIZER.decode(tokens), "none"]


@probe
def end_of_outlines_taken_back() -> dict[str, list[Any]]:
    """Whether a grammar takes its end, and is over then; and the same after its last two tokens were taken back."""
    requests, asked = manager(), constrained("a", NO)
    requests.vllm_config.speculative_config = SimpleNamespace(num_speculative_tokens=2)
    compiled(requests, asked)
    grammar = asked.structured_output_request.grammar
    tokens = [*TOKENIZER.encode('"no"', add_special_tokens=False), END]
    before = [grammar.accept_tokens("a", tokens), grammar.is_terminated()]
    grammar.rollback(2)
    between = [grammar.accept_tokens("a", tokens[-1:]), grammar.is_terminated()]
    return {
        "at first": before,
        "too early": between,
        "again": [grammar.accept_tokens("a", tokens[-2:]), grammar.is_terminated()],
        "after it": [grammar.accept_tokens("a", tokens[-1:]), grammar.is_terminated()],
    }


@probe
def grammars_that_fail() -> dict[str, Any]:
    """What becomes of a request whose grammar its compiler refuses, of the engine, and of the next request."""
    seen: dict[str, Any] = {}
    for name in ("in a thread", "at once"):
        engine = Engine()
        engine.manager._use_async_grammar_compilation = name == "in a thread"
        seen[name] = _answers(engine, abort=False)
    seen["aborted meanwhile"] = _answers(Engine(), abort=True)
    return seen


@probe
def grammar_that_fails_late() -> str:
    """What a request has for a grammar whose compilation fails between two looks of the scheduler at it."""
    asked, compiling = constrained("a", BROKEN, "xgrammar").structured_output_request, Future[Any]()
    asked.grammar = compiling
    first_look = asked.grammar
    compiling.set_exception(RuntimeError("no grammar"))
    try:
        second_look = asked.grammar
    except RuntimeError as error:
        return type(error).__name__
    return f"{first_look}, then {second_look}"


FRUITLESS = {
    "not compiled": (BROKEN, "xgrammar"),
    "allows nothing": ({"grammar": "root ::= root"}, None),
    "comes to nothing": ({"grammar": 'root ::= "a" x\nx ::= x'}, None),
}


@probe
def what_a_client_is_told() -> dict[str, str]:
    """The error that the server gets for a request whose grammar cannot be followed, or how the request ends."""
    seen = {}
    for name, (outputs, backend) in FRUITLESS.items():
        asked = constrained("a", outputs, backend)
        engine, queue = Engine(), RequestOutputCollector(RequestOutputKind.FINAL_ONLY, "a")
        processor = OutputProcessor(TOKENIZER, log_stats=False)
        processor.add_request(_of_server(asked), "a prompt", None, 0, queue)
        try:
            engine.add(asked)
            for _ in range(10):
                sent = MsgpackEncoder().encode(EngineCoreOutputs(outputs=engine.step(first)))
                processor.process_outputs(MsgpackDecoder(EngineCoreOutputs).decode(sent).outputs)
            answer = queue.get_nowait()
            seen[name] = f"{answer.outputs[0].finish_reason}, {len(processor.request_states)} left"
        except VLLMValidationError as error:
            seen[name] = f"{error}, {len(processor.request_states)} left"
        except RuntimeError as error:  # of the engine's step
            seen[name] = type(error).__name__
    return seen


def _of_server(asked: Request) -> EngineCoreRequest:
    """ASKED, as the server keeps it."""
    asked.sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
    return EngineCoreRequest(
        **accepted(
            EngineCoreRequest,
            request_id=asked.request_id,
            external_req_id=asked.request_id,
            prompt_token_ids=asked.prompt_token_ids,
            mm_features=None,
            sampling_params=asked.sampling_params,
            pooling_params=None,
            eos_token_id=END,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
    )


def _answers(engine: Engine, *, abort: bool) -> list[Any]:
    """Return the finish reasons of a broken request and of the next, or the error that ended the engine's step."""
    try:
        engine.add(constrained("broken", BROKEN, "xgrammar"))
        if abort:
            engine.scheduler.schedule()
            engine.scheduler.finish_requests("broken", RequestStatus.FINISHED_ABORTED)
        reasons = [str(output.finish_reason) for output in engine.step(first)]
        engine.add(constrained("sound", XGRAMMAR))
        for _ in range(8):
            reasons += [str(output.finish_reason) for output in engine.step(first) if output.finish_reason is not None]
    except RuntimeError as error:
        return [type(error).__name__]
    return [*reasons, engine.idle()]
