"""Recorded digests: read strictly, written as one text, compared by build hash, layer and id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.paths import Project
from nvllm.image import digests, identity
from nvllm.image.digests import SCHEMA, BuildDigests, Deviation, Digests, LayerDigest

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").is_file())


def digest(letter: str) -> str:
    return f"sha256:{letter * 64}"


def layer(name: str, letter: str) -> LayerDigest:
    return LayerDigest(name, digest(letter), 1)


WHOLE = BuildDigests("1" * 64, (layer("base", "a"), layer("top", "b")), digest("c"), digest("d"))
PART = BuildDigests("1" * 64, (layer("top", "b"),))
GOOD = Digests(SCHEMA, "demo", {"linux/amd64": WHOLE, "linux/arm64": PART})

hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
ids = hexes.map(lambda text: f"sha256:{text}")
absent = st.one_of(st.none(), ids)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
layers = st.lists(
    st.builds(
        LayerDigest, st.text(st.characters(exclude_categories=["Cs"]), min_size=1), ids, st.integers(0, 2**53 - 1)
    ),
    min_size=1,
    unique_by=lambda one: one.name,
).map(tuple)
builds = st.builds(BuildDigests, hexes, layers, absent, absent)


@given(st.dictionaries(st.sampled_from(["linux/amd64", "linux/arm64"]), builds))
def test_what_is_written_is_read(platforms: dict[str, BuildDigests]) -> None:
    found = Digests(SCHEMA, "demo", platforms)
    data = digests.encode(found)
    assert digests.decode(data, "manifests/demo.digests.json") == found
    assert data.endswith(b"}\n")
    assert not data.endswith(b"\n\n")


def test_no_file_is_no_record(tmp_path: Path) -> None:
    assert digests.read(tmp_path / "demo.digests.json", "demo.digests.json") is None


@given(builds)
def test_a_build_is_as_itself(built: BuildDigests) -> None:
    assert digests.compare(built, built) == ("as recorded", ())


def test_another_build_hash_is_not_held_against_the_record() -> None:
    other = replace(WHOLE, build_hash="2" * 64, layers=(layer("base", "f"),))
    assert digests.compare(WHOLE, other) == ("not recorded for this build hash", ())
    assert digests.compare(None, other) == ("not recorded", ())


def test_what_is_not_as_recorded_is_named_with_both_values() -> None:
    built = replace(WHOLE, layers=(layer("base", "e"), layer("new", "b")), image_id=digest("f"), manifest=None)
    assert digests.compare(WHOLE, built) == (
        "not as recorded",
        (
            Deviation("layer base", digest("a"), digest("e"), "base"),
            Deviation("layer top", digest("b"), None, "top"),
            Deviation("layer new", None, digest("b"), "new"),
            Deviation("image id", digest("c"), digest("f")),
        ),
    )
    turned = replace(WHOLE, layers=WHOLE.layers[::-1])
    assert digests.compare(WHOLE, turned)[1] == (Deviation("order of the layers", "base, top", "top, base"),)


def test_layers_without_a_base_are_held_against_those_of_the_whole_and_the_other_way() -> None:
    assert digests.compare(WHOLE, PART) == digests.compare(PART, WHOLE) == ("as recorded", ())
    other = replace(PART, layers=(layer("top", "e"),))
    assert digests.compare(WHOLE, other)[1] == (Deviation("layer top", digest("b"), digest("e"), "top"),)
    assert digests.compare(other, WHOLE)[1] == (Deviation("layer top", digest("e"), digest("b"), "top"),)


def test_some_layers_are_held_against_theirs_alone() -> None:
    base, top = (replace(PART, layers=(one,)) for one in WHOLE.layers)
    two = replace(PART, layers=(layer("top", "b"), layer("above", "c")))
    for wanted, built in ((WHOLE, base), (WHOLE, top), (two, top), (PART, replace(PART, layers=WHOLE.layers))):
        assert digests.compare_some(wanted, built) == ("as recorded", ())
    assert digests.compare_some(None, top) == ("not recorded", ())
    assert digests.compare_some(PART, base) == ("not recorded", ())  # only layers of the patch set are recorded
    assert digests.compare_some(two, replace(top, build_hash="2" * 64)) == ("not recorded for this build hash", ())
    for wanted in (WHOLE, two):
        found = digests.compare_some(wanted, replace(PART, layers=(layer("top", "e"),)))
        assert found == ("not as recorded", (Deviation("layer top", digest("b"), digest("e"), "top"),))


def test_recording_keeps_other_platforms_and_a_whole_that_holds() -> None:
    assert digests.recorded(GOOD, "demo", "linux/amd64", PART) == GOOD
    changed = replace(PART, layers=(layer("top", "e"),))
    found = digests.recorded(GOOD, "demo", "linux/amd64", changed)
    assert found.platforms == {"linux/amd64": changed, "linux/arm64": PART}
    assert digests.recorded(None, "demo", "linux/arm64", PART).platforms == {"linux/arm64": PART}


COMMITTED = [(path.name.partition(".")[0], path) for path in sorted((ROOT / "manifests").glob("*.digests.json"))]


@pytest.mark.parametrize(("image", "path"), COMMITTED, ids=[image for image, _ in COMMITTED])
def test_what_is_committed_is_of_the_committed_lock(image: str, path: Path) -> None:
    """If a change of a lock, a spec, a patch or a rule is meant, `nvllm build IMAGE --record` follows it."""
    found = digests.read(path, path.name)
    assert found is not None
    for platform, recorded in found.platforms.items():
        build, stale = identity.load_build(Project(ROOT, platform), image, None)
        assert not stale
        assert recorded.build_hash == build.build_hash, f"nvllm build {image} --platform {platform} --record"
