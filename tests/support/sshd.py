"""OpenSSH's server on the two hosts of `support.two_hosts`, with users who have keys of their own.

The server is Debian's. If it is not installed its packages are unpacked below the cache directory, and nothing is
installed. In the namespaces of a host /etc/passwd is another one: root's home is that of the host's user.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from support import private_engines
from support.engine_world import until
from support.two_hosts import Host

_CONFIG = """
ListenAddress 0.0.0.0
HostKey {home}/host_key
AuthorizedKeysFile {home}/.ssh/authorized_keys
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
SetEnv {environment}
"""
_CLIENT = """
Host {name}
  HostName {address}
  User root
"""


def _unpacked() -> Path:
    """Return the root below which the server lies."""
    if Path("/usr/sbin/sshd").exists():
        return Path("/")
    root = private_engines.cache() / "openssh"
    if not (root / "complete").exists():
        with tempfile.TemporaryDirectory() as directory:
            fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "openssh-server", "libwrap0"]
            subprocess.run(fetch, cwd=directory, check=True, capture_output=True)
            for package in Path(directory).glob("*.deb"):
                subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
        (root / "complete").touch()
    return root


@dataclass
class Sshd:
    """The server on HOST, which others know as NAME."""

    host: Host
    name: str
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def home(self) -> Path:
        return Path(self.host.env["HOME"])

    @property
    def program(self) -> Path:
        """What runs there as `nvllm`."""
        return self.home / "bin/nvllm"

    def prepare(self) -> None:
        """Give the user of the host a key and a program `nvllm`, and the host a key and its own /etc/passwd."""
        (self.home / ".ssh").mkdir(mode=0o700)
        for key in (self.home / ".ssh/id_ed25519", self.home / "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (self.home / "bin").mkdir()
        self.program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-W", "ignore", "-m", "nvllm"])} "$@"\n')
        self.program.chmod(0o755)
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in _OURS]
        own = [f"root:x:0:0:root:{self.home}:/bin/sh", "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin"]
        passwd = self.home.parent / "passwd"
        passwd.write_text("\n".join([*own, *others, ""]))
        spaces = self.host.engine.spaces
        spaces.done("mount", "--bind", passwd, "/etc/passwd")
        spaces.done("mkdir", "-p", "/run/sshd")

    def admit(self, other: Sshd) -> None:
        """Let the user of OTHER come here, by its key, as `ssh NAME`."""
        keys = self.home / ".ssh/authorized_keys"
        with keys.open("a") as stream:
            stream.write((other.home / ".ssh/id_ed25519.pub").read_text())
        address = self.host.link.address
        with (other.home / ".ssh/known_hosts").open("a") as stream:
            stream.write(f"{address} {(self.home / 'host_key.pub').read_text()}")
        with (other.home / ".ssh/config").open("a") as stream:
            stream.write(_CLIENT.format(name=self.name, address=address))

    def start(self) -> None:
        root = _unpacked()
        variables = {name: self.host.env[name] for name in ("DOCKER_HOST", "NVLLM_HOME")}
        variables["PATH"] = f"{self.home}/bin:{os.environ['PATH']}"
        environment = " ".join(f"{name}={value}" for name, value in variables.items())
        config = self.home / "sshd_config"
        config.write_text(_CONFIG.format(home=self.home, environment=environment))
        libraries = ":".join(str(path) for path in (root / "usr/lib").glob("*-linux-gnu"))
        argv = ["env", f"LD_LIBRARY_PATH={libraries}", str(root / "usr/sbin/sshd"), "-D", "-e", "-f", str(config)]
        with (self.home / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.host.engine.spaces.argv(*argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until(self._listens, f"sshd of {self.name} listens")

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.home / "sshd.log").read_text()
        asking = self.host.engine.spaces.argv("ssh-keyscan", "-T", "1", self.host.link.address)
        return bool(subprocess.run(asking, capture_output=True, check=False).stdout)


_OURS = ("root", "sshd")


def started(*hosts: tuple[str, Host]) -> list[Sshd]:
    """Start a server on each of HOSTS under its name; the user of each may come to all. They end with the hosts."""
    servers = [Sshd(host, name) for name, host in hosts]
    for server in servers:
        server.prepare()
    for server in servers:
        for other in servers:
            server.admit(other)
        server.start()
    return servers
