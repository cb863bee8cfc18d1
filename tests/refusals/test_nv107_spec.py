"""NV107, unknown name: the image spec that is asked for is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core.refusal import Refusal, Refused
from nvllm.spec import file as specfile


def refusal_of(path: Path) -> Refusal:
    with pytest.raises(Refused) as caught:
        specfile.load(path, f"images/{path.name}")
    (refusal,) = caught.value.refusals
    return refusal


def test_missing_spec_lists_the_images(tmp_path: Path) -> None:
    (tmp_path / "cpu.yaml").touch()
    (tmp_path / "gb10.yaml").touch()
    refusal = refusal_of(tmp_path / "gb11.yaml")
    assert (refusal.code, refusal.where) == ("NV107", "images/gb11.yaml")
    assert refusal.expected == "one of the images cpu, gb10"
    assert refusal.found == "no such file"
    assert refusal.cure == "name another image, such as gb10"


def test_missing_spec_where_there_is_none(tmp_path: Path) -> None:
    refusal = refusal_of(tmp_path / "cpu.yaml")
    assert (refusal.expected, refusal.cure) == ("an image spec", "write images/cpu.yaml")
