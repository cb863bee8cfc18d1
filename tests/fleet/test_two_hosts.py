"""Two hosts with engines, networks and homes of their own, a registry between them, and links that fail.

`support.two_hosts` says what is two and what is one. The small image shows what becomes of a push and of a pull whose
link is cut in each of its phases; image `cpu` goes the whole way, from a bless on one host to a serve on the other.
"""

from __future__ import annotations

import functools
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from nvllm.core.progress import Silent
from nvllm.fleet import images
from nvllm.fleet.registry import Repository, parse
from nvllm.image import identity
from nvllm.image.builder import ImageBuilder
from support import foreign_image
from support.buildable import IMAGE as SMALL
from support.buildable import Buildable
from support.engine_world import IMAGE, MODEL, Worlds, until
from support.real_registry import RealRegistry
from support.two_hosts import Host, Link, TwoHosts, two_hosts

pytestmark = pytest.mark.fleet

SILENT = 110
"""Seconds after which a command must have given up a silent link: a question gets 30, a blob 60, some twice."""
SLOW = "64kbit"
"""Lets the small image through in a quarter of a minute."""
FEW = 40_000
"""Bytes on the link for questions and answers alone."""
HALF = 60_000
"""Bytes on the link by which a part of the small image, of 127 kB, has crossed it."""
UNFINISHED = 300_000_000
"""Bytes of `cpu` that have crossed when a command is killed."""


Command: TypeAlias = tuple[Host, list[str], dict[str, str]]
"""A host, the project and the words of a command of nvllm there, and what its environment has more."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path_factory.mktemp("between")) as both:
        yield both


@dataclass(frozen=True, slots=True)
class Small:
    """The small image: host A has built it, from SITE; host B has the same project and no layer of it."""

    hosts: TwoHosts
    site: Buildable
    project_b: Path

    def repository(self, name: str) -> str:
        """Return a repository of its own called NAME."""
        return f"{self.hosts.repository}/{name}"

    def a(self, *words: str) -> Command:
        return self.hosts.a, [str(self.site.project.root), *words], {"NVLLM_HOME": str(self.site.home)}

    def b(self, home: str, *words: str) -> Command:
        """Return how B, with an empty home of this name, runs nvllm with WORDS."""
        place = self.hosts.b.engine.home / home
        place.mkdir(parents=True, exist_ok=True)
        return self.hosts.b, [str(self.project_b), *words], {"NVLLM_HOME": str(place)}


def runs(command: Command) -> dict[str, Any]:
    """Run COMMAND; return its document."""
    host, (project, *words), env = command
    return host.nvllm(Path(project), "--platform", "linux/amd64", *words, env=env).document


def begins(command: Command) -> subprocess.Popen[str]:
    host, (project, *words), env = command
    return host.begin(Path(project), "--platform", "linux/amd64", *words, env=env)


@pytest.fixture(scope="module")
def small(hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> Small:
    site = Buildable(tmp_path_factory.mktemp("small"))
    small = Small(hosts, site, site.project.root.parent / "clone")
    assert runs(small.a("build", SMALL, "--record"))["ok"]
    shutil.copytree(site.project.root, small.project_b)
    return small


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a push or of a pull: the link is cut when a packet with REQUEST is sent.

    Without REQUEST it is slow, and cut when half of the image has crossed it.
    """

    name: str
    request: str = ""


PUSH = (
    Phase("push-asks", "HEAD /v2/nvllm/push-asks/blobs"),
    Phase("push-begins", "POST /v2/nvllm/push-begins/blobs"),
    Phase("push-blob"),
    Phase("push-ends", "PUT /v2/nvllm/push-ends/blobs"),
    Phase("push-manifest", "PUT /v2/nvllm/push-manifest/manifests"),
)
PULL = (
    Phase("pull-manifest", "GET /v2/nvllm/pulled/manifests"),
    Phase("pull-config", "GET /v2/nvllm/pulled/blobs"),
    Phase("pull-blob"),
)


def test_a_link_that_is_cut_in_each_phase_of_a_push(small: Small) -> None:
    problems = [cut(small.a("push", small.repository(one.name), SMALL), one) for one in PUSH]
    assert [one for one in problems if one] == []


def test_a_link_that_is_cut_in_each_phase_of_a_pull(small: Small) -> None:
    repository = small.repository("pulled")
    assert runs(small.a("push", repository, SMALL))["ok"]
    problems = [cut(small.b(one.name, "pull", repository, SMALL), one) for one in PULL]
    assert [one for one in problems if one] == []


def half(link: Link, start: int) -> bool:
    """Return whether half of the small image has crossed LINK since START bytes had."""
    return link.crossed() - start > HALF


def cut(command: Command, phase: Phase) -> str:
    """Run COMMAND on a link that is cut in PHASE, and again when it is mended; return what was wrong."""
    link = command[0].link
    begun: Callable[[], bool] = functools.partial(half, link, link.crossed())
    if phase.request:
        begun = link.hold(phase.request)
    else:
        link.slow(SLOW)
    process = begins(command)
    try:
        until(lambda: begun() or process.poll() is not None, f"{phase.name} has begun")
        link.cut()
        try:
            out, _ = process.communicate(timeout=SILENT)
        except subprocess.TimeoutExpired:
            return f"{phase.name}: runs {SILENT} s after the cut"
    finally:
        process.kill()
        link.mend()
    codes = [one["code"] for one in json.loads(out)["refusals"]]
    if set(codes) != {"NV331"}:
        return f"{phase.name}: {codes}"
    again = runs(command)
    return "" if again["ok"] else f"{phase.name}, again: {again['refusals']}"


