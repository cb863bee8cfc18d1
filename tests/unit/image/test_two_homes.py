"""Two homes on one engine: no home moves, shares or removes what the other calls an image. The engine is played."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from nvllm.core.paths import Places
from nvllm.core.progress import Silent
from nvllm.engine.engine import Engine
from nvllm.gc import garbage
from nvllm.gc.garbage import References
from nvllm.host.facts import StoredImage
from nvllm.image import buildrecord
from nvllm.image.buildrecord import Record
from nvllm.layers.oci import Image
from support.foreign_image import PlayedStore

TAGS = ("nvllm:demo-aaaaaaaaaaaa", "nvllm:demo")
NOTHING = References(frozenset(), frozenset(), frozenset(), frozenset())


def image(name: str) -> Image:
    """Return an image without layers, for which its configuration is enough."""
    return Image(f'{{"os": "linux", "architecture": "amd64", "name": "{name}"}}'.encode(), ())


def home(tmp_path: Path, name: str) -> Places:
    return Places(tmp_path / name / "cache", tmp_path / name / "state")


def load(made: Image, where: Places, store: PlayedStore, build_hash: str = 64 * "a") -> Record:
    described = buildrecord.of_image(made, "demo", build_hash, "built")
    return buildrecord.load(made, described, cast("Engine", store), TAGS, where, Silent())


def test_the_second_home_gets_names_of_its_own(tmp_path: Path) -> None:
    """Also for the same image: it lives as long as one of its tags, and each home has one."""
    first, second, store = home(tmp_path, "first"), home(tmp_path, "second"), PlayedStore()
    own = tuple(f"{tag}-{second.id[:7]}" for tag in TAGS)
    same, other = image("same"), image("other")
    assert load(same, first, store).tags == TAGS
    assert load(same, second, store).tags == own
    assert load(other, second, store, 64 * "b").tags == own
    assert {tag: store.tags[tag] for tag in TAGS} == dict.fromkeys(TAGS, same.id)
    assert {tag: store.tags[tag] for tag in own} == dict.fromkeys(own, other.id)
    assert load(image("newer"), first, store, 64 * "c").tags == TAGS  # a home moves its own


def test_what_a_person_has_tagged_stays(tmp_path: Path) -> None:
    store, where = PlayedStore(), home(tmp_path, "first")
    store.put(image("a person's"), TAGS[1])
    assert load(image("ours"), where, store).tags == (TAGS[0], f"{TAGS[1]}-{where.id[:7]}")
    assert store.tags[TAGS[1]] == image("a person's").id


def test_the_tags_of_an_older_record_are_its_homes(tmp_path: Path) -> None:
    store, where, made = PlayedStore(), home(tmp_path, "first"), image("ours")
    store.put(made, *TAGS)
    buildrecord.write(where.builds, replace(buildrecord.of_image(made, "demo", 64 * "0", None), tags=None))
    assert load(made, where, store).tags == TAGS


def test_a_clean_up_removes_what_this_home_has_named(tmp_path: Path) -> None:
    """And the image itself with the last name of it, whichever home that is."""
    first, second, store, made = home(tmp_path, "first"), home(tmp_path, "second"), PlayedStore(), image("shared")
    load(made, first, store)
    own = load(made, second, store).tags or ()

    def removed(where: Places) -> list[tuple[tuple[str, ...], bool, str]]:
        facts = cast("Engine", store).image(made.id)
        assert facts is not None
        pieces = list(garbage.images(where, [StoredImage(facts, (("chain", 7),))], [], NOTHING, 1e12))
        for tag in (tag for piece in pieces for tag in piece.tags):
            del store.tags[tag]
        return [(piece.tags, piece.size > 0, piece.note) for piece in pieces]

    assert removed(first) == [(TAGS, False, "another home keeps the image")]
    assert removed(second) == [(own, True, "")]
