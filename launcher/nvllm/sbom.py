"""The software bill of materials of an image: SPDX 2.3 JSON, from the lock alone.

Nothing in it is random or of the day: the namespace holds the build hash, the time is the image's epoch.
"""

from __future__ import annotations

from nvllm import image
from nvllm.canonical import Json
from nvllm.identity import Build
from nvllm.lock import LockedDebianBase, LockedFile


def document(build: Build) -> dict[str, Json]:
    """Return the SPDX document of BUILD."""
    lock = build.lock
    packages: list[Json] = [
        _package("vllm-source", lock.vllm.version, lock.vllm.source, f"pkg:pypi/vllm@{lock.vllm.version}"),
        *(
            _package(f"wheel-{w.name}", w.version, w.file, f"pkg:pypi/{w.name}@{w.version.replace('+', '%2B')}")
            for w in lock.wheels
        ),
    ]
    if isinstance(lock.base, LockedDebianBase):
        packages.extend(
            _package(f"deb-{p.name}", p.version, p.file, f"pkg:deb/debian/{p.name}@{p.version}?arch={p.architecture}")
            for p in lock.base.packages
        )
    packages.extend(
        {
            "SPDXID": f"SPDXRef-patch-{patch.id}",
            "name": patch.id,
            "downloadLocation": "NOASSERTION",
            "comment": patch.summary,
            "checksums": [{"algorithm": "SHA256", "checksumValue": patch.sha256 or ""}],
        }
        for patch in build.patches
    )
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"nvllm-{build.spec.name}",
        "documentNamespace": f"urn:nvllm:build:{build.build_hash}",
        "creationInfo": {"created": image.timestamp(lock.epoch), "creators": ["Tool: nvllm"]},
        "packages": packages,
    }


def _package(identifier: str, version: str, file: LockedFile, purl: str) -> Json:
    return {
        "SPDXID": "SPDXRef-" + "".join(c if c.isalnum() or c in ".-" else "-" for c in identifier),
        "name": identifier.partition("-")[2],
        "versionInfo": version,
        "packageFileName": file.filename,
        "downloadLocation": "NOASSERTION",
        "checksums": [{"algorithm": "SHA256", "checksumValue": file.sha256}],
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
    }
