"""Whether the engine's image is the one that was built: each answer of the engine, and what is refused for it."""

from __future__ import annotations

import json
from typing import cast

from nvllm.engine.engine import Engine
from nvllm.host.facts import ImageFacts
from nvllm.image import presence
from nvllm.image.buildrecord import Record
from support.plansamples import SPEC, build

BUILD = build(SPEC)
ID = f"sha256:{'1' * 64}"
FACTS = ImageFacts(ID, diff_ids=(), tags=(), size=1)
RECORD = Record(SPEC.name, BUILD.build_hash, ID, ())
NAMED = json.dumps({"build_hash": BUILD.build_hash}).encode()


class Holding:
    """An engine that holds one image, or none, with one identity file."""

    def __init__(self, image: ImageFacts | None, identity: bytes | None = NAMED) -> None:
        self._image, self._identity = image, identity

    def image(self, _name: str) -> ImageFacts | None:
        return self._image

    def read_file(self, _image_id: str, _path: str) -> bytes | None:
        return self._identity


def answers(recorded: Record | None, holding: Holding) -> list[tuple[str, str, str]]:
    refusals = presence.refusals(BUILD, recorded, cast("Engine", holding))
    return [(refusal.code, refusal.expected, refusal.found) for refusal in refusals]


def test_each_image_that_is_not_the_one_that_was_built() -> None:
    lacking = f"the image of build hash {BUILD.build_hash[:12]}"
    assert answers(RECORD, Holding(FACTS)) == []
    assert answers(RECORD, Holding(None)) == [("NV302", lacking, "no such image")]
    assert answers(None, Holding(FACTS)) == [("NV302", lacking, "an image without a build record on this host")]
    for identity, problem in (
        (None, "no identity file"),
        (b"{", "an identity file that is not JSON"),
        (b"[]", "an identity file without a build hash"),
        (b"{}", "an identity file without a build hash"),
        (json.dumps({"build_hash": "f" * 64}).encode(), "f" * 64),
        (json.dumps({"build_hash": "0" * 64}).encode(), "0" * 64),
    ):
        assert answers(RECORD, Holding(FACTS, identity)) == [("NV304", BUILD.build_hash, problem)]


def test_without_a_lock_any_image_of_the_name_will_do() -> None:
    assert presence.without_lock("demo", cast("Engine", Holding(FACTS))) == []
    assert presence.without_lock("demo", cast("Engine", Holding(None))) == [presence.unbuilt("demo")]
