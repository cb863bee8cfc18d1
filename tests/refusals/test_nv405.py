"""NV405, chat template changed: a chat template is missing, or not the locked one."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import own_files
from support.own_files import TEMPLATE, OwnFiles


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnFiles:
    return own_files.make(tmp_path, monkeypatch)


def refused(own: OwnFiles) -> tuple[str, str, str]:
    (refusal,) = [one for one in own.tried().refusals if one.code == "NV405"]
    assert refusal.where == TEMPLATE
    return refusal.expected, refusal.found, refusal.cure


def test_another_template_than_the_locked_one(own: OwnFiles) -> None:
    (own.project.root / TEMPLATE).write_text("other")
    assert refused(own) == ("sha256 f24189f08c85", "sha256 d9298a10d1b0", "nvllm lock demo")
    own.lock()
    assert "NV405" not in own.codes()


def test_a_template_that_is_gone(own: OwnFiles) -> None:
    (own.project.root / TEMPLATE).unlink()
    cure = "write the template, or correct `chat-template:` in images/demo.yaml"
    assert refused(own) == ("a chat template", "No such file or directory", cure)


def test_a_template_that_is_no_text(own: OwnFiles) -> None:
    (own.project.root / TEMPLATE).write_bytes(b"\xff")
    assert refused(own) == ("text in UTF-8", "other bytes", "save the file as UTF-8")


def test_a_template_that_the_lock_lacks(own: OwnFiles) -> None:
    text = own.project.spec("demo").read_text()
    own.project.spec("demo").write_text(text.replace(TEMPLATE, "other.jinja"))
    (own.project.root / "other.jinja").write_text("x")
    found = [one for one in own.tried().refusals if one.code in {"NV202", "NV405"}]
    assert sorted((one.code, one.cure) for one in found) == [("NV202", "nvllm lock demo"), ("NV405", "nvllm lock demo")]
