"""Provenance: in-toto's own classes accept it, SLSA's rules hold, and every locked file is in it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement

from nvllm import __version__
from nvllm.core.extensions import NativeBuild
from nvllm.core.lock import LockedFile, LockedNative, LockedRegistryBase
from nvllm.core.paths import Places, Project
from nvllm.image import buildrecord, digests, identity, provenance
from nvllm.image.buildrecord import Record, RecordedLayer
from nvllm.image.digests import BuildDigests, Digests, LayerDigest
from nvllm.image.identity import Build
from nvllm.spec import specfile
from support import locks
from support.specs import GOOD, SHOWN

ROOT = Path(__file__).parents[3]
LOCKED = (("cpu", "linux/amd64"), ("sm120", "linux/amd64"), ("sm120", "linux/arm64"), ("sm120-v033", "linux/amd64"))
BUILD = Build(specfile.parse(GOOD, SHOWN), locks.GOOD, (locks.patch("guard"),))
IMAGE, MANIFEST, LAYER = (f"sha256:{64 * digit}" for digit in "abc")
BUILT = BuildDigests(BUILD.build_hash, (LayerDigest("base", LAYER, 1),), IMAGE, MANIFEST)
_URI = re.compile(r"[a-z][a-z0-9+.-]*:\S+")


def checked(build: Build = BUILD, built: BuildDigests = BUILT) -> Any:
    """Return the statement, after holding it against in-toto's classes and the rules of SLSA v1."""
    made: Any = provenance.statement(build, built)
    parsed = json_format.ParseDict(made, statement_pb2.Statement())  # refuses an unknown field
    Statement.copy_from_pb(parsed).validate()
    predicate = json_format.ParseDict(made["predicate"], provenance_pb2.Provenance())
    definition, run = predicate.build_definition, predicate.run_details
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    # Required: buildType and builder.id are URIs; externalParameters is not empty.
    assert all(_URI.fullmatch(uri) for uri in (definition.build_type, run.builder.id, run.metadata.invocation_id))
    assert len(definition.external_parameters) > 0
    for one in definition.resolved_dependencies:
        ResourceDescriptor.copy_from_pb(one).validate()
        assert one.uri == "" or _URI.fullmatch(one.uri)
        algorithm, value = next(iter(one.digest.items()), ("sha256", 64 * "0"))
        assert re.fullmatch({"sha256": "[0-9a-f]{64}", "gitCommit": "[0-9a-f]{40}"}[algorithm], value)
    for subject in made["subject"]:
        assert re.fullmatch("[0-9a-f]{64}", subject["digest"]["sha256"])
    return made


def test_the_classes_of_in_toto_can_refuse() -> None:
    with pytest.raises(json_format.ParseError):
        json_format.ParseDict({**checked(), "subjects": []}, statement_pb2.Statement())
    with pytest.raises(ValueError, match="At least one subject"):
        checked(built=replace(BUILT, image_id=None, manifest=None))


def test_the_beginning_of_a_commit_is_no_digest() -> None:
    pin = replace(BUILD.spec.vllm, commit=BUILD.spec.vllm.commit[:9])
    for build, digest in (
        (BUILD, {"gitCommit": BUILD.spec.vllm.commit}),
        (replace(BUILD, spec=replace(BUILD.spec, vllm=pin)), None),
    ):
        first, source, *_ = checked(build)["predicate"]["buildDefinition"]["resolvedDependencies"]
        assert (first["uri"].endswith(f"@{build.spec.vllm.commit}"), first.get("digest")) == (True, digest)
        assert "sha256" in source["digest"]


def test_the_image_is_named_by_its_manifest_and_its_id() -> None:
    tag = f"nvllm:{BUILD.spec.name}-{BUILD.build_hash[:12]}"
    assert checked()["subject"] == [
        {"name": tag, "digest": {"sha256": 64 * "b"}},
        {"name": f"{tag} image id", "digest": {"sha256": 64 * "a"}},
    ]
    assert [one["name"] for one in checked(built=replace(BUILT, manifest=None))["subject"]] == [f"{tag} image id"]


