"""The startup probe of an exported serve: one real generation, or not ready."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvllm.runtime import generation
from support import plansamples
from support.engine_world import free_port
from support.plansamples import FrontEnd

front = plansamples.front


def probing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> int:
    """Return the exit status of the probe of an engine at PORT."""
    probe = {"model": "tiny", "prompt": "hello", "max_tokens": 16, "port": port}
    (tmp_path / "machine.json").write_text(json.dumps({"probe": probe}))
    monkeypatch.setattr(generation, "__file__", str(tmp_path / "generation.py"))
    return generation.main()


def test_a_generation_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: FrontEnd) -> None:
    assert probing(tmp_path, monkeypatch, front.port) == 0
    assert json.loads(front.asked[0])["max_tokens"] == 16


@pytest.mark.parametrize("body", [b'{"usage": {"completion_tokens": 3}}', b"{}", b"no JSON", b"[]"])
def test_anything_else_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: FrontEnd, body: bytes) -> None:
    front.body = body
    assert probing(tmp_path, monkeypatch, front.port) == 1


def test_nobody_who_listens_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probing(tmp_path, monkeypatch, free_port()) == 1
