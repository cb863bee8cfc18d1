"""How a worker over ssh ends, by OpenSSH and its server between two networks; no engine and no registry is needed.

The worker is real but for its task, which waits: what a trial leaves is the matter of `test_ssh.py`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nvllm.fleet.pipe import BEAT, SILENCE
from support import sshd
from support.engine_world import ROOT, until
from support.private_engines import KINDS, Namespaces, PrivateEngine
from support.two_hosts import Host, joined

pytestmark = [pytest.mark.fleet, pytest.mark.long]

_WAITS = """
import sys, time
from pathlib import Path
from nvllm.fleet import worker
from nvllm.cli.main import main

def status(_worker):
    Path("begun").touch()
    try:
        time.sleep(1000)
    finally:
        Path("ended").touch()

worker.Worker.status = status
sys.exit(main())
"""


@dataclass
class Pair:
    """A driver on A, and a worker on B that waits. HOME is where ssh starts the worker."""

    a: Host
    b: Host
    home: Path

    def begin(self) -> subprocess.Popen[str]:
        """Start a driver, and return it once the worker is in its task."""
        for name in ("begun", "ended"):
            (self.home / name).unlink(missing_ok=True)
        driver = self.a.begin(ROOT, "fleet", "status", "--on", "ssh://b")
        until(lambda: (self.home / "begun").exists() or driver.poll() is not None, "the worker is in its task", 60)
        assert driver.poll() is None, driver.communicate()
        return driver

    def ended(self) -> bool:
        return (self.home / "ended").exists()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    between = Namespaces()
    hosts: list[Host] = []
    try:
        between.done("ip", "link", "add", "bridge", "type", "bridge")
        between.done("ip", "link", "set", "bridge", "up")
        for number, name in ((11, "a"), (12, "b")):
            home = tmp_path_factory.mktemp(name) / "home"
            home.mkdir()
            engine = PrivateEngine(KINDS[0], Namespaces(), Path("/run/none.sock"), home)
            hosts.append(Host(engine, joined(between, engine, f"to-{name}", number)))
        _, b = sshd.started(("a", hosts[0]), ("b", hosts[1]))
        b.program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-c", _WAITS])} "$@"\n')
        yield Pair(hosts[0], hosts[1], b.home)
    finally:
        for host in hosts:
            host.engine.spaces.end()
        between.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_driver_that_ends_ends_the_worker(pair: Pair, number: signal.Signals) -> None:
    driver = pair.begin()
    (child,) = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    os.kill(int(child), number)
    driver.communicate(timeout=30)
    if number == signal.SIGKILL:  # at Ctrl-C the driver waits for the end of the worker
        until(pair.ended, "the worker has ended", 15)
    assert pair.ended()


def test_a_link_that_is_cut_ends_both(pair: Pair) -> None:
    """Nobody tells the worker anything: it gives up a driver that is silent."""
    driver = pair.begin()
    pair.b.link.cut()
    try:
        out, _ = driver.communicate(timeout=SILENCE + 60)
        (row,) = json.loads(out)["result"]["machines"]
        assert row["machine"] == "b"
        assert row["problem"].startswith(("ssh ended with 255", "nothing came from it"))
        until(pair.ended, "the worker has ended", SILENCE + BEAT)
    finally:
        pair.b.link.mend()
