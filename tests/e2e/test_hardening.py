"""The hardening of a launch plan, proved from inside the container that runs it.

Everything is asked of the running container itself, by a Python program in it; what the engine says that it
configured is not asked. Where a file's mode alone would refuse a write, the question is asked as root of the
container, who owns the file: only the mount refuses then.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any

import pytest

from nvllm.core import plan
from nvllm.core.plan import LaunchPlan
from support.engine_world import SECRETS, Served

pytestmark = pytest.mark.engine

LOOK = """
import json, os, resource, socket
from pathlib import Path

def first(*names):
    return next((int(Path(n).read_text()) for n in names if Path(n).exists()), None)

def processes():
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            lines = (entry / "status").read_text().splitlines()
            environ = (entry / "environ").read_bytes().decode().split("\\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield {"pid": int(entry.name), **dict(line.split(":\\t", 1) for line in lines if ":\\t" in line),
               "environ": [one for one in environ if one]}

def write(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        return error.errno
    os.unlink(path)
    return 0

def size(path):
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize

print(json.dumps({
    "user": [os.getuid(), os.getgid(), os.getgroups()],
    "processes": list(processes()),
    "run": sorted(os.listdir("/run/nvllm")),
    "writes": {path: write(path) for path in ["/x", "/opt/x", "/run/nvllm/x", "/etc/x", "/models/x", "/tmp/x",
                                              "/home/nvllm/x", "/dev/shm/x"]},
    "sizes": {path: size(path) for path in ["/tmp", "/home/nvllm", "/dev/shm"]},
    "mounts": [line.split()[4:6] for line in Path("/proc/self/mountinfo").read_text().splitlines()],
    "memory": first("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"),
    "pids": first("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max"),
    "ulimits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}")) for name in ("core", "nofile")},
    "ipc": os.readlink("/proc/self/ns/ipc"),
    "net": os.readlink("/proc/self/ns/net"),
    "hardware": sorted(os.listdir("/dev")),
}))
"""

WRITE_AS_ROOT = """
import json, os, sys
found = {}
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_WRONLY))
        found[path] = 0
    except OSError as error:
        found[path] = error.errno
changes = {"mkdir": lambda: os.mkdir("/run/nvllm/extra"), "chmod": lambda: os.chmod("/run/nvllm/launch.json", 0o644)}
for name, change in changes.items():
    try:
        change()
        found[name] = 0
    except OSError as error:
        found[name] = error.errno
print(json.dumps([os.getuid(), open("/proc/self/status").read().split("CapEff:\\t")[1].split()[0], found]))
"""

ASK_THE_HUB = """
import huggingface_hub, sys
try:
    huggingface_hub.hf_hub_download("owner/name", "config.json")
except Exception as error:
    print(type(error).__name__)
