"""The software bill of materials of an image: SPDX 2.3 JSON, from the lock alone.

It is deterministic: the namespace holds the build hash, the time is the image's epoch. It holds only what the build
hash covers, so no patch summaries, no file names and not the order of the lock: one build hash is one image.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from nvllm.core import clock
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedDebianBase, LockedRegistryBase
from nvllm.image.identity import Build


def document(build: Build) -> dict[str, Json]:
    """Return the SPDX document of BUILD."""
    lock = build.lock
    packages = {
        "source-vllm": _package("vllm", lock.vllm.version, lock.vllm.source.sha256, "pypi/vllm"),
        **{f"wheel-{w.name}": _package(w.name, w.version, w.file.sha256, f"pypi/{w.name}") for w in lock.wheels},
        **{f"patch-{patch.id}": _package(patch.id, None, patch.sha256 or "", None) for patch in build.patches},
    }
    if isinstance(lock.base, LockedRegistryBase):
        name, _, digest = lock.base.image.partition("@sha256:")
        packages["base"] = _package(name, None, digest, None)
    if isinstance(lock.base, LockedDebianBase):
        for p in lock.base.packages:
            purl_path = f"deb/debian/{p.name}"
            packages[f"deb-{p.name}-{p.architecture}"] = _package(
                p.name, p.version, p.file.sha256, purl_path, f"?arch={p.architecture}"
            )
    listed = {_identifier(name): package for name, package in sorted(packages.items())}
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"nvllm-{build.spec.name}",
        "documentNamespace": f"urn:nvllm:build:{build.build_hash}",
        "creationInfo": {"created": clock.stamp(lock.epoch), "creators": ["Tool: nvllm"]},
        "documentDescribes": list(listed),
        "packages": [{"SPDXID": identifier, **package} for identifier, package in listed.items()],
    }


def _identifier(name: str) -> str:
    """Return the SPDX id for NAME: letters, digits, dots and hyphens only, and unique for each name."""
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9-]", lambda other: f".{ord(other[0]):x}.", name)


def _package(
    name: str, version: str | None, sha256: str, purl_path: str | None, qualifier: str = ""
) -> dict[str, Json]:
    """Return a package of the document. PURL_PATH is type, namespace and name of its package URL, if it has one."""
    package: dict[str, Json] = {
        "name": name,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "checksums": [{"algorithm": "SHA256", "checksumValue": sha256}],
    }
    if version is not None:
        package["versionInfo"] = version
    if purl_path is not None and version is not None:
        purl = f"pkg:{quote(purl_path)}@{quote(version, safe='')}{qualifier}"
        package["externalRefs"] = [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}
        ]
    return package
