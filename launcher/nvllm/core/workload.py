"""Requests that make an engine compile all that a user's requests may need: on a GPU kernels, anywhere small functions.

Triton compiles a kernel anew for an integer argument that is 1, for one that 16 divides, and for any other one. Such
arguments are the length of a prompt, the number of requests and tokens in a step, and what is computed from them. So
a round of requests has prompts of every such length up to the longest, batches of every size that has a CUDA graph,
prompts that are computed in several steps, prompts that begin as an earlier one did, and each sampling setting. Further
rounds differ in lengths that are drawn at random, always the same ones for the same number.

Other arguments depend on what else is in the step: a prompt that is computed while others generate finds its states
behind theirs, at an address that 16 may not divide, and a grammar's mask has a row for each request that has a grammar.
Requests that are sent together need not be computed together, so `joint_steps` says which ones must be.

An adapter has kernels of its own, which depend on the number of tokens and of requests in the step that are adapted.
All adapters of an engine share them, for vLLM pads each to the engine's ``max-lora-rank``.

On the CPU no length matters, because there is no Triton. But vLLM compiles some functions of its sampler at the first
request that needs them, such as one with ``logprobs``. So a round there has each sampling setting, and nothing else.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from nvllm.core.canonical import Json

DIVISOR = 16
"""An integer that this divides has a variant of its own in Triton."""

_SEQUENCES = 256
"""Requests that vLLM runs at once on most GPUs, if nobody says how many."""

_DRAWN = 8
"""Lengths, and batches, that each round draws at random."""

_LONG = 90
"""Characters of an answer that a grammar asks for: so long that it is still generated when the last request is sent."""

_LONG_JSON: Json = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": _LONG}},
    "required": ["a"],
    "additionalProperties": False,
}

SETTINGS: tuple[Mapping[str, Json], ...] = (
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 5},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 1},
    {"temperature": 0.8, "min_p": 0.05},
    {"temperature": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 0.8, "logprobs": 2},
    {"temperature": 0, "prompt_logprobs": 2},
    {"temperature": 0, "echo": True, "logprobs": 0},
    {"temperature": 0, "logit_bias": {"7": 1.0}},
    {"temperature": 0, "allowed_token_ids": [10, 11, 12]},
    {"temperature": 0, "bad_words": ["a", "the"]},
    {"temperature": 0, "min_tokens": 2, "stop": ["zz"]},
    # Whoever ignores the end of an answer goes on where its grammar allows nothing more, and vLLM 0.28.0 answers 500.
    {"ignore_eos": False, "structured_outputs": {"json": _LONG_JSON}},
    {"ignore_eos": False, "structured_outputs": {"json_object": True}},
    {"ignore_eos": False, "structured_outputs": {"regex": f"[a-z]{{{_LONG}}}"}},
    {"ignore_eos": False, "structured_outputs": {"choice": ["yes" * _LONG, "no" * _LONG]}},
    {"ignore_eos": False, "structured_outputs": {"grammar": f"root ::= {'[ab] ' * _LONG}"}, "logprobs": 2},
    {"temperature": 0.8, "n": 2},
    {"temperature": 0.8, "n": 2, "logprobs": 2, "seed": 1},
    {},
)
"""Sampling settings; each has code of its own in vLLM. The last ones are the engine's own."""

UNSTREAMED = "prompt_logprobs"
"""The setting that vLLM refuses for an answer that is streamed."""

_GENERATING = 256
"""Most tokens of an answer that goes on while others are computed; whoever asks hangs up when they are."""

_LEAST = 16
"""Tokens that an engine must take for answers to last long enough to meet."""

_BESIDE = (1, 2, 3, 4, 8, 15, 16, 17)
"""Requests that generate beside a prompt: around those whose addresses or number 16 divides, at four bytes each."""

_CROWD = 32
"""Most requests that are made to meet in a step; more of them end before the last one is sent."""

