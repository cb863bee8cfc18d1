"""What the tests of evidence share: engines that start at once."""

from __future__ import annotations

import pytest

from nvllm.serve import startup


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "POLL", 0.005)