"""


def inside(served: Served, program: str, *args: str, user: str = "") -> str:
    python = planned(served).command.interpreter
    code, output = served.container.exec_run([python, "-c", program, *args], user=user)
    assert code == 0, output
    assert isinstance(output, bytes)
    return output.decode()


def planned(served: Served) -> LaunchPlan:
    return plan.decode(json.loads((served.world.run_directory() / "plan.json").read_bytes()))


@dataclass(frozen=True)
class Inside:
    plan: LaunchPlan
    found: dict[str, Any]


@pytest.fixture(scope="module")
def look(served: Served) -> Inside:
    return Inside(planned(served), json.loads(inside(served, LOOK)))


def test_every_process_is_the_planned_user_without_any_right(look: Inside) -> None:
    user, group = (int(part) for part in look.plan.user.split(":"))
    assert user != 0
    assert look.found["user"][:2] == [user, group]
    assert set(look.found["user"][2]) <= {group}
    assert len(look.found["processes"]) >= 3  # the server, its engine core, its worker
    for one in look.found["processes"]:
        assert one["Uid"].split() == [str(user)] * 4
        assert one["Gid"].split() == [str(group)] * 4
        for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(one[capabilities], 16) == 0, one["Name"]
        assert (one["NoNewPrivs"], one["Seccomp"]) == ("1", "2"), one["Name"]


def test_only_the_scratch_is_writable(look: Inside) -> None:
    writes = look.found["writes"]
    assert {path for path, error in writes.items() if error == 0} == {"/tmp/x", "/home/nvllm/x", "/dev/shm/x"}
    assert writes["/x"] == writes["/opt/x"] == writes["/etc/x"] == writes["/run/nvllm/x"] == errno.EROFS
    kernel = ("/proc", "/sys", "/dev")
    writable = {at for at, options in look.found["mounts"] if "rw" in options.split(",") and not at.startswith(kernel)}
    # The engine's three files of the network are its own; only root of the host may write them.
    assert writable - {"/etc/resolv.conf", "/etc/hostname", "/etc/hosts"} == {one.target for one in look.plan.scratch}


def test_the_scratch_has_the_planned_sizes(look: Inside) -> None:
    for scratch in look.plan.scratch:
        assert look.found["sizes"][scratch.target] == scratch.size
    assert look.found["sizes"]["/dev/shm"] == look.plan.limits.shared_memory


def test_what_is_mounted_is_read_only_even_for_root(served: Served, look: Inside) -> None:
    files = [mount.target for mount in look.plan.mounts if mount.target.startswith(f"{look.plan.model.path}/")]
    assert len(files) == len(look.plan.mounts) - 1 >= 3
    options = dict(look.found["mounts"])
    for mount in look.plan.mounts:
        assert "ro" in options[mount.target].split(","), mount.target
    said = inside(served, WRITE_AS_ROOT, *files, user="0:0")
    user, capabilities, found = json.loads(said)
    assert (user, int(capabilities, 16)) == (0, 0)
    assert set(found.values()) == {errno.EROFS}, found


def test_the_run_directory_holds_the_expectations_the_sentinels_and_nothing_else(look: Inside) -> None:
    assert look.plan.sentinels == ("mamba-block-ids", "page-zeroer")
    assert sorted(look.found["run"]) == sorted(["launch.json", *look.plan.sentinels])


def test_the_limits(look: Inside) -> None:
    assert look.found["memory"] == look.plan.limits.memory
    assert look.found["pids"] == look.plan.limits.pids
    files = look.plan.limits.open_files
    assert look.found["ulimits"] == {"core": [0, 0], "nofile": [files, files]}


def test_ipc_and_network_are_private(look: Inside) -> None:
    assert look.found["ipc"] != os.readlink("/proc/self/ns/ipc")
    assert look.found["net"] != os.readlink("/proc/self/ns/net")


def test_no_device_but_the_usual_ones(look: Inside) -> None:
    usual = {"console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin"}
    assert set(look.found["hardware"]) <= usual | {"stdout", "tty", "urandom", "zero"}


def test_the_environment_is_the_planned_one_and_holds_no_secret(look: Inside) -> None:
    (server,) = [one for one in look.found["processes"] if one["pid"] == 1]
    names = {variable.partition("=")[0] for variable in server["environ"]}
    assert names - {"HOSTNAME"} == look.plan.environment.keys()
    assert dict(look.plan.environment).items() <= dict(one.split("=", 1) for one in server["environ"]).items()
    for process in look.found["processes"]:
        text = "\n".join(process["environ"])
        assert not any(secret in text for secret in SECRETS.values()), process["Name"]


def test_no_hub_is_asked(served: Served) -> None:
    assert inside(served, ASK_THE_HUB).strip() in {"OfflineModeIsEnabled", "LocalEntryNotFoundError"}


def _addresses() -> set[str]:
    """Return every IPv4 address of this host."""
    found = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue  # an interface without an address
            found.add(socket.inet_ntoa(answer[20:24]))
    return found


def test_it_is_published_on_the_loopback_address_only(served: Served) -> None:
    port = served.world.port
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    others = _addresses() - {"127.0.0.1"}
    assert others, "the engine's bridge has an address of this host"
    for address in others:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=5)
