"""Liveness: whether an engine that has requests gets on with them.

``/health`` answers 200 over an engine that will never generate another token. What tells is that work moves: by
vLLM's own metrics, requests are running, and for a long time no token was generated, no prompt was finished, and
not one block of the key-value cache was filled or freed. The last of these moves at every step of a long prompt.

The metrics are what the engine's core said at its last step. So a core that stops in the middle of its work is
seen; one that stops at the first step after it was idle is not, because it never said that a request runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import httpx2

from nvllm.serve import ready

EVERY = 15.0
"""Seconds between two looks."""

_TIMEOUT = 5.0
_LONGEST = 2 * EVERY
"""Seconds that one look stands for at most: a supervisor that was itself stopped saw nothing meanwhile."""

_RUNNING = "vllm:num_requests_running"
_MOVES = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc")
_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? ([0-9.eE+-]+)$", re.MULTILINE)
_ENGINE = re.compile(r'\bengine="(\d+)"')


@dataclass(frozen=True, slots=True)
class Vitals:
    """What an engine says at one moment: requests RUNNING, and the figures of which one has MOVED if work does."""

    running: float
    moved: tuple[float, ...]


Look: TypeAlias = Mapping[str, Vitals]
"""The vitals of each engine behind one front end, by its number."""


def parse(text: str) -> Look:
    """Return what TEXT, metrics as Prometheus reads them, says of each engine; nothing if it says nothing."""
    figures: dict[str, dict[str, float]] = {}
    for name, labels, value in _SAMPLE.findall(text):
        number = _ENGINE.search(labels)
        engine = figures.setdefault(number[1] if number is not None else "", {})
        try:
            engine[name] = engine.get(name, 0.0) + float(value)
        except ValueError:
            return {}
    return {
        number: Vitals(said[_RUNNING], tuple(said.get(name, 0.0) for name in _MOVES))
        for number, said in figures.items()
        if _RUNNING in said
    }


def read(port: int) -> Look:
    """Return the vitals of the engines on 127.0.0.1:PORT, nothing of one that does not say them."""
    try:
        with ready.client(_TIMEOUT) as client:
            answer = client.get(f"http://127.0.0.1:{port}/metrics")
    except httpx2.HTTPError:
        return {}
    return parse(answer.text) if answer.status_code == 200 else {}


class Pulse:
    """The looks at one front end, one after the other."""

    def __init__(self) -> None:
        self._last: Look = {}
        self._when = 0.0
        self._stuck: dict[str, float] = {}

    @property
    def stuck(self) -> float:
        """Seconds for which requests ran, and nothing moved, in the engine that is worst off."""
        return max(self._stuck.values(), default=0.0)

    def beat(self, when: float, look: Look) -> None:
        """Take in what a LOOK at WHEN (seconds of a clock that never steps) found.

        An engine that does not answer is not known to be stuck, nor to be well: such a look counts for nothing.
        """
        passed, self._when = min(when - self._when, _LONGEST), when
        for number, vitals in look.items():
            still = vitals.running > 0 and vitals == self._last.get(number)
            self._stuck[number] = self._stuck.get(number, 0.0) + passed if still else 0.0
        self._last = {**self._last, **look}
