"""The extras of nvllm: Python packages that only some commands need, and the command that installs them."""

from __future__ import annotations

import shlex
import sys
from importlib import metadata, util

from packaging.requirements import Requirement


def packages(extra: str) -> list[str]:
    """Return what EXTRA brings, as requirements: ``ray[client]>=2.52``. Empty if nvllm itself is not installed."""
    try:
        declared = metadata.requires("nvllm") or []
    except metadata.PackageNotFoundError:
        return []
    requirements = []
    for requirement in map(Requirement, declared):
        marker = requirement.marker
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            requirement.marker = None
            requirements.append(str(requirement))
    return requirements


def installing(extra: str) -> str:
    """Return the command that installs EXTRA for the Python that runs this nvllm.

    It names the packages: ``nvllm[ray]`` would have an index asked for nvllm, which is on none, and the ``pip`` on the
    PATH may be another Python's. A Python that ``uv tool`` made has no pip, and nvllm brings uv.
    """
    pip = ["pip", "install"] if util.find_spec("pip") else ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([sys.executable, "-m", *pip, *(packages(extra) or [f"nvllm[{extra}]"])])
