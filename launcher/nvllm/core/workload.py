"""Requests that make an engine launch its kernels in every way that a user's requests may.

Triton compiles a kernel anew for an integer argument that is 1, for one that 16 divides, and for any other one. Such
arguments are the length of a prompt, the number of requests and tokens in a step, and what is computed from them. So
a round of requests has prompts of every such length up to the longest, batches of every size that has a CUDA graph,
prompts that are computed in several steps, prompts that begin as an earlier one did, and each sampling setting. Further
rounds differ in lengths that are drawn at random, always the same ones for the same number.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nvllm.core.canonical import Json

DIVISOR = 16
"""An integer that this divides has a variant of its own in Triton."""

_SEQUENCES = 256
"""Requests that vLLM runs at once on most GPUs, if nobody says how many."""

_DRAWN = 8
"""Lengths, and batches, that each round draws at random."""

SETTINGS: tuple[Mapping[str, Json], ...] = (
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 5},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 1},
    {"temperature": 0.8, "min_p": 0.05},
    {"temperature": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 0, "prompt_logprobs": 2},
    {"temperature": 0, "logit_bias": {"7": 1.0}},
    {"temperature": 0.8, "n": 2},
    {},
)
"""Sampling settings; each has code of its own in vLLM. The last ones are the engine's own."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an engine takes: LONGEST is the most tokens of a prompt and its answer, BATCH the most requests at once.

    CHUNK is the most tokens of a prompt in one step, if it is known; GRAPHS are the batches that have a CUDA graph.
    """

    longest: int
    batch: int
    chunk: int | None
    graphs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A request for ANSWER tokens after the tokens PROMPT, with the sampling SETTINGS, by the names of vLLM's API."""

    prompt: tuple[int, ...]
    answer: int
    settings: Mapping[str, Json]


Step: TypeAlias = tuple[Request, ...]
"""Requests that are sent at the same time. The next step begins when all of them are answered."""


def bounds(arguments: Mapping[str, bool | int | float | str], longest: int) -> Bounds:
    """Return the bounds of an engine with the ARGUMENTS of a profile, which says itself how LONG requests may be."""
    batch = int(arguments.get("max-num-seqs", _SEQUENCES))
    chunk = arguments.get("max-num-batched-tokens")
    named = arguments.get("compilation-config.cudagraph_capture_sizes")
    graphs = json.loads(str(named)) if named is not None else [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    return Bounds(longest, batch, int(chunk) if chunk is not None else None, tuple(sorted(map(int, graphs))))


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
    return tuple(sorted(one for one in near if 1 <= one <= longest))


def batches(of: Bounds) -> tuple[int, ...]:
    """Return the numbers of requests at once that every round has: 1, the most, each CUDA graph, and one more."""
    edges = [1, of.batch, *of.graphs]
    return tuple(sorted({one for edge in edges for one in (edge, edge + 1) if one <= of.batch}))


def steps(of: Bounds, number: int) -> tuple[Step, ...]:
    """Return the steps of the round NUMBER for an engine with the bounds OF. The same arguments give the same steps."""
    drawn = random.Random(number)  # noqa: S311 - which lengths is no secret
    longest = max(1, of.longest - 1)
    made = _Prompts(of, number)
    short = min(longest, 4 * DIVISOR)
    found: list[Step] = [(made.request(length),) for length in lengths(of)]
    found += [(made.request(_drawn(drawn, longest)),) for _ in range(_DRAWN)]
    found += [tuple(made.request(drawn.randint(1, short)) for _ in range(count)) for count in batches(of)]
    for _ in range(_DRAWN):
        count = drawn.randint(1, min(of.batch, _DRAWN))
        found.append(tuple(made.request(_drawn(drawn, longest)) for _ in range(count)))
    # A long prompt in several steps while others generate.
    found.append(tuple(made.request(length) for length in (1, short, longest)[: of.batch]))
    found += made.repeated(longest)
    alone = [made.request(short, settings) for settings in SETTINGS]
    return (*found, *((one,) for one in alone), *_groups(alone, of.batch))


def _drawn(drawn: random.Random, longest: int) -> int:
    """Draw a length from 1 to LONGEST, each power of 2 as likely as the next: long prompts take most of the time."""
    return min(longest, int(2 ** drawn.uniform(0, math.log2(longest + 1))))


def _groups(requests: Iterable[Request], size: int) -> list[Step]:
    every = list(requests)
    return [tuple(every[start : start + size]) for start in range(0, len(every), size)]


class _Prompts:
    """Makes the requests of the round NUMBER, each with a prompt that no other request begins with."""

    def __init__(self, of: Bounds, number: int) -> None:
        self._of = of
        self._salts = iter(range(number * 100_000 + 1, (number + 1) * 100_000))

    def request(self, length: int, settings: Mapping[str, Json] = SETTINGS[0]) -> Request:
        return self._asked(_tokens(next(self._salts), length), settings)

    def repeated(self, longest: int) -> list[Step]:
        """Return steps whose prompts begin as an earlier one did: the same, a part of it, and more than it."""
        whole = _tokens(next(self._salts), longest)
        part = max(1, longest * 3 // 4)
        other = _tokens(next(self._salts), longest)
        prompts = (whole[:part], whole[:part], whole[: part // 2 + 1], whole, whole[:part] + other[part:])
        return [(self._asked(prompt, SETTINGS[0]),) for prompt in prompts]

    def _asked(self, prompt: tuple[int, ...], settings: Mapping[str, Json]) -> Request:
        return Request(prompt, min(DIVISOR + 1, max(1, self._of.longest - len(prompt))), settings)


def _tokens(salt: int, length: int) -> tuple[int, ...]:
    """Return LENGTH tokens that every vocabulary has; those of another SALT begin otherwise."""
    first = (salt % 181, salt // 181 % 181, salt // 181**2 % 181)
    return tuple(10 + (first[place] if place < len(first) else (salt + place * place) % 181) for place in range(length))