_FEW = 3
"""Tokens of an answer where only the sampling settings matter: the first one is sampled otherwise than the next."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an engine takes: LONGEST is the most tokens of a prompt and its answer, BATCH the most requests at once.

    CHUNK is the most tokens of a prompt in one step, if it is known; GRAPHS are the batches that have a CUDA graph.
    ADAPTERS are the names by which requests ask for one.
    """

    longest: int
    batch: int
    chunk: int | None
    graphs: tuple[int, ...]
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A request for ANSWER tokens after the tokens PROMPT, with the sampling SETTINGS, by the names of vLLM's API.

    It is answered with ADAPTER, if one is named.
    """

    prompt: tuple[int, ...]
    answer: int
    settings: Mapping[str, Json]
    adapter: str | None = None


Step: TypeAlias = tuple[Request, ...]
"""Requests that are sent at the same time. The next step begins when all of them are answered."""


@dataclass(frozen=True, slots=True)
class JointStep:
    """Requests that one step of the engine must hold: RUNNING generate already when REQUESTS are sent.

    NAME tells a person which step it is.
    """

    name: str
    running: tuple[Request, ...]
    requests: tuple[Request, ...]


def bounds(arguments: Mapping[str, bool | int | float | str], longest: int, adapters: tuple[str, ...] = ()) -> Bounds:
    """Return the bounds of an engine with the ARGUMENTS and ADAPTERS of a profile, whose LONGEST request it states."""
    batch = int(arguments.get("max-num-seqs", _SEQUENCES))
    chunk = arguments.get("max-num-batched-tokens")
    named = arguments.get("compilation-config.cudagraph_capture_sizes")
    # Where none are named, the sizes that vLLM captures by itself.
    graphs = json.loads(str(named)) if named is not None else [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    return Bounds(longest, batch, int(chunk) if chunk is not None else None, tuple(sorted(map(int, graphs))), adapters)


def lengths(of: Bounds) -> tuple[int, ...]:
    """Return the lengths of prompts that every round has: around each power of 2, each chunk, and the longest."""
    longest = max(1, of.longest - 1)  # one token must be generated
    around = [1, longest]
    power = 2
    while power <= longest:
        around.append(power)
        power *= 2
    if of.chunk is not None:
        around += [of.chunk, 2 * of.chunk]
    near = {edge + step for edge in around for step in (-1, 0, 1)}
    near |= {edge // DIVISOR * DIVISOR for edge in around}
    return tuple(sorted(length for length in near if 1 <= length <= longest))


def batches(of: Bounds) -> tuple[int, ...]:
    """Return the numbers of requests at once that every round has: 1, the most, each CUDA graph, and one more."""
    edges = [1, of.batch, *of.graphs]
    return tuple(sorted({number for edge in edges for number in (edge, edge + 1) if number <= of.batch}))


def steps(of: Bounds, number: int) -> tuple[Step, ...]:
    """Return the steps of the round NUMBER for an engine with the bounds OF. The same arguments give the same steps."""
    drawn = random.Random(number)  # noqa: S311 - which lengths is no secret
    longest = max(1, of.longest - 1)
    made = _Prompts(of, number)
    short = min(longest, 4 * DIVISOR)
    sequence: list[Step] = [(made.request(length),) for length in lengths(of)]
    sequence += [(made.request(_drawn(drawn, longest)),) for _ in range(_DRAWN)]
    sequence += [tuple(made.request(drawn.randint(1, short)) for _ in range(count)) for count in batches(of)]
    for _ in range(_DRAWN):
        count = drawn.randint(1, min(of.batch, _DRAWN))
        sequence.append(tuple(made.request(_drawn(drawn, longest)) for _ in range(count)))
    # A long prompt in several steps while others generate.
    sequence.append(tuple(made.request(length) for length in (1, short, longest)[: of.batch]))
    sequence += made.repeated(longest)
    return (*sequence, *_adapted(made, of, short), *_sampling(made, short, of.batch))


def joint_steps(of: Bounds, number: int) -> tuple[JointStep, ...]:
    """Return what must meet in a step in the round NUMBER for an engine with the bounds OF; the same ones each time.

    The first round has each of the `SETTINGS` on 1, 2, 16 and 32 requests, or as many as the engine takes, alone and
    beside a plain one.
    """
    if of.batch == 1 or of.longest < _LEAST:
        return ()
    drawn = random.Random(number)  # noqa: S311 - which lengths is no secret
    made = _Prompts(of, _JOINT + number)
    longest = of.longest - 1
    short = min(longest, 4 * DIVISOR)
    most = of.batch - 1
    counts = sorted({*(count for count in _BESIDE if count <= most), min(most, _CROWD)})
    sequence = [_prefill(made, (length,), 1) for length in lengths(of)]
    sequence += [_prefill(made, (length,), count) for count in counts if count > 1 for length in (1, short)]
    for _ in range(_DRAWN):
        beside = drawn.randint(1, min(most, _DRAWN))
        prompts = drawn.randint(1, min(of.batch - beside, 2))
        sequence.append(_prefill(made, tuple(_drawn(drawn, longest) for _ in range(prompts)), beside))
    for name in of.adapters:
        sequence += [_adapted_prefill(made, length, name) for length in lengths(of)]
    return (*sequence, *(_joint_sampling(made, of.batch) if number == 0 else ()))


_JOINT = 50
"""The round whose prompts the joint steps of the first round have: rounds before it end long before."""


def _prefill(made: _Prompts, prompts: tuple[int, ...], count: int) -> JointStep:
    """Return the step in which prompts of so many tokens are computed while COUNT requests generate."""
    name = f"prompts of {', '.join(map(str, prompts))} tokens beside {count} that generate"
    return JointStep(name, made.generating(count), tuple(made.request(length) for length in prompts))


def _adapted(made: _Prompts, of: Bounds, short: int) -> list[Step]:
    """Return a prompt of every length for each adapter, and batches that the model and its adapters answer in turn."""
    if not of.adapters:
        return []
    alone = [(replace(made.request(length), adapter=name),) for name in of.adapters for length in lengths(of)]
    names = (*of.adapters, None)
    turns = [zip(range(count), itertools.cycle(names), strict=False) for count in batches(of)]
    return [*alone, *(tuple(replace(made.request(short), adapter=name) for _, name in turn) for turn in turns)]


def _adapted_prefill(made: _Prompts, length: int, adapter: str) -> JointStep:
    """Return the step in which a prompt of LENGTH tokens is computed for ADAPTER while the model generates without."""
    step = _prefill(made, (length,), 1)
    (request,) = step.requests
    return replace(step, name=f"{step.name}, for {adapter}", requests=(replace(request, adapter=adapter),))


def _joint_sampling(made: _Prompts, batch: int) -> list[JointStep]:
    """Return each of the `SETTINGS` on several requests at once, alone and beside one that has none."""
    sequence = []
    for settings in SETTINGS:
        if UNSTREAMED in settings:
            continue
        answers = int(str(settings.get("n", 1)))
        for count, beside in itertools.product(sorted({1, 2, DIVISOR, min(batch, _CROWD)}), (0, 1)):
            if count * answers + beside <= batch and count + beside > 1:
                name = f"{count} requests with {json.dumps(settings, sort_keys=True)} beside {beside} without"
                requests = made.lasting(count, settings)
                sequence.append(JointStep(name, made.generating(beside), requests))
    return sequence


def sampling_steps(of: Bounds, number: int) -> tuple[Step, ...]:
    """Return the steps of the round NUMBER for an engine on the CPU with the bounds OF; the same ones each time."""
    made, length = _Prompts(of, number, _FEW), min(of.longest - 1, 2 * _FEW)
    adapted = tuple((replace(made.request(length), adapter=name),) for name in of.adapters)
    return (*adapted, *_sampling(made, length, of.batch))


def _sampling(made: _Prompts, length: int, batch: int) -> tuple[Step, ...]:
    """Return each of the `SETTINGS` alone, and all of them with as many others as BATCH allows."""
    alone = [made.request(max(1, length), settings) for settings in SETTINGS]
    return (*((request,) for request in alone), *_groups(alone, batch))


def _drawn(drawn: random.Random, longest: int) -> int:
    """Draw a length from 1 to LONGEST, each power of 2 as likely as the next: long prompts take most of the time."""
    return min(longest, int(2 ** drawn.uniform(0, math.log2(longest + 1))))


def _groups(requests: Iterable[Request], size: int) -> list[Step]:
    every = list(requests)
    return [tuple(every[start : start + size]) for start in range(0, len(every), size)]


class _Prompts:
    """Makes the requests of the round NUMBER, each with a prompt that no other request begins with.

    Each is for ANSWER tokens, or as many as fit.
    """

    def __init__(self, of: Bounds, number: int, answer: int = DIVISOR + 1) -> None:
        self._of = of
        self._answer = answer
        self._salts = iter(range(number * 100_000 + 1, (number + 1) * 100_000))

    def request(self, length: int, settings: Mapping[str, Json] = SETTINGS[0]) -> Request:
        return self._asked(_tokens(next(self._salts), length), settings)

    def generating(self, count: int) -> tuple[Request, ...]:
        """Return COUNT requests that generate for as long as they can."""
        prompts = [_tokens(next(self._salts), 1 + at % 2) for at in range(count)]
        return tuple(
            Request(prompt, min(_GENERATING, self._of.longest - len(prompt)), SETTINGS[0]) for prompt in prompts
        )

    def lasting(self, count: int, settings: Mapping[str, Json]) -> tuple[Request, ...]:
        """Return COUNT requests with SETTINGS, the longer the more there are: the first waits for the last one."""
        answer = min(self._answer + 2 * count, self._of.longest - _FEW)
        return tuple(Request(_tokens(next(self._salts), _FEW), answer, settings) for _ in range(count))

    def repeated(self, longest: int) -> list[Step]:
        """Return steps whose prompts begin as an earlier one did: the same, a part of it, and more than it."""
        whole = _tokens(next(self._salts), longest)
        part = max(1, longest * 3 // 4)
        other = _tokens(next(self._salts), longest)
        prompts = (whole[:part], whole[:part], whole[: part // 2 + 1], whole, whole[:part] + other[part:])
        return [(self._asked(prompt, SETTINGS[0]),) for prompt in prompts]

    def _asked(self, prompt: tuple[int, ...], settings: Mapping[str, Json]) -> Request:
        return Request(prompt, min(self._answer, max(1, self._of.longest - len(prompt))), settings)


def _tokens(salt: int, length: int) -> tuple[int, ...]:
    """Return LENGTH tokens that every vocabulary has; those of another SALT begin otherwise."""
    first = (salt % 181, salt // 181 % 181, salt // 181**2 % 181)
    return tuple(10 + (first[place] if place < len(first) else (salt + place * place) % 181) for place in range(length))
