"""Waivers: the exceptions from the defaults that a profile may ask for, each by its name and with a reason.

A waiver is shown at every start and is part of the serve hash. What is not in this table cannot be waived.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TRUST_REMOTE_CODE = "trust-remote-code"
WITHOUT_KEY = "published-without-key"

WAIVERS: Mapping[str, str] = MappingProxyType(
    {
        "host-ipc": "The container shares the host's System V IPC and POSIX message queues.",
        "host-network": "The container uses the host's network; the engine may listen on every address of the host.",
        "no-seccomp": "No filter keeps system calls from the kernel: the container runs with seccomp=unconfined.",
        WITHOUT_KEY: "Whoever reaches the published address may ask the engine, and can keep others from it.",
        TRUST_REMOTE_CODE: "Python code that the model brings along is run inside the engine.",
        "writable-root": "The container's root file system can be written, so what runs may differ from the image.",
    }
)
"""Name of a waiver to what it allows, one line each."""
