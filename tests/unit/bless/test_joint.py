"""Requests that one step of an engine must hold, on a made-up engine that says when it computed what."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from nvllm.bless import joint
from nvllm.bless.joint import Joined
from nvllm.core.canonical import Json
from nvllm.core.workload import JointStep, Request
from nvllm.serve.health import NotReady


class Engine:
    """An engine that gives each request under way a token in each step; the next step waits until all have read it.

    A request with "ends" ends after so many tokens, one with "refused" is not taken, one with "fails" fails.
    """

    def __init__(self, capacity: int = 100) -> None:
        self._capacity = threading.Semaphore(capacity)
        self.steps: list[set[int]] = []
        """The lengths of the prompts that each step computed."""
        self._lock = threading.Lock()
        self._under_way: set[int] = set()

    def stream(self, request: Request, more: Callable[[], bool]) -> bool:
        if "refused" in request.settings:
            return False
        if "fails" in request.settings:
            raise NotReady("an error", final=True)
        prompt, tokens = request.prompt, request.settings.get("ends", request.answer)
        assert isinstance(tokens, int)
        with self._capacity:
            with self._lock:
                self._under_way.add(len(prompt))
            for _ in range(tokens):
                with self._lock:
                    self.steps.append(set(self._under_way))
                if not more():
                    break
                threading.Event().wait(0.001)
            with self._lock:
                self._under_way.discard(len(prompt))
        return True


def request(length: int, answer: int = 40, **settings: Json) -> Request:
    return Request(tuple(range(length)), answer, settings)


def test_a_prompt_is_computed_while_another_request_generates() -> None:
    engine = Engine()
    step = JointStep("beside", (request(1, 100_000),), (request(7, 1),))
    assert joint.ask(step, engine.stream) == Joined(met=True, answered=2)
    assert {1, 7} in engine.steps
    assert len(engine.steps) < 1000  # what still generated was ended


@pytest.mark.parametrize(
    "step",
    [
        JointStep("it ended before", (request(1, ends=1),), (request(7),)),
        JointStep("two that end at once", (), (request(1, ends=1), request(2, ends=1))),
    ],
    ids=lambda step: step.name,
)
def test_what_cannot_meet_is_tried_again_and_said(step: JointStep) -> None:
    assert joint.ask(step, Engine().stream) == Joined(met=False, answered=joint.TRIES * 2)


def test_an_engine_that_takes_one_request_at_a_time_has_no_joint_step() -> None:
    step = JointStep("alone", (), (request(1, 5), request(2, 5)))
    assert joint.ask(step, Engine(capacity=1).stream).met is False


def test_settings_that_the_engine_refuses_are_not_asked_again() -> None:
    step = JointStep("refused", (request(1),), (request(2, refused=True),))
    assert joint.ask(step, Engine().stream) == Joined(met=True, answered=1)


@pytest.mark.parametrize("fails", ["running", "requests"])
def test_an_error_of_the_engine_ends_all_of_a_step(fails: str) -> None:
    requests = {"running": (request(1, 100_000),), "requests": (request(2),)}
    requests[fails] = (request(3, fails=True),)
    with pytest.raises(NotReady):
        joint.ask(JointStep("fails", requests["running"], requests["requests"]), Engine().stream)
