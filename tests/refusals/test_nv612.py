"""NV612, made by dev: what a work tree is served as gets no blessing and goes to no registry.

No command can ask for it: the digest that its build hash holds is in no spec, lock or series. So the functions that
bless and push are called here with it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from nvllm.bless import preflight
from nvllm.bless.preflight import BlessRequest
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.fleet import images
from nvllm.image import identity
from nvllm.image.development import DevelopmentBuilder
from nvllm.layers.patchlayer import Patched
from support import oci_registry
from support.bless_world import world
from support.buildable import IMAGE, Buildable
from support.plansamples import FrontEnd

DIGEST = "0123456789abcdef" * 4


def test_no_bless_of_it_begins(tmp_path: Path, front: FrontEnd) -> None:
    build = replace(identity.load_build(Buildable(tmp_path).project, IMAGE, None)[0], development=DIGEST)
    with world(tmp_path, front) as made, pytest.raises(Refused) as caught:
        preflight.preflight(replace(made.found, build=build), made.held, BlessRequest(5), None, time.time())
    assert [(one.code, one.found) for one in caught.value.refusals] == [("NV612", "dev 0123456789ab")]


def test_no_byte_of_it_is_pushed(tmp_path: Path) -> None:
    made = Buildable(tmp_path)
    build = replace(identity.load_build(made.project, IMAGE, None)[0], development=DIGEST)
    changed = Patched({"vllm/core.py": b"EDITED = 1\n"}, {"vllm/core.py": 0o644})
    image = DevelopmentBuilder(made.project, made.places, Silent(), changed, offline=True).image(build)
    with oci_registry.running() as kept, pytest.raises(Refused) as caught:
        images.push_image(image, images.tag_of(build), kept.repository())
    assert [one.code for one in caught.value.refusals] == ["NV612"]
    assert not kept.manifests
    assert not kept.blobs
