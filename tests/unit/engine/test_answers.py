"""An engine's answers: what is taken from them, and which other forms are errors."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from typing import Any

import pytest

from nvllm.engine import answers
from nvllm.host.facts import ContainerFact, ContainerState, MemoryInUse

IMAGE: dict[str, Any] = {"Id": "sha256:1", "RootFS": {"Layers": ["sha256:2"]}, "Os": "linux", "Architecture": "amd64"}


def tar(kind: bytes = tarfile.REGTYPE, size: int | None = None, data: bytes = b"content") -> bytes:
    """Return a tar of one member of KIND with DATA, which says that it has SIZE bytes."""
    member = tarfile.TarInfo("identity.json")
    member.type, member.size = kind, len(data) if size is None else size
    return member.tobuf() + data + bytes(-len(data) % 512 + 1024)


def test_a_file_of_a_container() -> None:
    assert answers.file([tar()[:100], tar()[100:]], 1 << 20) == b"content"
    assert answers.file([tar(tarfile.DIRTYPE, 0, b"")], 1 << 20) is None
    assert answers.file([bytes(1024)], 1 << 20) is None


@pytest.mark.parametrize(
    "data", [b"", b"no tar" * 200, tar(size=10**9), tar(size=10**6, data=b"x")], ids=["empty", "text", "bomb", "torn"]
)
def test_a_file_that_is_none_or_too_large(data: bytes) -> None:
    with pytest.raises((ValueError, tarfile.TarError)):
        answers.file([data], 1 << 20)


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    read = []

    def endless() -> Any:
        while True:
            read.append(1)
            yield b"x" * 1000

    with pytest.raises(ValueError, match="more than 5000 bytes"):
        answers.chunks(endless(), 5000)
    assert len(read) == 6


def test_a_directory_in_the_place_of_a_file_is_none_whatever_it_holds() -> None:
    """The engine answers with all that is in it, and its header comes first."""
    read = []

    def large() -> Any:
        yield tar(tarfile.DIRTYPE, 0, b"")[:512]
        while True:
            read.append(1)
            yield bytes(1 << 20)

    assert answers.file(large(), 1 << 20) is None
    assert len(read) <= 1


def test_an_image() -> None:
    found = answers.image({**IMAGE, "RepoTags": ["docker.io/library/nvllm:demo"], "RepoDigests": None, "Size": 5})
    assert (found.id, found.diff_ids, found.tags) == ("sha256:1", ("sha256:2",), ("nvllm:demo",))
    assert (found.size, found.platform, found.digests) == (5, "linux/amd64", ())


def test_containers_and_their_state() -> None:
    listed = [{"Id": "1", "Names": ["/demo"], "Labels": {"a": "b"}, "State": "running"}, {"Id": "2"}]
    assert answers.containers(listed) == (
        ContainerFact("demo", {"a": "b"}, True, "1"),
        ContainerFact("", {}, False, "2"),
    )
    said = {"State": {"Status": "exited", "ExitCode": 137, "OOMKilled": True}}
    assert answers.state(said, frozenset({"exited"})) == ContainerState(137, True)
    assert answers.state(said, frozenset()) == ContainerState(None, True)


def test_figures_and_errors() -> None:
    assert answers.memory({"memory_stats": {"max_usage": 7}}) == 7
    assert answers.memory({"memory_stats": {}}) is None
    v1 = {"usage": 9, "stats": {"total_rss": 5, "rss": 4}}
    v2 = {"usage": 9, "stats": {"anon": 5, "file": 4}}
    for statistics, used in ((v1, (9, 5)), (v2, (9, 5)), ({}, (None, None))):
        assert answers.memory_in_use({"memory_stats": statistics}) == MemoryInUse(*used)
    assert answers.processor({"cpu_stats": {"cpu_usage": {"total_usage": 2 * 10**9}}}) == 2.0
    assert answers.errors([{"stream": "x"}, {"error": "a"}, {"error": "b"}]) == "a; b"
    # A runtime wraps the reason in what it tried: with a GPU, in 900 characters of hooks.
    error = answers.errors([{"error": f"failed to create the container: {'hook: ' * 300}the driver is too old"}])
    assert error.startswith("failed to create the container: ")
    assert error.endswith("the driver is too old")
    assert len(error) < 1100


OTHERS: dict[str, Callable[[], object]] = {
    "an image without an id": lambda: answers.image({**IMAGE, "Id": None}),
    "layers that are numbers": lambda: answers.image({**IMAGE, "RootFS": {"Layers": [5]}}),
    "tags that are a text": lambda: answers.image({**IMAGE, "RepoTags": "x"}),
    "a size that is a text": lambda: answers.image({**IMAGE, "Size": "many"}),
    "images that are a text": lambda: answers.ids("abc"),
    "images that are numbers": lambda: answers.ids([5]),
    "labels that are a list": lambda: answers.containers([{"Id": "1", "Labels": ["x"]}]),
    "a label that is a number": lambda: answers.containers([{"Id": "1", "Labels": {"a": 5}}]),
    "a container that is null": lambda: answers.containers([None]),
    "a state that is a text": lambda: answers.state({"State": "running"}, frozenset()),
    "no driver": lambda: answers.engine({}, {"Version": "28", "ApiVersion": "1.41"}, {}),
    "components that are a text": lambda: answers.product({"Components": "podman"}),
    "a history of texts": lambda: answers.description(IMAGE, ["x"]),
    "an answer that is a number": lambda: answers.errors(5),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_form_is_an_error_that_shows_it(what: str) -> None:
    with pytest.raises(ValueError, match="missing in"):
        OTHERS[what]()


def test_what_the_engine_adds_does_no_harm() -> None:
    assert answers.image({**IMAGE, "GraphDriver": [1], "Metadata": 5}).id == "sha256:1"
