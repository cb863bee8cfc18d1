"""The README's commands, for tests that type them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]

CARD = {"NV501", "NV504"}
"""How a host without a GPU and its container toolkit is refused."""

OF_THE_HOST = {"NV505", "NV507", "NV510"}
"""Memory, the port, and whether a container engine runs: the host's own affair."""


def commands(image: str) -> list[list[str]]:
    """Return what the README has typed after `nvllm` for IMAGE, in its order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^```\n(nvllm build {image} .*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = (line.partition("#")[0] for line in block.splitlines())
    return [shlex.split(one)[1:] for line in lines for one in line.split("&&")]


def project(place: Path) -> Path:
    """Lay out in PLACE the repository's project, whose locks may be written, and return it."""
    (place / "manifests").mkdir(parents=True)
    for name in ("images", "patches"):
        (place / name).symlink_to(ROOT / name)
    for lock in (ROOT / "manifests").glob("*.json"):
        shutil.copy(lock, place / "manifests")
    return place
