"""GPUs for containers: a specification for the container device interface (CDI), and an OCI runtime that reads it.

NVIDIA's container toolkit is in no distribution's archive. What it writes for CDI is a page of JSON, and so is what its
runtime adds to a container for Docker's ``--gpus``: the device nodes, and the driver's directory, read-only. Docker and
Podman read the same page for a request by CDI. Needs Python alone.

As a program this file is that runtime: `python cdi.py SPECIFICATION BUNDLE` changes `BUNDLE/config.json`.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KIND = "nvidia.com/gpu"
REQUEST = "NVIDIA_VISIBLE_DEVICES="
"""The variable by which Docker says which GPUs a container gets."""

HOOK = "nvidia-container-runtime-hook"
"""What Docker starts for ``--gpus``, if it is on the PATH of the daemon; NVIDIA's runtime takes it out again."""


@dataclass(frozen=True, slots=True)
class Node:
    """A character device of the host."""

    path: str
    major: int
    minor: int

    @property
    def edit(self) -> dict[str, Any]:
        """What CDI says of it; everybody may use it, as on the host."""
        return {"path": self.path, "type": "c", "major": self.major, "minor": self.minor, "fileMode": 0o666}


def nodes(paths: Sequence[Path]) -> list[Node]:
    """Return the devices at PATHS, without what is no character device."""
    return [
        Node(str(path), os.major(status.st_rdev), os.minor(status.st_rdev))
        for path in paths
        if stat.S_ISCHR((status := path.stat()).st_mode)
    ]


def specification(
    gpus: Mapping[str, Node], shared: Sequence[Node], directories: Sequence[str], files: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the specification for GPUS, by uuid, that share the nodes SHARED and the driver's DIRECTORIES.

    FILES are further ones of the host that every container gets, by their path in it. Every GPU has its uuid for a
    name, and ``all`` names all of them.
    """
    named = {uuid: [node.edit] for uuid, node in gpus.items()}
    every = [node.edit for node in gpus.values()]
    mounts = [
        {"hostPath": source, "containerPath": path, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]}
        for path, source in {**{path: path for path in directories}, **(files or {})}.items()
    ]
    return {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": edits}} for name, edits in {**named, "all": every}.items()
        ],
        "containerEdits": {"deviceNodes": [node.edit for node in shared], "mounts": mounts},
    }


def with_gpus(config: Mapping[str, Any], cdi: Mapping[str, Any]) -> dict[str, Any]:
    """Return CONFIG, the OCI configuration of a container, with the GPUs that its variables name by those of CDI.

    Raises LookupError if it names a GPU that CDI does not have.
    """
    asked = [text.removeprefix(REQUEST) for text in config["process"].get("env") or () if text.startswith(REQUEST)]
    if not asked or asked[-1] in {"", "void", "none"}:
        return dict(config)
    devices = {device["name"]: device["containerEdits"] for device in cdi["devices"]}
    edits = [cdi["containerEdits"], *(devices[name] for name in asked[-1].split(","))]
    made = [node for edit in edits for node in edit.get("deviceNodes", ())]
    mounts = [mount for edit in edits for mount in edit.get("mounts", ())]
    linux, resources = config["linux"], config["linux"].get("resources") or {}
    allowed = [
        {"allow": True, "type": node["type"], "major": node["major"], "minor": node["minor"], "access": "rw"}
        for node in made
    ]
    hooks = dict(config.get("hooks") or {})
    hooks["prestart"] = [hook for hook in hooks.get("prestart") or () if Path(hook["path"]).name != HOOK]
    return {
        **config,
        "hooks": hooks,
        "mounts": [
            *(config.get("mounts") or ()),
            *(
                {
                    "destination": mount["containerPath"],
                    "source": mount["hostPath"],
                    "type": "bind",
                    "options": mount["options"],
                }
                for mount in mounts
            ),
        ],
        "linux": {
            **linux,
            "devices": [*(linux.get("devices") or ()), *made],
            "resources": {**resources, "devices": [*(resources.get("devices") or ()), *allowed]},
        },
    }


def main(file: Path, bundle: Path) -> None:
    config = bundle / "config.json"
    changed = with_gpus(json.loads(config.read_bytes()), json.loads(file.read_bytes()))
    config.write_text(json.dumps(changed), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
