"""Bytecode files as lines of their source with the instructions below, by a Python of the same version on this host."""

from __future__ import annotations

import base64
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import cast

from nvllm import runtime
from nvllm.core import canonical, proc

_SCRIPT = Path(runtime.__file__).with_name("disassemble.py")
_TIMEOUT = 60.0


def disassembled(bytecode: bytes, source: bytes) -> list[str] | str:
    """Return BYTECODE, compiled from SOURCE, as lines; or, as text, why that cannot be done here."""
    if bytecode[:4] != importlib.util.MAGIC_NUMBER:
        return f"bytecode of another Python than {sys.version_info.major}.{sys.version_info.minor}, which runs nvllm"
    job = {
        "bytecode": base64.b64encode(bytecode).decode(),
        "source": source.decode("utf-8", "replace").splitlines(),
    }
    argv = [sys.executable, "-S", "-s", "-P", "-B", str(_SCRIPT)]
    # A fixed hash seed: it decides in which order the members of a constant set are shown.
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PATH": "/"}
    try:
        done = proc.run(argv, env=environment, timeout=_TIMEOUT, stdin=json.dumps(job).encode())
    except subprocess.TimeoutExpired:
        return f"not disassembled within {_TIMEOUT:.0f} s"
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"not code that can be disassembled: {said or f'exit status {done.returncode}'}"
    return cast("list[str]", canonical.decode(done.stdout))
