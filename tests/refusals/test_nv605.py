"""NV605, key not asked for: an engine of a profile with a key file answers a request that does not carry the key.

The engine is a server of the test's own: vLLM's asks for the key, which tests/e2e/test_own_model.py shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.core.spec import Access
from nvllm.serve.rundir import RunDirectory
from nvllm.serve.startup import answers_without_key
from support.plansamples import PLAN, FrontEnd, front_end

RUN = RunDirectory(Path("/runs"))


@pytest.fixture
def front() -> Iterator[FrontEnd]:
    with front_end() as served:
        yield served


def test_an_engine_that_lists_its_models_to_everybody(front: FrontEnd) -> None:
    front.longest = 128
    plan = replace(PLAN, port=front.port)
    assert answers_without_key(plan, RUN) == []
    (refusal,) = answers_without_key(replace(plan, access=Access("/srv/key")), RUN)
    assert (refusal.code, refusal.expected) == ("NV605", "HTTP 401 without the API key")
    assert (refusal.found, refusal.cure) == ("HTTP 200", "less /runs/engine.log")


def test_whatever_is_no_refusal_is_not_believed(front: FrontEnd) -> None:
    (refusal,) = answers_without_key(replace(PLAN, port=front.port, access=Access("/srv/key")), RUN)
    assert refusal.found == "HTTP 404"
