"""Triton's cache in an image: the kernels of the image, read-only, below what the engine compiles itself.

Triton makes one of these for each key, in every process (``TRITON_CACHE_MANAGER=nvllm_triton_cache:LayeredCache``).
What the image holds is found below `BASE`. What it lacks is looked for, and kept, where ``TRITON_CACHE_DIR`` says.
What neither holds is a miss: something is about to be compiled. Each miss is one line on standard error, by which
the launcher counts them, and what was compiled is another one, which says for which arguments.

In a blessed serve nothing may be kept where ``TRITON_CACHE_DIR`` says, in the blessed cache. What is missing there is
kept in `SCRATCH` and lost with the container; or, if the profile says so, the miss raises. That ends the engine: vLLM
ends for every error in a step, because a step answers many requests.

The paths that a group file records are those of the machine that compiled, and are not followed: a child is a
plain name beside its group file.
"""

import base64
import functools
import importlib
import inspect
import json
import os
import sys
from typing import Any

import triton.knobs
import triton.runtime.cache
from triton.runtime.cache import FileCacheManager

BASE = "/opt/nvllm/triton"
KEY = "triton.json"
"""Below `BASE`: what Triton takes into every key of its own files and of ptxas, and the size of its library."""
SCRATCH = "/tmp/nvllm-kernels"  # noqa: S108 - inside the container, a tmpfs of its own
"""Where a blessed serve keeps what it compiled."""
EXPECTATIONS = "/run/nvllm/launch.json"
"""What the launcher tells the gate. Files reach every process of an engine; vLLM strips variables from some."""
STEP = "scheduler_output"
"""The variable of vLLM's functions of a step that says what it computes (tests/series/test_step.py)."""
MOST_REQUESTS = 16
"""Of how many requests of a step the ids are told: a line of a log has a length, and a step may have a thousand."""


class CompileRefusedError(RuntimeError):
    """Something would have to be compiled in a blessed serve that compiles nothing."""


@functools.cache
def blessed() -> bool:
    """Say whether this is a blessed serve: one whose launcher names a cache of compiled code."""
    return _cache() is not None


@functools.cache
def refusing() -> bool:
    """Say whether this is a blessed serve that ends rather than compile something."""
    cache = _cache()
    return cache is not None and cache.get("missing") != "report"


def _cache() -> dict[str, Any] | None:
    try:
        with open(EXPECTATIONS, encoding="utf-8") as stream:
            cache: dict[str, Any] | None = json.load(stream)["cache"]
            return cache
    except FileNotFoundError:  # an image that somebody runs without the launcher
        return None


def know_key() -> None:
    """Spare Triton the hash over its own files, 400 MB, and a run of ptxas, before the first launch of each process.

    Both decide keys, and both are of the image, whose files are known by hash. The size is compared in case somebody
    put another Triton there; who names another ptxas is asked for its version.
    """
    try:
        with open(os.path.join(BASE, KEY), encoding="utf-8") as stream:
            known = json.load(stream)
    except FileNotFoundError:
        return
    library = os.path.join(os.path.dirname(triton.__file__), "_C", "libtriton.so")
    if os.stat(library).st_size != known["library_size"]:
        return
    triton.runtime.cache.triton_key = lambda: known["key"]
    if not os.environ.keys() & {"TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH", "TRITON_MOCK_PTX_VERSION"}:
        compiler: Any = importlib.import_module("triton.backends.nvidia.compiler")
        versions = known["ptxas"]
        compiler.get_ptxas_version = lambda arch=80: versions["ptxas-blackwell" if arch >= 100 else "ptxas"]


def plain(name: str) -> bool:
    """Say whether NAME is that of a file beside the one that says it, and no path."""
    return name not in {"", ".", ".."} and not set(name) & {"/", "\0"}


