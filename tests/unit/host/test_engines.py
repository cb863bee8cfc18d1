"""What is said of an engine: which it is, where it keeps images, and what does not hold there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nvllm.host import engines
from nvllm.host.facts import EngineFacts
from support.host_samples import ENGINE

CONTAINERD = replace(ENGINE, version="28.5.2", storage_driver="overlayfs", store="containerd")
PODMAN = replace(ENGINE, version="5.4.2", storage_driver="overlay", product="Podman", bridge_interface=None)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (ENGINE, "Docker 20.10.24+dfsg1, image store of its own, storage driver overlay2"),
        (
            CONTAINERD,
            "Docker 28.5.2, containerd image store, storage driver overlayfs; here an image takes",
        ),
        (
            PODMAN,
            "Podman 5.4.2, image store of its own, storage driver overlay; here GPUs only by",
        ),
    ],
)
def test_an_engine_is_named_with_what_does_not_hold_there(engine: EngineFacts, said: str) -> None:
    assert engines.described(engine).startswith(said)
    assert engines.too_old(engine) is None


def test_podman_is_judged_by_its_own_version() -> None:
    assert engines.too_old(replace(PODMAN, api_version="1.40")) is None
    assert engines.too_old(replace(PODMAN, version="4.9.3")) is not None
    assert engines.too_old(replace(ENGINE, api_version="1.40")) is not None
