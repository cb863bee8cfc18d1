"""Releases of Triton: which are known, and what an image needs for each."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import replace

import pytest

from nvllm.core.lock import Lock
from nvllm.core.plan import ENGINE_ENVIRONMENT
from nvllm.kernels import kernellayer, releases, stubs
from nvllm.kernels.kernellayer import KernelCompiler
from support import kernel_samples, locks
from support.kernel_samples import PLATFORM, SITE


def lock(version: str) -> Lock:
    return kernel_samples.lock(locks.wheel("triton", version), locks.wheel("ziglang", "0"))


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("3.6.0", "3.6"),
        ("3.6.1", "3.6"),
        ("3.8.0", "3.8"),
        ("3.7.1", None),
        ("3.60.0", None),
        ("13.6.0", None),
        ("", None),
    ],
)
def test_a_release_is_known_by_the_first_two_numbers(version: str, release: str | None) -> None:
    found = releases.known(version)
    assert (None if found is None else found.version) == release


@pytest.mark.parametrize(
    ("version", "scripts", "variables"),
    [
        ("3.6.0", {"precompile.py", "triton_cache.py"}, {}),
        (
            "3.8.0",
            {"precompile.py", "precompile38.py", "triton_cache.py"},
            {"TRITON_LIBCUDA_PATH": "/usr/lib/x86_64-linux-gnu"},
        ),
        ("3.7.1", {"triton_cache.py"}, {}),  # of which an image without kernels has the manager
    ],
)
def test_what_an_image_of_a_release_is_made_from(version: str, scripts: set[str], variables: dict[str, str]) -> None:
    """What another release needs is no factor of it: the layers that were recorded stay."""
    assert kernellayer.rules(lock(version))["scripts"].keys() == scripts  # type: ignore[union-attr]  # a mapping
    assert kernellayer.environment(lock(version)) == {**kernellayer.ENVIRONMENT, **variables}
    assert not variables.keys() & ENGINE_ENVIRONMENT.keys()
    release = releases.known(version)
    headers = b"" if release is None else b"".join(path.read_bytes() for path in release.headers)
    assert stubs.rules(release)["header"] == hashlib.sha256(headers).hexdigest()


def test_the_variable_is_for_the_machine_of_the_image() -> None:
    arm = replace(lock("3.8.0"), platform="linux/arm64")
    assert kernellayer.environment(arm)["TRITON_LIBCUDA_PATH"] == "/usr/lib/aarch64-linux-gnu"


def test_triton_38_looks_for_its_module_under_where_it_would_be_compiled() -> None:
    """As `_get_cache_manager` in triton/runtime/build.py has it; tests/series/test_kernels.py asks Triton itself."""
    compiler = KernelCompiler(lock("3.8.0"), SITE, None)  # type: ignore[arg-type]  # nothing is asked of the store
    compiler.release = releases.of("3.8.0")
    nvidia, libcuda = f"/{SITE}/triton/backends/nvidia", "/usr/lib/x86_64-linux-gnu"
    config = {
        "language": ["c"],
        "library_dirs": [f"{nvidia}/lib", libcuda],
        "include_dirs": [f"{nvidia}/include"],
        "libraries": ["libcuda.so.1"],
    }
    expected = set()
    for linkage in ("64bit,", "64bit,ELF"):
        digest = hashlib.sha256(f"source{PLATFORM.machine},{platform.system()},{linkage}".encode())
        for name, values in config.items():
            digest.update(name.encode())
            for value in values:
                digest.update(value.encode())
                digest.update(b":")
        expected.add(stubs.base32(digest.hexdigest()))
    assert set(compiler.stub_keys("source")) == expected