class LayeredCache(FileCacheManager):  # type: ignore[misc]
    """What is cached under one KEY."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:  # noqa: FBT001, FBT002 - Triton's
        self._below: tuple[str, ...] = ()
        if override or dump:  # directories for debugging; they are no cache
            super().__init__(key, override, dump)
            return
        own = os.environ.get("TRITON_CACHE_DIR")
        if not own:
            raise RuntimeError("TRITON_CACHE_DIR is not set: there is no place for what is compiled")
        *below, last = (BASE, own, SCRATCH) if blessed() else (BASE, own)
        self._below = tuple(os.path.join(directory, key) for directory in below)
        # Made when something is put there: where all is found nothing is written, not even a directory.
        self.key, self.cache_dir = key, os.path.join(last, key)
        self.lock_path = os.path.join(self.cache_dir, "lock")

    def has_file(self, filename: str) -> bool:
        """Say whether FILENAME is cached."""
        return self._find(filename) is not None

    def get_file(self, filename: str) -> str | None:
        """Return where FILENAME is cached. Returns None, or raises CompileRefusedError, for a miss."""
        path = self._find(filename)
        if path is None:
            self._miss(filename)
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the files of the group FILENAME, by name: all of them, or none and it is a miss."""
        group = self._find(f"__grp__{filename}")
        children = self._children(group) if group is not None else None
        if children is None:
            self._miss(filename)
        return children

    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:  # noqa: FBT001, FBT002 - Triton's
        """Keep DATA as FILENAME, never in the image or a blessed cache. Raises CompileRefusedError if `refusing`."""
        if self.lock_path is not None:
            if refusing():
                raise CompileRefusedError(_refusal(self.key, filename))
            os.makedirs(self.cache_dir, exist_ok=True)
        return str(super().put(data, filename, binary))

    def _find(self, filename: str) -> str | None:
        for directory in (*self._below, self.cache_dir):
            path = os.path.join(directory, filename) if plain(filename) else ""
            if os.path.isfile(path):
                return path
        return None

    def _children(self, group: str) -> dict[str, str] | None:
        """Return the files that the GROUP file names, beside it; None unless all are there."""
        with open(group, encoding="utf-8") as stream:
            names = json.load(stream).get("child_paths") or {}
        directory = os.path.dirname(group)
        children = {name: os.path.join(directory, name) for name in names if plain(name)}
        whole = len(children) == len(names) > 0 and all(os.path.isfile(path) for path in children.values())
        return children if whole else None

    def _miss(self, filename: str) -> None:
        if self.lock_path is None:
            return
        print(f"nvllm.kernels miss key={self.key} name={filename}", file=sys.stderr, flush=True)
        if refusing():
            raise CompileRefusedError(_refusal(self.key, filename))


def tell(*, src: Any, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
    """Say which arguments SRC was compiled for and whose requests waited: Triton's compilation listener.

    What was in a cache is passed over.
    """
    if cache_hit:
        return
    key = base64.b32encode(bytes.fromhex(metadata["hash"])).decode().rstrip("=")
    about = {"key": key, "name": src.name, "arguments": arguments(src), "requests": requests()}
    print("nvllm.kernels compiled", json.dumps(about, sort_keys=True), file=sys.stderr, flush=True)


def arguments(src: Any) -> str:
    """Return for which arguments SRC is compiled: a value, or a type and the attributes that Triton takes for given."""
    parts = []
    for index, (name, kind) in enumerate(src.signature.items()):
        given = "".join(f" {attribute}={value}" for attribute, value in src.attrs.get((index,), ()))
        parts.append(f"{name}: {src.constants.get((index,), f'{kind}{given}')}")
    return ", ".join(parts)[:1000]


def requests() -> list[str]:
    """Return the ids of the requests in the step that is being computed, `MOST_REQUESTS` at most; none in no step.

    Triton tells its listener nothing of the engine. But it compiles in the thread that launches, so vLLM's own call
    for the step is further down on the stack.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if STEP in frame.f_locals:
            try:
                return [str(name) for name in frame.f_locals[STEP].num_scheduled_tokens][:MOST_REQUESTS]
            except (AttributeError, TypeError):  # not vLLM's: a report must not end the engine
                return []
        frame = frame.f_back
    return []


def _refusal(key: str, filename: str) -> str:
    return (
        f"nvllm.kernels: {filename} (key {key}) is neither in the image nor in the blessed cache, and a blessed serve "
        "compiles nothing; add what is missing: nvllm bless IMAGE --profile PROFILE --extend"
    )


know_key()
if triton.knobs.compilation.listener is None:
    triton.knobs.compilation.listener = tell
