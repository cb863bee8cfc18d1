"""What the tests of evidence share: engines that start at once."""

from __future__ import annotations

import pytest

from nvllm.pages import plots
from nvllm.serve import startup


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "POLL", 0.005)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the plots out of every page: to draw them takes longer than a run. test_page.py draws them."""
    monkeypatch.setattr(plots, "svg", lambda *_: "")
