"""Evidence of blesses: a directory for each, and which of them still proves something."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nvllm.bless import evidence
from nvllm.core import durable
from nvllm.core.refusal import Refused


def log(bless: Path, boot: str, text: bytes) -> str:
    (bless / boot).mkdir()
    (bless / boot / "engine.log").write_bytes(text)
    return hashlib.sha256(text).hexdigest()


def test_every_bless_has_a_directory_of_its_own(tmp_path: Path) -> None:
    instance = tmp_path / "blessing/nvllm-demo-eager"
    assert evidence.newest(instance) is None
    made = [evidence.begin(instance) for _ in range(11)]
    assert [one.name for one in made] == [str(number) for number in range(1, 12)]
    assert evidence.newest(instance) == made[-1], "the eleventh, and not the ninth"
    made[2].rmdir()
    assert evidence.begin(instance).name == "12"
    assert made[0].stat().st_mode & 0o777 == 0o700


def test_two_that_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one has made its directory after ours had been counted."""
    monkeypatch.setattr(durable, "reached", lambda _: (tmp_path / "1").mkdir())
    assert evidence.begin(tmp_path).name == "2"


def test_what_is_no_number_is_no_bless(tmp_path: Path) -> None:
    for name in ("trial-1", "٣", "x"):
        (tmp_path / name).mkdir()
    assert evidence.newest(tmp_path) is None
    assert evidence.begin(tmp_path).name == "1"


def test_a_bless_is_needed_for_any_of_its_logs(tmp_path: Path) -> None:
    bless = evidence.begin(tmp_path)
    log(bless, "bootstrap", b"cold")
    named = log(bless, "trial-1", b"warm")
    (bless / "trial-2").mkdir()
    assert evidence.needed(bless, {named})
    assert not evidence.needed(bless, {"0" * 64})
    assert not evidence.needed(bless, frozenset())


def test_where_nothing_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused) as caught:
        evidence.begin(tmp_path / "file/instance")
    assert [one.code for one in caught.value.refusals] == ["NV911"]
