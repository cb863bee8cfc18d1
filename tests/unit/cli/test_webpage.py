"""Where a page goes: to the file that is named, else to the usual one, and to nobody who does not ask."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from nvllm.cli.webpage import WebPage
from nvllm.core.refusal import Refused
from support.browsers import Opened


def test_nobody_asks() -> None:
    assert WebPage(None, opened=False).written(Path("/nonexistent/usual.html"), lambda: "page") == ""


def test_a_page_goes_to_the_file_that_is_named(tmp_path: Path) -> None:
    named, usual = tmp_path / "named.html", tmp_path / "usual.html"
    assert WebPage(named, opened=False).written(usual, lambda: "page") == f"wrote {named}"
    assert named.read_text() == "page"
    assert not usual.exists()


def test_it_is_opened_or_its_path_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened()
    usual = tmp_path / "below/usual.html"
    monkeypatch.setattr(webbrowser, "open", opened.show)
    monkeypatch.setenv("DISPLAY", ":0")
    assert WebPage(None, opened=True).written(usual, lambda: "page") == f"wrote {usual}"
    assert opened == [usual.as_uri()]
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    said = WebPage(None, opened=True).written(usual, lambda: "page")
    assert said == f"wrote {usual}; no browser can be started here: open it in one"
    assert len(opened) == 1


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused) as caught:
        WebPage(tmp_path / "file/page.html", opened=False).written(tmp_path, lambda: "page")
    assert [one.code for one in caught.value.refusals] == ["NV920"]
