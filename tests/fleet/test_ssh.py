"""Trials over ssh, by OpenSSH and its server, on two hosts with networks, engines and homes of their own.

Host A is the driver, and one of the two machines; B is the other one. The bisects are of the small image, whose probe
looks into it without starting it; the blessing is one of image `cpu`, and vLLM runs on both hosts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from nvllm.host.facts import TASK_LABEL
from support import looking_probe, sshd
from support.buildable import IMAGE as SMALL
from support.buildable import Buildable
from support.engine_world import IMAGE, MODEL, Worlds, until
from support.ray_bisect import CAUSE, PATCHES
from support.two_hosts import Host, TwoHosts, two_hosts

pytestmark = [pytest.mark.fleet, pytest.mark.long]

GONE = 40
"""Seconds after which nothing of a driver that ended runs on a machine."""
SILENT = 90
"""Seconds after which each side has given up one that says nothing."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with two_hosts(tmp_path_factory.mktemp("between")) as both:
        sshd.started(("a", both.a), ("b", both.b))
        yield both


def containers(host: Host) -> list[str]:
    """Return the containers of tasks that the engine of HOST has."""
    socket = f"/proc/{host.engine.spaces.first}/root{host.engine.socket}"
    client = DockerClient(base_url=f"unix://{socket}")
    try:
        return [one["Id"] for one in client.api.containers(all=True, filters={"label": TASK_LABEL})]
    finally:
        client.close()


def workers(host: Host) -> list[int]:
    """Return the processes `nvllm worker --pipe` of HOST, by their ids outside of it."""
    own = os.readlink(f"/proc/{host.engine.spaces.first}/ns/pid")
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if os.readlink(path / "ns/pid") == own and words[-3:-1] == [b"worker", b"--pipe"] and b"-m" in words:
                found.append(int(path.name))
        except OSError:  # it ended
            continue
    return found


@dataclass
class SmallBisect:
    """A bisect of the small image of SITE, with its probe in PLACE; A drives it."""

    hosts: TwoHosts
    site: Buildable
    place: Path

    @property
    def project(self) -> Path:
        return self.site.project.root

    @property
    def env(self) -> dict[str, str]:
        return {"NVLLM_HOME": str(self.site.home)}

    def start(self) -> None:
        probe = looking_probe.write(self.place)
        words = ["--set", "--good", "none", "--build-only", "--discard", "--repeats", "1", "--test", str(probe)]
        done = self.hosts.a.nvllm(self.project, "bisect", "start", SMALL, *words, env=self.env)
        assert done.code == 0, done

    @property
    def words(self) -> list[str]:
        on = ["--on", f"ssh://a{self.project},ssh://b{self.project}"]
        return ["bisect", "run", *on, "--registry", f"{self.hosts.repository}/{self.place.name}"]

    def begin(self) -> subprocess.Popen[str]:
        return self.hosts.a.begin(self.project, *self.words, env=self.env)

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        journal = self.site.places.work(self.site.project) / "bisect" / SMALL / "journal.jsonl"
        return [one for line in journal.read_text().splitlines() if (one := json.loads(line))["record"] in kinds]

    def begun(self) -> int:
        return len(list((self.place / "begun").iterdir()))

    def until_both_try(self, driver: subprocess.Popen[str]) -> None:
        until(lambda: self.begun() == 2 or driver.poll() is not None, "both machines try something", 120)
        assert driver.poll() is None, driver.communicate()

    def none_runs(self) -> bool:
        return not any(workers(host) or containers(host) for host in (self.hosts.a, self.hosts.b))

    def check(self, printed: str) -> None:
        """Check that what the driver PRINTED is the cause, and that each task ended once."""
        document = json.loads(printed)
        assert document["ok"], document
        assert document["result"]["found"]["culprits"] == CAUSE
        sent = sorted(one["task"] for one in self.records("sent"))
        assert sorted(one["task"] for one in self.records("trial", "lost")) == sent
        assert self.none_runs()


@pytest.fixture
def bisect(hosts: TwoHosts, tmp_path: Path) -> SmallBisect:
    made = SmallBisect(hosts, Buildable(tmp_path / "site", PATCHES), tmp_path)
    made.start()
    return made


