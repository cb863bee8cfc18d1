"""NV332, not what was pulled for: a registry offers an image or a blessing of something else."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from nvllm.core.paths import Places, Project
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.fleet import images
from support import oci_registry
from support.oci_registry import NAME
from support.plansamples import build


def test_an_image_that_nvllm_did_not_push(tmp_path: Path) -> None:
    places, project = Places(tmp_path / "cache", tmp_path / "state"), Project(tmp_path)
    with oci_registry.running() as kept:
        sent = kept.repository().push_manifest("any", b'{"schemaVersion": 2, "layers": []}')
        with pytest.raises(Refused) as caught:
            images.pull_image(kept.repository(), sent.digest, build(), project, places, cast("Engine", None), Silent())
    (one,) = caught.value.refusals
    assert (one.code, one.where) == ("NV332", f"registry {kept.url.removeprefix('http://')}: {NAME}")
    assert one.expected == "an image that nvllm pushed"
    assert one.cure == "push it again from a host that built it: nvllm push REPO IMAGE"
