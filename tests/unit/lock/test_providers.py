"""The providers that a lock really has, on a shelf of wheels. What they say through `nvllm lock` is tested there."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from nvllm.core.paths import Places
from nvllm.core.progress import Silent
from nvllm.lock import providers
from nvllm.sources import indexes
from nvllm.sources.indexes import Configuration
from nvllm.sources.wheels import Target
from nvllm.spec import specfile
from support.specs import GOOD, SHOWN
from support.wheels import make_wheel


def test_pip_is_asked_for_its_configuration_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[None] = []

    def configuration() -> Configuration:
        asked.append(None)
        return Configuration((), (str(tmp_path),), (), None)

    monkeypatch.setattr(indexes, "read_configuration", configuration)
    wheel = make_wheel(tmp_path, "app", "1.0")
    places = Places(tmp_path / "cache", tmp_path / "state")
    connected = providers.connect(specfile.parse(GOOD, SHOWN), places, None, offline=False, progress=Silent())
    assert asked == []
    (app,) = connected.wheels(["app"], Target(platform.python_version(), platform.machine(), 36), {})
    assert connected.size(app.url) == wheel.stat().st_size
    assert len(asked) == 1