def child(process: subprocess.Popen[str]) -> int:
    """Return what PROCESS, which entered the namespaces, has started there."""
    (number,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(number)


def test_both_hosts_try(bisect: SmallBisect) -> None:
    a = bisect.hosts.a
    status = a.nvllm(bisect.project, "fleet", "status", *bisect.words[2:4], env=bisect.env)
    classes = {one["machine"]: one["class"] for one in status.result["machines"]}
    assert set(classes) == {"a", "b"}
    assert len(set(classes.values())) == 1
    (bisect.place / "hold").touch()
    driver = bisect.begin()
    bisect.until_both_try(driver)
    assert (len(containers(bisect.hosts.a)), len(containers(bisect.hosts.b))) == (1, 1)
    (bisect.place / "hold").unlink()
    out, _ = driver.communicate(timeout=240)
    bisect.check(out)
    assert bisect.records("lost") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_driver_that_ends_ends_its_workers_and_is_continued(bisect: SmallBisect, number: signal.Signals) -> None:
    (bisect.place / "hold").touch()
    driver = bisect.begin()
    bisect.until_both_try(driver)
    os.kill(child(driver), number)
    driver.communicate(timeout=GONE)
    until(bisect.none_runs, "no worker and no container is left", GONE)
    (bisect.place / "hold").unlink()
    bisect.check(bisect.hosts.a.nvllm(bisect.project, *bisect.words, env=bisect.env).out)
    assert len(bisect.records("lost")) == 2


def test_a_host_whose_link_is_cut_is_lost_and_the_other_goes_on(bisect: SmallBisect) -> None:
    """Its worker ends a minute later by itself, and removes its container: nobody told it anything."""
    b = bisect.hosts.b
    (bisect.place / "hold").touch()
    driver = bisect.begin()
    try:
        bisect.until_both_try(driver)
        b.link.cut()
        until(lambda: len(bisect.records("lost")) == 1, "its task is lost", SILENT)
        (bisect.place / "hold").unlink()
        out, _ = driver.communicate(timeout=240)
        until(bisect.none_runs, "nothing is left on the lost host", SILENT)
    finally:
        b.link.mend()
    bisect.check(out)
    assert {one["why"].partition(":")[0] for one in bisect.records("lost")} == {"b"}


# Image `cpu`


def test_blessed_on_both_hosts_and_served_on_the_other(hosts: TwoHosts, worlds: Worlds) -> None:
    """A compiles, both try what was compiled, and B serves the blessing that A has pushed."""
    world = worlds.make()
    profile, project_b = world.profile("blessed"), world.directory / "clone"
    a = {"NVLLM_HOME": "", **{name: world.env[name] for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME")}}
    shutil.copytree(world.project.root, project_b)

    assert hosts.a.nvllm(world.project.root, "build", IMAGE, env=a).code == 0
    on = ["--on", f"ssh://b{project_b}", "--registry", hosts.repository]
    bless = ["bless", IMAGE, "--profile", profile, *on]  # with all its trials: an unsafe blessing is not pushed
    lacking = hosts.a.nvllm(world.project.root, *bless, env=a)
    assert set(lacking.codes) == {"NV401"}, lacking
    assert hosts.b.nvllm(project_b, "model", "make", IMAGE, MODEL).code == 0
    blessed = hosts.a.nvllm(world.project.root, *bless, env=a)
    assert set(blessed.result["machines"]) == {None, "b"}
    assert not any(workers(host) or containers(host) for host in (hosts.a, hosts.b))

    push = ["push", hosts.repository, IMAGE, "--blessing", profile]
    assert hosts.a.nvllm(world.project.root, *push, env=a).code == 0
    assert "NV901" in hosts.b.nvllm(project_b, "serve", IMAGE, "--profile", profile, "--detach").codes
    file = blessed.result["file"]  # B gets it as git brings it
    (project_b / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(world.project.root / file, project_b / file)
    pull = ["pull", hosts.repository, IMAGE, "--blessing", profile]
    assert hosts.b.nvllm(project_b, *pull).code == 0
    try:
        served = hosts.b.nvllm(project_b, "serve", IMAGE, "--profile", profile, "--detach")
        assert served.code == 0, served
    finally:
        hosts.b.nvllm(project_b, "stop", world.instance("blessed"))
