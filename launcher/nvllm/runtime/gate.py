"""The gate: the first process in the container. It becomes `vllm serve` only if everything is as planned.

Standard library only; nothing of vLLM is imported before the gate has passed. What it expects stands in
``/run/nvllm/launch.json``, mounted read-only by the launcher. What it finds it says on stdout, one line each:
``nvllm.gate`` and a JSON object. If anything is wrong it says all of it and exits with status 78.
"""

import hashlib
import json
import os
import stat
import sys
import time
from typing import Any, NoReturn, TypedDict

RUN = "/run/nvllm"
EXPECTATIONS = "launch.json"
IDENTITY = "/opt/nvllm/identity.json"
STATUS = "/proc/self/status"
REFUSED = 78
"""EX_CONFIG of sysexits.h: no restart policy mistakes it for a crash of the engine."""

_HASHED_UP_TO = 64 * 2**20
"""Model files up to this size are hashed again, through the mount; of larger ones only the size is compared,
because the launcher hashed them before the start and a second read of 30 GB costs minutes."""

_OURS = frozenset(
    {
        "HOSTNAME",
        "LC_CTYPE",  # the interpreter
        "NVIDIA_CTK_LIBCUDA_DIR",  # NVIDIA's container toolkit, where it gives GPUs as CDI devices
        "NVIDIA_DRIVER_CAPABILITIES",
        "NVIDIA_VISIBLE_DEVICES",
        "container",  # Podman
    }
)
"""Variables that the container engine, its GPU hook and the interpreter add by themselves."""


class Finding(TypedDict):
    """One thing that is not as planned."""

    where: str
    expected: str
    found: str


def finding(where: str, expected: object, found: object) -> Finding:
    return {"where": where, "expected": str(expected), "found": str(found)}


def identity(expected: str) -> list[Finding]:
    """Compare the image's identity file with the build hash EXPECTED."""
    try:
        with open(IDENTITY, encoding="utf-8") as stream:
            actual = json.load(stream)["build_hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [finding(IDENTITY, f"build hash {expected}", repr(error))]
    return [] if actual == expected else [finding(IDENTITY, f"build hash {expected}", actual)]


def process(user: str, waivers: set[str]) -> list[Finding]:
    """Compare what this process may do with the hardening that every launch plan has."""
    findings: list[Finding] = []
    actual = f"{os.getuid()}:{os.getgid()}"
    if actual != user or os.getuid() == 0:
        findings.append(finding("user", user, actual))
    with open(STATUS, encoding="ascii") as stream:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in stream if ":\t" in line)
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    capabilities = [name for name in sets if int(status[name], 16) != 0]
    findings.extend(finding(f"{STATUS} {name}", "no capability", status[name]) for name in capabilities)
    if status["NoNewPrivs"] != "1":
        findings.append(finding(f"{STATUS} NoNewPrivs", "1", status["NoNewPrivs"]))
    # 2 is a filter. A kernel that was built without seccomp has no such line.
    if "no-seccomp" not in waivers and status.get("Seccomp") != "2":
        findings.append(finding(f"{STATUS} Seccomp", "2, a filter of system calls", status.get("Seccomp")))
    if "writable-root" not in waivers and not read_only("/"):
        findings.append(finding("/", "a read-only root", "a writable one"))
    return findings


def read_only(path: str) -> bool:
    """Say whether the file system that PATH lies on is mounted read-only here."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def run_directory(sentinels: list[str]) -> list[Finding]:
    """Compare /run/nvllm with exactly the SENTINELS that the profile names."""
    expected = sorted([*sentinels, EXPECTATIONS])
    names = sorted(os.listdir(RUN))
    result = [] if names == expected else [finding(RUN, " ".join(expected), " ".join(names))]
    if not read_only(RUN):
        result.append(finding(RUN, "a read-only mount", "a writable one"))
    return result


def environment(expected: list[str]) -> list[Finding]:
    """Compare the names of the environment's variables: an unknown one may switch anything."""
    names = set(os.environ) - _OURS
    missing, extra = sorted(set(expected) - set(os.environ)), sorted(names - set(expected))
    if not missing and not extra:
        return []
    return [finding("environment", "the variables of the plan", f"missing {missing}, extra {extra}")]


def model(root: str, files: list[dict[str, object]]) -> list[Finding]:
    """Compare the model below ROOT with exactly FILES: paths, sizes, and the bytes of all but the largest."""
    findings: list[Finding] = []
    expected = {str(file["path"]): file for file in files}
    present: set[str] = set()
    for directory, below, names in os.walk(root):
        links = [name for name in below if os.path.islink(os.path.join(directory, name))]
        present.update(os.path.relpath(os.path.join(directory, name), root) for name in (*names, *links))
    findings.extend(finding(f"{root}/{path}", "no such file", "a file") for path in sorted(present - expected.keys()))
    for path, file in sorted(expected.items()):
        findings.extend(model_file(f"{root}/{path}", file))
    return findings