def test_every_file_and_patch_is_a_dependency_and_the_commit_too() -> None:
    found = checked()["predicate"]["buildDefinition"]["resolvedDependencies"]
    sums = [one["digest"]["sha256"] for one in found if "sha256" in one["digest"]]
    assert sorted(sums) == sorted([*(one.sha256 for one in locks.GOOD.files), locks.sha("guard")])
    assert found[0]["digest"] == {"gitCommit": locks.COMMIT}


def test_parameters_and_builder() -> None:
    predicate = checked()["predicate"]
    definition = predicate["buildDefinition"]
    name = BUILD.spec.name
    assert definition["externalParameters"] == {"image": name, "platform": "linux/amd64", "patches": ["guard"]}
    assert definition["internalParameters"]["rules"] == BUILD.factors["rules"]
    assert predicate["runDetails"]["builder"] == {"id": "urn:nvllm:builder", "version": {"nvllm": __version__}}
    assert predicate["runDetails"]["metadata"] == {"invocationId": f"urn:nvllm:build:{BUILD.build_hash}"}


def test_a_base_of_a_registry_is_a_dependency() -> None:
    base = LockedRegistryBase("registry", "3.11", f"host/cuda@sha256:{64 * 'd'}", "/usr/bin/python3.11")
    found = checked(replace(BUILD, lock=replace(locks.GOOD, base=base)))
    assert {"sha256": 64 * "d"} in [
        one["digest"] for one in found["predicate"]["buildDefinition"]["resolvedDependencies"]
    ]


def test_what_compiles_extensions_is_a_dependency_of_a_set_that_is_compiled() -> None:
    native = LockedNative("cpu", (), {"ONEDNN": LockedFile("pool/onednn.tar.xz", 64 * "9", 7, "debian")})
    patch = replace(locks.patch("kernel"), touches=("csrc/cpu/layernorm.cpp",))
    how = NativeBuild("cpu", ("_C",), ("cmake==4.4.4",))
    build = replace(
        BUILD,
        spec=replace(BUILD.spec, vllm=replace(BUILD.spec.vllm, native=how)),
        lock=replace(BUILD.lock, vllm=replace(BUILD.lock.vllm, native=native)),
        patches=(patch,),
    )
    names = [entry["name"] for entry in checked(build)["predicate"]["buildDefinition"]["resolvedDependencies"]]
    assert "onednn.tar.xz" in names


@pytest.mark.parametrize(("image", "platform"), LOCKED)
def test_the_statements_of_the_projects_images(image: str, platform: str) -> None:
    build, _ = identity.load_build(Project(ROOT, platform), image, None)
    found = checked(build)["predicate"]["buildDefinition"]["resolvedDependencies"]
    lock = build.lock
    assert len(found) == 1 + len(lock.files) + len(lock.tools) + len(build.patches)


def world(tmp_path: Path) -> tuple[Project, Places]:
    (tmp_path / "manifests").mkdir()
    return Project(tmp_path), Places(tmp_path / "cache", tmp_path / "state")


def test_the_record_of_the_project_comes_first_then_that_of_the_host(tmp_path: Path) -> None:
    project, places = world(tmp_path)
    layers = (RecordedLayer("base", LAYER, 1),)
    buildrecord.write(places.builds, Record("demo", BUILD.build_hash, f"sha256:{64 * 'e'}", layers, None, "built"))
    assert provenance.built_digests(project, places, BUILD).image_id == f"sha256:{64 * 'e'}"
    path = project.digests(BUILD.spec.name)
    digests.write(path, Digests(digests.SCHEMA, BUILD.spec.name, {"linux/amd64": BUILT}))
    assert provenance.built_digests(project, places, BUILD) == BUILT
    digests.write(path, Digests(digests.SCHEMA, BUILD.spec.name, {"linux/amd64": replace(BUILT, build_hash=64 * "0")}))
    assert provenance.built_digests(project, places, BUILD).image_id == f"sha256:{64 * 'e'}"
