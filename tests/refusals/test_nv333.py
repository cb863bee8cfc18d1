"""NV333, not exportable: an export of the profile could not keep what nvllm holds."""

from __future__ import annotations

import pytest

from nvllm.export import export, kubernetes
from support import export_world


@pytest.mark.parametrize("platform", ["kubernetes", "quadlet", "compose"])
def test_a_profile_for_development(platform: str) -> None:
    (refusal,) = export.refusals(export_world.blessed(dev=True), platform)
    assert (refusal.code, refusal.where) == ("NV333", "profile eager of image demo")
    assert (refusal.expected, refusal.found) == ("a profile for production", "dev: true")
    assert refusal.cure == "nvllm serve demo --profile eager"


def test_a_waiver_of_the_hardening() -> None:
    (refusal,) = kubernetes.refusals(export_world.waived("host-ipc"))
    assert (refusal.code, refusal.found) == ("NV333", "host-ipc")
    assert refusal.cure == "nvllm export systemd demo --profile eager"
