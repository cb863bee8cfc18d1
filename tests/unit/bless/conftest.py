"""What the tests of blessing share: a bless that will be accepted, on an engine that is made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nvllm.serve import startup
from support.bless_world import World, world
from support.plansamples import FrontEnd


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "POLL", 0.005)


@pytest.fixture
def made(tmp_path: Path, front: FrontEnd) -> Iterator[World]:
    with world(tmp_path, front) as found:
        yield found
