"""Loading on a real engine: short archives, names, and what is refused. The images are small and are never run.

`make test-engines` runs this on each engine that packages give.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import NotFound

from nvllm.core.progress import Silent
from nvllm.core.refusal import Refused
from nvllm.engine import engine
from nvllm.engine.engine import Engine
from nvllm.host.facts import ImageFacts
from nvllm.layers import archive, oci, tarlayer
from nvllm.layers.oci import Image
from nvllm.layers.tarlayer import Layer

pytestmark = pytest.mark.engine


def layer(path: Path, name: str) -> Layer:
    entry = tarlayer.blob(
        f"{name}.txt", f"{name} {path}".encode()
    )  # of this run alone: an engine keeps what it has seen
    return tarlayer.write(name, [entry], epoch=1, path=path / f"{name}.tar", progress=Silent())


def made(layers: Sequence[Layer]) -> Image:
    return oci.assemble(
        layers,
        platform="linux/amd64",
        epoch=1,
        entrypoint=["none"],
        environment={},
        labels={"nvllm.build-hash": "of a test", "nvllm.image": "of-a-test"},
    )


@pytest.fixture
def tags(docker_client: DockerClient) -> Iterator[list[str]]:
    """Two names that nothing has; taken away again."""
    names = [f"nvllm:test-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    yield names
    for name in names:
        with contextlib.suppress(NotFound):  # what is refused has none
            docker_client.images.remove(name, force=True)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The diff_ids in each archive that is sent."""
    archives: list[list[str]] = []
    stream = archive.stream

    def seen(wanted: Image, tag: str, skip: int) -> Iterator[bytes]:
        archives.append([one.diff_id for one in archive.sent(wanted, skip)])
        return stream(wanted, tag, skip)

    monkeypatch.setattr(archive, "stream", seen)
    return archives


def is_there(held: Engine, name: str, wanted: Image) -> None:
    found = held.image(name)
    assert found is not None
    assert found.id in wanted.ids
    assert found.diff_ids == wanted.diff_ids
    for one in wanted.layers:
        said = held.read_file(found.id, f"/{one.kind}.txt")
        assert said is not None
        assert said.startswith(one.kind.encode())


def test_only_what_the_engine_lacks_is_sent(tmp_path: Path, tags: list[str], sent: list[list[str]]) -> None:
    held = engine.require()
    base, wheels, one, other = (layer(tmp_path, name) for name in ("base", "wheels", "one", "other"))
    first, second = made([base, wheels, one]), made([base, wheels, other])
    held.load(first, tags[:1], Silent())
    held.load(second, tags[1:], Silent())
    assert sent == [[base.diff_id, wheels.diff_id, one.diff_id], [other.diff_id]]
    is_there(held, tags[0], first)
    is_there(held, tags[1], second)


def test_every_name_is_given(tmp_path: Path, tags: list[str]) -> None:
    held = engine.require()
    wanted = made([layer(tmp_path, "base")])
    held.load(wanted, tags, Silent())
    for name in tags:
        is_there(held, name, wanted)
    found = held.image(tags[0])
    assert found is not None
    assert sorted(found.tags) == sorted(tags)


def test_an_engine_that_lacks_what_it_seemed_to_hold_is_sent_everything(
    tmp_path: Path, tags: list[str], sent: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = engine.require()
    wanted = made([layer(tmp_path, name) for name in ("base", "wheels", "one")])
    seeming = ImageFacts("sha256:1", wanted.diff_ids[:2], (), 1)
    monkeypatch.setattr(Engine, "images", lambda _: (seeming,))
    held.load(wanted, tags[:1], Silent())
    assert sent == [list(wanted.diff_ids[2:]), list(wanted.diff_ids)]
    is_there(held, tags[0], wanted)


def test_what_is_refused_has_no_name_and_takes_none_away(tmp_path: Path, tags: list[str]) -> None:
    """A layer whose bytes are not what its digest says."""
    held = engine.require()
    good = made([layer(tmp_path, "base")])
    held.load(good, tags[:1], Silent())
    wrong = made([replace(layer(tmp_path, "other"), diff_id=f"sha256:{64 * '7'}")])
    for name in tags:
        with pytest.raises(Refused) as caught:
            held.load(wrong, [name], Silent())
        assert [one.code for one in caught.value.refusals] == ["NV304"]
    is_there(held, tags[0], good)
    assert held.image(tags[1]) is None
