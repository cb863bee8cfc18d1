"""What the tests of `nvllm bisect` on the real engine share: its world, its journal, and patches to look for."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvllm.core.lock import LockedPatch
from nvllm.lock import lockdoc
from nvllm.patches import seriesfile, source
from nvllm.patches.series import Series
from nvllm.sources.store import Store
from nvllm.spec import specfile
from support.engine_world import IMAGE, MODEL, Done, World, Worlds

if TYPE_CHECKING:
    from docker import DockerClient

SERIES = "v0.32.0"
REAL = ("aot-load-guard", "conv-weight-layout", "inspect-in-process")
"""What every trial has; with the last one an engine starts sooner."""


LICENSE = "# SPDX-License-Identifier: Apache-2.0\n"


@contextlib.contextmanager
def bisecting(worlds: Worlds, docker_client: DockerClient) -> Iterator[World]:
    """A world. What its bisect adds to the engine goes again, and none of it was called the newest build."""

    def tags() -> dict[str, str]:
        return {tag: str(image.id) for image in docker_client.images.list("nvllm") for tag in image.tags}

    made, before, newest = worlds.make(), tags(), f"nvllm:{IMAGE}"
    yield made
    made.end()
    after, built = tags(), records(made, "build", "journal*.jsonl")
    mine = tuple(f"{newest}-{one['build_hash'][:12]}" for one in built)  # and with the world's id, if it was taken
    for tag in (tag for tag in after.keys() - before.keys() if tag.startswith(mine)):
        docker_client.api.remove_image(tag)
    assert after[newest] not in {one["image"] for one in built} - {before[newest]}


def bisect(world: World, *args: str) -> Done:
    done = world.nvllm("bisect", *args, "--json")
    assert done.code == 0, done
    return done


def found(world: World, *args: str) -> dict[str, Any]:
    """Carry the search on to its end, and return what it found."""
    answer = bisect(world, "run", *args).result["found"]
    assert isinstance(answer, dict)
    return answer


def records(world: World, kind: str, journals: str = "journal.jsonl") -> list[dict[str, Any]]:
    """Return the records of KIND in the journal, or in all JOURNALS, a pattern."""
    paths = sorted((world.places.work(world.project) / "bisect" / IMAGE).glob(journals))
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return [one for line in lines if (one := json.loads(line))["record"] == kind]


@contextlib.contextmanager
def built_with(world: World, docker_client: DockerClient, *extras: Extra) -> Iterator[World]:
    """Build the image of WORLD with EXTRAS, patches of a test, and yield WORLD. The image goes again afterwards."""
    extend(world, extras)
    world.edit({"    - engine-core-fork": "".join(f"    - {one.name}\n" for one in extras) + "    - engine-core-fork"})
    path, spec = world.project.lock(IMAGE), specfile.load(world.spec, "images/cpu.yaml")
    lockdoc.write(path, replace(lockdoc.read(path, path.name), inputs=specfile.inputs(spec, world.project.platform)))
    newest = docker_client.images.get(f"nvllm:{IMAGE}")
    built = world.nvllm("build", IMAGE, "--offline", "--json")
    docker_client.api.tag(newest.id, "nvllm", IMAGE)
    assert built.code == 0, built
    yield world
    world.end()
    docker_client.api.remove_image(built.result["tag"])


@dataclass(frozen=True, slots=True)
class Extra:
    """A patch of a test: what it puts before which line of a file, what it requires, and its sentinel, if any."""

    name: str
    file: str
    place: str
    added: str
    requires: tuple[str, ...] = ()
    sentinel: str = ""


SERVING = "vllm/entrypoints/openai/completion/serving.py"
TWO_ANSWERS = """\
#!/usr/bin/env python3
import json, os, sys, urllib.error, urllib.request

asked = {"model": "%s", "prompt": "hello world", "max_tokens": 4, "n": 2}
url = os.environ["NVLLM_ADDRESS"] + "/v1/completions"
request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
try:
    with urllib.request.urlopen(request, timeout=120) as answer:
        sys.exit(0 if len(json.load(answer)["choices"]) == 2 else 4)
except urllib.error.HTTPError as error:
    print(error.read().decode())
    sys.exit(3)
"""
"""A probe that asks for two answers, and exits with 3 if the engine refuses."""


def two_answers(directory: Path) -> Path:
    """Write the probe that asks for two answers to DIRECTORY, and return its path."""
    program = directory / "probe"
    program.write_text(TWO_ANSWERS % MODEL)
    program.chmod(0o755)
    return program


HARMLESS = Extra("test-harmless", "vllm/v1/engine/detokenizer.py", LICENSE, "# A comment of a test.\n")


def extend(world: World, extras: Sequence[Extra]) -> None:
    """Add the patches EXTRAS, one on top of the other, to the series of WORLD and to the one of its lock."""
    directory = world.project.series(SERIES)
    path = world.project.lock(IMAGE)
    lock = lockdoc.read(path, path.name)
    archive = Store(world.places.store).path(lock.vllm.source.sha256)
    files = {extra.file for extra in extras}
    pristine = source.archive(archive, files)
    texts = {file: (pristine.read(file) or b"").decode() for file in files}  # empty: the first patch makes it
    text = (directory / "series.yaml").read_text()
    entries = ""
    for number, extra in enumerate(extras, 1):
        old = texts[extra.file]
        assert extra.place in old
        new = texts[extra.file] = old.replace(extra.place, extra.added + extra.place, 1)
        before = f"a/{extra.file}" if old else "/dev/null"
        lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), before, f"b/{extra.file}")
        diff = "".join(lines)
        patch = directory / f"9{number:03}-{extra.name}.patch"
        patch.write_text(diff)
        entries += f"""
  - id: {extra.name}
    status: carried
    file: {patch.name}
    sha256: {hashlib.sha256(diff.encode()).hexdigest()}
    summary: A patch of a test
    requires: [{", ".join(extra.requires)}]
    upstream: {{state: none}}
    touches: [{extra.file}]
    proved-by: [tests/e2e/test_bisect.py::test_two_patches_that_break_together_are_found]
"""
        entries += f"    sentinel: {{name: {extra.sentinel}}}\n" if extra.sentinel else ""
    (directory / "series.yaml").write_text(text.rstrip("\n") + "\n" + entries)
    series: Series = seriesfile.load(directory, SERIES)
    patches = tuple(LockedPatch(one.id, one.status, one.sha256) for one in series.patches)
    lockdoc.write(path, replace(lock, series=replace(lock.series, patches=patches)))
