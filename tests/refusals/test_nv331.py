"""NV331, registry refused: a registry does not take, have or answer what it was asked for."""

from __future__ import annotations

import pytest

from nvllm.core.refusal import Refused
from nvllm.fleet import registry
from support import oci_registry
from support.oci_registry import NAME


def test_a_manifest_that_a_registry_does_not_have() -> None:
    with oci_registry.running() as kept, pytest.raises(Refused) as caught:
        kept.repository().manifest("cpu-0123456789ab")
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV331", f"registry {kept.url.removeprefix('http://')}: {NAME}")
    assert (one.expected, one.found) == ("a manifest cpu-0123456789ab", "no such manifest")
    assert one.cure


def test_a_registry_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BACKOFF", 0.0)
    with oci_registry.running() as kept:
        repository = kept.repository()
    with pytest.raises(Refused) as caught:
        repository.manifest("v1")
    (one,) = caught.value.refusals
    assert (one.code, one.expected) == ("NV331", "an answer")
    assert "refused" in one.found
