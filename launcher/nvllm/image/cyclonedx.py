"""The bill of materials of an image for scanners: CycloneDX 1.6 JSON, from the lock and the wheels in the store.

It says more than the small document inside the image (`sbom.py`): licenses, parts that wheels contain, the commit and
the patches of vLLM. Its time is the image's epoch, and its serial number follows from the build hash and from which
wheels were read, so the same build and store give the same bytes. Only this module imports cyclonedx.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, UUID, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Commit, Component, ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.model.issue import IssueClassification, IssueType
from cyclonedx.model.license import DisjunctiveLicense, License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from nvllm.core import canonical
from nvllm.core.canonical import Json
from nvllm.core.lock import LockedDebianBase, LockedRegistryBase, LockedWheel
from nvllm.image import purl
from nvllm.image.identity import Build
from nvllm.layers.wheelmetadata import BundledPart, WheelMetadata
from nvllm.patches import series

_LICENSES = LicenseFactory()


def document(build: Build, metadata: Mapping[str, WheelMetadata]) -> Json:
    """Return the bill of materials of BUILD. METADATA is that of the wheels that could be read, by name."""
    image = Component(
        name=f"nvllm-{build.spec.name}",
        version=build.build_hash,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        properties=[Property(name="nvllm:platform", value=build.lock.platform)],
    )
    components = [
        *_base(build),
        _source(build),
        *(_wheel(wheel, metadata.get(wheel.name)) for wheel in build.lock.wheels),
    ]
    known = sum(wheel.name in metadata for wheel in build.lock.wheels)
    bom = Bom(
        serial_number=_serial(build, metadata),
        metadata=BomMetaData(
            component=image,
            timestamp=datetime.fromtimestamp(build.lock.epoch, UTC),
            properties=[Property(name="nvllm:wheels-read", value=f"{known} of {len(build.lock.wheels)}")],
        ),
        components=components,
    )
    bom.register_dependency(image, components)
    return canonical.decode(JsonV1Dot6(bom).output_as_string().encode())


def _serial(build: Build, metadata: Mapping[str, WheelMetadata]) -> UUID:
    """Return the serial number: two documents that differ have different ones."""
    about: Json = {"build": build.build_hash, "read": sorted(metadata)}
    return uuid5(NAMESPACE_URL, f"urn:nvllm:cyclonedx:{canonical.digest('nvllm.cyclonedx/1', about)}")


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def _base(build: Build) -> Iterator[Component]:
    base = build.lock.base
    if isinstance(base, LockedRegistryBase):
        name, _, digest = base.image.partition("@sha256:")
        yield Component(
            name=name,
            version=f"sha256:{digest}",
            type=ComponentType.CONTAINER,
            bom_ref="base",
            hashes=[_sha256(digest)],
        )
    if isinstance(base, LockedDebianBase):
        for package in base.packages:
            yield Component(
                name=package.name,
                version=package.version,
                bom_ref=f"deb-{package.name}-{package.architecture}",
                purl=PackageURL.from_string(purl.of_deb(package, base)),
                hashes=[_sha256(package.file.sha256)],
            )


def _source(build: Build) -> Component:
    """Return the source of vLLM, with its commit, and the patches of BUILD as its pedigree."""
    pin, directory = build.lock.vllm, f"patches/{build.spec.patches.series}"
    return Component(
        name="vllm",
        version=pin.version,
        type=ComponentType.APPLICATION,
        bom_ref="source-vllm",
        purl=PackageURL.from_string(purl.of_source(pin, build.spec.vllm)),
        hashes=[_sha256(pin.source.sha256)],
        pedigree=Pedigree(
            commits=[Commit(uid=pin.commit)], patches=[_patch(patch, directory) for patch in build.patches]
        ),
        properties=[
            Property(name=f"nvllm:patch:{patch.id}", value=f"sha256:{patch.sha256}") for patch in build.patches
        ],
    )


def _patch(patch: series.Patch, directory: str) -> Patch:
    """Return PATCH, whose file lies in DIRECTORY of the project; what it resolves is its id, summary and upstream."""
    upstream = patch.upstream.reference
    repository, _, number = upstream.partition("#") if upstream is not None else ("", "", "")
    return Patch(
        type=PatchClassification.BACKPORT if patch.upstream.state == "merged" else PatchClassification.UNOFFICIAL,
        diff=Diff(url=XsUri(f"{directory}/{patch.file}")),
        resolves=[
            IssueType(
                type=IssueClassification.DEFECT,
                id=patch.id,
                description=patch.summary,
                references=[XsUri(f"https://github.com/{repository}/issues/{number}")] if upstream is not None else [],
            )
        ],
    )


def _wheel(wheel: LockedWheel, metadata: WheelMetadata | None) -> Component:
    """Return WHEEL; METADATA is None if it could not be read."""
    reference = f"wheel-{wheel.name}"
    return Component(
        name=wheel.name,
        version=wheel.version,
        bom_ref=reference,
        purl=PackageURL.from_string(purl.of_wheel(wheel)),
        hashes=[_sha256(wheel.file.sha256)],
        licenses=_licenses(metadata) if metadata is not None else (),
        components=[_part(part, reference) for part in metadata.parts] if metadata is not None else (),
        properties=[
            *(Property(name="nvllm:omitted", value=path) for path in wheel.omitted),
            *(Property(name="nvllm:sbom-unreadable", value=path) for path in (metadata.unreadable if metadata else ())),
        ],
    )


def _licenses(metadata: WheelMetadata) -> list[License]:
    if metadata.license is not None:
        return [_LICENSES.make_from_string(metadata.license)]
    return [DisjunctiveLicense(name=name) for name in metadata.licenses]


def _part(part: BundledPart, inside: str) -> Component:
    about: Json = [part.name, part.version, part.purl]
    try:
        purl = PackageURL.from_string(part.purl) if part.purl is not None else None
    except ValueError:  # the wheel's mistake; the name is still worth having
        purl = None
    unique = hashlib.sha256(canonical.encode(about)).hexdigest()[:12]
    return Component(name=part.name, version=part.version, bom_ref=f"{inside}/{unique}", purl=purl)
