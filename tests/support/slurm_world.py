"""A real Slurm on this machine: slurmctld, and one slurmd for each node, in namespaces of their own.

Its network is a loopback that nobody else sees, because with `auth/none` whoever reaches a port is root there. Each
node has its own mounts, and a home of nvllm's under the path that all of them name; the container engine is the host's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.engine_world import ROOT, Done, run, until

PROGRAMS = ("slurmctld", "slurmd", "sbatch")
_HOST = "slurm"
_CONTROL, _NODE = 6817, 6818
"""Ports: no other process is in this network."""

_OWN = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Gives a command processes and mounts of its own, which end with it."""

_CONFIG = f"""ClusterName=nvllm
SlurmctldHost={_HOST}(127.0.0.1)
SlurmctldPort={_CONTROL}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=5
StateSaveLocation={{place}}/state
SlurmdSpoolDir={{place}}/spool-%n
SlurmctldPidFile={{place}}/slurmctld.pid
SlurmdPidFile={{place}}/slurmd-%n.pid
SlurmctldLogFile={{place}}/slurmctld.log
SlurmdLogFile={{place}}/slurmd-%n.log
"""


def missing() -> str:
    """Return what keeps Slurm from being run here, or nothing."""
    lacking = [one for one in PROGRAMS if shutil.which(one) is None]
    return f"{', '.join(lacking)} of Debian's slurmctld, slurmd, slurm-client: not here" if lacking else ""


@dataclass
class SlurmWorld:
    """A Slurm below PLACE whose NODES have each the Feature that is beside its name."""

    place: Path
    nodes: Mapping[str, str]
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """Where nvllm keeps its own, on each node; another directory lies there on each."""
        return self.place / "home"

    @property
    def env(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT / "launcher"), os.environ.get("PYTHONPATH", "")])
        programs = f"{self.place}/bin:{os.environ['PATH']}:/usr/sbin"
        own = {"SLURM_CONF": str(self.place / "slurm.conf"), "NVLLM_HOME": str(self.home)}
        return {**os.environ, **own, "PYTHONPATH": path, "PATH": programs}

    def within(self, *command: str | Path) -> Sequence[str]:
        """Return what runs COMMAND in the network and under the host name of Slurm."""
        target = str(self.started["network"].pid)
        return ["nsenter", "--target", target, "--net", "--uts", *map(str, command)]

    def run(self, *command: str, where: Path = ROOT, home: Path | None = None) -> Done:
        """Run COMMAND, with the home of nvllm's that is told, and not that of a node."""
        env = {**self.env, "NVLLM_HOME": str(home)} if home else self.env
        return run(self.within(*command), env, cwd=where)

    def start(self) -> None:
        for one in ("bin", "state", "home", *(f"home-{name}" for name in self.nodes)):
            (self.place / one).mkdir(parents=True)
        nvllm = self.place / "bin/nvllm"
        nvllm.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m nvllm "$@"\n')
        nvllm.chmod(0o755)
        lines = [
            f"NodeName={name} NodeHostname={_HOST} NodeAddr=127.0.0.1 Port={_NODE + number} CPUs=1 Feature={feature}"
            for number, (name, feature) in enumerate(self.nodes.items())
        ]
        lines.append(f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP")
        (self.place / "slurm.conf").write_text(_CONFIG.format(place=self.place) + "\n".join(lines) + "\n")
        # Slurm finds no address to listen on where there is none but 127.0.0.1.
        network = "ip link set lo up && ip address add 192.0.2.1/32 dev lo"
        script = f'hostname {_HOST} && {network} && touch "$0" && exec sleep infinity'
        self._begin("network", "unshare", "--net", "--uts", "sh", "-c", script, self.place / "up")
        until((self.place / "up").exists, "the network is there")
        self._begin("slurmctld", *self.within(*_OWN, "slurmctld", "-D"))
        for name in self.nodes:
            self.begin(name)
        until(self._idle, "the nodes are idle")

    def begin(self, name: str) -> None:
        """Start the node NAME, with what its disk has."""
        script = f'mount --bind "$0" {self.home} && exec "$@"'
        node = ["slurmd", "-D", "-N", name]
        self._begin(name, *self.within(*_OWN, "sh", "-c", script, self.place / f"home-{name}", *node))

    def lose(self, name: str) -> None:
        """Lose the node NAME at once, with every process on it. Its containers run on: they are the engine's."""
        self.started[name].kill()
        self.started[name].wait()

    def _begin(self, name: str, *argv: str | Path) -> None:
        # Whatever becomes of the tests, what they started ends with them.
        command = ["setpriv", "--pdeathsig", "KILL", *argv]
        with (self.place / f"{name}.out").open("ab") as log:
            own = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.started[name] = own

    def _idle(self) -> bool:
        done = self.run("sinfo", "--noheader", "--Node", "--format=%T")
        return done.out.split() == ["idle"] * len(self.nodes)

    def type(self, line: str, where: Path, **variables: str) -> Done:
        """Type LINE into a shell whose directory is WHERE and which has VARIABLES."""
        told = [f"{name}={value}" for name, value in variables.items()]
        return self.run("env", *told, "sh", "-c", line, where=where)

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm says of the job NUMBER."""
        done = self.run("scontrol", "--oneliner", "show", "job", number)
        return dict(re.findall(r"(\w+)=(\S*)", done.out))

    def ended(self, number: str) -> dict[str, str]:
        """Wait until the job NUMBER has ended and all nodes are idle, and return what Slurm says of it."""
        going = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        until(lambda: self.job(number)["JobState"] not in going and self._idle(), f"job {number} ends", 90)
        return self.job(number)

    def end(self) -> None:
        for one in reversed(self.started.values()):
            one.kill()
            one.wait()


@contextlib.contextmanager
def slurm(place: Path, nodes: Mapping[str, str]) -> Iterator[SlurmWorld]:
    """Yield a Slurm below PLACE with NODES; every process of it ends with the context."""
    world = SlurmWorld(place, nodes)
    try:
        world.start()
        yield world
    finally:
        world.end()
