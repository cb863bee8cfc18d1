"""Compares the machine with the one of the launch plan, and becomes the gate: the first process of an exported serve.

On a host of nvllm the launcher has looked at processor, GPUs, memory and large model files before a start. Where an
orchestrator starts the container nobody has, so this does. Standard library only. What it expects stands in
``machine.json`` beside it. If anything is wrong it prints all of it, as the gate does, and exits with status 78.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from typing import Any, NoReturn, TypedDict

LAUNCH = "/run/nvllm/launch.json"
MACHINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "machine.json")
REFUSED = 78

HASHED_BY_GATE = 64 * 2**20
"""Model files up to this size are hashed by the gate itself."""

INJECTED = frozenset(
    {
        "KUBERNETES_PORT",
        "KUBERNETES_PORT_443_TCP",
        "KUBERNETES_PORT_443_TCP_ADDR",
        "KUBERNETES_PORT_443_TCP_PORT",
        "KUBERNETES_PORT_443_TCP_PROTO",
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT",
        "KUBERNETES_SERVICE_PORT_HTTPS",
        "TERM",
    }
)
"""Variables that a kubelet gives every container, also without service links, and Podman's terminal type. They are
taken away, because the gate refuses a variable that the plan lacks. The list is closed: any other one is refused."""

_KIND = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU architecture", "CPU variant", "CPU part")
"""Lines of /proc/cpuinfo that say which processor it is, of x86 and of ARM. Frequency and microcode are none."""


class Processor(TypedDict):
    """The processors of a machine; see `Cpu` of host/facts.py."""

    machine: str
    kind: str
    flags: tuple[str, ...]
    count: int
    cores: int
    nodes: int


def finding(where: str, expected: object, found: object) -> dict[str, str]:
    return {"where": where, "expected": str(expected), "found": str(found)}


def processor(proc_root: str = "/proc", sys_root: str = "/sys") -> Processor:
    """Return what the kernel says of the processors. What cannot be read is empty, or 0."""
    try:
        with open(os.path.join(proc_root, "cpuinfo"), encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except OSError:
        text = ""
    blocks: list[dict[str, str]] = [
        dict(re.findall(r"^(.*?)\s*: (.*)$", block, re.MULTILINE)) for block in text.split("\n\n")
    ]
    each = [block for block in blocks if "processor" in block]
    kinds = {" ".join(block[name] for name in _KIND if name in block) for block in each}
    flags = [set(block.get("flags", block.get("Features", "")).split()) for block in each]
    # ARM says nothing of cores: each processor is one.
    cores = {(block.get("physical id"), block.get("core id", f"processor {block['processor']}")) for block in each}
    try:
        listed = os.listdir(os.path.join(sys_root, "devices/system/node"))
    except OSError:
        listed = []
    return {
        "machine": os.uname().machine,
        "kind": ", ".join(sorted(kinds)),
        "flags": tuple(sorted(set.intersection(*flags))) if flags else (),
        "count": len(each),
        "cores": len(cores),
        "nodes": sum(1 for name in listed if re.match(r"node[0-9]", name)),
    }


def processors(expected: dict[str, Any], actual: Processor) -> list[dict[str, str]]:
    """Compare what the code of the cache was compiled for with the ACTUAL one here."""
    same = {"machine": actual["machine"], "kind": actual["kind"]}
    wrong = [
        finding(f"processor: {name}", expected[name], text) for name, text in same.items() if expected[name] != text
    ]
    missing = sorted(set(expected["flags"]) - set(actual["flags"]))
    extra = sorted(set(actual["flags"]) - set(expected["flags"]))
    if missing or extra:
        wrong.append(finding("processor: flags", "those of the plan", f"missing {missing}, extra {extra}"))
    layout = {name: actual[name] for name in ("count", "cores", "nodes")}
    if expected["layout"] is not None and expected["layout"] != layout:
        wrong.append(finding("processor: layout", expected["layout"], layout))
    return wrong


def gpus(expected: list[dict[str, str]]) -> list[dict[str, str]]:
    """Compare names, compute capabilities and driver of the container's GPUs with the EXPECTED ones."""
    if not expected:
        return []
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [finding("nvidia-smi", "the GPUs of the container", repr(error))]
    planned = sorted(", ".join([gpu["name"], gpu["capability"], gpu["driver"]]) for gpu in expected)
    actual = sorted(line.strip() for line in done.stdout.splitlines() if line.strip())
    return [] if actual == planned else [finding("nvidia-smi", "; ".join(planned), "; ".join(actual))]


def memory(needed: int, proc_root: str = "/proc") -> list[dict[str, str]]:
    """Compare the kernel's MemAvailable with the NEEDED bytes."""
    with open(os.path.join(proc_root, "meminfo"), encoding="ascii", errors="replace") as stream:
        line = re.search(r"^MemAvailable:\s+(\d+) kB$", stream.read(), re.MULTILINE)
    available = int(line.group(1)) * 1024 if line else 0
    return [] if available >= needed else [finding("MemAvailable", f"{needed} bytes", f"{available} bytes")]


def large_files(models: list[dict[str, Any]], hashed_by_gate: int = HASHED_BY_GATE) -> list[dict[str, str]]:
    """Hash the model files of which the gate compares only the size."""
    wrong = []
    for model in models:
        for file in model["files"]:
            if file["size"] <= hashed_by_gate:
                continue
            path = os.path.join(model["path"], file["path"])
            try:
                with open(path, "rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError as error:
                digest = repr(error)
            if digest != file["sha256"]:
                wrong.append(finding(path, f"sha256 {file['sha256']}", digest))
    return wrong


def say(event: str, **details: object) -> None:
    print("nvllm.machine", json.dumps({"event": event, **details}, sort_keys=True), flush=True)


def refuse(findings: list[dict[str, str]]) -> NoReturn:
    say("refused", findings=findings)
    sys.exit(REFUSED)


def main(command: list[str]) -> NoReturn:
    """Become COMMAND, which is the gate's, if the machine is the one that the plan was made for."""
    try:
        with open(MACHINE, encoding="utf-8") as stream:
            expected = json.load(stream)
        with open(LAUNCH, encoding="utf-8") as stream:
            launch = json.load(stream)
        findings = [
            *processors(expected["cpu"], processor()),
            *gpus(expected["gpus"]),
            *memory(expected["memory_available"]),
            *large_files(launch["models"]),
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        refuse([finding("machine", "expectations that can be compared with what is here", repr(error))])
    if findings:
        refuse(findings)
    say("passed")
    environment = {name: text for name, text in os.environ.items() if name not in INJECTED}
    os.execvpe(command[0], command, environment)  # noqa: S606 - the gate compares the engine's command with the plan's


if __name__ == "__main__":
    main(sys.argv[1:])
