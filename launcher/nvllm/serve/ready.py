"""Ready means: one real generation came back, at the settings that are served.

``/health`` answers 200 over engines that die at their first request, or that hang for ever.

The HTTP client is imported when it is first asked, after the container was started: a start need not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from nvllm.core.plan import LaunchPlan

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True)
class Generation:
    """What the probe generated: TOKENS of them, after SECONDS."""

    text: str
    tokens: int
    seconds: float


class NotReady(Exception):  # noqa: N818 - an answer, not an error of the program
    """The engine did not answer, or not with a generation. FINAL: it will not come by waiting."""

    def __init__(self, found: str, *, final: bool) -> None:
        super().__init__(found)
        self.found = found
        self.final = final


def client(timeout: float) -> httpx2.Client:
    """Return a client for plain HTTP on loopback: it loads no certificates, which takes longer than the question."""
    import httpx2

    return httpx2.Client(timeout=timeout, trust_env=False, verify=False)


def healthy(port: int) -> bool:
    """Say whether the engine's own health page answers on 127.0.0.1:PORT."""
    import httpx2

    try:
        with client(5) as asking:
            return asking.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx2.HTTPError:
        return False


AS_SERVED: Mapping[str, float] = MappingProxyType({})
"""No sampling setting is sent, so the ones that are served are used."""

GREEDY: Mapping[str, float] = MappingProxyType({"temperature": 0})
"""The likeliest token each time, so that a sound engine gives one prompt one answer."""


def generate(plan: LaunchPlan, timeout: float, sampling: Mapping[str, float] = AS_SERVED) -> Generation:
    """Ask the engine of PLAN for the probe's generation with SAMPLING, waiting at most TIMEOUT seconds.

    The whole number of tokens is asked for, so that an engine that ends at once is noticed. Raises NotReady.
    """
    import httpx2

    question = {
        "model": plan.model.name,
        "prompt": plan.probe.prompt,
        "max_tokens": plan.probe.max_tokens,
        "ignore_eos": True,
        **sampling,
    }
    try:
        url = f"http://127.0.0.1:{plan.port}/v1/completions"
        with client(timeout) as asking:
            answer = asking.post(url, json=question)
    except httpx2.TimeoutException as error:
        raise NotReady(f"no generation within {timeout:.0f} s", final=True) from error
    except httpx2.HTTPError as error:
        raise NotReady(str(error), final=False) from error
    if answer.status_code != 200:
        raise NotReady(f"HTTP {answer.status_code}: {answer.text[:200]}", final=True)
    try:
        body = answer.json()
        text, tokens = str(body["choices"][0]["text"]), int(body["usage"]["completion_tokens"])
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError) as error:
        raise NotReady(f"no completion: {answer.text[:200]}", final=True) from error
    if tokens != plan.probe.max_tokens:
        raise NotReady(f"{tokens} tokens of {plan.probe.max_tokens}", final=True)
    return Generation(text, tokens, answer.elapsed.total_seconds())
