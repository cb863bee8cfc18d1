"""What a wheel says of itself: licenses of every form, and bills of materials, also those that are none."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nvllm.core.refusal import Refused
from nvllm.layers import wheelmetadata
from nvllm.layers.wheelmetadata import BundledPart, WheelMetadata


def wheel(directory: Path, metadata: str, sboms: dict[str, Any] | None = None) -> Path:
    """Write the wheel of demo 1.0 with METADATA and the documents SBOMS below its sboms/."""
    path = directory / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "demo-1.0.dist-info/METADATA", f"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\n{metadata}\n"
        )
        for name, document in (sboms or {}).items():
            text = document if isinstance(document, str) else json.dumps(document)
            archive.writestr(f"demo-1.0.dist-info/sboms/{name}", text)
    return path


def read(path: Path) -> WheelMetadata:
    return wheelmetadata.read(path, path.name)


@pytest.mark.parametrize(
    ("metadata", "expression", "names"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: other", "MIT OR Apache-2.0", ()),
        ("License: BSD", "BSD", ()),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", None, ("MIT License",)),
        ("License: The whole\n  text\nClassifier: License :: Other", None, ("Other",)),
        (f"License: {101 * 'x'}", None, ()),
        ("", None, ()),
    ],
)
def test_licenses(tmp_path: Path, metadata: str, expression: str | None, names: tuple[str, ...]) -> None:
    found = read(wheel(tmp_path, metadata))
    assert (found.license, found.licenses, found.parts, found.unreadable) == (expression, names, (), ())


def test_parts_of_both_forms_each_once_and_without_the_wheel_itself(tmp_path: Path) -> None:
    gomp = {"name": "libgomp", "version": "4.8", "purl": "pkg:rpm/centos/libgomp@4.8"}
    own = {"name": "demo", "version": "1.0", "purl": "pkg:pypi/demo@1.0"}
    reference = {"referenceType": "purl", "referenceLocator": "pkg:cargo/log@1"}
    package = {"name": "log", "versionInfo": "1", "externalRefs": [reference]}
    found = read(
        wheel(
            tmp_path,
            "",
            {
                "auditwheel.cdx.json": {"bomFormat": "CycloneDX", "components": [own, gomp, {"name": "bare"}]},
                "other.cdx.json": {"bomFormat": "CycloneDX", "components": [gomp]},
                "rust.spdx.json": {"spdxVersion": "SPDX-2.3", "packages": [package]},
            },
        )
    )
    assert found.parts == (
        BundledPart("libgomp", "4.8", "pkg:rpm/centos/libgomp@4.8"),
        BundledPart("bare", None, None),
        BundledPart("log", "1", "pkg:cargo/log@1"),
    )


@pytest.mark.parametrize(
    "document",
    ["{", "[]", "<bom/>", {},
     {"bomFormat": "CycloneDX", "components": [{}]}, {"bomFormat": "CycloneDX", "components": 3},
     {"bomFormat": "CycloneDX", "components": [{"name": "a", "version": 3}]}, {"spdxVersion": "SPDX-3.0"}],
)  # fmt: skip
def test_a_document_that_is_not_read_is_named(tmp_path: Path, document: Any) -> None:
    found = read(wheel(tmp_path, "", {"odd.json": document}))
    assert (found.parts, found.unreadable) == ((), ("demo-1.0.dist-info/sboms/odd.json",))


def test_a_wheel_that_is_damaged_or_has_no_metadata_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "demo-1.0-py3-none-any.whl"
    for damage in ("torn", "bare"):
        if damage == "torn":
            place.write_bytes(b"PK\x03\x04")
        else:
            with zipfile.ZipFile(place, "w") as archive:
                archive.writestr("demo.py", "")
        with pytest.raises(Refused) as caught:
            read(place)
        assert [one.code for one in caught.value.refusals] == ["NV306"]
