"""One container without a container engine: `python container.py FILE DIRECTORY`. Needs root, Linux and Python alone.

FILE is JSON: `root`, which is what the image has, host path by path in it, and what the API of a container engine calls
`Entrypoint`, `Cmd`, `Env`, `User` and `HostConfig`. The process gets a read-only file system of its own with the mounts
and scratch that are asked for, no variable but those, no capability and no way to get one, and it is the first of its
process ids. Network, processors and memory are the host's, without a limit.

Prints the process id that the host knows it by; what follows is the process's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_NEW_MOUNTS, _NEW_IPC, _NEW_PIDS = 0x20000, 0x8000000, 0x20000000
_DROP_BOUNDING, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 24, 38, 22, 2
_RETURN, _ALLOW = 0x06, 0x7FFF0000
_FLAGS = {"ro": _READ_ONLY, "nosuid": _NO_SETUID, "nodev": _NO_DEVICES, "rw": 0, "exec": 0}

OWN = frozenset({"dev", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp"})
"""Directories at the top of the host that a container does not have; of the others it has the host's, read-only."""

DEVICES = ("full", "null", "random", "tty", "urandom", "zero")


class _Instruction(ctypes.Structure):
    """An instruction of a filter of system calls."""

    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint))


class _Program(ctypes.Structure):
    """A filter of system calls."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def _call(name: str, *arguments: object) -> None:
    """Call the C library's NAME. Raises OSError with what the kernel says."""
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def _mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    texts = [text.encode() for text in (source, str(target), kind)]
    _call("mount", *texts, ctypes.c_ulong(flags), data.encode())


def bind(source: Path, target: Path, *, writable: bool = False) -> None:
    """Mount SOURCE, a file or a directory with all below it, at TARGET, which is made."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():  # below what is read-only it is there already
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(str(source), target, flags=_BIND | _RECURSIVE)
    if not writable:
        _mount("", target, flags=_REMOUNT | _BIND | _READ_ONLY)


def scratch(target: Path, options: str) -> None:
    """Mount an empty file system at TARGET, which is made; OPTIONS are as `docker run --tmpfs` takes them."""
    target.mkdir(parents=True, exist_ok=True)
    named = options.split(",")
    flags = 0
    for name in named:
        flags |= _FLAGS.get(name, 0)
    _mount("tmpfs", target, "tmpfs", flags, ",".join(name for name in named if name not in _FLAGS))


def devices(target: Path, shared: int, *, gpu: bool) -> None:
    """Make TARGET the directory of devices, with SHARED bytes of shared memory, and those of NVIDIA if GPU."""
    scratch(target, "nosuid,mode=0755")
    nvidia = sorted(Path("/dev").glob("nvidia*")) if gpu else []
    for source in (*(Path("/dev") / name for name in DEVICES), *nvidia):
        bind(source, target / source.name, writable=True)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (target / name).symlink_to(f"/proc/self/fd/{number}")
    (target / "fd").symlink_to("/proc/self/fd")
    scratch(target / "shm", f"nosuid,nodev,mode=1777,size={shared}")


def lay(new: Path, root: Mapping[str, str], host: Mapping[str, Any]) -> None:
    """Lay out in NEW, an empty directory, the file system of a container with the host configuration HOST.

    ROOT are the directories and files of the image, by their path in it. All else is the host's own.
    """
    scratch(new, "mode=0755")
    for entry in sorted(Path("/").iterdir()):
        if entry.is_symlink():
            (new / entry.name).symlink_to(entry.readlink())
        elif entry.name in OWN:
            (new / entry.name).mkdir()
        elif entry.is_dir():
            bind(entry, new / entry.name)
    images = {path.partition("/")[2].split("/")[1] for path in root if path.startswith("/opt/")}
    for entry in sorted(Path("/opt").iterdir()):
        if entry.name not in images and entry.is_dir():
            bind(entry, new / "opt" / entry.name)
    for path, source in sorted(root.items()):
        bind(Path(source), new / path.lstrip("/"))
    mounts = {mount["Target"]: mount for mount in host.get("Mounts") or ()}
    for path in sorted({*mounts, *(host.get("Tmpfs") or {})}):  # what is above comes before what is below
        target = new / path.lstrip("/")
        if path in mounts:
            bind(Path(mounts[path]["Source"]), target, writable=not mounts[path].get("ReadOnly"))
        else:
            scratch(target, host["Tmpfs"][path])
    devices(new / "dev", host["ShmSize"], gpu=bool(host.get("DeviceRequests")))
    _mount("proc", new / "proc", "proc", _NO_SETUID | _NO_DEVICES)
    bind(Path("/sys"), new / "sys")
    scratch(new / "sys/fs/cgroup", "ro")  # the machine's own, which say nothing of a container
    if host.get("ReadonlyRootfs"):
        _mount("", new, flags=_REMOUNT | _READ_ONLY | _BIND)


def filter_calls() -> None:
    """Install a filter of system calls that allows each: the gate asks for one, and those of engines are theirs."""
    program = _Program(1, ctypes.pointer(_Instruction(_RETURN, 0, 0, _ALLOW)))
    _call("prctl", _SET_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.byref(program), 0, 0)


def give_up_rights(user: str) -> None:
    """Become USER (``uid:gid``), with no capability and no way to get one."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_bytes())  # no codec: the files of Python may be gone
    for number in range(last + 1):
        _call("prctl", _DROP_BOUNDING, ctypes.c_ulong(number), 0, 0, 0)
    _call("prctl", _NO_NEW_PRIVILEGES, ctypes.c_ulong(1), 0, 0, 0)
    filter_calls()
    uid, gid = map(int, user.split(":"))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def become(description: Mapping[str, Any], new: Path) -> NoReturn:
    """Become the process that DESCRIPTION describes, in NEW, an empty directory. The namespaces are its own already."""
    os.umask(0o022)  # a container's own, whatever that of its caller is
    _mount("", Path("/"), flags=_RECURSIVE | _PRIVATE)
    lay(new, description["root"], description["HostConfig"])
    os.chroot(new)
    os.chdir("/")
    give_up_rights(description["User"])
    environment = dict(setting.split("=", 1) for setting in description["Env"])
    argv = [*description["Entrypoint"], *description["Cmd"]]
    os.execvpe(argv[0], argv, environment)


def run(description: Mapping[str, Any], new: Path) -> int:
    """Run the process that DESCRIPTION describes in NEW, an empty directory, to its end; return its exit status."""
    _call("unshare", _NEW_MOUNTS | _NEW_IPC | _NEW_PIDS)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)  # its process id is said first
        os.close(read_end)
        try:
            become(description, new)
        except OSError as error:
            print(f"no container: {error}", file=sys.stderr, flush=True)
        os._exit(127)
    print(child, flush=True)
    os.close(write_end)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    file, directory = sys.argv[1:]
    sys.exit(run(json.loads(Path(file).read_text(encoding="utf-8")), Path(directory)))
