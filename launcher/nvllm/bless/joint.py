"""Steps of an engine that hold requests which were chosen: a prompt that is computed while others generate.

Requests that are sent together may or may not be computed together. The parts of streamed answers tell: vLLM puts every
request that generates into each step, so a request was computed beside another if its first part came before the last
parts of the other one. Where that did not happen, the requests are sent again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from nvllm.core.canonical import Json
from nvllm.core.workload import JointStep, Request

TRIES = 5
"""How often requests are sent until they meet: an answer may end early, and a host may be slow to send the next."""

_LATER = 2
"""Parts that must follow: the last one may be on its way already when the other request is sent."""

Stream: TypeAlias = Callable[[Request, Callable[[], bool]], bool]
"""Asks a request and calls a function at each part until it returns false.

Returns whether the engine takes such a request.
"""


@dataclass(frozen=True, slots=True)
class Joined:
    """What came of a joint step: whether its requests MET in one, and how many were ANSWERED in all tries.

    Requests whose settings the engine refuses have nothing to meet for: they count as met.
    """

    met: bool
    answered: int


class _Answer:
    """An answer as its parts arrive."""

    def __init__(self) -> None:
        self.parts: list[float] = []
        """When each arrived, in seconds of the monotonic clock."""
        self.begun = threading.Event()
        """Also set when the answer ended."""

    def first(self) -> float:
        """Return when the first part arrived; never, if none did."""
        return self.parts[0] if self.parts else float("inf")

    def last(self) -> float:
        """Return the time after which as many parts followed as must."""
        return self.parts[-_LATER] if len(self.parts) > _LATER else float("-inf")


def ask(step: JointStep, stream: Stream) -> Joined:
    """Send the requests of STEP by STREAM until they met, `TRIES` times at most. What STREAM raises, this raises."""
    answered = 0
    for _ in range(TRIES):
        joined = _once(step, stream)
        answered += joined.answered
        if joined.met:
            return Joined(met=True, answered=answered)
    return Joined(met=False, answered=answered)


def _once(step: JointStep, stream: Stream) -> Joined:
    # What generates may end once the requests of STEP are answered; these go on to their own end.
    sent, never = threading.Event(), threading.Event()

    def follow(request: Request, answer: _Answer, ended: threading.Event) -> bool:
        after = 0

        def more() -> bool:
            nonlocal after
            answer.parts.append(time.monotonic())
            answer.begun.set()
            after += ended.is_set()
            return after <= _LATER

        try:
            return stream(request, more)
        finally:
            answer.begun.set()

    running, requests = [_Answer() for _ in step.running], [_Answer() for _ in step.requests]
    with ThreadPoolExecutor(len(running) + len(requests)) as pool:
        try:
            generating = [pool.submit(follow, *pair, sent) for pair in zip(step.running, running, strict=True)]
            for answer in running:
                answer.begun.wait()
            asked = [pool.submit(follow, *pair, never) for pair in zip(step.requests, requests, strict=True)]
            allowed = [future.result() for future in asked]
        finally:
            sent.set()
        allowed += [future.result() for future in generating]
    lasting = [*running, *(requests if len(requests) > 1 else ())]
    together = max(answer.first() for answer in [*running, *requests]) <= min(answer.last() for answer in lasting)
    return Joined(together or not all(allowed), sum(allowed))


def fields(request: Request) -> dict[str, Json]:
    """Return the fields of a completion that ask REQUEST."""
    asked: dict[str, Json] = {"prompt": list(request.prompt), "max_tokens": request.answer, "ignore_eos": True}
    return {**asked, **request.settings, **({} if request.adapter is None else {"model": request.adapter})}
