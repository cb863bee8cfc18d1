"""A page is shown where there is a display, and nothing is started where there is none."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from nvllm.pages import browser
from support.browsers import Opened


@pytest.mark.parametrize(
    ("env", "started"),
    [({}, False), ({"DISPLAY": ""}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True)],
)
def test_a_browser_needs_a_display(
    env: dict[str, str], started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened()
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(webbrowser, "open", opened.show)
    assert browser.show(tmp_path / "a page.html", env) is started
    assert opened == [(tmp_path / "a page.html").as_uri()] * started


def test_no_browser_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> bool:
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "open", none)
    assert not browser.show(tmp_path / "page.html", {"DISPLAY": ":0"})
