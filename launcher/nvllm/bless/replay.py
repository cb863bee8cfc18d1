"""Replays: one prompt several times, which a sound cache answers the same way each time.

Greedy decoding of one prompt has one answer. If a repeat has another one, something of an earlier request is left in
the engine, or the compiled code is not deterministic. If it changes only after a different prompt, requests leak into
each other. Repeats in one process say nothing about fresh starts; see `cache/confidence.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from nvllm.core.fields import Count
from nvllm.core.plan import LaunchPlan
from nvllm.serve import health
from nvllm.serve.health import NotReady

REPEATS = 8
"""How often a trial asks the plan's prompt, half of it after another prompt (docs/bless.md)."""
OTHER = "one two three four"
"""The prompt between two repeats."""

Tokens: TypeAlias = tuple[Count, ...]
Ask: TypeAlias = Callable[[str], Tokens]


@dataclass(frozen=True, slots=True)
class Replays:
    """The answers: ALONE to the plan's prompt, BETWEEN to the other prompt, and AFTER to the plan's prompt again."""

    alone: tuple[Tokens, ...]
    between: tuple[Tokens, ...]
    after: tuple[Tokens, ...]

    @property
    def coherent(self) -> bool:
        """Whether the same prompt had one answer as long as nothing else was asked."""
        return len(set(self.alone)) == 1

    @property
    def independent(self) -> bool:
        """Whether the other prompt changed nothing, neither for the plan's prompt nor for itself."""
        return len(set(self.between)) == 1 and set(self.after) == {self.alone[0]}

    @property
    def count(self) -> int:
        return len(self.alone) + len(self.between) + len(self.after)


def replays(ask: Ask, prompt: str) -> Replays:
    """Return the answers of ASK to PROMPT: half of the repeats alone, half of them after the other prompt."""
    other = OTHER if prompt != OTHER else f"{OTHER} five"
    alone = tuple(ask(prompt) for _ in range(REPEATS // 2))
    turns = [(ask(other), ask(prompt)) for _ in range(REPEATS - REPEATS // 2)]
    return Replays(alone, tuple(between for between, _ in turns), tuple(after for _, after in turns))


def greedy(plan: LaunchPlan, prompt: str, timeout: float) -> Tokens:
    """Return the tokens of the engine's greedy answer to PROMPT, after TIMEOUT seconds at most.

    Raises NotReady if there is no answer of the length that the probe of PLAN asks for.
    """
    settings = {**health.GREEDY, "return_token_ids": True}
    tokens, _ = health.complete(plan, prompt, timeout, settings, _token_ids)
    if len(tokens) != plan.probe.max_tokens:
        raise NotReady(f"{len(tokens)} tokens of {plan.probe.max_tokens}", final=True)
    return tokens


def _token_ids(body: Any) -> Tokens:
    return tuple(int(token) for token in body["choices"][0]["token_ids"])
