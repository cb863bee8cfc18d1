"""A time has one form, and no other module writes it."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core import clock

PACKAGE = Path(__file__).parents[3] / "launcher/nvllm"
NO_ROOM_OF_OURS = "runtime"
"""What runs inside an image imports nothing of nvllm's."""


def test_a_time_in_both_forms() -> None:
    assert clock.stamp(1_795_004_800) == "2026-11-18T12:26:40Z"
    assert clock.compact("2026-11-18T12:26:40Z") == "20261118T122640Z"


@given(st.integers(0, 253_402_300_799))
def test_seconds_are_read_back(seconds: int) -> None:
    assert clock.seconds(clock.stamp(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "2026-02-30T00:00:00Z", "2026-11-18T12:26:60Z", "2026-11-18 12:26:40"])
def test_what_is_no_time_is_no_time(text: str) -> None:
    with pytest.raises(ValueError):
        clock.seconds(text)


def test_now_is_utc_whatever_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert abs(clock.seconds(clock.now()) - time.time()) < 5
    finally:
        monkeypatch.undo()
        time.tzset()


def test_no_other_module_has_the_format() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != NO_ROOM_OF_OURS]
    having = [
        path.relative_to(PACKAGE).as_posix()
        for path in modules
        if "%Y-%m-%dT" in (text := path.read_text())  # parsing all of them would take seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value == "%Y-%m-%dT%H:%M:%SZ"
    ]
    assert having == ["core/clock.py"]
