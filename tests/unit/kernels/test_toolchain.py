"""What compiles kernels: which wheels a lock names for any host, and which of them this host takes."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace

import pytest

from nvllm.core.lock import LockedDeb, LockedDebianBase, LockedFile, LockedWheel, Offered
from nvllm.core.refusal import Refused
from nvllm.kernels import toolchain
from support import kernel_samples, locks

HERE = f"cp{sys.version_info.major}{sys.version_info.minor}"
TRITON = locks.wheel("triton", "3.6.0")


def named(name: str, tags: str) -> str:
    return f"{name}-1-{tags}.whl"


def tool(name: str, tags: str) -> LockedWheel:
    filename = named(name, tags)
    return LockedWheel(name, "1", LockedFile(filename, locks.sha(filename), 1, "pypi"))


def offers(*filenames: str) -> list[Offered]:
    return [Offered(name, locks.sha(name), f"url/{name}") for name in filenames]


def test_every_host_finds_its_wheels_in_the_lock() -> None:
    asked = []

    def offered(name: str, version: str) -> list[Offered]:
        asked.append((name, version))
        kinds = {
            "triton": ["cp310-cp310", "cp311-cp311", "cp312-cp312", "cp313-cp313t"],
            "ziglang": ["py3-none"],
        }[name]
        machines = ["manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "macosx_14_0_arm64", "win_amd64"]
        return offers(*(named(name, f"{kind}-{machine}") for kind in kinds for machine in machines))

    found = toolchain.resolve([TRITON], "sm120", offered, lambda url: len(url))
    assert asked == [("triton", "3.6.0"), ("ziglang", toolchain.ZIG_VERSION)]
    assert [one.file.filename for one in found] == [
        *(
            named("triton", f"cp{python}-cp{python}-manylinux_2_28_{machine}")
            for python in (311, 312)
            for machine in ("aarch64", "x86_64")
        ),
        named("ziglang", "py3-none-manylinux_2_28_aarch64"),
        named("ziglang", "py3-none-manylinux_2_28_x86_64"),
    ]
    assert {one.file.index for one in found} == {"pypi"}
    assert [one.file.size for one in found] == [len(f"url/{one.file.filename}") for one in found]


def test_this_host_takes_the_wheel_of_its_own_python_and_machine() -> None:
    mine, other = f"manylinux_2_28_{platform.machine()}", "manylinux_2_28_s390x"
    right = [tool("triton", f"{HERE}-{HERE}-{mine}"), tool("ziglang", f"py3-none-manylinux2010_x86_64.{mine}")]
    wrong = [
        tool("triton", f"cp39-cp39-{mine}"),
        tool("triton", f"{HERE}-{HERE}-{other}"),
        tool("ziglang", f"py3-none-{other}"),
    ]
    lock = kernel_samples.lock(TRITON, *wrong, *right)
    assert list(toolchain.for_host(lock)) == right
    assert toolchain.files(lock) == tuple(one.file for one in right)


DEB = LockedDeb("libc6", "1", "amd64", LockedFile("libc6.deb", locks.sha("libc6"), 1, "debian"))


@pytest.mark.parametrize(
    ("tags", "inside"),
    [
        (f"cp399-cp399-manylinux_2_28_{platform.machine()}", True),
        (f"cp398-cp398-manylinux_2_28_{platform.machine()}", False),
        ("cp399-cp399-manylinux_2_28_s390x", False),
    ],
)
def test_the_images_own_python_runs_triton_if_it_runs_here(tags: str, inside: bool) -> None:
    """Then nothing of the host is used: neither another wheel of Triton nor the host's libraries."""
    mine = f"manylinux_2_28_{platform.machine()}"
    of_image, of_host, zig = (
        tool("triton", tags),
        tool("triton", f"{HERE}-{HERE}-{mine}"),
        tool("ziglang", f"py3-none-{mine}"),
    )
    other = kernel_samples.lock(of_image, of_host, zig)
    assert not toolchain.runs_in_base(other)  # the base is an image of a registry, whose files are not here
    lock = replace(other, base=LockedDebianBase("debian", "trixie", "3.99", (DEB,)))
    assert toolchain.runs_in_base(lock) == inside
    assert toolchain.for_host(lock) == (of_image if inside else of_host, zig)
    inputs = [DEB.file, of_image.file, zig.file] if inside else [of_image.file, of_host.file, zig.file]
    assert list(toolchain.inputs(lock)) == inputs


def test_an_image_for_the_cpu_needs_no_tool() -> None:
    assert toolchain.files(kernel_samples.lock(TRITON)) == ()


def test_what_no_host_could_run_is_not_locked() -> None:
    with pytest.raises(Refused, match="NV311"):
        toolchain.resolve(
            [TRITON], "sm120", lambda name, version: offers(named(name, "py3-none-win_amd64"), "odd.whl"), len
        )
