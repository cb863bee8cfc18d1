"""A real Ray cluster on this machine: a head, and raylets that are machines as far as Ray and nvllm can tell.

Each machine has processes, mounts and a home of nvllm's of its own; the container engine is the same one. A machine of
another class has another /proc/cpuinfo mounted, so its worker computes that class itself, whatever its label says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.engine_world import ROOT, Done, free_port, run, until

RAY = str(Path(sys.executable).with_name("ray"))
STORE = 80_000_000
"""Bytes of Ray's object store: nothing but lines of JSON goes through it."""

_MACHINE = """
if [ -n "$CPUINFO" ]; then mount --bind "$CPUINFO" /proc/cpuinfo; fi
exec "$@"
"""


@dataclass
class RayMachine:
    """One raylet, with the label and the home that it was started with."""

    name: str
    home: Path
    process: subprocess.Popen[bytes]

    def lose(self) -> None:
        """Lose the machine at once, with every process on it. Its containers run on: they are the engine's."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def freeze(self) -> None:
        """Stop every process of the machine where it is."""
        own = os.readlink(f"/proc/{self.process.pid}/ns/pid_for_children")
        assert own != os.readlink("/proc/self/ns/pid")
        for one in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended, or belongs to the kernel
                if os.readlink(one / "ns/pid") == own:
                    os.kill(int(one.name), signal.SIGSTOP)

    def stop_at(self, boundary: str) -> None:
        """Have the next worker here stop at BOUNDARY, one of those of `support.held`."""
        (self.home / "stopped").unlink(missing_ok=True)
        (self.home / "stop").write_text(boundary)

    def stopped(self) -> bool:
        return (self.home / "stopped").exists()

    def go_on(self) -> None:
        (self.home / "stop").unlink(missing_ok=True)


@dataclass
class RayWorld:
    """A cluster below PLACE whose machines work on PROJECT, and the TOKEN that the driver has."""

    place: Path
    project: Path
    token: str = field(default_factory=lambda: secrets.token_hex(24))
    mode: str = "token"
    """What the machines demand of who comes: `token`, or nothing if it is `disabled`."""
    port: int = field(default_factory=free_port)
    client: int = field(default_factory=free_port)
    machines: list[RayMachine] = field(default_factory=list)
    temp: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="nvray-")))
    """Of Ray: the paths of its sockets must be short."""

    @property
    def address(self) -> str:
        return f"ray://127.0.0.1:{self.client}"

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "launcher"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
            ),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "3",
            "GRPC_ENABLE_FORK_SUPPORT": "0",  # see docs/fleet.md
            "RAY_health_check_period_ms": "300",  # a machine that was lost is soon listed no more
            "RAY_health_check_initial_delay_ms": "1000",
        }

    def start_head(self) -> None:
        argv = ["--head", f"--port={self.port}", f"--ray-client-server-port={self.client}", "--node-name=head"]
        argv += ["--labels=nvllm-class=none", "--include-dashboard=false", f"--temp-dir={self.temp}"]
        self._start("head", argv, "")
        until(self._listening, "the head takes clients", 60)

    def _listening(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.client), 1):
            return True
        return False

    def add(self, name: str, label: str, *, other: bool = False, env: Mapping[str, str] | None = None) -> RayMachine:
        """Start a machine called NAME with LABEL and ENV. OTHER: its processor is of another class than this host's."""
        cpuinfo = ""
        if other:
            path = self.place / "cpuinfo"
            path.write_text(re.sub(r" avx512\w*", "", Path("/proc/cpuinfo").read_text()).replace(" avx2", ""))
            cpuinfo = str(path)
        labels = [f"--labels=nvllm-class={label}"] if label else []
        return self._start(name, [f"--address=127.0.0.1:{self.port}", f"--node-name={name}", *labels], cpuinfo, env)

    def _start(self, name: str, words: list[str], cpuinfo: str, told: Mapping[str, str] | None = None) -> RayMachine:
        home = self.place / name
        (home / "bin").mkdir(parents=True, exist_ok=True)
        nvllm = home / "bin/nvllm"
        command = shlex.join([sys.executable, "-W", "ignore", "-m", "support.held", "--project", str(self.project)])
        nvllm.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        nvllm.chmod(0o755)
        env = {**self.env, "NVLLM_HOME": str(home), "PATH": f"{home}/bin:{os.environ['PATH']}", "CPUINFO": cpuinfo}
        env |= {"RAY_AUTH_MODE": self.mode, **(told or {})}
        # Whatever becomes of the tests, a machine ends with them.
        own = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        argv = [
            *own,
            "sh",
            "-c",
            _MACHINE,
            "sh",
            RAY,
            "start",
            "--block",
            "--node-ip-address=127.0.0.1",
            "--num-cpus=1",
        ]
        argv += [f"--object-store-memory={STORE}", "--disable-usage-stats", *words]
        log = self.place / f"{name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
        self.machines.append(RayMachine(name, home, process))
        # One after the other: raylets that start at the same time on one machine hinder each other.
        until(lambda: "Ray runtime started" in log.read_text() or process.poll() is not None, f"{name} runs", 90)
        assert process.poll() is None, log.read_text()[-2000:]
        return self.machines[-1]

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-W", "ignore", "-m", "support.held", "--project", str(self.project), *words]

    def nvllm(self, home: Path, *words: str) -> Done:
        """Run nvllm on the project as the driver, whose state is below HOME."""
        return run(self.argv(*words, "--json"), {**self.env, "NVLLM_HOME": str(home)})

    def status(self, home: Path) -> list[dict[str, Any]]:
        done = self.nvllm(home, "fleet", "status", "--on", self.address)
        return list(json.loads(done.out)["result"]["machines"]) if done.code == 0 else []

    def running(self, name: str) -> RayMachine | None:
        """Return the machine called NAME, unless it is lost."""
        return next((one for one in self.machines if one.name == name and one.process.poll() is None), None)

    def lose_machines(self, *kept: str) -> None:
        """Lose every machine but the head and those named in KEPT."""
        for one in reversed(self.machines):
            if one.process.poll() is None and one.name not in {"head", *kept}:
                one.lose()

    def end(self) -> None:
        for one in reversed(self.machines):
            if one.process.poll() is None:
                one.lose()
        shutil.rmtree(self.temp, ignore_errors=True)


@contextlib.contextmanager
def cluster(place: Path, project: Path, mode: str = "token") -> Iterator[RayWorld]:
    """Yield a cluster of a head alone, in MODE; every process of it ends with the context."""
    place.mkdir(parents=True)
    world = RayWorld(place, project, mode=mode)
    try:
        world.start_head()
        yield world
    finally:
        world.end()
