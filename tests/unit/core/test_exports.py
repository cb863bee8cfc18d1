"""A room's exports are imported when they are first used, and no sooner."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nvllm.core import exports


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with two modules, each with one name to export."""
    (tmp_path / "aroom").mkdir()
    (tmp_path / "aroom/__init__.py").touch()
    for name in ("door", "window"):
        (tmp_path / f"aroom/{name}.py").write_text(f"VALUE_OF_{name} = '{name}'\n")
        monkeypatch.delitem(sys.modules, f"aroom.{name}", raising=False)
    monkeypatch.delitem(sys.modules, "aroom", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return "aroom"


def test_a_name_brings_its_own_module_alone(room: str) -> None:
    find = exports.lazy(room, {"door": ["VALUE_OF_door"], "window": ["VALUE_OF_window"]})
    assert "aroom.door" not in sys.modules
    assert find("VALUE_OF_door") == "door"
    assert "aroom.window" not in sys.modules


def test_a_name_that_is_not_exported_is_an_attribute_that_is_missing(room: str) -> None:
    find = exports.lazy(room, {"door": ["VALUE_OF_door"]})
    with pytest.raises(AttributeError, match="module 'aroom' has no attribute 'VALUE_OF_window'"):
        find("VALUE_OF_window")
