"""What `lay.py` laid out on a machine with a GPU, and processes that see it as an image would have it.

Each process has a mount namespace of its own, in which `/run/nvllm` holds the sentinels of one arm; so arms can run
side by side. Needs root, Linux, Python, torch and Triton, and nothing of nvllm.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SENTINELS = ("page-zeroer", "mamba-block-ids", "gdn-first-chunk")
"""The switches that do the series' work; `poison` is for looking at them."""

RUN, KERNELS, HOME = "/run/nvllm", "/opt/nvllm/triton", "/home/nvllm"
CACHE = f"{HOME}/.cache/vllm"
"""Where an image has sentinels, precompiled kernels and compiled code, which the home directory is a key of."""

ENVIRONMENT: Mapping[str, str] = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRITON_CACHE_MANAGER": "nvllm_triton_cache:LayeredCache",
    "TRITON_DISABLE_LINE_INFO": "1",
    "VLLM_CACHE_ROOT": CACHE,
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
"""What every process gets: the image's own settings, and what a machine without its packages needs."""

IN_PROCESS: Mapping[str, str] = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@dataclass(frozen=True)
class Place:
    """A directory that lay.py laid out."""

    root: Path

    @property
    def repository(self) -> Path:
        return self.root / "repository"

    def tree(self, name: str) -> Path:
        return self.root / "trees" / name

    def path(self, tree: str) -> str:
        """Return the search path for Python: vLLM as TREE, what the machine lacks, and the scripts of the tests."""
        repository = self.repository
        parts = [self.tree(tree), self.root / "site", self.root / "kernels/site", repository]
        scripts = [repository / path for path in ("tests", "tests/series/probes", "launcher/nvllm/runtime")]
        return os.pathsep.join(map(str, [*parts, *scripts]))

    def commands(self) -> str:
        """Return the search path for Python in which `nvllm` is, what it needs, and the scripts of the tests."""
        packages = [self.repository / path for path in ("launcher", "tests", "")]
        scripts = [self.repository / path for path in ("tests/series/probes", "launcher/nvllm/runtime")]
        return os.pathsep.join(map(str, [*packages, self.root / "tool", *scripts]))


@dataclass(frozen=True)
class Process:
    """One process on a TREE: its arguments, which SENTINELS are there, what else, and its own writable directory.

    HOLDS are further files of `/run/nvllm`, text by name. CACHE is what is mounted where the engine looks for compiled
    code, read-only if SEALED, then with an empty file system of its own over each of FRESH, directories in it. APART
    are directories of the machine that this process shares with no other.
    """

    tree: str
    argv: Sequence[str]
    scratch: Path
    sentinels: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    holds: Mapping[str, str] = field(default_factory=dict)
    cache: Path | None = None
    sealed: bool = False
    fresh: Sequence[str] = ()
    apart: Sequence[str] = ()


def script(place: Place, process: Process) -> str:
    """Return the shell script that sets the mounts of PROCESS up and becomes it. It wants a namespace of its own."""
    cache = process.cache or process.scratch / "cache"
    lines = [
        "set -e",
        f"mkdir -p {RUN} {KERNELS} {CACHE} {shlex.quote(str(cache))}",
        f"mount -t tmpfs tmpfs {RUN}",
        *(f"touch {RUN}/{shlex.quote(name)}" for name in process.sentinels),
        *(f"printf %s {shlex.quote(text)} >{RUN}/{shlex.quote(name)}" for name, text in process.holds.items()),
        f"mount --bind {shlex.quote(str(place.root / 'kernels/cache'))} {KERNELS}",
        f"mount --bind {shlex.quote(str(cache))} {CACHE}",
        *([f"mount -o remount,bind,ro {CACHE}"] if process.sealed else []),
        *(f"mount -t tmpfs tmpfs {CACHE}/{shlex.quote(path)}" for path in process.fresh),
        *(f"mkdir -p {path}; mount -t tmpfs tmpfs {path}" for path in process.apart),
        f"exec {shlex.join(process.argv)}",
    ]
    return "\n".join(lines)


def start(place: Place, process: Process, log: Path) -> subprocess.Popen[str]:
    """Start PROCESS with pipes for its input and output; its errors go to the file LOG."""
    (process.scratch / "tmp").mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "HOME": HOME,
        "PYTHONPATH": place.path(process.tree),
        "TRITON_CACHE_DIR": str(process.scratch / "triton"),
        "TMPDIR": str(process.scratch / "tmp"),
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        **process.env,
    }
    stream = log.open("w", encoding="utf-8")
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script(place, process)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stream,
        text=True,
        env={name: value for name, value in environment.items() if value},
        start_new_session=True,
    )


def python(*arguments: str) -> list[str]:
    """Return the command that runs this Python on ARGUMENTS."""
    return [sys.executable, *arguments]


def sentinels(log: str) -> dict[str, list[str]]:
    """Return what LOG says of each switch, by name: ``enabled=true``, ``first_fire``, ``count=100``."""
    messages: dict[str, list[str]] = {}
    for line in log.splitlines():
        _, there, message = line.partition("nvllm.sentinel name=")
        if there:
            name, _, what = message.partition(" ")
            messages.setdefault(name, []).append(what.strip())
    return messages


def missed(log: str) -> list[str]:
    """Return the names of the kernels that LOG says were in no cache."""
    lines = (line.partition("nvllm.kernels miss ")[2] for line in log.splitlines())
    return [line.rpartition("name=")[2].strip() for line in lines if line]


def last_json(text: str) -> dict[str, object]:
    """Return the last line of TEXT that is a JSON object, or nothing."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                document: dict[str, object] = json.loads(line)
            except json.JSONDecodeError:
                continue
            return document
    return {}


def whole_json(text: str) -> dict[str, Any]:
    """Return TEXT, if it is a JSON object, or nothing."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}
