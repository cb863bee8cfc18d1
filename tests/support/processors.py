"""Which class of processor the tests run on: by the kernels that torch and vLLM choose, their speed apart."""

from __future__ import annotations

import platform
from collections.abc import Set
from pathlib import Path

CLASSES = ("amx", "avx512_bf16", "avx512", "avx2", "arm64")
"""The classes that are told apart, the one with the most instructions first; a processor is of the first that fits."""

_FLAGS = {"amx": "amx_tile", "avx512_bf16": "avx512_bf16", "avx512": "avx512f", "avx2": "avx2"}


def of(machine: str, flags: Set[str]) -> str:
    """Return the class of a processor of MACHINE with FLAGS, as Linux names both; MACHINE itself if it is of none."""
    if machine == "x86_64":
        return next((name for name, flag in _FLAGS.items() if flag in flags), machine)
    return {"aarch64": "arm64"}.get(machine, machine)


def here() -> str:
    """Return the class of this host's processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return of(platform.machine(), {*flags.split()})


def summary() -> str:
    """Return the line that every run of the tests prints."""
    found = here()
    others = ", ".join(name for name in CLASSES if name != found)
    return f"processor: {found}; nothing was run on {others} (docs/machines.md says what ever was)"