def model_file(path: str, expected: dict[str, object], hashed_up_to: int = _HASHED_UP_TO) -> list[Finding]:
    """Compare one file, through one descriptor that follows no link and waits for no writer of a FIFO."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return [finding(path, f"{expected['size']} bytes", error.strerror)]
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return [finding(path, f"a file of {expected['size']} bytes", "no regular file")]
    with os.fdopen(descriptor, "rb") as stream:
        if status.st_size != expected["size"]:
            return [finding(path, f"a file of {expected['size']} bytes", f"{status.st_size} bytes")]
        if not os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
            return [finding(path, "a read-only mount", "a writable one")]
        if status.st_size <= hashed_up_to:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest != expected["sha256"]:
                return [finding(path, f"sha256 {expected['sha256']}", digest)]
        # What has the name by now must be what was read, untouched: the engine will open it by its name.
        if not unchanged(status, os.fstat(descriptor)) or not unchanged(status, os.lstat(path)):
            return [finding(path, "a file that stays as it is while it is read", "it changed")]
    return []


def unchanged(before: os.stat_result, after: os.stat_result) -> bool:
    """Say whether AFTER is of the file of BEFORE, and nobody has written to it; no user can set a change time back."""
    names = ("st_dev", "st_ino", "st_mode", "st_size", "st_mtime_ns", "st_ctime_ns")
    return all(getattr(before, name) == getattr(after, name) for name in names)


def cache(expected: dict[str, Any] | None) -> list[Finding]:
    """Compare the blessed cache, through its mount, with exactly what is EXPECTED: paths, modes, and all bytes.

    A directory for lock files is a mount of its own here, empty and writable.
    """
    if expected is None:
        return []
    root, locks = str(expected["path"]), set(expected["locks"])
    entries = {str(entry["path"]): entry for entry in (*expected["files"], *expected["directories"])}
    findings: list[Finding] = []
    present = set()
    for directory, below, names in os.walk(root):
        inner = os.path.relpath(directory, root)
        present.add(inner)
        if inner in locks and not os.access(directory, os.W_OK):
            findings.append(finding(directory, "a writable mount", "one that is not"))
        if inner in locks and (below or names):
            findings.append(finding(directory, "an empty directory", " ".join(sorted([*below, *names]))))
        links = [name for name in below if os.path.islink(os.path.join(directory, name))]
        present.update(os.path.relpath(os.path.join(directory, name), root) for name in (*names, *links))
    for path in sorted(present ^ entries.keys()):
        difference = ("nothing", "something") if path in present else ("something", "nothing")
        findings.append(finding(f"{root}/{path}", *difference))
    for path in sorted(present & entries.keys() - locks):
        name = os.path.join(root, path)
        status = os.lstat(name)
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        if mode != entries[path]["mode"]:
            findings.append(finding(name, f"mode {entries[path]['mode']}", f"mode {mode}"))
        if "sha256" in entries[path]:
            if status.st_nlink != 1:  # through another name the bytes can change later
                findings.append(finding(name, "a file with one name", f"{status.st_nlink} names"))
            findings.extend(model_file(name, entries[path], sys.maxsize))
        elif not read_only(name):
            findings.append(finding(name, "a read-only mount", "a writable one"))
    return findings


def say(event: str, **details: object) -> None:
    print("nvllm.gate", json.dumps({"event": event, **details}, sort_keys=True), flush=True)


def refuse(findings: list[Finding]) -> NoReturn:
    say("refused", findings=findings)
    sys.exit(REFUSED)


def main(command: list[str]) -> NoReturn:
    started = time.monotonic()
    try:
        with open(f"{RUN}/{EXPECTATIONS}", encoding="utf-8") as stream:
            expected = json.load(stream)
    except (OSError, ValueError) as error:
        refuse([finding(f"{RUN}/{EXPECTATIONS}", "the launcher's expectations", repr(error))])
    try:
        findings = [
            *identity(expected["build_hash"]),
            *process(expected["user"], set(expected["waivers"])),
            *run_directory(expected["sentinels"]),
            *environment(expected["environment"]),
            *(wrong for tree in expected["models"] for wrong in model(tree["path"], tree["files"])),
            *cache(expected["cache"]),
        ]
        if command != expected["command"]:
            findings.append(finding("command", " ".join(expected["command"]), " ".join(command)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        refuse([finding("gate", "expectations that can be compared with what is here", repr(error))])
    if findings:
        refuse(findings)
    say("passed", seconds=round(time.monotonic() - started, 3))
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command was just compared with the launch plan's
    except OSError as error:
        refuse([finding("command", "a program that starts", f"{command[0]}: {error.strerror}")])


if __name__ == "__main__":
    main(sys.argv[1:])