def test_a_link_that_is_cut_for_a_moment_and_loses_packets_ends_no_command(small: Small) -> None:
    """One packet of 50 is lost each way, what waits is delayed, and for three seconds in the middle nothing travels."""
    repository = small.repository("moment")
    for command in (small.a("push", repository, SMALL), small.b("moment", "pull", repository, SMALL)):
        link = command[0].link
        link.slow(SLOW)
        link.lose(0.02)
        start = link.crossed()
        process = begins(command)
        try:
            until(functools.partial(half, link, start), "the middle")
            link.cut()
            time.sleep(3)  # the length of the cut
            link.join()
            out, _ = process.communicate(timeout=SILENT)
        finally:
            process.kill()
            link.mend()
        assert json.loads(out)["ok"], out


def test_a_foreign_image_is_refused_on_the_other_host(small: Small, tmp_path: Path) -> None:
    """Its labels, history and files say that it is the build; B knows what host A has recorded, and compares."""
    build, _ = identity.load_build(small.site.project, SMALL, None)
    image = ImageBuilder(small.site.project, small.site.places, Silent(), offline=True).image(build)
    registry = small.hosts.registry
    loopback = RealRegistry(registry.directory)  # the same storage, where this process can reach it
    loopback.start()
    try:
        name, _ = parse(loopback.name)
        foreign = foreign_image.of(image, tmp_path / "foreign.tar")
        pushed = images.push_image(foreign, images.tag_of(build), Repository(name, None, Silent()))
    finally:
        loopback.kill()
    repository = small.hosts.repository
    for reference in (repository, f"{repository}@{pushed.digest}"):
        refused = runs(small.b("foreign", "pull", reference, SMALL))
        assert {one["code"] for one in refused["refusals"]} == {"NV308"}
    (small.project_b / f"manifests/{SMALL}.digests.json").rename(tmp_path / "digests.json")
    try:
        assert [one["code"] for one in runs(small.b("foreign", "pull", repository, SMALL))["refusals"]] == ["NV332"]
        store = small.hosts.b.engine.home / "foreign/cache/store"
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(small.site.places.store, store, symlinks=True)
        verified = runs(small.b("foreign", "pull", repository, SMALL, "--verify"))
        assert {one["code"] for one in verified["refusals"]} == {"NV308"}
        good = small.repository("good")
        assert runs(small.a("push", good, SMALL))["ok"]
        assert runs(small.b("foreign", "pull", good, SMALL, "--verify"))["ok"]
    finally:
        (tmp_path / "digests.json").rename(small.project_b / f"manifests/{SMALL}.digests.json")


# Image `cpu`


@pytest.mark.long
def test_built_and_blessed_on_one_host_served_on_the_other(hosts: TwoHosts, worlds: Worlds) -> None:
    """A push and a pull are killed at 300 MB, and go on there: the bytes are counted on the link."""
    world = worlds.make({"    blessed: true": "    dev: true\n    blessed: true"})  # two trials are enough then
    profile, project_b = world.profile("blessed"), world.directory / "clone"
    a = {"NVLLM_HOME": "", **{name: world.env[name] for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME")}}

    assert hosts.a.nvllm(world.project.root, "build", IMAGE, env=a).result["outcome"] == "loaded"
    bless = ["bless", IMAGE, "--profile", profile, "--unsafe-trials", "2"]
    assert hosts.a.nvllm(world.project.root, *bless, env=a).code == 0
    shutil.copytree(world.project.root, project_b)
    shutil.rmtree(project_b / "manifests/blessed")

    size = hosts.a.nvllm(world.project.root, "push", hosts.repository, IMAGE, "--dry-run", env=a).result["bytes"]
    push = ["push", hosts.repository, IMAGE, "--blessing", profile]
    killed = interrupted(hosts.a, world.project.root, push, a)
    begun = hosts.a.link.crossed()
    pushed = hosts.a.nvllm(world.project.root, *push, env=a).result
    rest = hosts.a.link.crossed() - begun
    assert size < killed + rest < size * 1.05 + UNFINISHED, (killed, rest, size)
    assert hosts.registry.tags().count(str(pushed["tag"])) == 1
    begun = hosts.a.link.crossed()
    assert hosts.a.nvllm(world.project.root, *push, env=a).result["bytes"] == 0
    assert hosts.a.link.crossed() - begun < FEW

    pull = ["pull", hosts.repository, IMAGE, "--blessing", profile]
    killed = interrupted(hosts.b, project_b, pull, {})
    begun = hosts.b.link.crossed()
    pulled = hosts.b.nvllm(project_b, *pull).result
    rest = hosts.b.link.crossed() - begun
    assert size < killed + rest < size * 1.05, (killed, rest, size)

    assert set(hosts.b.nvllm(project_b, "serve", IMAGE, "--profile", profile, "--detach").codes) == {"NV901"}
    assert hosts.b.nvllm(project_b, "model", "make", IMAGE, MODEL).code == 0
    candidate = str(pulled["blessings"][0]["candidate"])
    tried = hosts.b.nvllm(project_b, *bless, "--candidate", candidate)
    assert (tried.result["version"], tried.result["tree_hash"]) == (1, candidate)
    try:
        served = hosts.b.nvllm(project_b, "serve", IMAGE, "--profile", profile, "--detach")
        assert served.code == 0, served
    finally:
        hosts.b.nvllm(project_b, "stop", world.instance("blessed"))


def interrupted(host: Host, project: Path, words: list[str], env: dict[str, str]) -> int:
    """Run nvllm with WORDS on PROJECT, kill it in its midst; return how many bytes have crossed the link."""
    start = host.link.crossed()
    process = host.begin(project, *words, env=env)
    until(lambda: host.link.crossed() - start > UNFINISHED or process.poll() is not None, "300 MB", 300)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    time.sleep(1)  # until what waits in buffers has crossed too
    return host.link.crossed() - start
