"""Package URLs of what an image is made from, as scanners and provenance name it.

The library that makes them comes with the extra `sbom` alone, and provenance needs no extra.
"""

from __future__ import annotations

from urllib.parse import quote

from nvllm.core.lock import LockedDeb, LockedDebianBase, LockedVllm, LockedWheel
from nvllm.core.spec import VllmPin


def of_wheel(wheel: LockedWheel) -> str:
    """Return the package URL of WHEEL: the distribution, whichever index has it."""
    return f"pkg:pypi/{quote(wheel.name)}@{_version(wheel.version)}?file_name={quote(wheel.file.filename, safe='')}"


def of_deb(package: LockedDeb, base: LockedDebianBase) -> str:
    """Return the package URL of PACKAGE of BASE."""
    qualifiers = f"arch={package.architecture}&distro={quote(base.suite)}"
    return f"pkg:deb/debian/{quote(package.name)}@{_version(package.version)}?{qualifiers}"


def of_source(locked: LockedVllm, pin: VllmPin) -> str:
    """Return the package URL of the source of LOCKED, which PIN pins: a release's archive, or a commit's."""
    if locked.compiled:
        return f"pkg:github/{repository(pin)}@{locked.commit}"
    return f"pkg:pypi/vllm@{_version(locked.version)}?file_name={quote(locked.source.filename, safe='')}"


def repository(pin: VllmPin) -> str:
    """Return the repository of PIN as owner/name: vLLM's own, unless the spec names another."""
    return pin.source.repository if pin.source is not None else "vllm-project/vllm"


def _version(text: str) -> str:
    return quote(text, safe=":")
