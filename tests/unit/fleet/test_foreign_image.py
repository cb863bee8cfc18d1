"""A foreign image whose labels, files and tags are forged counts as no build: pull, serve, bless, bisect, worker.

The engine is played; `tests/e2e/test_foreign_image.py` has a real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from nvllm.core.paths import Places
from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine.engine import Engine
from nvllm.fleet import images, registry
from nvllm.fleet.task_runner import TaskRunner
from nvllm.image import buildrecord, digests, identity, presence, recording
from nvllm.image.builder import ImageBuilder
from nvllm.image.digests import BuildDigests
from nvllm.image.identity import Build
from nvllm.layers.oci import Image
from nvllm.trials import probe
from nvllm.trials.bench import EngineBench
from support import foreign_image, oci_registry
from support.buildable import IMAGE, Buildable
from support.foreign_image import PlayedStore
from support.oci_registry import Registry


@dataclass
class Site:
    """A project, its image, and a foreign one with the same name that a registry and this host's engine have."""

    made: Buildable
    build: Build
    image: Image
    foreign: Image
    kept: Registry
    engine: PlayedStore
    places: Places

    @property
    def docker(self) -> Engine:
        return cast("Engine", self.engine)

    def pull(self, digest: str | None) -> list[str]:
        """Pull the image of the build and return the codes of what was refused."""
        project, repository = self.made.project, self.kept.repository()
        try:
            images.pull_image(repository, digest, self.build, project, self.places, self.docker, Silent())
        except Refused as refused:
            return [one.code for one in refused.refusals]
        return []

    def examined(self) -> list[str]:
        """Return the codes that `serve`, `bless` and all that start an engine get of the image."""
        seen = presence.of_build(self.build, self.made.project, self.places, self.docker)
        return [one.code for one in seen.refusals]

    def commit(self, image: Image, layers: int | None = None) -> None:
        """Commit the digests of IMAGE in the project, or only those of some LAYERS, the upper ones."""
        built = recording.of_image(self.build, image)
        if layers is not None:
            built = BuildDigests(built.build_hash, built.layers[-layers:])
        path = self.made.project.digests(IMAGE)
        digests.write(path, digests.recorded(None, IMAGE, self.made.project.platform, built))


@pytest.fixture
def site(tmp_path: Path, buildable: Buildable, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(registry, "BACKOFF", 0.001)
    build, _ = identity.load_build(buildable.project, IMAGE, None)
    image = ImageBuilder(buildable.project, buildable.places, Silent(), offline=True).image(build)
    foreign = foreign_image.of(image, tmp_path / "foreign.tar")
    engine = PlayedStore(build.build_hash)
    engine.put(foreign, *build.tags)
    with oci_registry.running() as kept:
        images.push_image(foreign, images.tag_of(build), kept.repository())
        yield Site(buildable, build, image, foreign, kept, engine, buildable.places)


def test_a_pull_takes_it_neither_by_tag_nor_by_digest(site: Site, tmp_path: Path) -> None:
    """Nothing of it comes here: no record, no layer, no tag."""
    before = dict(site.engine.tags)
    by_digest = site.foreign.ids[1]
    assert (site.pull(None), site.pull(by_digest)) == (["NV332"], ["NV332"])
    site.commit(site.image, 2)  # the layers of the patch set say nothing of those below, nor of more above
    assert "NV332" in site.pull(by_digest)
    site.commit(site.image)
    assert set(site.pull(None)) == set(site.pull(by_digest)) == {"NV308"}
    for kind in dict.fromkeys(one.kind for one in site.image.layers):  # a second layer of a name that there is
        twice = foreign_image.of(site.image, tmp_path / "twice.tar", kind)
        assert set(site.pull(images.push_image(twice, "twice", site.kept.repository()).digest)) == {"NV308"}
    assert buildrecord.read(site.places.builds, site.build.build_hash) is None
    assert site.engine.tags == before


def test_a_serve_or_bless_takes_it_by_no_record_that_a_pull_has_left(site: Site) -> None:
    assert site.examined() == ["NV302"]
    foreign_image.recorded_by_an_older_nvllm(site.foreign, site.build, site.places)
    assert site.examined() == ["NV302"]
    site.commit(site.image)
    assert set(site.examined()) == {"NV308"}


def test_another_project_that_commits_it_proves_nothing_here(site: Site) -> None:
    """Both projects have one lock, so one build hash; the state directory is the same."""
    site.commit(site.foreign)
    assert site.pull(None) == []
    assert site.examined() == []  # as its own project says
    site.made.project.digests(IMAGE).unlink()
    assert site.examined() == ["NV302"]


def test_what_this_host_built_is_its_own_proof_unless_the_project_has_committed_other_digests(site: Site) -> None:
    ImageBuilder(site.made.project, site.places, Silent(), offline=True).into_engine(
        site.build, site.docker, site.build.tags
    )
    assert site.examined() == []
    own = [f"{tag}-{site.places.id[:7]}" for tag in site.build.tags]  # the others are no tags of ours
    assert [site.engine.tags[tag] for tag in own] == [site.image.id] * 2
    site.commit(site.foreign)
    assert set(site.examined()) == {"NV308"}


def test_a_bisect_builds_its_own_instead(site: Site) -> None:
    foreign_image.recorded_by_an_older_nvllm(site.foreign, site.build, site.places)
    test = probe.builtin("boots", ())
    bench = EngineBench(site.made.project, site.places, IMAGE, "eager", test, site.docker, offline=True)
    assert bench.built(tuple(one.id for one in site.build.patches)).image == site.image.id
    assert site.examined() == []


def test_a_worker_pulls_the_one_that_its_driver_names(site: Site) -> None:
    """The driver may run any program here as this user, so its word is worth what this host's own is."""
    foreign_image.recorded_by_an_older_nvllm(site.foreign, site.build, site.places)
    pushed = images.push_image(site.image, "any", site.kept.repository())
    runner = TaskRunner(site.made.project, site.places, site.docker, lambda _: site.kept.repository(), Silent())
    assert runner.pulled("any", pushed.digest, site.build) == site.image.id
    assert site.examined() == []
    with pytest.raises(Refused) as caught:  # one driver does not put its image in the place of another's, or of ours
        runner.pulled("any", site.foreign.ids[1], site.build)
    assert [one.code for one in caught.value.refusals] == ["NV332"]
    site.commit(replace(site.image))
    assert runner.pulled("any", pushed.digest, site.build) == site.image.id


def test_a_record_of_before_counts_as_far_as_the_project_has_committed_its_digests(site: Site) -> None:
    before = foreign_image.recorded_by_an_older_nvllm(site.image, site.build, site.places)
    site.engine.put(site.image, *site.build.tags)
    assert site.examined() == ["NV302"]
    site.commit(site.image)
    assert site.examined() == []
    assert buildrecord.read(site.places.builds, site.build.build_hash) == before


def test_a_verified_pull_makes_what_no_digests_name(site: Site) -> None:
    """Then each layer is compared; a foreign one is named, and nothing comes here."""
    pushed = images.push_image(site.image, "any", site.kept.repository())
    builder = ImageBuilder(site.made.project, site.places, Silent(), offline=True)
    with pytest.raises(Refused) as caught:
        images.compared(site.kept.repository(), site.foreign.ids[1], site.build, builder)
    assert {one.code for one in caught.value.refusals} == {"NV308"}
    images.compared(site.kept.repository(), pushed.digest, site.build, builder)
