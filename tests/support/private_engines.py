"""Engines of a test's own: unpacked from packages, each in namespaces of its own, with everything that it writes.

Nothing is installed and the host's engine is not touched. A distribution is unpacked once, below the cache directory,
by an apt with a state of its own, from the mirror that the host's apt is configured with; apt verifies every package by
Debian's own keyring. An engine is root in its chroot, and has a network, process ids and mounts that the host does not
see: with the first process of its namespaces everything ends, and every mount is gone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.engine_world import ROOT, Done, alive, run, until

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PACKAGES = """bash ca-certificates catatonit conmon containerd coreutils crun docker-compose docker.io iproute2
iptables netavark podman procps runc tini"""
_HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STARTS = 90
"""Seconds that an engine may take until it answers."""

_PODMAN = """[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
log_driver = "k8s-file"
[network]
firewall_driver = "iptables"
"""
"""crun does not run where control groups are of both versions; no journal and no systemd is there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """An engine to try: NAME for people, the Debian SUITE that has it (none: the host's own), and how it is set up."""

    name: str
    suite: str | None
    product: str = "Docker"
    store: str = "its own"


KINDS = (
    Kind("docker-host", None),
    Kind("docker-26-classic", "trixie"),
    Kind("docker-26-containerd", "trixie", store="containerd"),
    Kind("podman-5", "trixie", product="Podman"),
    Kind("docker-28-classic", "sid"),
    Kind("docker-28-containerd", "sid", store="containerd"),
)
"""The names say what the suites have today; which version it was, the engine says."""


@dataclass
class Row:
    """What one engine did: a line of the table that the tests print at their end."""

    name: str
    version: str = "-"
    cells: dict[str, str] = field(default_factory=dict)


ROWS: list[Row] = []
COLUMNS = ("doctor", "loading", "build", "toggle", "model", "gpu", "scratch", "serve", "stop", "gc")


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nvllm-test-engines"


# Distributions

_REGISTRIES = """[[registry]]
location = "127.0.0.1"
insecure = true
"""
"""As Docker takes it by itself: a registry on loopback may speak plain HTTP."""


def _mirrors() -> list[str]:
    """Return the archives that the host's apt has, whether or not it ever fetched their lists."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    )
    return list(dict.fromkeys(said.stdout.split()))


@functools.cache
def distribution(suite: str) -> Path:
    """Return the root into which the packages of SUITE are unpacked; it is made if it is not there."""
    top = cache() / suite
    complete = top / "complete"  # says of what
    if complete.exists() and complete.read_text() == _PACKAGES:
        return top / "root"
    assert KEYRING.is_file(), "install debian-archive-keyring, which the packages are verified with"
    shutil.rmtree(top, ignore_errors=True)
    for part in ("state/lists/partial", "packages/archives/partial", "root"):
        (top / part).mkdir(parents=True)
    (top / "status").touch()
    options = {
        "Dir::State": top / "state",
        "Dir::State::status": top / "status",
        "Dir::Cache": top / "packages",
        "Dir::Etc::sourcelist": top / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        # A suite that goes on says until when it counts; a test machine's clock may be anywhere.
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Check-Date": "false",
    }
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in options.items())]
    failed = []
    for mirror in _mirrors():
        (top / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n")
        got = [*apt, "--yes", "--download-only", "install", *_PACKAGES.split()]
        done = [run(argv, os.environ) for argv in ([*apt, "--error-on=any", "update"], got)]
        if not any(one.code for one in done):
            break
        failed += [one.err for one in done]
    else:
        raise AssertionError("\n".join(["no configured archive has the packages", *failed]))
    root = top / "root"
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for deb in sorted((top / "packages/archives").glob("*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as unpacked:
            subprocess.run(["tar", "-C", root, "-x", "--keep-directory-symlink"], stdin=unpacked.stdout, check=True)
        assert unpacked.returncode == 0, deb
    for name in ("iptables", "iptables-save", "iptables-restore", "ip6tables"):  # what a maintainer script links
        (root / "usr/sbin" / name).symlink_to("xtables-nft-multi")
    (root / "etc/containers").mkdir(parents=True, exist_ok=True)
    (root / "etc/containers/policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (root / "etc/containers/containers.conf").write_text(_PODMAN)
    (root / "etc/containers/registries.conf").write_text(_REGISTRIES)
    shutil.rmtree(top / "packages")
    complete.write_text(_PACKAGES)
    return root


# Namespaces


class Namespaces:
    """A network, process ids and mounts that end with this object; the loopback is up, /run is empty."""

    def __init__(self) -> None:
        # Whatever becomes of us, who made the namespaces ends with us, and they with who made them.
        argv = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sleep",
            "infinity",
        ]
        self._maker = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
        self.first = 0
        """The process that all of it ends with, by its id outside."""
        until(self._begun, "the namespaces are there", 10)
        self.done("mount", "-t", "tmpfs", "tmpfs", "/run")
        self.done("ip", "link", "set", "lo", "up")

    def _begun(self) -> bool:
        children = Path(f"/proc/{self._maker.pid}/task/{self._maker.pid}/children").read_text().split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text().strip() != "sleep":
            return False
        self.first = int(children[0])
        return True

    def argv(self, *command: str | Path) -> list[str]:
        entered = ["nsenter", "--target", str(self.first), "--net", "--mount", "--pid", "--"]
        return [*entered, *map(str, command)]

    def done(self, *command: str | Path) -> None:
        subprocess.run(self.argv(*command), check=True)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGKILL)
        self._maker.wait()


# Engines

_COUNTED = """
import sys
from nvllm.layers import archive; from nvllm.cli import main as cli
stream, sent = archive.stream, 0
def counted(*args):
    global sent
    for chunk in stream(*args):
        sent += len(chunk)
        yield chunk
archive.stream = counted
try:
    sys.exit(cli.main())
finally:
    print("sent", sent, file=sys.stderr)
"""
"""nvllm, which says at its end how many bytes it has sent as archives of images."""


@dataclass(frozen=True, slots=True)
class PrivateEngine:
    """An engine that answers, and a home of nvllm's beside it."""

    kind: Kind
    spaces: Namespaces
    socket: Path
    home: Path

    @property
    def env(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        return {**kept, "DOCKER_HOST": f"unix://{self.socket}", "NVLLM_HOME": str(self.home)}

    def nvllm(self, *args: str) -> Done:
        """Run nvllm on the project, inside the engine's network."""
        return self.on_project(ROOT, *args)

    def on_project(self, project: Path, *args: str) -> Done:
        """Run nvllm on PROJECT, inside the engine's network."""
        return run(
            [*self.spaces.argv(sys.executable, "-c", _COUNTED), "--project", str(project), *args, "--json"], self.env
        )

    def python(self, script: str) -> Done:
        """Run SCRIPT beside the engine, with nvllm and the helpers of the tests to import."""
        paths = os.pathsep.join([str(ROOT / "launcher"), str(ROOT / "tests")])
        return run(self.spaces.argv(sys.executable, "-c", script), {**self.env, "PYTHONPATH": paths})

    def api(self, path: str) -> Any:
        """Return what the engine answers at PATH."""
        curl = self.spaces.argv("curl", "--silent", "--fail", "--unix-socket", self.socket, f"http://engine{path}")
        done = run(curl, self.env)
        return json.loads(done.out) if done.code == 0 else None


def sent(done: Done) -> int:
    """Return how many bytes of archives DONE, a run of nvllm, has sent."""
    return int(done.err.rstrip().rpartition("\n")[2].removeprefix("sent "))


@contextlib.contextmanager
def engine(kind: Kind) -> Iterator[PrivateEngine]:
    """Yield an engine of KIND that answers; what it writes lies below the cache directory, and is gone afterwards."""
    root = Path("/") if kind.suite is None else distribution(kind.suite)
    work = cache() / "work"
    for old in work.glob(f"{kind.name}-*/"):  # of a run that was killed
        if not alive(int(old.name.rpartition("-")[2])):
            _remove(old)
    directory = work / f"{kind.name}-{os.getpid()}"
    directory.mkdir(parents=True)
    spaces = Namespaces()
    log = directory.parent / f"{directory.name}.log"
    try:
        if kind.suite is not None:
            spaces.done("mount", "--bind", root, root)  # what an engine unpacks in wants a root that is a mount
            for name in ("proc", "sys", "dev", "run"):
                spaces.done("mount", "--rbind", f"/{name}", root / name)
            # What containers mount has one name for the engine and for nvllm; so has the engine's own directory.
            for place in (directory, ROOT):
                spaces.done("mkdir", "-p", root / place.relative_to("/"))
                spaces.done("mount", "--rbind", place, root / place.relative_to("/"))
        socket = Path("/run/nvllm-test.sock")
        with log.open("wb") as stream:
            argv = spaces.argv("chroot", root, *_command(kind, directory, socket))
            daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=_environment())
        found = PrivateEngine(kind, spaces, socket, directory / "home")
        try:
            until(lambda: daemon.poll() is not None or found.api("/version") is not None, "the engine answers", _STARTS)
            assert daemon.poll() is None, log.read_text(errors="replace")[-3000:]
            yield found
        finally:
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(30)
    finally:
        spaces.end()
        _remove(directory)


def _environment() -> Mapping[str, str]:
    # A zone that is not UTC: what an engine stamps its logs with may be the time of the host.
    return {"PATH": _HOST_PATH, "HOME": "/root", "TMPDIR": "/tmp", "TZ": "IST-5:30"}


def _command(kind: Kind, directory: Path, socket: Path) -> Sequence[str]:
    data, at = directory / "data", directory / "exec"
    if kind.product == "Podman":
        options = ["--root", f"{data}", "--runroot", "/run/podman", "--storage-driver", "overlay"]
        return ["podman", *options, "system", "service", "--time=0", f"unix://{socket}"]
    config = directory / "daemon.json"
    config.write_text(json.dumps({"features": {"containerd-snapshotter": kind.store == "containerd"}}))
    named = ["--config-file", f"{config}", "--data-root", f"{data}", "--exec-root", f"{at}", "--pidfile", "/run/d.pid"]
    return ["dockerd", *named, "--host", f"unix://{socket}"]


def _remove(directory: Path) -> None:
    """Remove what an engine wrote; its last process may still be going."""
    for _ in range(50):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.2)
    raise AssertionError(f"{directory} cannot be removed")
