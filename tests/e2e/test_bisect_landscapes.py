"""`nvllm bisect` on the real engine, where failures are as people have them.

An engine dies now and then while it starts, a patch requires another, and two patches break the same thing. Every set
is really built and served, and the conclusion must be true.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import APIError

from support.bisect_engine import (
    HARMLESS,
    LICENSE,
    SERVING,
    Extra,
    bisect,
    bisecting,
    extend,
    found,
    records,
    two_answers,
)
from support.engine_world import IMAGE, BuiltImage, World, Worlds

pytestmark = [pytest.mark.engine, pytest.mark.long]

REFUSES = """\
        if request.n > 1:
            return self.create_error_response("of a test")
"""
READS = """\
        from vllm import version
        if request.n > 1 and "OF_A_TEST" in vars(version):
            return self.create_error_response("of a test")
"""
ANSWERS = """\
    if request.n > 1:
        return JSONResponse(content={"of a": "test"}, status_code=418)

"""
PLACE = "        if request.stream and request.use_beam_search:\n"
ROUTER = "vllm/entrypoints/openai/completion/api_router.py"
CALL = "    generator = await handler.create_completion(request, raw_request)\n"

FLAG = Extra("test-flag", "vllm/version.py", LICENSE, "OF_A_TEST = True\n")
CULPRIT = Extra("test-culprit", SERVING, PLACE, REFUSES)
READER = Extra("test-reader", SERVING, PLACE, READS, (FLAG.name,))
OTHER = Extra("test-other", ROUTER, CALL, ANSWERS)


@pytest.fixture
def world(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    with bisecting(worlds, docker_client) as made:
        yield made


def start(world: World, built: BuiltImage, probe: Path, extras: tuple[Extra, ...], *options: str) -> None:
    """Add EXTRAS to the series of WORLD and start a search among them; the patches of BUILT are in every set."""
    extend(world, extras)
    bad = ",".join((*built.patches, *(one.name for one in extras)))
    ends = ("--good", "spec", "--bad", bad)
    test = ("--test", str(probe), "--regress", "exit=3", "--repeats", "1")
    bisect(world, "start", IMAGE, *ends, *test, "--profile", world.profile(), *options)


@contextlib.contextmanager
def dying(world: World, every: int) -> Iterator[list[str]]:
    """Kill every EVERYth engine of WORLD as soon as it runs, long before it is ready. Yields the ids of the dead."""
    import docker

    dead, over = list[str](), threading.Event()

    def kill() -> None:
        seen = list[str]()
        with contextlib.closing(docker.from_env()) as client:
            while not over.wait(0.1):
                for one in world.containers(client):
                    if one.id not in seen:
                        seen.append(str(one.id))
                    doomed = (seen.index(str(one.id)) + 1) % every == 0
                    if doomed and one.status == "running" and one.id not in dead:
                        with contextlib.suppress(APIError):  # it has ended by itself
                            one.kill()
                            dead.append(str(one.id))

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield dead
    finally:
        over.set()
        killer.join()


def test_an_engine_that_dies_now_and_then_hides_no_culprit(
    world: World, built_image: BuiltImage, tmp_path: Path, docker_client: DockerClient
) -> None:
    later = Extra("test-later", ROUTER, LICENSE, "# A comment of a test.\n")
    start(world, built_image, two_answers(tmp_path), (HARMLESS, CULPRIT, later))
    with dying(world, every=3) as dead:
        result = found(world)
    assert result["culprits"] == [CULPRIT.name]
    assert (result["exact"], result["certified"], result["first"]) == (True, True, True)
    tried = records(world, "trial")
    lost = [one for one in tried if one["outcome"] == "untestable"]
    assert len(lost) == len(dead) >= 2
    assert {one["stage"] for one in lost} == {"boot"}
    for one in tried:
        if one not in lost:
            assert one["outcome"] == ("bad" if CULPRIT.name in one["chosen"] else "good"), one
    assert result["rest"]["outcome"] == "good"
    assert not world.containers(docker_client)


def test_a_required_patch_comes_along_and_is_no_culprit(
    world: World, built_image: BuiltImage, tmp_path: Path, docker_client: DockerClient
) -> None:
    start(world, built_image, two_answers(tmp_path), (FLAG, HARMLESS, READER), "--set")
    result = found(world)
    assert (result["culprits"], result["certified"], result["notes"]) == ([READER.name], True, [])
    assert result["comes_along"] == [{"patch": FLAG.name, "required_by": [READER.name]}]
    said = world.nvllm("bisect", "report", "--markdown").out
    assert said.startswith(
        "**test-reader: breaks it; 1-minimal, none of them can be left out. "
        "test-flag comes along, required by test-reader. Everything without it is not broken if the failure is steady,"
    )
    assert all(FLAG.name in one["chosen"] for one in records(world, "trial") if READER.name in one["chosen"])
    assert not world.containers(docker_client)


def test_two_causes_are_both_found(
    world: World, built_image: BuiltImage, tmp_path: Path, docker_client: DockerClient
) -> None:
    """First one of them with the word that there is another; then, on request, the other as well."""
    probe = two_answers(tmp_path)
    start(world, built_image, probe, (CULPRIT, HARMLESS, OTHER), "--set")
    one = found(world)
    assert (one["certified"], one["further"], one["rest"]["outcome"]) == (True, [], "bad")
    (first,) = one["culprits"]
    assert first in (CULPRIT.name, OTHER.name)
    said = world.nvllm("bisect", "status").out
    assert "Everything without it is still broken: there is another cause; start again with --all to find it." in said

    known = len(records(world, "trial"))
    again = ("--test", str(probe), "--regress", "exit=3", "--repeats", "1", "--profile", world.profile())
    bad = ",".join((*built_image.patches, CULPRIT.name, HARMLESS.name, OTHER.name))
    bisect(world, "start", IMAGE, "--good", "spec", "--bad", bad, *again, "--set", "--all", "--discard")
    both = found(world)
    assert both["certified"]
    assert sorted([*both["culprits"], *(name for names in both["further"] for name in names)]) == sorted(
        [CULPRIT.name, OTHER.name]
    )
    assert both["rest"]["outcome"] == "bad"
    assert sum(trial["recalled"] for trial in records(world, "trial")) == known
    assert not world.containers(docker_client)
